"""Standard streams that are closed when we start (`>&-`, a service, pythonw on Windows): Python has None for them."""

from __future__ import annotations

import os
import sys


def open_closed() -> None:
    """What is written there goes nowhere, and there is nothing to read. It also takes the lowest descriptors, so that
    no model is opened as 1, into which a library may print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  as long as the process lives


def is_closed(name: str) -> bool:
    """Was the standard stream of this name closed when Python started?"""
    return getattr(sys, f"__{name}__") is None
