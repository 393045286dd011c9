"""Settings of a context: config keys, targets, and checks of all settings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from onnxopt.arguments import all_in, check_whole, kind, names_in
from onnxopt.errors import UsageError, nearest
from onnxopt.pipeline.base import check_level, fields_of
from onnxopt.pipeline.records import Instrument
from onnxopt.pipeline.registry import all_passes, check_names, check_rules, current_name, defined_passes, get_pass

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass
    from onnxopt.pipeline.context import PassContext


# -- config keys --------------------------------------------------------------------------------------------------


class ConfigKey(NamedTuple):
    """A setting read by passes as `ctx[KEY]`. Its name is written with dashes; underscores are accepted."""

    name: str
    type: type | UnionType
    default: Any
    help: str


DECLARED: dict[str, ConfigKey] = {}


def declare_config(name: str, type: type | UnionType, default: Any, help: str) -> ConfigKey:
    """Declare `name` as a key of a PassContext's config with values of `type`: a class, or a union (`int | None`).

    Raises ValueError for an invalid or taken name (also by a pass option), TypeError for a `default` of another type.
    """
    written = str(name).replace("_", "-")
    if not isinstance(name, str) or not all(
        part.isascii() and part.isalnum() for part in written.replace(".", "-").split("-")
    ):
        raise ValueError(f"a config key cannot be named {name!r}: letters, digits and dashes, with dots: npu.tile-size")
    if not _is_type(type):
        raise TypeError(f"config key {written}: {type!r} is no type: a class, or several: int | None")
    if not fits(default, type):
        raise TypeError(f"config key {written}: the default {default!r} is not of type {type_name(type)}")
    if written in DECLARED or written in _options_called(written):
        raise ValueError(f"a config key named {written!r} exists already")
    key = DECLARED[written] = ConfigKey(written, type, default, str(help))
    return key


def refuse_declared(cls: type[Pass]) -> None:
    """Raise ValueError if an option of a pass equals a declared key."""
    name = cls.info.name
    for key in [key for key in DECLARED if key.startswith(f"{name}.")]:
        if key in options_by_key(cls):
            raise ValueError(f"pass {name}: a config key named {key!r} is declared already")


def declared(name: str) -> ConfigKey:
    """Return the key of this name. Raises UsageError with the nearest names."""
    return DECLARED.get(name) or _known(config_keys(plugins=False), name)


def config_keys(*, plugins: bool = True) -> dict[str, ConfigKey]:
    """Return every key by name: declared keys, and `PASS.OPTION` for each option of a registered pass.

    Without `plugins` only loaded passes count.
    """
    keys = dict(DECLARED)
    for cls in all_passes(plugins=plugins).values():
        for key, f in options_by_key(cls).items():
            keys[key] = ConfigKey(key, type_of(f.default), f.default, str(f.metadata.get("help", "")))
    return keys


def options_by_key(cls: type[Pass]) -> dict[str, dataclasses.Field[Any]]:
    """Return the options of a pass by config key."""
    return {f"{cls.info.name}.{f.name.replace('_', '-')}": f for f in options_of(cls)}


def _options_called(key: str) -> Collection[str]:
    """Return the option keys of the pass named by the first part of `key`; empty if there is none."""
    from onnxopt.pipeline.registry import is_registered

    name = key.partition(".")[0]
    return options_by_key(get_pass(name)) if is_registered(name) else ()


def options_of(cls: type[Pass]) -> list[dataclasses.Field[Any]]:
    """Return the option fields of a pass: all but child passes and fields describing a composite."""
    fixed = getattr(cls, "recipe", None) is not None
    return [f for f in fields_of(cls) if f.name != "passes" and not fixed and not f.metadata.get("own")]


def type_of(default: Any) -> type:
    return object if default is None else type(default)


def type_name(kind: type | UnionType) -> str:
    return str(kind) if isinstance(kind, UnionType) else kind.__name__


def _is_type(kind: Any) -> bool:
    return isinstance(kind, type) or (isinstance(kind, UnionType) and all(isinstance(k, type) for k in get_args(kind)))


def fits(value: Any, kind: type | UnionType) -> bool:
    """Whether `value` has type `kind`. An int is accepted as float; a bool is no int."""
    if isinstance(kind, UnionType):
        return any(fits(value, k) for k in get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with normalized keys. Raises UsageError with the nearest keys, or the expected type."""
    if not config:
        return {}
    keys, checked = config_keys(plugins=False), {}
    for name, value in config.items():
        key = _known(keys, name)
        if not fits(value, key.type):
            raise UsageError(f"{key.name} is {value!r}, not of type {type_name(key.type)}", key.help)
        checked[key.name] = value
    return checked


def _known(keys: Mapping[str, ConfigKey], name: Any) -> ConfigKey:
    """Return the key called `name`, among `keys` or plugins' keys."""
    written = str(name).replace("_", "-")
    found = keys.get(written) or (keys := config_keys()).get(written)
    if found is None:
        raise UsageError(
            f"no config key is called {written!r}", nearest(written, keys, "onnxopt.config_keys() has all")
        )
    return found


# -- targets ------------------------------------------------------------------------------------------------------

ANY: Final = "any"
COMMON: Final = ("arm", "cpu", "cuda", "gpu", "npu", "x86")  # valid targets even without a pass for them
RUNTIME: Final = "onnxruntime"
_VERSION: Final = r"(\d{1,9}\.\d{1,9})([.+a-z]\S*)?"  # the first two numbers count


def all_targets(*, plugins: bool = True) -> list[str]:
    """Return the valid target names: `any`, common ones, and targets of passes.

    Without `plugins` only loaded passes count.
    """
    passes = (*all_passes(plugins=plugins).values(), *defined_passes())
    return [ANY, *sorted({*COMMON, RUNTIME, *(target for cls in passes for target in cls.info.targets)} - {ANY})]


def targets_in(given: Any) -> tuple[str, ...]:
    """Return the targets of `"arm,npu"`, or of a list of names, in order, without repeats; a runtime with its version.

    Raises UsageError, with the nearest names, for an unknown target, and for a version without measurements.
    """
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"target is {given!r}, not a name or several", 'target="npu", or target=["arm", "npu"]')
    found = tuple(dict.fromkeys(_known_target(name.strip()) if name.strip() else "" for name in names))
    if not all(found) or not found:
        raise UsageError(f"target is {given!r}, which names none", "without a target a result is for any")
    versions = [name for name in found if name_of(name) == RUNTIME]
    if len(versions) > 1:
        raise UsageError(f"target names {' and '.join(versions)}", "a result is for one version: leave one of them out")
    return found


def name_of(target: str) -> str:
    """Return the target without its version."""
    return target.partition("==")[0]


def version_in(targets: Sequence[str]) -> str:
    """Return the runtime's version among the targets; empty if there is none."""
    return next((t.partition("==")[2] for t in targets if name_of(t) == RUNTIME), "")


def _known_target(name: str) -> str:
    runtime, separator, version = re.split("([^a-z0-9_-]|$)", name, maxsplit=1)
    if runtime == RUNTIME:
        return f"{RUNTIME}=={_version(name, separator + version)}"
    if name not in (ANY, *COMMON) and name not in all_targets(plugins=False):
        known = all_targets()
        if name not in known:
            hint = nearest(name, known, f"there are {', '.join(known)}; passes name theirs: PassInfo(targets=…)")
            raise UsageError(f"no target is called {name!r}", hint)
    return name


def _version(target: str, written: str) -> str:
    """Return `1.32` for `==1.32.0`, or the version of the installed onnxruntime."""
    from onnxopt.pipeline.measured import LOADS

    candidates = f"measured are {', '.join(LOADS)}"
    version, whose = written.removeprefix("==").strip(), target
    if not written:
        from onnxopt.runtime import version_of

        try:
            version = version_of(RUNTIME)
        except ImportError:
            raise UsageError(f"target {target}: none is installed", f"{candidates}: {RUNTIME}==VERSION") from None
        whose = f"{RUNTIME} {version}, which is installed"
    found = re.fullmatch(_VERSION, version)
    if found is None or (written and not written.startswith("==")):
        raise UsageError(f"target {target!r}: {written!r} is no version", f"{RUNTIME}==VERSION; {candidates}")
    if found[1] not in LOADS:
        raise UsageError(f"target {whose}: nothing of it was measured", f"{candidates}: {RUNTIME}==VERSION")
    return found[1]


def preferred_first(passes: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Return the pass names sorted by their targets' order of preference."""
    names = [name_of(target) for target in targets]
    return sorted(passes, key=lambda name: _place(get_pass(name).info.targets, names))


def _place(bound: Collection[str], targets: Sequence[str]) -> int:
    return 0 if ANY in bound else next((i for i, target in enumerate(targets) if target in bound), len(targets))


def idle_passes(p: Pass, targets: Sequence[str], disabled: Collection[str] = ()) -> tuple[dict[str, str], bool]:
    """Return ({pass without a run for these targets: reason}, whether any passes run)."""
    leaves = [leaf for leaf in p.walk() if not leaf.children and leaf.name not in disabled]
    idle = {leaf.name: why for leaf in leaves if (why := leaf.info.not_for(targets))}
    return idle, any(leaf.name not in idle for leaf in leaves)


# -- all settings -------------------------------------------------------------------------------------------------


def check_settings(ctx: PassContext) -> None:
    """Normalize names in the settings. Raises UsageError for invalid settings, with the nearest names."""
    check_level(ctx.opt_level)
    ctx.targets = ("any",)
    if ctx.target != "any":
        targets = targets_in(ctx.target)
        ctx.targets, ctx.target = tuple(map(name_of, targets)), ",".join(targets)
    if not isinstance(ctx.config, Mapping):
        raise UsageError(f"config is {kind(ctx.config)}, not a dict", 'config={"constant-folding.max-bytes": 1024}')
    if ctx.trace is not None and not callable(ctx.trace):
        raise UsageError(f"trace is {kind(ctx.trace)}, not a function", "trace(model, info, is_before)")
    if ctx.max_rewrites is not None:
        check_whole("max_rewrites", ctx.max_rewrites, "None is without end")
    if ctx.allow_domains is not None:
        names_in(ctx.allow_domains, "allow_domains")
    ctx.required_pass = frozenset(map(current_name, names_in(ctx.required_pass, "required_pass")))
    ctx.disabled_pass = frozenset(map(current_name, names_in(ctx.disabled_pass, "disabled_pass")))
    ctx.disabled_rule = frozenset(names_in(ctx.disabled_rule, "disabled_rule"))
    check_names(ctx.required_pass, "required_pass")
    check_names(ctx.disabled_pass, "disabled_pass")
    check_rules(ctx.disabled_rule, "disabled_rule")
    if isinstance(ctx.instruments, Instrument):
        raise UsageError("instruments is one instrument, not a list", f"instruments=[{kind(ctx.instruments)}(…)]")
    for i in all_in(ctx.instruments, "instruments", "instruments"):
        if isinstance(i, type):
            raise UsageError(f"instruments: {i.__name__} is a class", f"{i.__name__}(…) makes an instrument of it")
        if not isinstance(i, Instrument):
            raise UsageError(f"instruments: {kind(i)} is not an instrument", "derive its class from onnxopt.Instrument")
