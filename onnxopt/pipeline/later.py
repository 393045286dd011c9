"""A pass that is imported when a model has something for it."""

from __future__ import annotations

from functools import cached_property

from onnxopt.pipeline.base import Pass, PassInfo
from onnxopt.pipeline.registry import get_pass


class Later(Pass):
    """Stands in a pipeline for the pass called `name`, of which the level and the operators that it needs (`ops`, not
    empty) are known before."""

    def __init__(self, name: str, opt_level: int, ops: tuple[str, ...]) -> None:
        object.__setattr__(self, "info", PassInfo(name, opt_level, ops=ops))

    @cached_property
    def imported(self) -> Pass:
        """The pass itself, without options; one object for all rounds, as which it is found at once where passes are
        keys."""
        return get_pass(self.name)()

    @property
    def is_imported(self) -> bool:
        """Was the pass needed before?"""
        return "imported" in vars(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Later) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)
