"""Sequences read only element by element, replaced by a Split."""

from __future__ import annotations

from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node, array_of
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting.parts import insert_split
from onnxopt.rewriting.rule import Declined, require

_PARTS: Final = 1024  # mostly unread parts: the size declared by a file is not trusted


@register
class SplitSequences(GraphPass):
    """SequenceAt(SplitToSequence(x), i) = Split(x)[i].

    Applies when: every reader takes an element at a constant position; axis, sizes and number of parts are known; the
    parts keep their rank, and number at most 1,024, or as many as are read.
    Not done: sequences used as a whole; `keepdims` = 0.
    """

    info = PassInfo("split-sequences", opt_level=1, ops=("SplitToSequence",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in list(graph.by_op.get("SplitToSequence", ())):
            try:
                sizes = _sizes(node)
            except Declined as e:
                ctx.decline("split", str(e), repr(node))
                continue
            if ctx.spend("split", at=node):
                _split(graph, node, sizes)


def _sizes(node: Node) -> list[int]:
    """Return the sizes of the parts. Raises Declined."""
    graph, value, split = node.graph, node.output, node.input(1)
    since = graph is not None and graph.opset() >= 13 and not node.has_references
    require(since, "Split takes its sizes as input from opset 13 on")
    size = types.length_of(node.inputs[0], node.attr("axis"))
    require(size is not None, "the size of the axis is unknown")
    # with sizes given, the standard ignores keepdims and runtimes do not
    require(split is not None and node.attr("keepdims", 1), "the parts lose their axis")
    given = array_of(split)
    if given is None:
        raise Declined("the sizes are computed")
    require(given.ndim < 2, "the sizes are no list")
    sizes = _lengths(given, size or 0, max(_PARTS, len(value.users)))
    require(sizes and sum(sizes) == size, "the sizes do not add up")
    whole = value.is_output or any(_position(u, value, len(sizes)) is None for u in value.users)
    require(not whole, "the sequence is used as a whole")
    return sizes


def _lengths(given: Array, size: int, most: int) -> list[int]:
    """Return the lengths of the parts of an axis: a list, or a length for all but the last. Raises Declined."""
    step = 0 if given.ndim else max(0, int(given))
    require((-(-size // step) if step else given.size) <= most, "there are too many parts")
    if given.ndim:
        return [int(n) for n in given]
    return [min(step, size - start) for start in range(0, size, step)] if step else []


def _position(user: Node, sequence: Value, count: int) -> int | None:
    """Return the position read by a SequenceAt of the same scope; None for other readers."""
    at = array_of(user.input(1))
    if user.op != "SequenceAt" or user.graph is not sequence.graph or at is None or at.size != 1:
        return None
    position = int(at.item())
    position += count if position < 0 else 0
    return position if 0 <= position < count else None


def _split(graph: Graph, node: Node, sizes: list[int]) -> None:
    value, fresh = node.output, graph.model.names.fresh
    readers = {user: _position(user, value, len(sizes)) for user in value.users}
    read = {i: user.output for user, i in reversed(readers.items())}  # the first reader's value becomes the part
    parts = [read[i] if i in read else Value(fresh(value.name, f"_{i}"), graph) for i in range(len(sizes))]
    split = insert_split(graph, node.operands[0], parts, node.attr("axis"), sizes, node)
    describe_as(split.proto, node.proto)
    for user, i in readers.items():
        if i is not None and user.output is not parts[i]:
            parts[i] = user.output.replace_all_uses_with(parts[i])  # an output keeps its value
        graph.remove(user)
    graph.remove(node)
