"""Transposes around a Scan, replaced by scan axes."""

from __future__ import annotations

from collections.abc import Sequence

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register

_SCAN_OF_AXES = 9  # first opset with scan axes


@register
class ScanAxes(GraphPass):
    """Scan(Transpose(x)) = Scan(x) along another axis; Transpose(Scan(x)) = Scan(x), collected along another axis.

    Applies when: the Transpose moves the scanned axis and keeps the order of the others, and inner values have no other
    readers.
    Recurrences scan over time, the second axis of a batch; distances of scikit-learn's neighbours scan over rows.
    """

    info = PassInfo("scan-axes", opt_level=1, after=("simplify-loops",), ops=("Scan",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < _SCAN_OF_AXES:
            return
        for node in graph.by_op.get("Scan", ()):
            scanned = node.attr("num_scan_inputs")
            if not node.has_references and isinstance(scanned, int) and 0 < scanned <= len(node.inputs):
                _read_untransposed(node, len(node.inputs) - scanned, ctx)
                _collect_transposed(graph, node, len(node.inputs) - scanned, ctx)


def _read_untransposed(scan: Node, states: int, ctx: PassContext) -> None:
    for i in range(states, len(scan.inputs)):
        given = scan.inputs[i]
        transpose = given.producer if given is not None else None
        if given is None or transpose is None or transpose.op != "Transpose" or given.only_user is not scan:
            continue
        perm, source = _perm(transpose), transpose.inputs[0]
        axes = _axes(scan, "scan_input_axes", len(scan.inputs) - states)
        if perm is None or source is None or len(scan.places(given)) > 1:
            continue
        axis = axes[i - states] % len(perm)
        if _others_stay(perm, axis) and ctx.spend("input", at=transpose):
            axes[i - states] = perm[axis]
            scan.set_input(i, source)
            scan.set_attr("scan_input_axes", axes)


def _collect_transposed(graph: Graph, scan: Node, states: int, ctx: PassContext) -> None:
    for i in range(states, len(scan.outputs)):
        made = scan.outputs[i]
        transpose = made.only_user if made is not None else None
        if made is None or transpose is None or transpose.op != "Transpose" or transpose.graph is not graph:
            continue
        perm = _perm(transpose)
        if perm is None:
            continue
        axes = _axes(scan, "scan_output_axes", len(scan.outputs) - states)
        axis = perm.index(axes[i - states] % len(perm))
        if _others_stay(perm, axis) and ctx.spend("output", at=transpose):
            axes[i - states] = axis
            graph.take_over(transpose.output, scan, i)
            graph.remove(transpose)
            scan.set_attr("scan_output_axes", axes)


def _perm(transpose: Node) -> tuple[int, ...] | None:
    """Return the permutation if valid and known, else None."""
    given: Value | None = transpose.inputs[0]
    rank = types.rank(given) if given is not None else None
    return None if transpose.has_references or not rank else known_order(transpose, rank)


def _others_stay(perm: Sequence[int], axis: int) -> bool:
    rest = [*perm[:axis], *perm[axis + 1 :]]
    return rest == sorted(rest)


def _axes(scan: Node, attribute: str, count: int) -> list[int]:
    given = list(scan.attr(attribute) or [])
    return given + [0] * (count - len(given))
