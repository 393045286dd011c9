"""What a model says of the sizes that it takes, besides the names of its dims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto, ValueInfoProto

_SUM: Final = re.compile(r"(\w+) \+ (\w+)")
_TARGETS: Final = ("Reshape", "Expand")
_MOST: Final = 12  # sizes


def sums(graph: GraphProto) -> frozenset[str]:
    """Symbols of which an output's dim is the sum, as exporters write it: `past + new`."""
    found = (_SUM.fullmatch(d) for info in graph.output for d in _dims(info))
    return frozenset(name for match in found if match for name in match.groups())


def batches(graph: GraphProto) -> frozenset[str]:
    """Symbols that inputs have as their first dim, and nowhere else."""
    shapes = [_dims(i) for i in graph.input]
    first = {s[0] for s in shapes if len(s) > 1}
    return frozenset(first - {d for s in shapes for d in (s[1:] if len(s) > 1 else s)} - {""})


def baked(graph: GraphProto) -> list[int]:
    """Sizes that a trace has left in the targets of Reshape and Expand, the usual ones first."""
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    targets = {n.input[1] for n in graph.node if n.op_type in _TARGETS and len(n.input) > 1}
    for node in graph.node:
        if node.op_type == "Concat" and not targets.isdisjoint(node.output):
            targets.update(node.input)
    numbers = Counter(n for name in targets if name in constants for n in _small_integers(constants[name]))
    return [n for n, _ in numbers.most_common() if 1 < n <= 1 << 16][:_MOST]


def _small_integers(tensor: TensorProto) -> Iterable[int]:
    from onnx import numpy_helper

    if tensor.data_type != tensor.INT64 or tensor.data_location != tensor.DEFAULT or sum(tensor.dims) > _MOST:
        return ()
    return [int(n) for n in numpy_helper.to_array(tensor).reshape(-1)]


def _dims(info: ValueInfoProto) -> list[str]:
    return [d.dim_param for d in info.type.tensor_type.shape.dim]
