"""An If whose condition is known is the branch it takes."""

from __future__ import annotations

from dataclasses import dataclass

from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.protos import make_node


@register
@dataclass(frozen=True)
class InlineBranches(GraphPass):
    """If(true) then A else B = A, in the scope around it.

    Applies when: the condition is constant.
    Keeps: names of the If's results; an Identity where a result is an outer value, an initializer, or given out twice.
    Not done: branches marked `onnxopt.skip`; initializers of a branch in a function, which holds none.
    """

    info = PassInfo("inline-branches", opt_level=1)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in list(graph.by_op.get("If", ())):
            condition = node.inputs[0]
            if condition is None or not condition.constant or condition.array.size != 1:
                continue
            body = node.bodies["then_branch" if bool(condition.array.item()) else "else_branch"]
            if body.skipped:
                ctx.decline("inlined", "the branch is marked to be left alone", repr(node))
            elif body.initializers and not graph.holds_initializers:
                ctx.decline("inlined", "the branch has initializers, a function cannot", repr(node))
            elif _has_sparse(body) or _hands_on_outer(body):
                ctx.decline("inlined", "a body inside hands out what is not its own, or is sparse", repr(node))
            elif ctx.spend("inlined"):
                _inline(graph, node, body)


def _has_sparse(body: Graph) -> bool:
    return len(body.proto.sparse_initializer) > 0


def _hands_on_outer(body: Graph) -> bool:
    """Would a renamed value be listed as output of a body further inside?"""
    inner = [b for n in body.walk() for b in n.bodies.values()]
    return any(v.graph is body for b in inner for v in b.outputs)


def _inline(graph: Graph, node: Node, body: Graph) -> None:
    results = graph.inline(body)
    named: dict[Value, Value] = {}  # what the branch made, under the names that the If gave it
    for value, result in zip(list(node.outputs), results):
        if value is None or not value.is_used:
            continue
        result = named.get(result, result)
        made_here = result.producer is not None and result.graph is graph and result not in named.values()
        if made_here and not result.is_output:
            assert result.producer is not None
            producer, index = result.producer, result.index
            for user in list(result.users):
                for i, v in enumerate(user.inputs):
                    if v is result:
                        user.set_input(i, value)
            graph.take_over(value, producer, index)
            named[result] = value
        elif value.is_output:
            identity = Node(make_node("Identity", "", node.name, {}), [result], [None])
            graph.take_over(value, graph.insert(identity, node))
        else:
            value.replace_all_uses_with(result)
    graph.remove(node)
