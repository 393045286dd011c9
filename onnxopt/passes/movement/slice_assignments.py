"""Assignments to parts of a tensor, x[:, a:b] = u, expressed by concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onnxopt.analysis.shapes.boxes import WHOLE, Box, box_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.canvas import Canvas, padding_of
from onnxopt.rewriting.parts import insert_new, of_axes

_SCATTERS: Final = ("ScatterElements", "ScatterND")
_RULE: Final = "assigned"


@register
class SliceAssignments(GraphPass):
    """Scatter(x, indices of x[:, a:b], u) = Concat(x[:, :a], u, x[:, b:]); Pad(u) where all elements of x are
    equal.

    Applies when: the indices form a box that is smaller than the data along a single axis (for constant data along any
    axes), as constants or built from Range, Expand and Concat; dims are known; and no more nodes are left after all
    scatters along an axis of a tensor: overwritten parts are not joined, and readers of a part read its source.
    Transposes around them are removed.
    Keeps: scatters that add; boxes that may exceed the data, an error.
    """

    # After: indices are constant as far as possible.
    info = PassInfo("slice-assignments", opt_level=1, after=("gather-axes", "merge-chains"), ops=_SCATTERS)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 11 or not any(graph.by_op.get(op) for op in _SCATTERS):
            return
        found: dict[Value, Canvas] = {}  # by results of scatters
        now: dict[Value, Value] = {}  # replacements of values
        for node in [n for n in graph if n.op in _SCATTERS]:
            box = box_of(node)
            axes = [k for k, span in enumerate(box.spans) if span != WHOLE] if box is not None else []
            padding = padding_of(node, box.spans) if box is not None and len(axes) > 1 else None
            reason = ""
            if box is None:
                reason = "its indices are no box, or may reach beyond the data"
            elif not axes:
                if ctx.spend(_RULE, at=node):
                    _assign_all(graph, node, box.missing, now)
            elif padding is not None:
                if ctx.spend(_RULE, at=node):
                    _pad(graph, node, box.missing, *padding)
            elif len(axes) > 1:
                reason = "less than the data along several axes"
            elif not _paint(graph, node, axes[0], box, found, now):
                reason = "where the parts begin is unknown, or there are many"
            if reason:
                ctx.decline(_RULE, reason, repr(node))
        saved = 0
        rest: list[Canvas] = []
        for canvas in dict.fromkeys(found.values()):
            if canvas.cost() > 0:
                rest.append(canvas)
            elif ctx.spend(_RULE, at=canvas.scatters[-1]):
                saved += len(canvas.gone) - canvas.made
                canvas.carry_out()
        for canvas in rest:  # of many rows assigned one by one the first is cut off
            if len(canvas.scatters) < 2 or canvas.cost() > min(1, saved):
                ctx.decline(_RULE, "it would leave more nodes", repr(canvas.scatters[0]))
            elif ctx.spend(_RULE, at=canvas.scatters[-1]):
                saved += len(canvas.gone) - canvas.made
                canvas.carry_out()


def _paint(
    graph: Graph, scatter: Node, axis: int, box: Box, found: dict[Value, Canvas], now: dict[Value, Value]
) -> bool:
    """Add the scatter to the canvas of its data. Returns False if the overwritten parts are unknown."""
    data = scatter.inputs[0]
    assert data is not None
    canvas = found.get(data)
    if canvas is None or canvas.axis != axis:
        canvas = Canvas(graph, data, axis, now)
    if not canvas.paint(scatter, *box.spans[axis], box.missing):
        return False
    found[scatter.output] = canvas
    return True


def _assign_all(graph: Graph, scatter: Node, missing: Sequence[int], now: dict[Value, Value]) -> None:
    """Replace a completely overwritten tensor by the updates."""
    updates = scatter.inputs[2]
    assert updates is not None
    if missing:
        node = of_axes(graph, "Unsqueeze", updates, [*missing], scatter)
        graph.take_over(scatter.output, graph.insert(node, scatter))
    elif (kept := scatter.output.replace_all_uses_with(updates)) is not updates:
        now[updates] = kept
    graph.remove(scatter)


def _pad(graph: Graph, scatter: Node, missing: Sequence[int], pads: Array, fill: Array) -> None:
    """Replace a scatter into a constant tensor by a Pad of the updates."""
    updates = scatter.inputs[2]
    assert updates is not None
    if missing:
        updates = insert_new(graph, of_axes(graph, "Unsqueeze", updates, [*missing], scatter), updates, scatter)
    given = [graph.constant(a, f"{updates.name}_pads", scatter) for a in (pads, fill)]
    node = Node(make_node("Pad", "", "", {"mode": "constant"}), [updates, *given], [None])
    describe_as(node.proto, scatter.proto)
    graph.take_over(scatter.output, graph.insert(node, scatter))
    graph.remove(scatter)
