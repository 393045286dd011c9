"""Wrong results of onnx's inference of an operator, which are not believed.

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
| Attention | an unknown size, also the scores' width, is taken as 0 | the actual sizes |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from onnx import TypeProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import registrar
from onnxopt.graph.dims import rename_dims
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Value
from onnxopt.operators import POOLS
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import tensor_type

SLICE: Final = 10  # opset in which a Slice keeps a symbol
_SQUEEZE: Final = 11
_DFT: Final = 20
_INT32_MAX: Final = 2**31 - 1
_POOLS_SINCE: Final = 22

Test: TypeAlias = "Callable[[Node, int], bool]"  # of a node and opset
MISREAD: Final[dict[str, Test]] = {}
_register: Final = registrar(MISREAD)


def is_misread(node: Node, opset: int) -> bool:
    """Whether onnx may infer a wrong type for the node."""
    test = MISREAD.get(node.op)
    return test is not None and (node.has_references or test(node, opset))


def believed(node: Node, opset: int, found: dict[Value, TypeProto]) -> dict[Value, TypeProto]:
    """Return the inferred types of the results, without wrong ones."""
    if node.op == "Attention" and any(0 in (tensor_type(kind)[1] or ()) for kind in found.values()):
        return {}
    if node.op == "Slice" and opset == SLICE:
        for kind in found.values():
            rename_dims(kind, lambda name: "")
    return found


@_register("Slice")
def _runs_to_the_start(cut: Node, opset: int) -> bool:
    ends, steps = cut.input(2), cut.input(4)
    if steps is None or ends is None or not (steps.constant and ends.constant):  # computed operands give no size
        return False
    return bool((steps.array < 0).any() and (ends.array >= _INT32_MAX).any())


@_register("Squeeze")
def _squeezes_oddly(node: Node, opset: int) -> bool:
    written, axes = node.attr("axes", [0]), node.input(1)
    if not written or (axes is not None and axes.constant and axes.constant_type()[1] == (0,)):
        return True
    return opset < _SQUEEZE and written != sorted(written)


@_register(*POOLS)
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


@_register("Range")
def _counts_floats(counted: Node, opset: int) -> bool:
    return any(v.constant and v.constant_type()[0] in FLOATS for v in counted.operands)


@_register("Resize")
def _keeps_aspect(resize: Node, opset: int) -> bool:
    stretches = resize.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    return not stretches and min(resize.attr("axes") or [0]) < 0


@_register("ConvTranspose")
def _is_long_otherwise(conv: Node, opset: int) -> bool:
    alike = conv.attr("auto_pad", "NOTSET").startswith("SAME")
    return bool(conv.attr("output_shape")) or (alike and any(conv.attr("output_padding") or ()))


@_register("DFT")
def _has_computed_length(dft: Node, opset: int) -> bool:
    length = dft.input(1)
    return opset >= _DFT and length is not None and not length.constant


@_register("STFT")
def _leaves_sides_open(stft: Node, opset: int) -> bool:
    return "onesided" not in stft.attributes


@_register("Attention")
def _gives_scores(attention: Node, opset: int) -> bool:
    return len(attention.outputs) > 3 and attention.outputs[3] is not None


@_register("Einsum")
def _may_differ_in_size(einsum: Node, opset: int) -> bool:
    """Whether a letter of an equation may have several sizes in operands of known rank; dots may vary in rank."""
    from onnxopt.operators.operands import read_equation

    shapes = [types.shape(v) for v in einsum.operands]
    read = read_equation(str(einsum.attr("equation")), [None if dims is None else len(dims) for dims in shapes])
    sizes: dict[str, set[Dim]] = {}
    for term, dims in zip(() if read is None else read.terms, shapes):
        for letter, dim in zip(term, dims or ()):
            sizes.setdefault(letter, set()).add(dim)
    return read is None or not all(_is_one_size(letter, found) for letter, found in sizes.items())


def _is_one_size(letter: str, found: set[Dim]) -> bool:
    return len(found) == 1 or (letter[0] == "." and all(isinstance(d, int) for d in found))


@_register("PRelu")
def _may_have_larger_slope(prelu: Node, opset: int) -> bool:
    x, slope = (types.shape(v) for v in prelu.inputs)
    if x is None or slope is None or len(slope) > len(x):
        return True
    return any(a != b and b != 1 for a, b in zip(x[len(x) - len(slope) :], slope))


@_register("NonZero")
def _may_be_of_scalar(nonzero: Node, opset: int) -> bool:
    return types.shape(nonzero.input(0)) == ()
