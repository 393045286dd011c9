"""Position of a walked body: the enclosing walk, and the nodes with the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.pieces.walk import Walk


@dataclass(frozen=True)
class Enclosing:
    """The position of a body of A and its counterpart in B."""

    outer: Walk  # walk of the enclosing graph
    nodes: tuple[NodeProto, NodeProto]  # nodes with the body, of A and B
    name: str  # of A's body
    theirs: str  # name of B's body
    cases: Sequence[int]  # indices into the cases of `outer`
    is_sure: bool = True  # the correspondence holds for all inputs, not only by conditions equal in all cases
    in_place: frozenset[int] = frozenset()  # B's nodes compared with the body, if B has no body

    def scope(self, scope: str) -> str:
        """Return the path of B's body below the path `scope`."""
        return scope if self.in_place else f"{scope} / {label_of(self.nodes[1])} / {self.theirs}"


def label_of(node: NodeProto) -> str:
    """Return a node's label in a path."""
    return f'{node.op_type} "{node.name}"' if node.name else str(node.op_type)


def depth(walk: Walk) -> int:
    """Return the number of bodies around a walk."""
    found = 0
    while walk.enclosing is not None:
        found, walk = found + 1, walk.enclosing.outer
    return found


def case_names(walk: Walk, names: Sequence[str]) -> list[str]:
    """Return the names of a walk's cases. `names`: of the main graph's cases."""
    if walk.enclosing is None:
        return list(names)
    outer = case_names(walk.enclosing.outer, names)
    return [outer[k] for k in walk.enclosing.cases]
