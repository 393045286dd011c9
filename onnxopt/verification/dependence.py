"""What feeds can change of values: their elements, their sizes, their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

NOTHING: Final[Mapping[str, Sequence[int | None]]] = {}
_INTEGERS: Final = (6, 7)  # of TensorProto.DataType
_FEW: Final = 4
# Shapes of what these make depend on the shapes of what they read, never on elements.
_BY_SHAPES: Final = frozenset((
    "Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat",
    "Conv", "ConvTranspose", "Cos", "Div", "Dropout", "Einsum", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gather",
    "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LayerNormalization",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mod", "Mul",
    "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "ScatterElements", "ScatterND", "Shape",
    "Sigmoid", "Sign", "Sin", "Size", "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Transpose", "Trilu",
    "Where", "Xor",
))  # fmt: skip
# These are told sizes, axes or ends by the elements of some operands.
_BY_ELEMENTS: Final = {
    **dict.fromkeys(("ConstantOfShape",), (0,)),
    **dict.fromkeys(("Expand", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze"), (1,)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), (1,)),
    **dict.fromkeys(("Pad",), (1, 3)),
    **dict.fromkeys(("Range",), (0, 1, 2)),
    **dict.fromkeys(("Resize",), (1, 2, 3)),
    **dict.fromkeys(("Slice",), (1, 2, 3, 4)),
}


def changing(
    graph: GraphProto, reads: Callable[[NodeProto], Iterable[str]], dims: Mapping[str, Sequence[int | None]] = NOTHING
) -> set[str]:
    """Values of which feeds can change the elements. Those of a Shape change with the sizes only, and these are given
    by a fixed signature, as long as no element says otherwise. `dims`: what is known of the shapes of values; a number
    among them, picked out of a Shape, does not change."""
    measured: dict[str, str] = {}  # what a Shape is of
    numbers = _small_integers(graph) if dims else {}
    values = {i.name for i in graph.input}
    shapes = {i.name for i in graph.input if not _has_shape(i) or not all(map(is_fixed, i.type.tensor_type.shape.dim))}
    ranks = {i.name for i in graph.input if not _has_shape(i)}
    for node in graph.node:
        read = set(reads(node))
        if node.op_type == "Shape" and not node.attribute:
            measured[node.output[0]] = node.input[0]
        elif node.op_type == "Gather" and node.input[0] in measured:
            places = numbers.get(node.input[1], ())
            known_dims = dims.get(measured[node.input[0]], ())
            if places and all(-len(known_dims) <= p < len(known_dims) and known_dims[p] is not None for p in places):
                continue
        changed, sized, ranked = (not known.isdisjoint(read) for known in (values, shapes, ranks))
        told = [node.input[i] for i in _BY_ELEMENTS.get(node.op_type, ()) if i < len(node.input)]
        if not _is_known(node):
            sized = ranked = changed or sized or ranked
        elif node.op_type in ("Shape", "Size"):
            changed, sized, ranked = sized, ranked, False
        else:
            sized |= not values.isdisjoint(told)
            ranked |= not shapes.isdisjoint(told)
        for known, is_so in ((values, changed), (shapes, sized), (ranks, ranked)):
            if is_so:
                known.update(node.output)
    return values


def _small_integers(graph: GraphProto) -> dict[str, list[int]]:
    """The elements of constants that pick dims."""
    from onnxopt.protos import tensor_to_array

    tensors = {t.name: t for t in graph.initializer}
    tensors |= {
        n.output[0]: a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    }
    few = {name: t for name, t in tensors.items() if t.data_type in _INTEGERS and sum(t.dims) <= _FEW}
    return {name: [int(i) for i in tensor_to_array(t).reshape(-1)] for name, t in few.items()}


def _is_known(node: NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Squeeze" and len(node.input) < 2 and not node.attribute:
        return False  # all axes of one element: how many depends on sizes
    return node.op_type in _BY_SHAPES or node.op_type in _BY_ELEMENTS


def is_fixed(dim: Any) -> bool:
    """Is it a number? Some exporters write -1 for any."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def _has_shape(given: ValueInfoProto) -> bool:
    return bool(given.type.HasField("tensor_type") and given.type.tensor_type.HasField("shape"))
