"""Where a body is that is walked: the walk around it, and the nodes that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.pieces.walk import Walk


@dataclass(frozen=True)
class Enclosing:
    """A body is called `name` in the first of `nodes`, A's, and `theirs` in B's. Or it is held against nodes of B
    beside this one, `in_place`. `cases`: of the walk `outer`. `is_sure`: does the one stand for the other whatever the
    inputs are, or is it taken for it, since conditions of one name agree in all cases?"""

    outer: Walk
    nodes: tuple[NodeProto, NodeProto]
    name: str
    theirs: str
    cases: Sequence[int]
    is_sure: bool = True
    in_place: frozenset[int] = frozenset()

    def scope(self, scope: str) -> str:
        """Of B's nodes, in the `scope` around them."""
        return scope if self.in_place else f"{scope} / {label_of(self.nodes[1])} / {self.theirs}"


def label_of(node: NodeProto) -> str:
    """As paths of scopes write it."""
    return f'{node.op_type} "{node.name}"' if node.name else str(node.op_type)


def depth(walk: Walk) -> int:
    """The number of bodies around its values."""
    found = 0
    while walk.enclosing is not None:
        found, walk = found + 1, walk.enclosing.outer
    return found


def case_names(walk: Walk, names: Sequence[str]) -> list[str]:
    """The names of the cases of a walk; `names`: of those of the main graph."""
    if walk.enclosing is None:
        return list(names)
    outer = case_names(walk.enclosing.outer, names)
    return [outer[k] for k in walk.enclosing.cases]
