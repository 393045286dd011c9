"""Passes by name."""

from __future__ import annotations

import difflib

from onnxopt.errors import UsageError
from onnxopt.pipeline.base import Pass

_PASSES: dict[str, type[Pass]] = {}


def register(cls: type[Pass]) -> type[Pass]:
    """Class decorator: make a pass known by its name. Raises ValueError if the name is taken."""
    name = cls.info.name
    if name in _PASSES:
        raise ValueError(f"a pass named {name!r} exists already: {_PASSES[name].__module__}")
    _PASSES[name] = cls
    return cls


def get_pass(name: str) -> type[Pass]:
    """The pass called `name`. Raises UsageError with the nearest names."""
    name = name.strip().replace("_", "-")
    if name not in _PASSES:
        near = difflib.get_close_matches(name, _PASSES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`onnxopt passes` lists them"
        raise UsageError(f"no pass is called {name!r}", hint)
    return _PASSES[name]


def all_passes() -> dict[str, type[Pass]]:
    """Every registered pass by name, in order of registration."""
    return dict(_PASSES)
