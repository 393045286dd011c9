"""Models of opset 17 in the forms of other opsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, defs, helper, numpy_helper, version_converter

Array = np.ndarray[Any, Any]

# The opset in which attributes became inputs, and which inputs they are.
_INPUTS_SINCE: Final[Mapping[str, tuple[int, dict[int, str]]]] = {
    "Clip": (11, {1: "min", 2: "max"}),
    "Pad": (11, {1: "pads", 2: "value"}),
    "ReduceSum": (13, {1: "axes"}),
    "Slice": (10, {1: "starts", 2: "ends", 3: "axes"}),
    "Split": (13, {1: "split"}),
    "Squeeze": (13, {1: "axes"}),
    "Unsqueeze": (13, {1: "axes"}),
}
_SINCE: Final = {"LayerNormalization": 17, "Range": 11, "Scan": 9}


def at_opset(model: ModelProto, opset: int) -> ModelProto | None:
    """Returns the same nodes at `opset` (7 or later); None if an operator is missing there, or for functions."""
    if model.functions:
        return None
    own = len(model.opset_import) == 1  # others are not converted
    is_written_alike = opset > 17 and own and _is_written_alike(model.graph, model.opset_import[0].version, opset)
    if opset > 17 and not is_written_alike:
        try:
            return version_converter.convert_version(model, opset) if own else None
        except version_converter.ConvertError:
            return None  # sparse tensors
    lowered = ModelProto()
    lowered.CopyFrom(model)
    lowered.opset_import[0].version = opset
    if is_written_alike:
        return lowered
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return lowered if _lower(lowered.graph, opset, known) else None


def _is_written_alike(graph: GraphProto, one: int, other: int) -> bool:
    """Returns whether both opsets have the same operators of the graph: each start of onnx's converter takes 9 ms."""
    return all(
        not node.domain
        and defs.has(node.op_type, one)
        and defs.has(node.op_type, other)
        and defs.get_schema(node.op_type, one).since_version == defs.get_schema(node.op_type, other).since_version
        and all(_is_written_alike(a.g, one, other) for a in node.attribute if a.type == AttributeProto.GRAPH)
        for node in graph.node
    )


def _lower(graph: GraphProto, opset: int, known: dict[str, Array]) -> bool:
    known = dict(known)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        since, places = _INPUTS_SINCE.get(node.op_type, (0, {}))
        if opset < since:
            for i, name in places.items():
                if len(node.input) > i and node.input[i]:
                    if node.input[i] not in known:
                        return False
                    value = known[node.input[i]]
                    if value.size == 0 or (name in ("min", "max") and value.ndim):
                        return False
                    node.attribute.append(helper.make_attribute(name, value.tolist() if value.ndim else value.item()))
            del node.input[1:]
        if not node.domain and not defs.has(node.op_type, opset):
            return False
        if opset < _SINCE.get(node.op_type, 0) or (node.op_type == "Gemm" and opset < 11 and len(node.input) < 3):
            return False
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH and not _lower(a.g, opset, known):
                return False
            if opset < 11 and a.name in ("axis", "axes") and min([a.i, *a.ints]) < 0:
                return False  # counted from the end since opset 11
    return True
