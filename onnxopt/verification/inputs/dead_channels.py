"""Channels that a Relu may mute in all cases.

A channel of a matrix product has a single number per row, and may be negative in all of a few rows by chance. Images
and sentences have more numbers.
"""

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
_MAX_DISTANCE: Final = 8  # nodes between a matrix product and the muting operator
_FEW_ROWS: Final = 12  # in all cases; with more, a channel is hardly ever muted in all


def muted(graph: GraphProto) -> list[str]:
    """Return the values between a matrix product and a muting operator in the main graph.

    Results of a node with bodies count if a body has such values.
    """
    found = _Muted()
    found.walk(graph)
    return list(found.found)


class _Chain(NamedTuple):
    """Values back to a matrix product."""

    values: tuple[str, ...] = ()  # connected by affine operators only
    pooled: bool = False  # moved from a pooled value


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
        """Follow the first computed operand."""
        kind = node.op_type
        if kind == "Constant" or not node.output:
            return [None] * len(node.output)
        before = next((r for r in reads if r is not None), _Chain())
        values = (node.output[0], *before.values) if before.values and len(before.values) < _MAX_DISTANCE else ()
        if kind in _CUTTING and not node.domain:
            self.found.update(dict.fromkeys(values))
        if kind in MATRICES or (kind == "Conv" and before.pooled):  # squeeze and excitation has a single position
            made = _Chain((node.output[0],))
        else:
            made = _Chain(values if kind in _BETWEEN else (), kind in _POOLS or (before.pooled and kind in _SAME))
        return [made] * len(node.output)


def are_few(rows: Iterable[int]) -> bool:
    """Return whether a channel may be muted in all rows. `rows`: number in each case."""
    return sum(rows) < _FEW_ROWS


def least_rows(shape: Sequence[int]) -> int:
    """Return a lower bound of elements per channel, for any channel axis."""
    return math.prod(shape) // max(*shape, 1, 1)


def have_few_rows(path: Path, values: Sequence[str], sizes: Sequence[Mapping[str, int]]) -> bool:
    """Return whether a value has few rows with the given sizes of dims in each case. Unknown dims count as 1.

    Runs in this process, with inference already loaded.
    """
    if not values:
        return False
    from onnxopt.proto.inference import infer_shapes, inferable
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
