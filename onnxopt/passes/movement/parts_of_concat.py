"""Parts of joined tensors: Split and Slice of a Concat, and Scatter of a whole slice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.linear import lengths_of
from onnxopt.analysis.shapes.index_tensors import WHOLE, box_of
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node, present, producer, sole_reader
from onnxopt.operators import CUTTING
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.canvas import Canvas
from onnxopt.rewriting.parts import of_lists, run_along

Part = tuple[Value, int, int]  # (value, first input of the Concat, end input)
_Range = tuple[Value, int, int | None]  # (value, start, end), at the end of the axis None
_SCATTERS: Final = ("ScatterElements", "ScatterND")
_RULE: Final = "assigned"


@register
class PartsOfConcat(GraphPass):
    """Split(Concat(a, b, c)) = a, Concat(b, c); Slice(Concat(a, b), from where b begins) = b.

    Gather(Concat(a, b), 0) = Squeeze(a), if a has size 1 along the axis.

    Applies when: axes are equal, each part begins and ends at a joint, by known lengths, and fewer nodes are left, or a
    Squeeze (which copies nothing) instead of a Gather. Examples: embeddings of time with exchanged sines and cosines,
    prepended tokens that are removed again, stacked codes of a codec picked one by one.
    """

    # After: Slices have become a Split, and chained Concats a single one.
    info = PassInfo("parts-of-concat", opt_level=1, after=("slices-to-split", "merge-chains"), ops=("Concat",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        asked = [n for op in CUTTING for n in graph.by_op.get(op, ())]
        for node in asked:
            concat = _cut_concat(node, graph)
            if concat is None:
                continue
            parts = _parts(node, concat)
            if parts is None:
                ctx.decline("taken", "cut elsewhere than it was joined, or of unknown lengths", repr(node))
            elif parts and not _saves(node, concat, parts):
                ctx.decline("taken", "it would not leave fewer nodes", repr(node))
            elif parts and ctx.spend("taken", at=node):
                asked += [u for v, _, _ in parts for u in v.users if u.op in CUTTING]
                _take(graph, node, concat, parts)
                last = sole_reader(concat.output, *CUTTING) if concat.graph is graph else None
                if last is not None:
                    asked.append(last)  # the Concat is removed with it


def _cut_concat(node: Node, graph: Graph) -> Node | None:
    """Return the Concat whose result the node cuts, if both are in the graph; else None."""
    concat = producer(node.input(0), "Concat")
    if concat is None or node.graph is not graph or concat.graph is not graph:
        return None
    return None if node.has_references or concat.has_references else concat


def _saves(node: Node, concat: Node, parts: list[Part]) -> bool:
    """Whether the parts need fewer nodes, or a Squeeze in place of a Gather."""
    made = sum(v.is_output or end - start > 1 for v, start, end in parts)
    return node.op == "Gather" or made <= (concat.output.only_user is node)


def _parts(node: Node, concat: Node) -> list[Part] | None:
    """Return the read parts as joined inputs; None if a part does not begin or end at a joint, or lengths are
    unknown."""
    dims = types.shape(concat.output)
    if not dims:
        return None
    axis = int(concat.attr("axis")) % len(dims)
    lengths = [types.length_of(v, axis) for v in concat.inputs]
    front, back = _sums(lengths), _sums(lengths[::-1])[::-1]
    ranges = _RANGES[node.op](node, axis, dims)
    if ranges is None:
        return None
    found: list[Part] = []
    for v, start, end in ranges:
        if not v.is_used:
            continue
        # Of equal joints, those that exclude empty inputs.
        first = max(_places(front, back, start), default=len(lengths))
        last = len(lengths) if end is None else min(_places(front, back, end), default=0)
        if first >= last:
            return None
        found.append((v, first, last))
    return found


def _sums(lengths: Sequence[int | None]) -> list[int | None]:
    """Return the start of each input, and the end of the last, as far as known."""
    found: list[int | None] = [0]
    for length in lengths:
        at = found[-1]
        found.append(at + length if at is not None and length is not None else None)
    return found


def _places(front: Sequence[int | None], back: Sequence[int | None], place: int) -> list[int]:
    """Return the inputs that start at `place`, counted from the end if negative."""
    return [i for i, (p, q) in enumerate(zip(front, back)) if (p == place if place >= 0 else q == -place)]


def _of_split(node: Node, axis: int, dims: Shape) -> list[_Range] | None:
    """Return the parts of a Split along the axis."""
    sizes = lengths_of(node.outputs, axis)
    if sizes is None or int(node.attr("axis") or 0) % len(dims) != axis:
        return None
    ends = [*accumulate(sizes)]
    return [*zip(present(node.outputs), [0, *ends], [*ends[:-1], None])]


def _of_run(node: Node, axis: int, dims: Shape) -> list[_Range] | None:
    """Return the part of a Slice along the axis alone, or of one index; the result of the latter lacks the axis."""
    found = run_along(node, axis, dims)
    return [(node.output, *found[:2])] if found is not None and found[2] == 1 else None


_RANGES: Final = {"Split": _of_split, "Slice": _of_run, "Gather": _of_run}


def _take(graph: Graph, node: Node, concat: Node, parts: list[Part]) -> None:
    for v, start, end in parts:
        inputs = concat.inputs[start:end]
        if node.op == "Gather":
            squeeze = of_lists(graph, "Squeeze", inputs[0], node, [int(node.attr("axis") or 0)])
            describe_as(squeeze.proto, node.proto)
            graph.take_over(v, graph.insert(squeeze, node))
            continue
        if len(inputs) > 1:
            graph.take_over(v, graph.insert(concat.copy(inputs, [None]), node))
        else:
            assert inputs[0] is not None
            v.replace_all_uses_with(inputs[0])
    graph.remove(node)
    if not concat.output.is_used:
        graph.remove(concat)


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
