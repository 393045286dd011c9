"""Config keys: declared once with type, default and help; the options of registered passes are keys too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, get_args

from onnxopt.errors import UsageError, nearest
from onnxopt.record import record

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass


_NAME: Final = re.compile(r"[A-Za-z0-9]+([.-][A-Za-z0-9]+)*")


@record(frozen=True)
class ConfigKey:
    """A setting that passes read with `ctx[KEY]`. Its name is written with dashes, and found with underscores too."""

    name: str
    type: type | UnionType
    default: Any
    help: str


DECLARED: dict[str, ConfigKey] = {}


def declare_config(name: str, type: type | UnionType, default: Any, help: str) -> ConfigKey:
    """Make `name` a key that a PassContext's config may set, to a value of `type`: a class, or several (`int | None`).

    Raises ValueError for a name that is taken, by an option of a pass too, or that no option can be called; TypeError
    for a `default` of another type.
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
    """Raise ValueError if an option of a pass would be a key that is declared."""
    name = cls.info.name
    for key in [key for key in DECLARED if key.startswith(f"{name}.")]:
        if key in options_by_key(cls):
            raise ValueError(f"pass {name}: a config key named {key!r} is declared already")


def declared(name: str) -> ConfigKey:
    """The key of this name. Raises UsageError with the nearest ones."""
    return DECLARED.get(name) or _known(config_keys(plugins=False), name)


def config_keys(*, plugins: bool = True) -> dict[str, ConfigKey]:
    """Every key by name: those declared, and `PASS.OPTION` for each option of a registered pass.

    Without `plugins`, of those loaded so far.
    """
    from onnxopt.pipeline.registry import all_passes

    keys = dict(DECLARED)
    for cls in all_passes(plugins=plugins).values():
        for key, f in options_by_key(cls).items():
            keys[key] = ConfigKey(key, type_of(f.default), f.default, str(f.metadata.get("help", "")))
    return keys


def options_by_key(cls: type[Pass]) -> dict[str, dataclasses.Field[Any]]:
    """The options of a pass by their config keys."""
    return {f"{cls.info.name}.{f.name.replace('_', '-')}": f for f in options_of(cls)}


def _options_called(key: str) -> Collection[str]:
    """The keys of the options of the pass after which `key` is named, if there is such a pass."""
    from onnxopt.pipeline.registry import get_pass, is_registered

    name = key.partition(".")[0]
    return options_by_key(get_pass(name)) if is_registered(name) else ()


def options_of(cls: type[Pass]) -> list[dataclasses.Field[Any]]:
    """The fields of a pass that are options: all but the passes it is made of, and what those say of themselves."""
    fixed = getattr(cls, "recipe", None) is not None
    return [f for f in dataclasses.fields(cls) if f.name != "passes" and not fixed and not f.metadata.get("own")]


def type_of(default: Any) -> type:
    return object if default is None else type(default)


def type_name(kind: type | UnionType) -> str:
    return str(kind) if isinstance(kind, UnionType) else kind.__name__


def _is_type(kind: Any) -> bool:
    return isinstance(kind, type) or (isinstance(kind, UnionType) and all(isinstance(k, type) for k in get_args(kind)))


def fits(value: Any, kind: type | UnionType) -> bool:
    """Is `value` one of `kind`? An int will do for a float; a bool is no int."""
    if isinstance(kind, UnionType):
        return any(fits(value, k) for k in get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with normalised keys. Raises UsageError with the nearest keys, or the type expected."""
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
    """The key called `name`, among these or those of plugins."""
    written = str(name).replace("_", "-")
    found = keys.get(written) or (keys := config_keys()).get(written)
    if found is None:
        raise UsageError(
            f"no config key is called {written!r}", nearest(written, keys, "onnxopt.config_keys() has all")
        )
    return found


def configured(p: Pass, config: Mapping[str, Any]) -> Pass:
    """`p` with the options set that `config` names and that `p` leaves at their defaults."""
    changes = {
        f.name: config[key]
        for key, f in options_by_key(type(p)).items()
        if key in config and getattr(p, f.name) == f.default
    }
    return dataclasses.replace(p, **changes) if changes else p
