"""Parts of joined tensors: Split and Slice of a Concat, and Scatter of a whole slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.shapes.index_tensors import WHOLE, box_of
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.operators import CUTTING
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, RewritePass, register
from onnxopt.rewriting import Match, one_of, op, rewrite, var
from onnxopt.rewriting.canvas import Canvas
from onnxopt.rewriting.spans import Taken, joints, taken

_SCATTERS: Final = ("ScatterElements", "ScatterND")
_RULE: Final = "assigned"


@rewrite(one_of(*CUTTING)(op.Concat(var("first"), ..., name="concat", shared=True), ..., name="node"))
def part_of_concat(m: Match, first: Value) -> dict[Value, Value]:
    """Split(Concat(a, b, c)) = a, Concat(b, c); Slice(Concat(a, b), from where b begins) = b; also a Gather of a list.

    Gather(Concat(a, b), 0) = Squeeze(a), if a has size 1 along the axis.
    """
    joined, parts = m.concat.output, m.concat.operands
    if m.concat.graph is not m.graph or m.concat.has_references or next(_cutters(m, joined)) is not m.node:
        m.skip()  # the first reader acts for all: if each looked at all parts, the cost would be quadratic
    axis = int(m.concat.attr("axis")) % (m.rank(joined) or 1)
    places = joints(parts, axis)
    made, is_cut = dict[Value, Value](), False
    m.put_behind(joined)
    for node in _cutters(m, joined):
        found = taken(node)
        runs = _runs(node, found, parts, places) if found is not None and found.axis == axis and found.alone else {}
        joins = sum(v.is_output or len(run) > 1 for v, run in runs.items())
        if found is not None and (found.drops or joins <= (joined.only_user is node)):
            made |= {v: _joined(m, found, run) for v, run in runs.items()}
        is_cut = is_cut or bool(runs)
    m.require(is_cut, "cut elsewhere than it was joined, or of unknown lengths")
    m.require(made, "it would not leave fewer nodes")
    return made


def _cutters(m: Match, joined: Value) -> Iterator[Node]:
    """Yield the readers of `joined` in this scope that may take parts."""
    return (n for n in joined.users if n.op in CUTTING and n.inputs[0] is joined and n.graph is m.graph)


def _runs(
    node: Node, found: Taken, parts: Sequence[Value], places: Mapping[int | None, int]
) -> dict[Value, list[Value]]:
    """Return the parts that each used result of a node joins; {} unless all begin and end at a joint."""
    runs = dict[Value, list[Value]]()
    for v in node.results:
        span = found.spans.get(v)
        if v.is_used and span is not None and span.start in places and span.end in places:
            run = parts[places[span.start] : places[span.end]]
            runs[v] = [p for p in run if types.length_of(p, found.axis) != 0]
    return runs if runs.keys() == {v for v in node.results if v.is_used} and all(runs.values()) else {}


def _joined(m: Match, found: Taken, run: Sequence[Value]) -> Value:
    """Return the joined parts, or the only one, without the axis if the node drops it."""
    if len(run) > 1:
        return m.op.Concat(*run, like=m.concat)
    return m.op.Squeeze(run[0], m.ints([found.axis])) if found.drops else run[0]


@register
class PartsOfConcat(RewritePass):
    """Split(Concat(a, b, c)) = a, Concat(b, c); Slice(Concat(a, b), from where b begins) = b.

    Gather(Concat(a, b), 0) = Squeeze(a), if a has size 1 along the axis.

    Applies when: axes are equal, each part begins and ends at a joint, by known lengths, and fewer nodes are left, or a
    Squeeze (which copies nothing) instead of a Gather. Examples: embeddings of time with exchanged sines and cosines,
    prepended tokens that are removed again, stacked codes of a codec picked one by one.
    """

    # After: Slices have become a Split, and chained Concats a single one.
    info = PassInfo("parts-of-concat", opt_level=1, after=("slices-to-split", "merge-chains"), ops=("Concat",))
    rules = (part_of_concat,)


@register
class SliceAssignments(GraphPass):
    """Scatter(x, indices of x[:, a:b], u) = Concat(x[:, :a], u, x[:, b:]); Pad(u) where all elements of x are
    equal.

    Applies when: the indices form a box that is smaller than the data along at most one axis, as constants or built
    from Range, Expand and Concat; dims are known; and no more nodes are left after all scatters along an axis of a
    tensor: overwritten parts are not joined, and readers of a part read its source.
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
        scatters = [n for op in _SCATTERS for n in graph.by_op.get(op, ())]
        for node in scatters if len(scatters) < 2 else [n for n in graph if n.op in _SCATTERS]:
            reason = _assign(graph, node, found, now)
            if reason:
                ctx.decline(_RULE, reason, repr(node))
        _carry_out(list(dict.fromkeys(found.values())), ctx)


def _assign(graph: Graph, node: Node, found: dict[Value, Canvas], now: dict[Value, Value]) -> str:
    """Add a scatter to the canvas of its data. Returns the reason if impossible, else an empty string."""
    box, data = box_of(node), node.operands[0]
    if box is None:
        return "its indices are no box, or may reach beyond the data"
    axis, *others = [k for k, span in enumerate(box.spans) if span != WHOLE] or [0]
    if others:
        return "less than the data along several axes"
    canvas = found.get(data)
    if canvas is None or canvas.axis != axis:
        canvas = Canvas(graph, data, axis, now)
    if not canvas.paint(node, *box.spans[axis], box.missing):
        return "where the parts begin is unknown, or there are many"
    found[node.output] = canvas
    return ""


def _carry_out(canvases: list[Canvas], ctx: PassContext) -> None:
    """Carry out canvases that leave no more nodes; then, as far as nodes were saved, those that leave one more."""
    saved, rest = 0, list[Canvas]()
    for canvas in canvases:
        if canvas.cost() > 0:
            rest.append(canvas)
        else:
            saved += _spend(canvas, ctx)
    for canvas in rest:  # of many rows assigned one by one the first is cut off
        if len(canvas.scatters) < 2 or canvas.cost() > min(1, saved):
            ctx.decline(_RULE, "it would leave more nodes", repr(canvas.scatters[0]))
        else:
            saved += _spend(canvas, ctx)


def _spend(canvas: Canvas, ctx: PassContext) -> int:
    """Carry out a canvas, if the pass has fuel. Returns the number of nodes saved."""
    if not ctx.spend(_RULE, at=canvas.scatters[-1]):
        return 0
    saved = len(canvas.gone) - canvas.made
    canvas.carry_out()
    return saved
