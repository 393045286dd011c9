"""Config keys: declared once with type, default and help; the options of registered passes are keys too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnxopt.errors import UsageError, nearest
from onnxopt.record import record

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass


@record(frozen=True)
class ConfigKey:
    """A setting that passes read with `ctx[KEY]`."""

    name: str
    type: type
    default: Any
    help: str


_DECLARED: dict[str, ConfigKey] = {}


def declare_config(name: str, type: type, default: Any, help: str) -> ConfigKey:
    """Make `name` a key that a PassContext's config may set. Raises ValueError if it is taken."""
    if name in _DECLARED:
        raise ValueError(f"a config key named {name!r} exists already")
    key = _DECLARED[name] = ConfigKey(name, type, default, help)
    return key


def config_keys(*, plugins: bool = True) -> dict[str, ConfigKey]:
    """Every key by name: those declared, and `PASS.OPTION` for each option of a registered pass.

    Without `plugins`, of those loaded so far.
    """
    from onnxopt.pipeline.registry import all_passes

    passes, keys = all_passes(plugins=plugins), dict(_DECLARED)
    for name, cls in passes.items():
        for f in options_of(cls):
            key = f"{name}.{f.name.replace('_', '-')}"
            keys[key] = ConfigKey(key, type_of(f.default), f.default, str(f.metadata.get("help", "")))
    return keys


def options_of(cls: type[Pass]) -> list[dataclasses.Field[Any]]:
    """The fields of a pass that are options: all but the passes it is made of, and what those say of themselves."""
    fixed = getattr(cls, "recipe", None) is not None
    return [f for f in dataclasses.fields(cls) if f.name != "passes" and not fixed and not f.metadata.get("own")]


def type_of(default: Any) -> type:
    return object if default is None else type(default)


def fits(value: Any, kind: type) -> bool:
    """Is `value` one of `kind`? An int will do for a float; a bool is no int."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with normalised keys. Raises UsageError with the nearest keys, or the type expected."""
    if not config:
        return {}
    keys, checked = config_keys(plugins=False), {}
    for name, value in config.items():
        name = name.replace("_", "-")
        if name not in keys:
            keys = config_keys()
        if name not in keys:
            hint = nearest(name, keys, f"there are {', '.join(sorted(keys))}")
            raise UsageError(f"no config key is called {name!r}", hint)
        if not fits(value, keys[name].type):
            raise UsageError(f"{name} is {value!r}, not of type {keys[name].type.__name__}", keys[name].help)
        checked[name] = value
    return checked


def configured(p: Pass, config: Mapping[str, Any]) -> Pass:
    """`p` with the options set that `config` names and that `p` leaves at their defaults."""
    changes = {
        f.name: config[key]
        for f in options_of(type(p))
        if (key := f"{p.name}.{f.name.replace('_', '-')}") in config and getattr(p, f.name) == f.default
    }
    return dataclasses.replace(p, **changes) if changes else p
