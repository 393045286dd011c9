"""What onnx's inference of shapes says otherwise than onnxruntime computes; a test holds it against every operator.

| operator | onnx 1.23 | onnxruntime |
|---|---|---|
| Slice, opset 10 | what it cuts along an axis of unknown size has the symbol of the whole | is shorter |
| Slice backwards to the largest integer | what is before nothing | all |
| Squeeze of an empty list of axes | none goes | all go that are one |
| pools with `ceil_mode`, before opset 22 | the last window may start behind the end | such a window is left out |
| pools padded alike on both sides, dilated | as if nothing were | fewer |
| Einsum of one and another size | the first of them | the larger |
| Range of floats | counts in a wider type | in that of its operands |
| Resize that keeps the aspect ratio of negative axes | does | does not |
| ConvTranspose with `output_shape` | has no spatial dims | has these |
| STFT without `onesided` | gives all frequencies | half of them |
| Attention | sizes that follow from an unknown one are made of 0, as is the width of the scores | are what they are |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.protos import FLOATS

_SLICE: Final = 10
_INT32_MAX: Final = 2**31 - 1
_POOLS_SINCE: Final = 22
_POOLS: Final = ("AveragePool", "LpPool", "MaxPool")


@contextmanager
def hidden(model: Model) -> Iterator[None]:
    """As long as this lasts, nodes that are misread are of an operator that onnx does not know."""
    found = [
        n.proto
        for scope in model.scopes()
        for op in _KINDS
        if op in scope.by_op
        for n in scope.by_op[op]
        if is_misread(n, scope.opset())
    ]
    ops = [proto.op_type for proto in found]
    for proto in found:
        proto.op_type = ""
    try:
        yield
    finally:
        for proto, op in zip(found, ops):
            proto.op_type = op


def is_misread(node: Node, opset: int) -> bool:
    """May onnx's inference say something of its outputs that is not so?"""
    kind = _KINDS.get(node.op)
    return kind is not None and (node.has_references or kind(node, opset))


def _runs_to_the_start(cut: Node, opset: int) -> bool:
    ends, steps = cut.input(2), cut.input(4)
    if steps is None or ends is None or not (steps.constant and ends.constant):  # of what is computed it says no size
        return False
    return bool((steps.array < 0).any() and (ends.array >= _INT32_MAX).any())


def _squeezes_no_axes(node: Node, opset: int) -> bool:
    axes = node.input(1)
    return not node.attr("axes", [0]) or (axes is not None and axes.constant and axes.constant_type()[1] == (0,))


def _may_leave_out(pool: Node, opset: int) -> bool:
    """Can the last window start behind the end, of some input? It does not if a window, dilated, is no shorter than the
    step and the padding at the end."""
    if pads_undilated(pool):
        return True
    if not pool.attr("ceil_mode", 0) or opset >= _POOLS_SINCE:
        return False
    window = pool.attr("kernel_shape") or []
    steps = pool.attr("strides") or [1] * len(window)
    dilations = pool.attr("dilations") or [1] * len(window)
    pads = pool.attr("pads") or [0] * (2 * len(window))
    if pool.attr("auto_pad", "NOTSET") != "NOTSET" or not len(window) == len(steps) == len(dilations) == len(pads) / 2:
        return True
    ends = pads[len(window) :]
    return any(step + end > (k - 1) * dilation + 1 for k, step, dilation, end in zip(window, steps, dilations, ends))


def pads_undilated(pool: Node) -> bool:
    """Is it padded for a window that is not dilated, as onnxruntime does, and dilated?"""
    mode: str = pool.attr("auto_pad", "NOTSET")
    return mode.startswith("SAME") and max(pool.attr("dilations") or [1]) > 1


def _counts_floats(counted: Node, opset: int) -> bool:
    return any(v is not None and v.constant and v.constant_type()[0] in FLOATS for v in counted.inputs)


def _keeps_aspect(resize: Node, opset: int) -> bool:
    stretches = resize.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    return not stretches and min(resize.attr("axes") or [0]) < 0


def _has_given_shape(conv: Node, opset: int) -> bool:
    return bool(conv.attr("output_shape"))


def _leaves_sides_open(stft: Node, opset: int) -> bool:
    return "onesided" not in stft.attributes


def _gives_scores(attention: Node, opset: int) -> bool:
    return len(attention.outputs) > 3 and attention.outputs[3] is not None


_KINDS: Final[dict[str, Callable[[Node, int], bool]]] = {
    "Slice": _runs_to_the_start,
    "Squeeze": _squeezes_no_axes,
    "Range": _counts_floats,
    "Resize": _keeps_aspect,
    "ConvTranspose": _has_given_shape,
    **dict.fromkeys(_POOLS, _may_leave_out),
    "STFT": _leaves_sides_open,
    "Attention": _gives_scores,
}


def believed(model: Model, graph: GraphProto) -> bool:
    """Forget what is not so of what was inferred; False where other things may have been inferred from that."""
    if any(scope.opset() == _SLICE and scope.by_op.get("Slice") for scope in model.scopes()):
        for info in _infos(graph):
            _forget_symbols(info.type)
    made = {v.name for scope in model.scopes() for n in scope.by_op.get("Attention", ()) for v in n.outputs if v}
    return not made or not any(_has_zero(info.type) for info in _infos(graph) if info.name in made)


def believed_of(
    node: NodeProto, opset: int, given: Mapping[str, TypeProto], found: dict[str, TypeProto]
) -> dict[str, TypeProto]:
    """What was inferred of one operator from its operands' types, without what is not so."""
    if node.op_type == "Einsum" and not _are_one(node, given):
        return {}
    for kind in found.values():
        if node.op_type == "Slice" and opset == _SLICE:
            _forget_symbols(kind)
    return {} if node.op_type == "Attention" and any(map(_has_zero, found.values())) else found


def contradicted(graph: GraphProto) -> list[NodeProto]:
    """The Einsums of what was inferred whose operands do not have the same size in a dim of the result."""
    einsums = [n for n in graph.node if n.op_type == "Einsum" and not n.domain]
    read = {name for n in einsums for name in n.input}
    kinds = {i.name: i.type for i in (*graph.input, *graph.value_info) if i.name in read} if read else {}
    kinds |= {t.name: _type_of(t) for t in graph.initializer if t.name in read} if read else {}
    return [n for n in einsums if not _are_one(n, kinds)]


def _type_of(tensor: TensorProto) -> TypeProto:
    kind = TypeProto()
    for size in tensor.dims:
        kind.tensor_type.shape.dim.add(dim_value=size)
    return kind


def _are_one(einsum: NodeProto, kinds: Mapping[str, TypeProto]) -> bool:
    """Has each letter one size in all operands whose rank is known?"""
    equation = next((a.s.decode(errors="replace") for a in einsum.attribute if a.name == "equation"), "")
    if "." in equation:
        return True
    sizes: dict[str, set[str]] = {}
    for term, name in zip(equation.replace(" ", "").partition("->")[0].split(","), einsum.input):
        for letter, dim in zip(term, kinds[name].tensor_type.shape.dim if name in kinds else ()):
            sizes.setdefault(letter, set()).add(str(dim))
    return all(len(found) == 1 for found in sizes.values())


def _infos(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """Of what is computed, in bodies too."""
    yield from (*graph.value_info, *graph.output)
    for node in graph.node:
        for a in node.attribute:
            for body in (a.g, *a.graphs) if a.HasField("g") else a.graphs:
                yield from _infos(body)


def _forget_symbols(kind: TypeProto) -> None:
    for dim in kind.tensor_type.shape.dim:
        dim.ClearField("dim_param")


def _has_zero(kind: TypeProto) -> bool:
    return any(dim.HasField("dim_value") and not dim.dim_value for dim in kind.tensor_type.shape.dim)
