"""Sequences read only element by element, replaced by a Split."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.messages import make_node

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
            sizes = _sizes(node)
            if isinstance(sizes, str):
                ctx.decline("split", sizes, repr(node))
            elif ctx.spend("split", at=node):
                _split(graph, node, sizes)


def _sizes(node: Node) -> list[int] | str:
    """Return the sizes of the parts, or why the node stays."""
    graph, value, x, split = node.graph, node.output, node.inputs[0], node.input(1)
    if graph is None or graph.opset() < 13 or node.has_references:
        return "Split takes its sizes as input from opset 13 on"
    dims = types.shape(x) if x is not None else None
    axis = node.attr("axis")
    size = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
    if not isinstance(size, int):
        return "the size of the axis is unknown"
    # with sizes given, the standard ignores keepdims and runtimes do not
    if split is None or not node.attr("keepdims", 1):
        return "the parts lose their axis"
    if not split.constant:
        return "the sizes are computed"
    if split.array.ndim > 1:
        return "the sizes are no list"
    step = 0 if split.array.ndim else max(0, int(split.array))
    if (-(-size // step) if step else split.array.size) > max(_PARTS, len(value.users)):
        return "there are too many parts"
    if split.array.ndim:
        sizes = [int(n) for n in split.array]
    else:
        sizes = [min(step, size - start) for start in range(0, size, step)] if step else []
    if not sizes or sum(sizes) != size:
        return "the sizes do not add up"
    if value.is_output or any(_position(u, value, len(sizes)) is None for u in value.users):
        return "the sequence is used as a whole"
    return sizes


def _position(user: Node, sequence: Value, count: int) -> int | None:
    """Return the position read by a SequenceAt of the same scope; None for other readers."""
    at = user.input(1)
    if user.op != "SequenceAt" or user.graph is not sequence.graph:
        return None
    if at is None or not at.constant or at.array.size != 1:
        return None
    position = int(at.array.item())
    position += count if position < 0 else 0
    return position if 0 <= position < count else None


def _split(graph: Graph, node: Node, sizes: list[int]) -> None:
    value = node.output
    lengths = graph.constant(np.array(sizes, np.int64), f"{value.name}_sizes", node)
    fresh = graph.model.names.fresh
    parts = [Value(fresh(value.name, f"_{i}"), graph) for i in range(len(sizes))]
    split = Node(make_node("Split", "", node.name, {"axis": node.attr("axis")}), [node.inputs[0], lengths], [*parts])
    describe_as(split.proto, node.proto)
    graph.insert(split, node)
    taken: set[int] = set()
    for user in list(value.users):
        position = _position(user, value, len(sizes))
        assert position is not None
        element = user.output
        if position not in taken:  # the element's value becomes the part, so output names stay
            taken.add(position)
            graph.take_over(element, split, position)
        else:
            part = split.outputs[position]
            assert part is not None
            element.replace_all_uses_with(part)
        graph.remove(user)
    graph.remove(node)
