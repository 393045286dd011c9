"""Failed sections of a page, with reasons."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from onnxopt.errors import refused, told

Made = TypeVar("Made")
Other = TypeVar("Other")


class Failures(dict[str, str]):
    """{section: reason}. All further sections of the page are made."""

    def attempt(self, section: str, make: Callable[[], Made], otherwise: Other) -> Made | Other:
        """Return the result of `make`; if it raises, record the reason and return `otherwise`.

        Refusals by the system (memory, space) are raised, and with ONNXOPT_DEBUG all errors.
        """
        try:
            return make()
        except Exception as e:
            if refused(e) or os.environ.get("ONNXOPT_DEBUG"):
                raise
            self.setdefault(section, told(e))
            return otherwise

    def lines(self) -> list[str]:
        """Return a line for each failed section, for the page and the command."""
        return [f"section {section} could not be made: {reason}" for section, reason in self.items()]
