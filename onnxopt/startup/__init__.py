"""Keeps the start of a process short: packages that import a module on demand (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`; `homes`: names by module of the package."""

    def getattribute(name: str) -> Any:
        for module, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute


def listing(package: str) -> Callable[[], list[str]]:
    """Return the `__dir__` of `package`, which also lists names not imported yet."""
    names = vars(sys.modules[package])
    return lambda: sorted({*names, *names["__all__"]})
