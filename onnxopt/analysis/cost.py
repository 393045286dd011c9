"""Work and memory of a model: multiply-accumulates, floating point operations, and peak memory, node by node.

A MAC is a multiplication with its product added to a sum, in convolutions, matrix products, recurrent layers and
attention. FLOPs are 2 for each MAC, and 1 for each other scalar operation: an Add has 1 for each element of the result,
a Softmax 5 (maximum, difference, exponential, sum, quotient). Functions such as Exp and Tanh count 1, data movement 0.
Integers count like floats. An unknown size counts as 1 and makes the node inexact: the sum is then a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.operators import BROADCASTING, GLOBAL_POOLS, POOLS, REDUCTIONS, UNARY, VARIADIC
from onnxopt.proto.messages import tensor_bytes

_PER_ELEMENT: Final = {
    **dict.fromkeys((UNARY - {"Cast"}) | (BROADCASTING - VARIADIC), 1),
    **dict.fromkeys(["Clip", "LeakyRelu", "PRelu", "ThresholdedRelu", "BatchNormalization"], 2),
    **dict.fromkeys(["DequantizeLinear", "Elu", "Softsign"], 2),
    **dict.fromkeys(["Celu", "HardSigmoid", "QuantizeLinear", "Selu", "Softplus"], 3),
    **dict.fromkeys(["HardSwish", "Sigmoid"], 4),  # negate, exponential, add, divide
    **dict.fromkeys(["Gelu", "LogSoftmax", "Mish", "Softmax", "Swish", "SiLU"], 5),
    **dict.fromkeys(["GroupNormalization", "InstanceNormalization", "LayerNormalization"], 7),
    **dict.fromkeys(["RMSNormalization", "SimplifiedLayerNormalization"], 4),
    "RotaryEmbedding": 3,
}


_Rule: TypeAlias = "Callable[[Node, _Size], int]"
_PRODUCTS: Final[dict[str, tuple[_Rule, int]]] = {}  # by operator: MACs, index of the bias


@dataclass(frozen=True)
class NodeCost:
    """The work of a single run of a node; `times`: number of runs (a Loop's trip count if constant)."""

    node: Node
    macs: int
    flops: int
    exact: bool
    times: int = 1


def model_costs(model: Model) -> list[NodeCost]:
    """Return the work of the nodes in the main graph and its bodies, in order; nodes without work are left out.

    Of an If the branch with more work counts. Function bodies have no shapes: load the model with `inline_functions`.
    """
    types.update(model)
    return list(_scope(model.graph, 1))


def _scope(graph: Graph, times: int) -> Iterator[NodeCost]:
    for node in graph:
        if node.op == "If":
            branches = [list(_scope(body, times)) for body in node.bodies.values()]
            yield from max(branches, key=lambda costs: sum(c.flops * c.times for c in costs), default=[])
            continue
        trips = _trips(node)
        for body in node.bodies.values():
            yield from _scope(body, times * trips)
        size = _Size()
        macs = _macs(node, size)
        flops = 2 * macs + _bias(node, size) if macs else _flops(node, size)
        if macs or flops:
            yield NodeCost(node, macs, flops, size.exact, times)


def operations(node: Node) -> int:
    """Return the MACs of a single run of a node, or its scalar operations if it has none."""
    size = _Size()
    return _macs(node, size) or _flops(node, size)


def _trips(node: Node) -> int:
    """Return the number of iterations of the bodies, 1 if unknown."""
    if node.op == "Loop":
        count = node.input(0)
        return max(0, int(count.array.item())) if count is not None and count.constant and count.array.size == 1 else 1
    if node.op == "Scan":
        first = node.inputs[-1] if node.inputs else None
        shape = types.shape(first)
        return shape[0] if shape and isinstance(shape[0], int) else 1
    return 1


class _Size:
    """Sizes of values; `exact` turns false when an unknown size is requested."""

    def __init__(self) -> None:
        self.exact = True

    def shape(self, value: Value | None, rank: int = 0) -> list[int]:
        """Return the dims, unknown ones as 1; at least `rank` of them."""
        dims = types.shape(value)
        if dims is None or not all(isinstance(d, int) for d in dims):
            self.exact = False
        known = [d if isinstance(d, int) else 1 for d in dims or ()]
        return known + [1] * (rank - len(known))

    def bytes(self, value: Value) -> int:
        """Return the bytes; 0 for unknown rank or type."""
        dims, kind = self.shape(value), types.dtype(value)
        if types.shape(value) is None or not kind:
            self.exact = False
            return 0
        return tensor_bytes(kind, dims)

    def elements(self, value: Value | None) -> int:
        return prod(self.shape(value))


def _first(node: Node) -> Value | None:
    return next(iter(node.results), None)


def _macs(node: Node, size: _Size) -> int:
    rule, _ = _PRODUCTS.get(node.op, (None, 0))
    return rule(node, size) if rule is not None else 0


def _products(**biases: int) -> Callable[[_Rule], _Rule]:
    """Register the MACs of operators; for each the index of its bias, or 0."""

    def add(rule: _Rule) -> _Rule:
        _PRODUCTS.update({op: (rule, index) for op, index in biases.items()})
        return rule

    return add


@_products(Conv=2, ConvInteger=0, DeformConv=3, QLinearConv=8)
def _conv(node: Node, size: _Size) -> int:
    """Return MACs of a convolution: each result element sums C/g × kernel products (Conv-1: W [M, C/g, …])."""
    w = size.shape(node.input(3 if node.op == "QLinearConv" else 1), 3)
    return size.elements(_first(node)) * prod(w[1:])


@_products(ConvTranspose=2)
def _conv_transpose(node: Node, size: _Size) -> int:
    """Return MACs: each input element is added to M/g × kernel sums (ConvTranspose-1: W [C, M/g, …])."""
    return size.elements(node.inputs[0]) * prod(size.shape(node.input(1), 3)[1:])


@_products(Gemm=2)
def _gemm(node: Node, size: _Size) -> int:
    a = size.shape(node.inputs[0], 2)
    return size.elements(_first(node)) * a[0 if node.attr("transA") else 1]


@_products(MatMul=0, MatMulInteger=0, QLinearMatMul=0)
def _matmul(node: Node, size: _Size) -> int:
    return size.elements(_first(node)) * size.shape(node.inputs[0], 1)[-1]


@_products(Einsum=0)
def _einsum(node: Node, size: _Size) -> int:
    """Return a product for each combination of all letters; 0 for a single operand."""
    text = str(node.attr("equation")).replace(" ", "")
    terms = text.partition("->")[0].split(",")
    if len(terms) < 2 or "." in text:
        size.exact = size.exact and len(terms) < 2
        return 0
    sizes: dict[str, int] = {}
    for term, value in zip(terms, node.inputs):
        for letter, d in zip(term, size.shape(value, len(term))):
            sizes[letter] = max(sizes.get(letter, 1), d)
    return prod(sizes.values()) * (len(terms) - 1)


@_products(GRU=0, LSTM=0, RNN=0)
def _recurrent(node: Node, size: _Size) -> int:
    """Return gates × hidden × (input + hidden) for each step and sequence (LSTM-1: W [directions, gates H, I])."""
    steps, batch = size.shape(node.inputs[0], 3)[:2]
    directions, rows, inputs = size.shape(node.input(1), 3)[:3]
    hidden = size.shape(node.input(2), 3)[2]
    return steps * batch * directions * rows * (inputs + hidden)


@_products(Attention=0)
def _attention(node: Node, size: _Size) -> int:
    """Return MACs of scores and of their product with values (Attention-23: 3-D or [batch, heads, length, size])."""
    q, k, v = (size.shape(node.input(i), 3) for i in range(3))
    past = node.input(4)
    length = k[-2] + (size.shape(past, 4)[2] if past is not None else 0)
    if len(q) == 4:
        return prod(q[:3]) * length * (q[3] + v[-1])
    shared = int(node.attr("q_num_heads", 1) or 1) // int(node.attr("kv_num_heads", 1) or 1)
    return q[0] * q[1] * length * (q[2] + v[2] * max(shared, 1))


def _bias(node: Node, size: _Size) -> int:
    _, index = _PRODUCTS[node.op]
    return size.elements(_first(node)) if index and node.input(index) is not None else 0


def _flops(node: Node, size: _Size) -> int:
    op = node.op
    if op in _PER_ELEMENT:
        return _PER_ELEMENT[op] * size.elements(_first(node))
    if op in VARIADIC:
        return max(0, len(node.inputs) - 1 + (op == "Mean")) * size.elements(_first(node))
    if op in REDUCTIONS or op in GLOBAL_POOLS or op in ("ArgMax", "ArgMin", "CumSum"):
        return size.elements(node.inputs[0])
    if op in POOLS:
        return size.elements(_first(node)) * prod(node.attr("kernel_shape") or (1,))
    return 0


# -- peak memory of a run, without weights ---------------------------------------------------------------------


@dataclass(frozen=True)
class Peak:
    """`bytes` while `node` runs; `exact` is false if an unknown size was taken as 1."""

    bytes: int
    node: Node | None
    exact: bool


def peak_memory(model: Model) -> Peak:
    """Return the largest sum of live values over the nodes in order: inputs, results, and values still to be read.

    An estimate: each value has its own memory from producer to last reader (runtimes may share memory, or keep it
    longer); graph inputs and outputs live throughout. A body adds its peak while its owner runs. Linear in nodes.
    """
    types.update(model)
    return _peak(model.graph)


def _peak(graph: Graph) -> Peak:
    """Return the peak of a scope; see `peak_memory`."""
    place = {node: i for i, node in enumerate(graph)}
    freed: Counter[int] = Counter()  # bytes, by position of the last reader
    size = _Size()
    live = sum(map(size.bytes, graph.inputs))
    best = Peak(live, None, size.exact)
    for i, node in enumerate(graph):
        for v in (v for v in node.results if not v.constant):
            made = size.bytes(v)
            live += made
            if not v.is_output:
                freed[max((_at(u, graph, place) for u in v.users), default=i)] += made
        inner, exact = _peak_of_bodies(node)
        size.exact = size.exact and exact
        total = live + inner
        if total > best.bytes or best.node is None:
            best = Peak(total, node, size.exact)
        live -= freed[i]
    return Peak(best.bytes, best.node, size.exact)


def _peak_of_bodies(node: Node) -> tuple[int, bool]:
    """Return (largest peak of the bodies of a node in bytes, whether all are exact)."""
    inner = [_peak(body) for body in node.bodies.values()]
    return max((p.bytes for p in inner), default=0), all(p.exact for p in inner)


def _at(user: Node, graph: Graph, place: dict[Node, int]) -> int:
    """Return the position in `graph` of a reader, or of the owner of the body around it."""
    while user not in place:
        assert user.graph is not None and user.graph.owner is not None and user.graph is not graph
        user = user.graph.owner
    return place[user]
