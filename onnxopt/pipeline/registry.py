"""Passes by name: those of onnxopt, and those that installed packages announce."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from onnxopt.errors import UsageError, nearest
from onnxopt.pipeline.base import Pass, RewritePass

P = TypeVar("P", bound=Pass)

GROUP = "onnxopt.passes"  # the entry point group of plugins

_PASSES: dict[str, type[Pass]] = {}
_LATER: dict[str, str] = {}  # modules of passes that few runs need
_ORIGINS: dict[str, str] = {}  # of passes from plugins: distribution and version
_LOADED: list[str] = []  # the entry points, once they are
_MODULES: list[str] = []  # files and modules that users named


def register(cls: type[P]) -> type[P]:
    """Class decorator: make a pass known by its name. Raises ValueError if the name is taken, TypeError for options
    that are no fields yet."""
    name = cls.info.name
    if loose := [k for k, v in vars(cls).items() if isinstance(v, dataclasses.Field)]:
        raise TypeError(f"pass {name}: {loose[0]} is an option, but the class no @dataclass(frozen=True)")
    known = _PASSES.get(name)
    if known is not None and known is not cls:
        raise ValueError(f"a pass named {name!r} exists already: {known.__module__}")
    _PASSES[name] = cls
    return cls


def register_later(name: str, module: str) -> None:
    """Make a pass known that is imported when somebody asks for it."""
    _LATER[name] = module


def _import_later(names: Iterable[str]) -> None:
    for name in names:
        if name not in _PASSES and name in _LATER:
            for found in vars(import_module(_LATER[name])).values():
                if isinstance(found, type) and issubclass(found, Pass) and getattr(found, "info", None) is not None:
                    register(found)


def get_pass(name: str) -> type[Pass]:
    """The pass called `name`; plugins are loaded if onnxopt has none. Raises UsageError with the nearest names."""
    name = name.strip().replace("_", "-")
    _import_later([name])
    if name not in _PASSES:
        load_plugins()
    if name not in _PASSES:
        raise UsageError(
            f"no pass is called {name!r}", nearest(name, {**_PASSES, **_LATER}, "`onnxopt passes` lists them")
        )
    return _PASSES[name]


def all_passes(*, plugins: bool = True) -> dict[str, type[Pass]]:
    """Every registered pass by name, in order of registration, plugins last (without `plugins`: if loaded)."""
    _import_later(_LATER)
    if plugins:
        load_plugins()
    return dict(_PASSES)


def is_rule(name: str) -> bool:
    """Is there a rule of that name in a pass that is loaded?"""
    return any(rule.name == name for cls in _PASSES.values() if issubclass(cls, RewritePass) for rule in cls.rules)


def origin(cls: type[Pass]) -> str:
    """Where a pass comes from: `onnxopt`, a plugin's distribution and version, or the module that registered it."""
    if cls.info.name in _ORIGINS:
        return _ORIGINS[cls.info.name]
    package = cls.__module__.partition(".")[0]
    return package if package == "onnxopt" else cls.__module__


def load_module(source: str) -> None:
    """Import a Python file (`passes.py`) or module (`package.passes`) that registers passes.

    Raises UsageError that says why it cannot be imported.
    """
    before = set(_PASSES)
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"onnxopt_plugin_{Path(source).stem}", source)
            assert spec is not None and spec.loader is not None
            if spec.name in sys.modules:
                return
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            import_module(source)
    except Exception as e:
        raise UsageError(
            f"{source} cannot be imported: {type(e).__name__}: {' '.join(str(e).split())}",
            "a plugin is a Python file, or a module on the path, that registers passes",
        ) from e
    _MODULES.append(os.path.abspath(source) if source.endswith(".py") else source)
    _ORIGINS.update({name: source for name in _PASSES if name not in before})


def loaded_modules() -> list[str]:
    """What `load_module` imported so far."""
    return list(dict.fromkeys(_MODULES))


def load_plugins() -> None:
    """Import what the entry points `onnxopt.passes` name: a pass, or a module that registers some; once.

    Raises UsageError that names the plugin whose import fails.
    """
    if _LOADED:
        return
    from importlib.metadata import entry_points

    _LOADED.append(GROUP)
    for point in entry_points(group=GROUP):
        before = set(_PASSES)
        label = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            found = point.load()
            if isinstance(found, type) and issubclass(found, Pass):
                register(found)
        except Exception as e:
            raise UsageError(
                f"the plugin {point.name} ({label}) cannot be loaded: {type(e).__name__}: {' '.join(str(e).split())}",
                "update or uninstall it",
            ) from e
        _ORIGINS.update({name: label for name in _PASSES if name not in before})
