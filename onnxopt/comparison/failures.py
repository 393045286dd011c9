"""Sections of a page that could not be made, each with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from onnxopt.errors import refused, told

Made = TypeVar("Made")
Other = TypeVar("Other")


class Failures(dict[str, str]):
    """The reason for each section that failed. The other sections of the page are made."""

    def attempt(self, section: str, make: Callable[[], Made], otherwise: Other) -> Made | Other:
        """Returns what `make` returns; where it raises, notes the reason and returns `otherwise`.

        What the system refuses (memory, space) is raised, and with ONNXOPT_DEBUG everything is.
        """
        try:
            return make()
        except Exception as e:
            if refused(e) or os.environ.get("ONNXOPT_DEBUG"):
                raise
            self.setdefault(section, told(e))
            return otherwise

    def lines(self) -> list[str]:
        """A line for each section, as the page and the command say it."""
        return [f"section {section} could not be made: {reason}" for section, reason in self.items()]
