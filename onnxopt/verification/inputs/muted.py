"""What a Relu may hide in all cases: a channel that a matrix makes is one number for each row, and may be below zero in
all of few rows, by chance. Of a picture or a sentence there are more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.operators import AFFINE, MATRICES, having

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import GraphProto, NodeProto

_CUTTING: Final = having("flat")
_SAME: Final = having("whole")
_BETWEEN: Final = _SAME | AFFINE | {"BatchNormalization"}
_POOLS: Final = having("pools")
_MOST: Final = 8  # nodes between a matrix and what mutes
_FEW_ROWS: Final = 12  # of all cases: of more hardly any channel is below zero in all


def muted(graph: GraphProto) -> list[str]:
    """The values from what a matrix makes to what mutes it, in the main graph; and what nodes make that have such in a
    body."""
    found = _Muted()
    found.walk(graph)
    return list(found.found)


class _Chain(NamedTuple):
    """The values from this one back to a matrix, if that is what it is made of by what only adds and scales; is it
    moved from what was `pooled`?"""

    values: tuple[str, ...] = ()
    pooled: bool = False


class _Muted(Forward[_Chain]):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def join(self, a: _Chain, b: _Chain) -> _Chain:
        return a if a.values else b

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[_Chain | None]
    ) -> Sequence[_Chain | None]:
        if any(map(muted, bodies)):
            self.found.update(dict.fromkeys(filter(None, node.output)))
        return [_Chain()] * len(node.output)

    def transfer(self, node: NodeProto, reads: Sequence[_Chain | None]) -> Sequence[_Chain | None]:
        """Of the first operand that is computed."""
        kind = node.op_type
        if kind == "Constant" or not node.output:
            return [None] * len(node.output)
        before = next((r for r in reads if r is not None), _Chain())
        values = (node.output[0], *before.values) if before.values and len(before.values) < _MOST else ()
        if kind in _CUTTING and not node.domain:
            self.found.update(dict.fromkeys(values))
        if kind in MATRICES or (kind == "Conv" and before.pooled):  # squeeze and excitation: of one position
            made = _Chain((node.output[0],))
        else:
            made = _Chain(values if kind in _BETWEEN else (), kind in _POOLS or (before.pooled and kind in _SAME))
        return [made] * len(node.output)


def are_few(rows: Iterable[int]) -> bool:
    """So many rows in each case: may a channel be below zero in all of them?"""
    return sum(rows) < _FEW_ROWS


def least_rows(shape: Sequence[int]) -> int:
    """So many numbers each channel has at least, whichever axis the channels are on."""
    return math.prod(shape) // max(*shape, 1, 1)


def have_few_rows(path: Path, values: Sequence[str], sizes: Sequence[Mapping[str, int]]) -> bool:
    """Has one of these values of a file, as far as inference tells, where dims have these sizes in each case? A dim of
    which that is not known is one. Asked in our own process, which has loaded inference already."""
    if not values:
        return False
    from onnxopt.inferring import infer_shapes, inferable
    from onnxopt.verification.model.skeleton import Skeleton

    try:
        graph = infer_shapes(inferable(Skeleton(path).proto)).graph
    except Exception:  # inference is no source of verdicts
        return True
    shapes = {i.name: i.type.tensor_type.shape.dim for i in (*graph.value_info, *graph.output)}

    def rows(name: str, known: Mapping[str, int]) -> int:
        dims = [d.dim_value or known.get(d.dim_param, 1) for d in shapes.get(name, ())]
        return math.prod(dims[:1] if dims[2:] and {*dims[2:]} == {1} else dims[:-1])

    return any(are_few(rows(name, known) for known in sizes) for name in values)
