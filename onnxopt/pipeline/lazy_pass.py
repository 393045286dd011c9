"""Lazily imported passes."""

from __future__ import annotations

from functools import cached_property

from onnxopt.pipeline.base import Pass, PassInfo
from onnxopt.pipeline.registry import get_pass


class LazyPass(Pass):
    """Placeholder in a pipeline for the pass `name`, imported only if the model has an operator in `ops` (not
    empty)."""

    def __init__(self, name: str, opt_level: int, ops: tuple[str, ...]) -> None:
        object.__setattr__(self, "info", PassInfo(name, opt_level, ops=ops))

    @cached_property
    def imported(self) -> Pass:
        """The pass without options; the same object in all rounds, for fast lookup as a key."""
        return get_pass(self.name)()

    @property
    def is_imported(self) -> bool:
        """Whether the pass was imported before."""
        return "imported" in vars(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyPass) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)
