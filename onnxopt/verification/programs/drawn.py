"""Equal random draws in two models, as no two runs draw the same.

An equal node with equal operands is replaced by A's draw in B. Since the result may rename operands (a removed
Identity, a folded shape), each operand of such a node gets a name derived from the node's first result, and is compared
like any value. Further results (the mask of a Dropout) are renamed likewise.

A node that draws in a body, or in a function inlined in the other model, has no result to replace. It gets a fixed
seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from onnxopt.verification.model.dependence import draws
from onnxopt.verification.model.order import bodies_of, first_of
from onnxopt.verification.model.skeleton import Operand

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from onnxopt.verification.model.skeleton import Skeleton

_READ: Final = "\N{RIGHTWARDS ARROW}read"
_DRAWN: Final = "\N{RIGHTWARDS ARROW}drawn"
_SEED: Final = 47


def draw_alike(a: Skeleton, b: Skeleton) -> None:
    """Change both models in place."""
    mine, theirs = ({n.output[0]: n for n in s.proto.graph.node if n.output and draws(n)} for s in (a, b))
    alike = [name for name in mine.keys() & theirs.keys() if name and mine[name].op_type == theirs[name].op_type]
    both = {name: max(len(mine[name].output), len(theirs[name].output)) for name in alike}
    for skeleton in (a, b):
        model = skeleton.proto
        skeleton.operands = _name_alike(model.graph, both)
        _seed(model.graph.node, both)
        for function in model.functions:
            _seed(function.node, ())


def _name_alike(graph: GraphProto, results: Mapping[str, int]) -> dict[str, Operand]:
    """Add an Identity before each operand, and after each further result, of nodes that make `results` (name: count).

    Returns the operands by new name.
    """
    found: dict[str, Operand] = {}
    taken = {name for node in graph.node for name in node.output if _READ in name or _DRAWN in name}
    nodes: list[NodeProto] = []
    for node in graph.node:
        result = next(iter(node.output), "")
        if result not in results:
            nodes.append(node)
            continue
        operands = _named_operands(node, taken)
        found.update((name, Operand(read, result)) for name, read in operands)
        nodes += [_identity(read, name) for name, read in operands]
        nodes.append(node)
        nodes += _named_results(node, results[result], taken)
    if found:
        del graph.node[:]
        graph.node.extend(nodes)
    return found


def _named_operands(node: NodeProto, taken: Collection[str]) -> list[tuple[str, str]]:
    """Return (new name, value read) of a node's operands, and change the node to read the new names."""
    named = [(f"{node.output[0]}{_READ}{i}", read) for i, read in enumerate(node.input)]
    new = [(name, read) for name, read in named if read and name not in taken]
    node.input[:] = [name if (name, read) in new else read for name, read in named]
    return new


def _named_results(node: NodeProto, count: int, taken: Collection[str]) -> Iterator[NodeProto]:
    """Yield Identities for the further results of a node, and rename the node's results."""
    for k in range(1, count):
        name, own = f"{node.output[0]}{_DRAWN}{k}", node.output[k] if k < len(node.output) else ""
        if name not in taken:
            node.output[k : k + 1] = [name]
            yield from [_identity(name, own)] if own else ()


def _identity(read: str, name: str) -> NodeProto:
    from onnx import NodeProto

    return NodeProto(op_type="Identity", input=[read], output=[name])


def _seed(nodes: Iterable[NodeProto], but: Collection[str]) -> None:
    """Add a seed to nodes that draw without a seed, except those named in `but`, and to all in bodies."""
    for node in nodes:
        for body in bodies_of(node):
            _seed(body.node, ())
        if draws(node) and first_of(node) not in but:
            _add_seed(node)


def _add_seed(node: NodeProto) -> None:
    if any(a.name == "seed" for a in node.attribute):
        return
    if node.op_type == "Dropout":  # an integer; a float for all remaining operators
        node.attribute.add(name="seed", type=2, i=_SEED)
    else:
        node.attribute.add(name="seed", type=1, f=_SEED)
