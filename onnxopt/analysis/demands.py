"""How many axes a value has wherever the model runs: a Conv, an LSTM, a Transpose read what has one number of axes, and
anything else is an error."""

from __future__ import annotations

from typing import Final

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import values_read
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value

_FAR: Final = 32  # readers, one behind another or side by side, that are asked
_RECURRENT: Final = ("GRU", "LSTM", "RNN")
_STATES: Final = (5, 6)  # inputs of these: what they begin with
_POOLS: Final = ("AveragePool", "LpPool", "MaxPool")
_ALIKE: Final = frozenset(
    {
        *(
            "Abs",
            "Cast",
            "Clip",
            "Elu",
            "Erf",
            "Exp",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "LeakyRelu",
            "Log",
            "Neg",
        ),
        *("Not", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh"),
    }
)


class Running:
    """The nodes of a scope on which its outputs depend: they run whenever it does. Looked for when first asked."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._found: set[Node] = set()

    def __contains__(self, node: object) -> bool:
        if not self._found:
            self._look()
        return node in self._found

    def _look(self) -> None:
        stack = [v.producer for v in self._graph.outputs]
        while stack:
            node = stack.pop()
            if node is not None and node.graph is self._graph and node not in self._found:
                self._found.add(node)
                stack += [v.producer for v in values_read(node)]


def demanded_rank(value: Value, among: Running) -> int | None:
    """How many axes what reads `value` asks of it, in nodes that run; None where none asks."""
    stack = [(value, 0)]  # and how many axes more it has than `value`
    for _ in range(_FAR):
        if not stack:
            break
        asked, more = stack.pop()
        for node in asked.users:
            if node not in among or node.has_references or len(stack) > _FAR:
                continue
            rank = _read_by(node, asked)
            if rank is not None:
                return rank - more
            change = _axes_more(node) if node.places(asked) == [0] else None
            if change is not None and node.outputs[0] is not None:
                stack.append((node.output, more + change))
    return None


def _read_by(node: Node, value: Value) -> int | None:
    """How many axes this node asks of what it reads, where it asks for one number of them."""
    op, places = node.op, node.places(value)
    if op in _RECURRENT and not node.domain and (places[0] == 0 or places[0] in _STATES):
        return 3
    if places[0] != 0:
        return None
    if op in ("Conv", "ConvTranspose"):
        weights = node.input(1)
        rank = types.rank(weights) if weights is not None else None
        return rank if rank is not None and rank > 2 else None
    said = node.attr("perm" if op == "Transpose" else "kernel_shape") if op == "Transpose" or op in _POOLS else None
    return len(said) + (op != "Transpose") * 2 if said else None


def _axes_more(node: Node) -> int | None:
    """How many axes more than its first input its result has; None where that depends."""
    if node.op in _ALIKE:
        return 0
    if node.op not in ("Unsqueeze", "Squeeze"):
        return None
    axes, given = node.attr("axes"), node.input(1)
    if given is not None and given.constant:
        axes = given.array.reshape(-1).tolist()
    if not axes or len({a < 0 for a in axes}) > 1 or len(set(axes)) < len(axes):
        return None  # two may be one and the same
    return len(axes) if node.op == "Unsqueeze" else -len(axes)
