"""Standard streams closed before the start (`>&-`, a service, pythonw on Windows), for which Python has None."""

from __future__ import annotations

import os
import sys


def open_closed() -> None:
    """Open closed standard streams: reads return nothing, writes are dropped.

    The lowest descriptors are then in use, so no model gets descriptor 1, to which libraries may print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  as long as the process lives


def is_closed(name: str) -> bool:
    """Returns whether the named standard stream was closed when Python started."""
    return getattr(sys, f"__{name}__") is None
