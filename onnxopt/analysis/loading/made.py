"""Inference of a node by a runtime: types of the results, rejection, and wrong sizes."""

from __future__ import annotations

from collections.abc import Mapping

from onnxopt.analysis import kernels, types
from onnxopt.analysis.loading.known import (
    content,
    dims_of,
    evaluate,
    given_out,
    has_to_agree,
    inferred,
    known_constant,
    operands,
    opset_of,
    part_of_shape,
    with_numbers,
)
from onnxopt.analysis.types import DATA_UP_TO, NOTHING, Known
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.inference import is_below_zero


def made_of(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return the knowledge of a runtime on a node's results; None if the node is rejected."""
    if _has_no_kernel(node, given):
        return None
    arrays = operands(node, given)
    if arrays is not None and not node.has_references and kernels.result_bytes(node, arrays) <= DATA_UP_TO:
        try:
            results = evaluate(node, arrays, opset_of(node))
        except kernels.Invalid:
            return None
        if results is not None:
            return {v: known_constant(r) for v, r in zip(node.outputs, results) if v is not None}
    found = inferred(node, given)
    if found and any(is_below_zero(kind) for kind, _ in found.values()):
        return None  # runtimes compute with negative sizes, and reject what does not fit
    x = node.input(0)
    if found and node.op == "Shape" and x is not None and x in given:  # runtimes know the sizes listed by a Shape
        dims = dims_of(x, given)
        part = None if dims is None else part_of_shape(node, dims)
        if part is not None:
            return {node.output: known_constant(part)}
    return found


def _has_no_kernel(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether onnxruntime rejects the node on computing it ahead, regardless of inference."""
    if node.op in ("Div", "Mod"):
        return is_by_zero(node, given)
    if node.op in ("Resize", "Upsample"):
        scales = content(node.input(1 if opset_of(node) < 11 else 2), given)
        return scales is not None and bool((scales <= 0).any())
    return False


def is_by_zero(node: Node, given: Mapping[Value, Known]) -> bool:
    divisor = content(node.input(1), given)
    return divisor is not None and element_kind(divisor) in "iu" and not divisor.all()


def is_misled(node: Node, given: Mapping[Value, Known] = NOTHING) -> bool:
    """Whether a result is, or may be, larger than a runtime infers.

    A runtime infers a PRelu's result from its first input, though onnxruntime (not the standard) lets the slope be
    larger.
    For an If whose branches must agree it may use a branch never taken.
    """
    if has_to_agree(node):
        return _may_disagree(node, given)
    if node.op != "PRelu":
        return False
    x, slope = (None if v is None else dims_of(v, given) for v in (node.input(0), node.input(1)))
    if x is None or slope is None:
        return bool(slope)
    both = zip(reversed(x), reversed(slope))
    return len(slope) > len(x) or any(isinstance(a, int) and isinstance(b, int) and 1 != b != a for a, b in both)


def _may_disagree(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether a branch may output another size than a runtime infers for the If."""
    agreed = inferred(node, given) or {}
    return any(
        not _is_so(v, dims, given)
        for value, *branches in given_out(node)
        if (dims := dims_of(value, agreed)) is not None
        for v in branches
    )


def _is_so(value: Value, dims: Shape, given: Mapping[Value, Known]) -> bool:
    """Whether a value certainly has the numbers in `dims`."""
    ours, theirs = types.shape(value), dims_of(value, given)
    known = ours if theirs is None else with_numbers(ours, theirs)
    return (
        known is not None and len(known) == len(dims) and all(a == b for a, b in zip(dims, known) if isinstance(a, int))
    )
