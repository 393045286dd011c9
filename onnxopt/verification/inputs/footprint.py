"""What the values of a run take at least, told from shapes, for runs that turned out to be large."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.protos import tensor_bytes
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.worker.limits import spare

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

_ROOM: Final = 1 << 28  # bytes that inference may take


def least(path: str, feeds: dict[str, Any]) -> int:
    """Bytes that the values of the main graph take at once, at least: 0 where nothing is known of them."""
    try:
        model = Skeleton(path).proto
        for given in model.graph.input:
            value = feeds.get(given.name)
            if isinstance(value, np.ndarray):
                given.type.tensor_type.shape.Clear()
                for size in value.shape:
                    given.type.tensor_type.shape.dim.add(dim_value=size)
        return _peak(_inferred(model))
    except Exception:  # what cannot be read, or inferred, is found out by running
        return 0


def _inferred(model: ModelProto) -> GraphProto:
    from onnxopt.inferring import infer_shapes, inferable

    try:
        with spare(_ROOM):
            return infer_shapes(inferable(model), values=True).graph
    except MemoryError:  # vectors that are followed element by element
        with spare(_ROOM):
            return infer_shapes(inferable(model)).graph


def _peak(graph: GraphProto) -> int:
    sizes: Counter[str] = Counter()
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
            sizes[info.name] = tensor_bytes(tensor.elem_type, (d.dim_value for d in tensor.shape.dim))
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last |= {o.name: len(graph.node) for o in graph.output}
    live = most = 0
    for i, node in enumerate(graph.node):
        live += sum(sizes[name] for name in node.output)
        most = max(most, live)
        read = dict.fromkeys((*node.input, *node.output))
        live -= sum(sizes[name] for name in read if last.get(name, i) == i)
    return most
