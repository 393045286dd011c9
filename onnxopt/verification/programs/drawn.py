"""Two models that draw random numbers, made comparable: no two runs draw the same.

A node that is the same in both, and reads the same, draws alike, and what A drew is taken for what B does. But the
result may call what it reads otherwise: an Identity is gone, a shape was folded. So each of its operands gets a name of
its own, after the node's result, and is a value of both that is compared like any other.

What draws in a body, or in a function that the other has inline, gives nothing out that could be taken. It gets a seed,
the same in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.dependence import draws
from onnxopt.verification.model.order import bodies_of, first_of
from onnxopt.verification.model.skeleton import Operand

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from onnxopt.verification.model.skeleton import Skeleton

_READ: Final = "\N{RIGHTWARDS ARROW}read"
_SEED: Final = 47


def draw_alike(a: Skeleton, b: Skeleton) -> None:
    """Change both, in place."""
    drawing = [{first_of(n): n.op_type for n in s.proto.graph.node if draws(n)} for s in (a, b)]
    both = {name for name, op in drawing[0].items() if name and drawing[1].get(name) == op}
    for skeleton in (a, b):
        model = skeleton.proto
        skeleton.operands = _name_operands(model.graph, both)
        _seed(model.graph.node, both)
        for function in model.functions:
            _seed(function.node, ())


def _name_operands(graph: GraphProto, results: Collection[str]) -> dict[str, Operand]:
    """Put an Identity before each operand of what makes these; by the names that they get."""
    found: dict[str, Operand] = {}
    taken = {name for node in graph.node for name in node.output if _READ in name}
    nodes: list[NodeProto] = []
    for node in graph.node:
        result = first_of(node)
        for i, read in enumerate(node.input) if result in results else ():
            name = f"{result}{_READ}{i}"
            if read and name not in taken:
                nodes.append(type(node)(op_type="Identity", input=[read], output=[name]))
                node.input[i] = name
                found[name] = Operand(read, result)
        nodes.append(node)
    if found:
        del graph.node[:]
        graph.node.extend(nodes)
    return found


def _seed(nodes: Iterable[NodeProto], but: Collection[str]) -> None:
    """Give what draws a seed, where it has none, and does not make one of these; in bodies all."""
    for node in nodes:
        for body in bodies_of(node):
            _seed(body.node, ())
        if draws(node) and first_of(node) not in but and not any(a.name == "seed" for a in node.attribute):
            seed = node.attribute.add(name="seed", type=1, f=_SEED)
            if node.op_type == "Dropout":  # an integer, that of all others is a float
                seed.type, seed.i = seed.INT, _SEED
                seed.ClearField("f")
