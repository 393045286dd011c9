"""Spans of an axis: those that a Split, Slice or Gather takes, and a tensor as spans of others, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from onnxopt.analysis import types
from onnxopt.analysis.shapes.index_tensors import Span
from onnxopt.analysis.shapes.sizes import LARGEST, is_behind
from onnxopt.graph import Shape, Value
from onnxopt.graph.node import Node, array_of, producer
from onnxopt.rewriting.rule import constant_cuts

EXTRACTOR: Final = "ai.onnx.ml::ArrayFeatureExtractor"


class Taken(NamedTuple):
    """The spans that a node takes of an axis, by result. `size`: the length of the axis, if known.

    In an axis of unknown length, negative places count from the end. An end of None is the end of the axis.
    drops: the results lack the axis. alone: the node cuts no other axis.
    """

    axis: int
    size: int | None
    spans: dict[Value, Span]
    drops: bool = False
    alone: bool = True

    def bounds(self, part: Value) -> tuple[int, int] | None:
        """Return (start, end) of a result, both from the front; None if unknown."""
        start, end = self.spans.get(part, (-1, 0))
        stop = self.size if end is None else end
        return None if stop is None or start < 0 else (start, stop)


def taken(node: Node, along: int | None = None) -> Taken | None:
    """Return the spans that a Split, Slice, Gather or ArrayFeatureExtractor takes of `along`, or of its only cut axis.

    None for other nodes and for elements that are not one after the other. The spans of a Split end before the first
    part of unknown length.
    """
    x, dims = node.input(0), types.dims_of(node.input(0))
    if not dims or node.has_references or any(isinstance(d, int) and d < 0 for d in dims):
        return None  # sizes are negative in code that never runs
    if node.op == "Split":
        return _of_split(node, int(node.attr("axis") or 0) % len(dims), along)
    cuts = _CUTS[node.op](node, dims) if node.op in _CUTS else []
    found = [c for c in cuts if along is None or c[0] == along]
    if len(found) != 1 or found[0][3] != 1:
        return None
    axis, start, end, _ = found[0]
    size = types.length_of(x, axis)
    if size is not None:
        start, end, _ = slice(start, end).indices(size)
    span = Span(start, None if end == size or end in LARGEST else end)
    drops = node.op == "Gather" and types.rank(node.inputs[1]) == 0
    return Taken(axis, size, {node.output: span}, drops, len(cuts) == 1)


def _of_split(split: Node, axis: int, along: int | None) -> Taken | None:
    """Return the parts of a Split; None for lengths that no runtime accepts, in code that never runs."""
    spans, at, size = dict[Value, Span](), 0, types.length_of(split.inputs[0], axis)
    for v in split.outputs:
        length = types.length_of(v, axis)
        if v is None or length is None:
            break
        spans[v] = Span(at, at + length)
        at += length
    is_complete = len(spans) == len(split.outputs)
    if along not in (None, axis) or (size is not None and not (at == size if is_complete else at <= size)):
        return None
    return Taken(axis, at if is_complete else size, spans)


_Cut: TypeAlias = tuple[int, int, int, int]  # axis, start, end, step


def _sliced(node: Node, dims: Shape) -> list[_Cut]:
    """Return the cuts of a Slice, without those of a whole axis."""
    return [c for c in constant_cuts(node, len(dims)) if c[1] or c[3] != 1 or not is_behind(c[2], c[0], dims)]


def _gathered(node: Node, dims: Shape) -> list[_Cut]:
    """Return the cut for indices one after the other."""
    axis, places = listed(node, dims) or (0, [])
    if not places or places != [*range(places[0], places[0] + len(places))]:
        return []
    return [(axis, places[0], places[-1] + 1 or LARGEST[1], 1)]


def listed(node: Node, dims: Shape) -> tuple[int, list[int]] | None:
    """Return (axis, constant indices of at most one axis) of a Gather of a tensor of these dims, from the front where
    the length is known; None if one is not there."""
    index, axis = array_of(node.inputs[1]), int(node.attr("axis", 0)) % (len(dims) or 1)
    if node.op == EXTRACTOR:
        axis = len(dims) - 1
    elif index is not None and index.ndim > 1:
        return None
    size, places = types.length_of(node.inputs[0], axis), [] if index is None else index.reshape(-1).tolist()
    if index is None or (size is not None and not all(-size <= i < size for i in places)):
        return None
    return axis, places if size is None else [i % size for i in places]


_CUTS: Final = {"Slice": _sliced, "Gather": _gathered, EXTRACTOR: _gathered}


# -- tensors as spans of others ----------------------------------------------------------------------------------


class Part(NamedTuple):
    """A span of a value. An end of None is the end of the value, of unknown length."""

    value: Value
    start: int
    end: int | None

    def is_whole(self, axis: int) -> bool:
        """Whether the span is all of the value."""
        return not self.start and (self.end is None or self.end == types.length_of(self.value, axis))


Parts: TypeAlias = tuple[Part, ...]


def parts_of(x: Value, axis: int) -> Parts:
    """Return the inputs of a Concat along the axis; for any other value, the value."""
    node = producer(x, "Concat")
    joins = node is not None and node.graph is x.graph and not node.has_references
    if node is None or not joins or int(node.attr("axis")) % (types.rank(x) or 1) != axis:
        return (Part(x, 0, types.length_of(x, axis)),)
    return tuple(Part(v, 0, types.length_of(v, axis)) for v in node.operands)


def joints(parts: Sequence[Value], axis: int) -> dict[int | None, int]:
    """Return {place: number of the part that begins there} of joined values, as far as lengths are known.

    Places count from the front, negative ones from the end, which is None.
    """
    lengths = [types.length_of(v, axis) for v in parts]
    found: dict[int | None, int] = {None: len(parts)}
    for i, at in enumerate(_sums(lengths)):
        found.setdefault(at, i)
    for i, at in enumerate(_sums(lengths[::-1])):
        if at:
            found[-at] = len(parts) - i
    return found


def _sums(lengths: Iterable[int | None]) -> Iterator[int]:
    """Yield the sums of the first lengths, from 0, up to an unknown length."""
    at = 0
    yield at
    for length in lengths:
        if length is None:
            return
        at += length
        yield at


def cut(parts: Parts, start: int, end: int | None) -> Parts | None:
    """Return the parts within [start, end), without empty ones; places count from the end if negative. None if
    unknown."""
    sides = None if end is not None and start < 0 <= end else _parted(parts, start)
    if sides is None:
        return None
    kept = sides[1]
    if end is not None:
        sides = _parted(kept, end if end < 0 else max(0, end - start))
        if sides is None:
            return None
        kept = sides[0]
    return tuple(p for p in kept if p.start != p.end)


def _parted(parts: Parts, place: int) -> tuple[Parts, Parts] | None:
    """Return the parts before and behind a place, counted from the end if negative; None if unknown."""
    rest, passed, left, i = [*parts], list[Part](), abs(place), 0 if place >= 0 else -1
    while left and rest:
        part = rest.pop(i)
        value, start, end = part
        if end is None and (rest or place < 0):
            return None
        if end is not None and end - start <= left:
            left -= end - start
        else:
            middle = start + left if end is None or place >= 0 else end - left
            sides = Part(value, start, middle), Part(value, middle, end)
            rest.insert(i if place >= 0 else len(rest), sides[i + 1])
            part, left = sides[i], 0
        passed.append(part)
    return (tuple(passed), tuple(rest)) if place >= 0 else (tuple(rest), tuple(passed[::-1]))
