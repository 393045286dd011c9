"""Parts of joined tensors: Split and Slice of a Concat, and Scatter of a whole slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.shapes.index_tensors import WHOLE, Box, box_of
from onnxopt.analysis.shapes.sizes import LARGEST, cuts
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.operators import CUTTING
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array, make_node
from onnxopt.rewriting.canvas import Canvas, padding_of
from onnxopt.rewriting.parts import insert_new, of_axes
from onnxopt.rewriting.rule import operands

# Parts cut out of a Concat at its joints: the joined values themselves.

Part = tuple[Value, int, int]  # (value, first input of the Concat, end input)


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
            if node.graph is not graph:
                continue
            x = node.input(0)
            concat = x.producer if x is not None else None
            if x is None or concat is None or concat.op != "Concat" or concat.graph is not graph:
                continue
            if node.has_references or concat.has_references:
                continue
            parts = _parts(node, concat)
            if parts is None:
                ctx.decline("taken", "cut elsewhere than it was joined, or of unknown lengths", repr(node))
                continue
            if not parts:
                continue  # all parts are unread
            goes = x.only_user is node
            made = sum(v.is_output or end - start > 1 for v, start, end in parts)
            if goes + 1 - made < 1 and node.op != "Gather":
                ctx.decline("taken", "it would not leave fewer nodes", repr(node))
            elif ctx.spend("taken", at=node):
                asked += [u for v, _, _ in parts for u in v.users if u.op in CUTTING]
                _take(graph, node, concat, parts)
                last = x.only_user if concat.graph is graph else None
                if last is not None and last.op in CUTTING:
                    asked.append(last)  # the Concat is removed with it


def _parts(node: Node, concat: Node) -> list[Part] | None:
    dims = types.shape(concat.output)
    if not dims:
        return None
    axis = int(concat.attr("axis")) % len(dims)
    joined = [(types.shape(v) or ())[axis : axis + 1] if v is not None else () for v in concat.inputs]
    lengths = [s[0] if s and isinstance(s[0], int) and s[0] >= 0 else None for s in joined]
    front, back = _sums(lengths), _sums(lengths[::-1])[::-1]
    if node.op == "Split":
        ranges = _of_split(node, axis, len(dims))
    else:
        ranges = _of_slice(node, axis, dims) if node.op == "Slice" else _of_gather(node, axis, len(dims))
    if ranges is None:
        return None
    found: list[Part] = []
    for v, start, end in ranges:
        if not v.is_used:
            continue
        # Of equal joints, those that exclude empty inputs.
        first = max(_places(front, back, start), default=None)
        last = len(joined) if end is None else min(_places(front, back, end), default=None)
        if first is None or last is None or first >= last:
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


def _of_split(node: Node, axis: int, rank: int) -> list[tuple[Value, int, int | None]] | None:
    """Return (part, start, end) of a Split along the axis; an end of None is the end of the axis."""
    if int(node.attr("axis") or 0) % rank != axis:
        return None
    found: list[tuple[Value, int, int | None]] = []
    at = 0
    for i, v in enumerate(node.outputs):
        size = (types.shape(v) or ())[axis : axis + 1] if v is not None else ()
        if v is None or not size or not isinstance(size[0], int) or size[0] < 0:
            return None
        found.append((v, at, at + size[0] if i + 1 < len(node.outputs) else None))
        at += size[0]
    return found


def _of_slice(node: Node, axis: int, dims: Sequence[object]) -> list[tuple[Value, int, int | None]] | None:
    given = [*operands(node), None, None, None, None][1:5]
    if any(v is not None and not v.constant for v in given):
        return None
    starts, ends, axes, steps = ([] if v is None else [int(i) for i in v.array.reshape(-1)] for v in given)
    found = cuts(starts, ends, axes or None, steps or None, len(dims)) or []
    if len(found) != 1 or found[0][0] != axis or found[0][3] != 1:
        return None
    _, start, end, _ = found[0]
    size = dims[axis]
    if isinstance(size, int):
        start, end, _ = slice(start, end).indices(size)
        return [(node.output, start, None if end == size else end)]
    return [(node.output, start, None if end in LARGEST else end)]


def _of_gather(node: Node, axis: int, rank: int) -> list[tuple[Value, int, int | None]] | None:
    """Return the range of a single index along the axis; the result lacks the axis."""
    index = node.inputs[1]
    if int(node.attr("axis") or 0) % rank != axis or index is None or not index.constant or index.constant_type()[1]:
        return None
    place = int(index.array)
    return [(node.output, place, place + 1 or None)]


def _take(graph: Graph, node: Node, concat: Node, parts: list[Part]) -> None:
    for v, start, end in parts:
        inputs = concat.inputs[start:end]
        if node.op == "Gather":
            squeeze = of_axes(graph, "Squeeze", inputs[0], [int(node.attr("axis") or 0)], node)
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


# Assignments to parts of a tensor, x[:, a:b] = u, expressed by concatenation.

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
