"""What a Relu may hide in all cases: a channel that a matrix makes is one number for each row, and may be below zero in
all of few rows, by chance. Of a picture or a sentence there are more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.operators import AFFINE, MATRICES, having
from onnxopt.verification.model.order import bodies_of

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
    makers = {o: n for n in graph.node for o in n.output if o}
    found: dict[str, None] = {}
    for node in graph.node:
        if node.op_type in _CUTTING and not node.domain:
            found.update(dict.fromkeys(_behind_matrix(node, makers)))
        elif any(map(muted, bodies_of(node))):
            found.update(dict.fromkeys(filter(None, node.output)))
    return list(found)


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


def _behind_matrix(node: NodeProto, makers: Mapping[str, NodeProto]) -> list[str]:
    """From this node back to a matrix; none where that is not what it reads."""
    chain: list[str] = []
    for made_by in _upwards(node, makers):
        chain.append(made_by.output[0])
        if made_by.op_type in MATRICES or _is_of_one_position(made_by, makers):
            return chain
        if made_by is not node and made_by.op_type not in _BETWEEN:
            break
    return []


def _is_of_one_position(node: NodeProto, makers: Mapping[str, NodeProto]) -> bool:
    """Is it a Conv over what was pooled (squeeze and excitation)? It is a matrix."""
    if node.op_type != "Conv":
        return False
    for made_by in list(_upwards(node, makers))[1:]:
        if made_by.op_type in _POOLS:
            return True
        if made_by.op_type not in _SAME:
            break
    return False


def _upwards(node: NodeProto, makers: Mapping[str, NodeProto]) -> Iterator[NodeProto]:
    """It, and what makes the first operand of each that is computed."""
    following: NodeProto | None = node
    for _ in range(_MOST):
        if following is None:
            break
        yield following
        made_by = (makers[name] for name in following.input if name in makers)
        following = next((n for n in made_by if n.op_type != "Constant"), None)
