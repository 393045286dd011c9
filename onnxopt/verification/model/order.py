"""What nodes read and hold, and an order in which they can be run. Runtimes take any, and files have any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from onnxopt.verification.model.operators import WITH_BODIES

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


def in_order(nodes: Sequence[NodeProto], reads: Sequence[Sequence[str]]) -> list[int]:
    """A topological order: as it stands, if it is one."""
    maker = {o: i for i, n in enumerate(nodes) for o in n.output[:] if o}
    done: dict[int, None] = {}
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            i = stack[-1]
            before = [maker[r] for r in reads[i] if r in maker and maker[r] not in done and maker[r] != i]
            if i in done or not before or len(stack) > len(nodes):
                done[stack.pop()] = None
            else:
                stack += before
    return list(done)


def reads_of(node: NodeProto) -> Iterator[str]:
    """What a node reads of its graph: its inputs, and what its bodies take from outside."""
    for name in node.input[:]:
        if name:
            yield name
    for a in node.attribute[:]:
        for body in (a.g,) if a.HasField("g") else a.graphs:
            yield from captured(body)


def captured(body: GraphProto) -> Iterator[str]:
    """What a body reads from outside."""
    made = {i.name for i in body.input} | {t.name for t in body.initializer}
    made |= {t.values.name for t in body.sparse_initializer}
    for node in body.node[:]:
        yield from (name for name in reads_of(node) if name not in made)
        made.update(node.output)
    yield from (o.name for o in body.output if o.name not in made)


def bodies_of(node: NodeProto) -> Sequence[GraphProto]:
    """What a node holds that can be run: few operators of the standard have any, and the attributes of all others are
    not looked through."""
    if node.op_type not in WITH_BODIES and not node.domain:
        return ()
    return [body for a in node.attribute[:] for body in ((a.g,) if a.HasField("g") else a.graphs)]


def leave_out_inputs(model: ModelProto) -> None:
    """Take the inputs from branches of Ifs. By the standard a branch has none, and nobody gives it any: what is called
    so around it is read."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in inside(nodes):
            if node.op_type == "If" and node.domain in ("", "ai.onnx"):
                for branch in bodies_of(node):
                    del branch.input[:]


def first_of(node: NodeProto) -> str:
    """What it makes first."""
    return next((o for o in node.output[:] if o), "")


def inside(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those in their bodies, at every depth."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from inside(body.node)


def operator_names(nodes: Iterable[NodeProto]) -> frozenset[str]:
    """Of these nodes, and in their bodies."""
    return frozenset(node.op_type for node in inside(nodes))
