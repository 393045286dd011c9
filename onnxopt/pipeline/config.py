"""Config keys with type, default and help; options of registered passes are keys, too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, get_args

from onnxopt.errors import UsageError, nearest
from onnxopt.startup.record import record

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass


_NAME: Final = re.compile(r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*")


@record(frozen=True)
class ConfigKey:
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
    if not isinstance(name, str) or not _NAME.fullmatch(written):
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
    from onnxopt.pipeline.registry import all_passes

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
    from onnxopt.pipeline.registry import get_pass, is_registered

    name = key.partition(".")[0]
    return options_by_key(get_pass(name)) if is_registered(name) else ()


def options_of(cls: type[Pass]) -> list[dataclasses.Field[Any]]:
    """Return the option fields of a pass: all but child passes and fields describing a composite."""
    fixed = getattr(cls, "recipe", None) is not None
    return [f for f in dataclasses.fields(cls) if f.name != "passes" and not fixed and not f.metadata.get("own")]


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


def configured(p: Pass, config: Mapping[str, Any]) -> Pass:
    """Return `p` with options from `config` where `p` has the default."""
    changes = {
        f.name: config[key]
        for key, f in options_by_key(type(p)).items()
        if key in config and getattr(p, f.name) == f.default
    }
    return dataclasses.replace(p, **changes) if changes else p
