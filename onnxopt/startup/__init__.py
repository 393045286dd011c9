"""Keeps the start of a process short: packages that import a module on demand (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

# Packages that import what most runs do without only when it is asked for (PEP 562).


def lazy(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`, whose modules `homes` have these names."""

    def getattribute(name: str) -> Any:
        for module, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute


def listing(package: str) -> Callable[[], list[str]]:
    """The `__dir__` of `package`: also what is not imported yet, for who completes names."""
    names = vars(sys.modules[package])
    return lambda: sorted({*names, *names["__all__"]})
