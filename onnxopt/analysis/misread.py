"""Types not to be believed: wrong results of onnx's shape inference, and declared shapes that no runtime checks.

Differences between onnx and onnxruntime; a test checks all operators:

| operator | onnx 1.23 | onnxruntime |
|---|---|---|
| Slice, opset 10 | a cut along a symbolic axis keeps the symbol | is shorter |
| Slice backwards to the largest integer | selects nothing | selects all |
| Squeeze with empty axes | drops no axis | drops all axes of size 1 |
| Squeeze, before opset 11, axes out of order | drops only axes in order | drops all |
| pools with `ceil_mode`, before opset 22 | the last window may start behind the end | omits such a window |
| dilated pools with `auto_pad` SAME | ignores the dilation | fewer windows |
| Einsum of different sizes | the first size | the larger size |
| PRelu with a larger slope | the shape of the first input | the broadcast shape |
| NonZero of a scalar | lists 0 axes | lists 1 axis |
| Range of floats | counts in a wider type | counts in the operands' type |
| Resize with `keep_aspect_ratio_policy`, negative axes | keeps the ratio | does not |
| ConvTranspose with `output_shape` | no spatial dims | has them |
| ConvTranspose, SAME padding with `output_padding` | is longer by it | is not |
| STFT without `onesided` | all frequencies | half of them |
| DFT, from opset 20 on, of computed length | the input's length | the computed length |
| SequenceAt | all elements share symbolic sizes | each may have its own |
| Attention | an unknown size, also the scores' width, is taken as 0 | the actual sizes |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias, TypeVar

from onnx import GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto

from onnxopt.graph.dims import rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.operators import POOLS
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import body_graphs, qualified

_SLICE: Final = 10
_SQUEEZE: Final = 11
_DFT: Final = 20
_INT32_MAX: Final = 2**31 - 1
_POOLS_SINCE: Final = 22

Typed: TypeAlias = "TypeProto | TensorProto"
Shapes: TypeAlias = "Sequence[list[str] | None]"  # dims as text
_MISREAD: Final[dict[str, Callable[[Node, int], bool]]] = {}  # tests of a node and opset
# Tests of the assumptions under which onnx infers an operator correctly, on its operands; for Attention on its results.
_ASSUMED: Final[dict[str, Callable[[NodeProto, Shapes], bool]]] = {}
F = TypeVar("F")


def _register(tests: dict[str, F], *ops: str) -> Callable[[F], F]:
    def add(test: F) -> F:
        tests.update(dict.fromkeys(ops, test))
        return test

    return add


@contextmanager
def hidden(model: Model) -> Iterator[list[Node]]:
    """Context in which misread nodes (yielded) have an operator unknown to onnx."""
    found = [
        n
        for scope in model.scopes()
        for op in _MISREAD
        if op in scope.by_op
        for n in scope.by_op[op]
        if is_misread(n, scope.opset())
    ]
    ops = [node.proto.op_type for node in found]
    for node in found:
        node.proto.op_type = ""
    try:
        yield found
    finally:
        for node, op in zip(found, ops):  # a body written meanwhile may have replaced a node's proto
            node.proto.op_type = op


def is_misread(node: Node, opset: int) -> bool:
    """Whether onnx may infer a wrong type for the node."""
    kind = _MISREAD.get(node.op)
    return kind is not None and (node.has_references or kind(node, opset))


@_register(_MISREAD, "Slice")
def _runs_to_the_start(cut: Node, opset: int) -> bool:
    ends, steps = cut.input(2), cut.input(4)
    if steps is None or ends is None or not (steps.constant and ends.constant):  # computed operands give no size
        return False
    return bool((steps.array < 0).any() and (ends.array >= _INT32_MAX).any())


@_register(_MISREAD, "Squeeze")
def _squeezes_oddly(node: Node, opset: int) -> bool:
    written, axes = node.attr("axes", [0]), node.input(1)
    if not written or (axes is not None and axes.constant and axes.constant_type()[1] == (0,)):
        return True
    return opset < _SQUEEZE and written != sorted(written)


@_register(_MISREAD, *POOLS)
def _may_leave_out(pool: Node, opset: int) -> bool:
    """Whether for some input the last window starts behind the end.

    It does not if a (dilated) window is at least as long as the stride plus the padding at the end.
    """
    if pads_undilated(pool):
        return True
    if not pool.attr("ceil_mode", 0) or opset >= _POOLS_SINCE:
        return False
    kernel = pool.attr("kernel_shape") or []
    steps, dilations, pads = window(pool, len(kernel))
    if pool.attr("auto_pad", "NOTSET") != "NOTSET" or not len(kernel) == len(steps) == len(dilations) == len(pads) / 2:
        return True
    ends = pads[len(kernel) :]
    return any(step + end > (k - 1) * dilation + 1 for k, step, dilation, end in zip(kernel, steps, dilations, ends))


def window(node: Node, count: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the strides, dilations and pads of a convolution or pool along `count` axes."""
    strides, dilations, pads = (node.attr(name) for name in ("strides", "dilations", "pads"))
    return strides or [1] * count, dilations or [1] * count, pads or [0] * (2 * count)


def pads_undilated(pool: Node) -> bool:
    """Whether a dilated pool is padded for an undilated window, as in onnxruntime."""
    mode: str = pool.attr("auto_pad", "NOTSET")
    return mode.startswith("SAME") and max(pool.attr("dilations") or [1]) > 1


@_register(_MISREAD, "Range")
def _counts_floats(counted: Node, opset: int) -> bool:
    return any(v.constant and v.constant_type()[0] in FLOATS for v in counted.operands)


@_register(_MISREAD, "Resize")
def _keeps_aspect(resize: Node, opset: int) -> bool:
    stretches = resize.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    return not stretches and min(resize.attr("axes") or [0]) < 0


@_register(_MISREAD, "ConvTranspose")
def _is_long_otherwise(conv: Node, opset: int) -> bool:
    alike = conv.attr("auto_pad", "NOTSET").startswith("SAME")
    return bool(conv.attr("output_shape")) or (alike and any(conv.attr("output_padding") or ()))


@_register(_MISREAD, "DFT")
def _has_computed_length(dft: Node, opset: int) -> bool:
    length = dft.input(1)
    return opset >= _DFT and length is not None and not length.constant


@_register(_MISREAD, "STFT")
def _leaves_sides_open(stft: Node, opset: int) -> bool:
    return "onesided" not in stft.attributes


@_register(_MISREAD, "Attention")
def _gives_scores(attention: Node, opset: int) -> bool:
    return len(attention.outputs) > 3 and attention.outputs[3] is not None


@_register(_MISREAD, "Einsum", "NonZero", "PRelu")
def _is_in_function(node: Node, opset: int) -> bool:
    """Whether the operands' types are unknown, inside a function; elsewhere they are checked."""
    return node.graph is not None and node.graph.root.is_function


def depends(model: Model) -> bool:
    """Whether the model has an operator that onnx infers correctly for some operands only."""
    return any(scope.by_op.get(op) for scope in model.scopes() for op in _ASSUMED)


def forget(model: Model, graph: GraphProto) -> None:
    """Remove wrong results of inference, and symbols derived from them."""
    is_cut = any(scope.opset() == _SLICE and scope.by_op.get("Slice") for scope in model.scopes())
    has_elements = any("SequenceAt" in scope.by_op for scope in model.scopes())
    infos = list(_infos(graph)) if is_cut or has_elements else []
    for info in infos if is_cut else ():
        _forget_symbols(info.type)
    if has_elements:
        _forget_of_elements(infos, graph)


def _forget_of_elements(infos: Sequence[ValueInfoProto], graph: GraphProto) -> None:
    """Remove symbols that the elements of sequences share, except those of graph inputs."""
    shared = {name for info in infos for name in _of_elements(info.type)}
    shared -= {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim}
    for info in infos:
        _forget_symbols(info.type, shared)


def believed_of(
    node: NodeProto, opset: int, given: Mapping[str, TypeProto], found: dict[str, TypeProto]
) -> dict[str, TypeProto]:
    """Return the inferred types of a single operator, without wrong ones."""
    if not _are_as_taken(node, {**given, **found}):
        return {}
    for kind in found.values():
        if node.op_type == "SequenceAt" or (node.op_type == "Slice" and opset == _SLICE):
            _forget_symbols(kind)
    return found


def contradicted(graph: GraphProto, around: Mapping[str, Typed] | None = None) -> Iterator[NodeProto]:
    """Yield the inferred nodes, in bodies too, whose operands violate an assumption of onnx's inference."""
    said = (*graph.input, *graph.value_info, *graph.output)
    kinds: dict[str, Typed] = {**(around or {}), **{i.name: i.type for i in said}}
    kinds |= {t.name: t for t in graph.initializer[:]}
    for node in graph.node[:]:
        if not _are_as_taken(node, kinds):
            yield node
        for _, body in body_graphs(node):
            yield from contradicted(body, kinds)


def hide(graph: GraphProto, made: Container[str]) -> None:
    """Permanently hide the operators of nodes that produce these values from onnx."""
    for node in graph.node[:]:
        if node.output and node.output[0] in made:
            node.op_type = ""
        for _, body in body_graphs(node):
            hide(body, made)


def _are_as_taken(node: NodeProto, kinds: Mapping[str, Typed]) -> bool:
    test = None if node.domain else _ASSUMED.get(node.op_type)
    if test is None:
        return True
    names = node.output if test is _is_of_something else node.input
    return test(node, [_sizes(kinds[name]) if name in kinds else None for name in names])


def _sizes(kind: Typed) -> list[str] | None:
    """Return the dims as text; None for unknown rank."""
    if isinstance(kind, TensorProto):
        return [str(TensorShapeProto.Dimension(dim_value=size)) for size in kind.dims]
    return [str(dim) for dim in kind.tensor_type.shape.dim] if kind.tensor_type.HasField("shape") else None


@_register(_ASSUMED, "Einsum")
def _are_one(einsum: NodeProto, shapes: Shapes) -> bool:
    """Whether each letter of an equation has the same size in all operands of known rank; dots may vary in rank."""
    from onnxopt.operators.operands import read_equation

    text = next((a.s.decode(errors="replace") for a in einsum.attribute if a.name == "equation"), "")
    read = read_equation(text, [None if dims is None else len(dims) for dims in shapes])
    sizes: dict[str, set[str]] = {}
    for term, dims in zip(() if read is None else read.terms, shapes):
        for letter, dim in zip(term, dims or ()):
            sizes.setdefault(letter, set()).add(dim)
    return read is not None and all(_is_one_size(letter, found) for letter, found in sizes.items())


def _is_one_size(letter: str, found: set[str]) -> bool:
    return len(found) == 1 or (letter[0] == "." and all("dim_value" in d for d in found))


@_register(_ASSUMED, "PRelu")
def _slope_fits(prelu: NodeProto, shapes: Shapes) -> bool:
    x, slope = shapes
    if x is None or slope is None or len(slope) > len(x):
        return False
    return all(a == b or b == _ONE for a, b in zip(x[len(x) - len(slope) :], slope))


@_register(_ASSUMED, "NonZero")
def _has_axes(nonzero: NodeProto, shapes: Shapes) -> bool:
    return shapes[0] != []


@_register(_ASSUMED, "Attention")
def _is_of_something(attention: NodeProto, shapes: Shapes) -> bool:
    return not any(_ZERO in dims for dims in shapes if dims is not None)


_ZERO: Final = str(TensorShapeProto.Dimension(dim_value=0))
_ONE: Final = str(TensorShapeProto.Dimension(dim_value=1))


def _infos(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """Yield the types of computed values and body inputs, in bodies too."""
    yield from (*graph.value_info, *graph.output)
    for node in graph.node[:]:
        for _, body in body_graphs(node):
            yield from body.input
            yield from _infos(body)


def _of_elements(kind: TypeProto) -> Iterator[str]:
    """Yield the symbols in element shapes of a sequence; each element may have its own sizes."""
    while kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    return (d.dim_param for d in kind.sequence_type.elem_type.tensor_type.shape.dim if d.dim_param)


def _forget_symbols(kind: TypeProto, names: Container[str] | None = None) -> None:
    """Remove all symbols from a type, or those in `names`."""
    for dim in kind.tensor_type.shape.dim:
        if names is None or dim.dim_param in names:
            dim.ClearField("dim_param")


# -- shapes declared inside bodies, which no runtime checks ----------------------------------------------------


def forget_claims(owner: NodeProto, scope: Graph, called: Collection[str]) -> None:
    """Remove declared shapes and dim names from the bodies of a node.

    A dim name in a body holds for a single execution: outside, and in the next iteration, the size may differ. Declared
    shapes of body inputs and of known operators' results may be wrong. Runtimes check only a Loop's counter and
    condition, and collected outputs of a Scan.
    """
    for _, body in body_graphs(owner):
        kept = {o for n in body.node if _is_opaque(n, scope, called) for o in n.output} | _checked(owner, body)
        for info in (*body.input, *body.value_info, *body.output):
            rename_dims(info.type, lambda name: "")
            if info.name not in kept:
                forget_shape(info.type)
        for node in body.node:
            forget_claims(node, scope, called)


def _checked(owner: NodeProto, body: GraphProto) -> set[str]:
    """Return the inputs and outputs of a body with shapes checked by runtimes."""
    if owner.op_type == "Loop":
        return {i.name for i in body.input[:2]}
    if owner.op_type == "Scan":
        scanned = next((a.i for a in owner.attribute if a.name == "num_scan_inputs"), 0)
        return {o.name for o in body.output[len(body.input) - scanned :]}
    return set()


def carried_containers(owner: NodeProto) -> Iterator[tuple[NodeProto, int]]:
    """Yield (Loop, input index) for each sequence or optional carried by the Loop or a nested one.

    onnx infers the elements' shape from the initial value; later iterations may change it.
    """
    for _, body in body_graphs(owner):
        if owner.op_type == "Loop":
            for i, info in enumerate(body.input):
                if i < len(owner.input) and info.type.WhichOneof("value") in ("sequence_type", "optional_type"):
                    yield owner, i
        for node in body.node:
            yield from carried_containers(node)


def _is_opaque(node: NodeProto, scope: Graph, called: Collection[str]) -> bool:
    """Whether only the file defines the operator. A node without operator is hidden, and not opaque."""
    op = qualified(node.op_type, node.domain)
    return bool(op) and op not in called and not scope.knows(op)


def forget_shape(kind: TypeProto) -> None:
    """Remove the shape from a type, also from elements of a sequence or optional."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        kind.tensor_type.ClearField("shape")
    elif which in ("sequence_type", "optional_type"):
        forget_shape(getattr(kind, which).elem_type)
