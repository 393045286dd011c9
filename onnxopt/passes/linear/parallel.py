"""Parallel products and convolutions of one value become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

import numpy as np

from onnxopt.analysis import linear, types
from onnxopt.analysis.constants import may_train
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, present, producer, sole_reader
from onnxopt.operators import ARITHMETIC, UNARY
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, RewritePass, option, register
from onnxopt.proto.messages import Array, attribute_bytes, make_node, tensor_bytes
from onnxopt.rewriting import Call, Match, const, either, op, quantized, rewrite, var
from onnxopt.rewriting.parts import hoist, insert_new, insert_split, plan_hoist

_OPS: Final = ("MatMul", "Gemm", "Conv")
_MIN_TERMS: Final = 2  # of merged products


@register
@dataclass(eq=False, repr=False)
class MergeParallel(GraphPass):
    """x W1, x W2, x W3 = Split(x [W1 W2 W3]); f(a), f(b), f(c) of Split(x) = Split(f(x)).

    Applies when: MatMul, Gemm or Conv (group 1) of the same input, with constant weights and equal attributes, and
    fewer nodes remain: three or more, or two whose readers merge, too. A MatMul without a term beside two with one gets
    the term -0.0, which changes no number. Behind a Split: elementwise operators with constants; Reshape into heads;
    Transpose, where a part with another permutation is permuted again.
    Keeps: weights with other readers; quantized operators.
    Not done: results so large that copying parts costs more time than saved (measured in onnxruntime: up to 7 % gained
    below the limit, 4 % lost above). An unknown size counts as 1.
    """

    # Before: heads are split and turned alike until then, and their Transposes move behind the Split.
    info = PassInfo("merge-parallel", opt_level=3, before=("transpose-propagation",), ops=(*_OPS, "Split"))
    max_bytes: int = option(1 << 28, "weights that would be larger than this together stay apart")
    max_result: int = option(1 << 14, "results of more elements than this together stay apart")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes name the broadcast axes
        if sum(len(graph.by_op.get(op, ())) for op in _OPS) > 1:
            _Merging(graph, self, ctx).run()
        for split in list(graph.by_op.get("Split", ())):
            _hoist_all(split, ctx)


class _Merging:
    """The groups of a scope."""

    def __init__(self, graph: Graph, options: MergeParallel, ctx: PassContext) -> None:
        self.graph = graph
        self.options = options
        self.ctx = ctx
        self.groups: dict[Hashable, list[Node]] = {}
        self.joined: dict[tuple[int, tuple[Value, ...]], Value] = {}  # joined weights, reused for shared layers

    def run(self) -> None:
        chosen = self._chosen()
        readers = Counter(tuple(_weight(n) for n in group) for group in chosen)
        obstacles = [self._obstacle(group, readers) for group in chosen]
        for group, obstacle in zip(chosen, obstacles):
            if self.ctx.spend("merged", at=group[0], unless=obstacle):
                self._merge(group)

    def _obstacle(self, group: list[Node], readers: Counter[tuple[Value, ...]]) -> str:
        weights = tuple(_weight(n) for n in group)
        if any(sum(w.users.values()) != readers[weights] or w.is_output for w in weights):
            return "a weight has other readers"
        if sum(tensor_bytes(*w.constant_type()) for w in weights) > self.options.max_bytes:
            return "the weights are too large (max-bytes)"
        if sum(prod(d for d in types.dims_of(n.output) if isinstance(d, int)) for n in group) > self.options.max_result:
            return "the results are large, and would be copied (max-result)"
        return ""

    def _chosen(self) -> list[list[Node]]:
        """Return the groups of products of an operand that are worth merging."""
        for node in self.graph:
            if node.op in _OPS and self._mergeable(node):
                self.groups.setdefault(_key(node), []).append(node)
        return [g for group in self.groups.values() if len(group) > 1 for g in self._profitable(group)]

    def _mergeable(self, node: Node) -> bool:
        """Whether the node has stored weights and nothing around it is quantized."""
        if len(node.inputs) < 2 or node.has_references or node.outputs[0] is None:
            return False
        x, w, b = node.inputs[0], node.inputs[1], node.input(2)
        if x is None or x.constant or w is None or not w.is_stored or not _is_product(node, w):
            return False
        if b is not None and (
            not b.constant or linear.bias_of(node, b.array, linear.output_channels(node, w.array)) is None
        ):
            return False
        return producer(x, "DequantizeLinear") is None and all(u.op != "QuantizeLinear" for u in node.output.users)

    def _profitable(self, group: list[Node]) -> list[list[Node]]:
        """Return the subsets that leave fewer nodes; nodes with equal continuations are merged first."""
        lanes: dict[Hashable, list[Node]] = {}
        for node in group:
            lanes.setdefault(_lane(node.output), []).append(node)
        for candidates in (list(lanes.values()), [group]):
            chosen = [c for c in candidates if len(c) > 2 or (len(c) == 2 and _joins_readers(c))]
            if chosen:
                return chosen
        return []

    def _complete_terms(self, group: list[Node]) -> None:
        """Add -0.0, which changes no number, to the products without a term, if two or more have a term by column.

        The terms of all products are added at once then, or are the bias of one Gemm. The rank has to be known, and
        the products on one side of the sums, as `plan_hoist` requires.
        """
        terms = [_term(n, size) for n, size in zip(group, _sizes(group))]
        position, *others = {t.inputs.index(n.output) for n, t in zip(group, terms) if t is not None} or {0}
        few = sum(t is not None for t in terms) < _MIN_TERMS
        if few or None not in terms or others or any(types.shape(n.output) is None for n in group):
            return
        for node, size in ((n, s) for n, s, t in zip(group, _sizes(group), terms) if t is None):
            self._add_zeros(node, size, position)

    def _add_zeros(self, node: Node, size: int, position: int) -> None:
        """Add a constant of `size` negative zeros, as operand `position` of an Add that takes over the result."""
        value, zeros = node.output, np.full(size, -0.0, _weight(node).array.dtype)
        constant = self.graph.constant(zeros, f"{value.name}_term", node)
        term = self.graph.insert(Node(make_node("Add", "", "", {}), [constant, constant], []), node.next)
        self.graph.take_over(value, term)
        node.output.dtype, node.output.shape = types.dtype(value), types.shape(value)
        term.set_input(position, node.output)

    def _merge(self, group: list[Node]) -> None:
        self._complete_terms(group)
        first, graph = group[0], self.graph
        weights = tuple(_weight(n) for n in group)
        axis = _weight_axis(first)
        sizes = _sizes(group)
        weight = self.joined.get((axis, weights))
        if weight is None:
            array = np.concatenate([w.array for w in weights], axis=axis)
            weight = self.joined[axis, weights] = graph.constant(array, f"{weights[0].name}_joined", first)
        inputs: list[Value | None] = [first.inputs[0], weight]
        if any(n.input(2) is not None for n in group):
            bias = np.concatenate([_bias(n, size) for n, size in zip(group, sizes)])
            inputs.append(graph.constant(bias, f"{weights[0].name}_bias", first))
        result = insert_new(graph, first.copy(inputs, []), first.output, first)
        axis = _result_axis(first)
        shape = types.shape(first.output)
        if shape is not None:
            axis %= len(shape)
            result.shape = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
        insert_split(graph, result, [n.output for n in group], axis, sizes, first)
        for node in group:
            graph.remove(node)


def _hoist_all(split: Node, ctx: PassContext) -> None:
    """Move equal readers of all parts of a Split in front of it, as long as nodes are saved."""
    while split.graph is not None and not split.has_references:
        graph, x, parts, axis = split.graph, split.inputs[0], present(split.outputs), split.attr("axis") or 0
        sizes = linear.lengths_of(split.outputs, axis) or ()
        plan = plan_hoist(parts, axis, sizes) if len(sizes) > 1 and len(parts) == len(sizes) else None
        if x is None or plan is None or plan.saved < 1 or not ctx.spend("hoisted", at=split):
            return
        replaced, split = split, hoist(plan, x, split)
        graph.remove(replaced)


def _is_product(node: Node, w: Value) -> bool:
    """Whether the weights have the rank of a matrix, or of an ungrouped convolution."""
    rank = len(w.constant_type()[1])
    return rank == 2 if node.op != "Conv" else rank > 2 and node.attr("group") == 1


def _weight(node: Node) -> Value:
    value = node.inputs[1]
    assert value is not None
    return value


def _term(node: Node, size: int) -> Node | None:
    """Return the only reader of a MatMul if it adds a constant of a number for each column, else None."""
    add = sole_reader(node.output, "Add") if node.op == "MatMul" else None
    others = [v for v in add.inputs if v is not node.output] if add is not None else []
    is_term = len(others) == 1 and others[0] is not None and others[0].is_stored
    return add if is_term and others[0] is not None and others[0].constant_type()[1] == (size,) else None


def _weight_axis(node: Node) -> int:
    """Return the axis of output channels in the weights."""
    return 0 if node.op == "Conv" or (node.op == "Gemm" and node.attr("transB")) else 1


def _result_axis(node: Node) -> int:
    return -1 if node.op == "MatMul" else 1


def _sizes(group: Sequence[Node]) -> list[int]:
    return [_weight(n).constant_type()[1][_weight_axis(n)] for n in group]


def _key(node: Node) -> Hashable:
    """Return the key of mergeable nodes: operator, input, attributes, type and remaining dims of the weights."""
    data_type, dims = _weight(node).constant_type()
    axis = _weight_axis(node)
    return node.op, node.inputs[0], data_type, dims[:axis], dims[axis + 1 :], attribute_bytes(node.proto)


def _bias(node: Node, size: int) -> Array:
    b = node.input(2)
    w = _weight(node).array
    return np.zeros(size, w.dtype) if b is None else np.broadcast_to(b.array.reshape(-1), (size,))


def _lane(value: Value) -> Hashable:
    """Return a key of a result's continuation: the head width of the Reshape behind elementwise operators, or None."""
    for _ in range(8):
        node = value.only_user
        if node is None or not node.outputs or node.outputs[0] is None:
            return None
        if node.op == "Reshape":
            return types.length_of(node.output, -1)
        if node.op not in UNARY and not (node.op in ARITHMETIC and sum(v.constant for v in node.operands) == 1):
            return None
        value = node.output
    return None


def _joins_readers(group: Sequence[Node]) -> bool:
    plan = plan_hoist([n.output for n in group], _result_axis(group[0]), _sizes(group))
    return plan is not None and plan.saved > 0


class _Window(NamedTuple):
    """The window of a kernel, by axis; `pads`: [in front, behind]."""

    pads: Array
    strides: Array
    dilations: Array


def window(m: Match, conv: Node, w: Array) -> _Window:
    """Return the window of a Conv; declines if the padding depends on the input."""
    m.require(conv.attr("auto_pad") in ("NOTSET", "VALID"), "the padding depends on the input")
    n = w.ndim - 2
    pads = np.reshape(conv.attr("pads") or [0, 0] * n, (2, n))
    return _Window(pads, *(np.array(conv.attr(name) or [1] * n) for name in ("strides", "dilations")))


def widened(m: Match, w: Array, own: _Window, pads: Array) -> Array:
    """Return `w` with zeros around, the kernel of a window with larger `pads`."""
    more = pads - own.pads
    m.require(not (more % own.dilations).any(), "the taps of one kernel fall between those of the other")
    return np.pad(w.astype(np.float64), [(0, 0), (0, 0), *(more // own.dilations).T])


def branch(name: str, w: str, b: str) -> Call:
    return op.Conv(var("x"), const(w), const(b).opt(), name=name)


_FIRST, _SECOND = branch("first", "w1", "b1"), branch("second", "w2", "b2")


@rewrite(either(op.Add(_FIRST, _SECOND), op.Add(op.Add(var("y"), _FIRST), _SECOND)))
def merge_convs(
    m: Match, x: Value, w1: Array, b1: Array | None, w2: Array, b2: Array | None, y: Value | None = None
) -> Value:
    """Conv(x; W, b) + Conv(x; V, c) = Conv(x; W + V, b + c), the smaller kernel with zeros around it.

    Likewise (y + Conv(x; W, b)) + Conv(x; V, c).
    """
    m.require(not quantized(m, x), "the convolutions are quantized")
    m.require(w1.ndim == w2.ndim and w1.shape[:2] == w2.shape[:2], "the channels differ")
    a, b = window(m, m.first, w1), window(m, m.second, w2)
    same = np.array_equal(a.strides, b.strides) and np.array_equal(a.dilations, b.dilations)
    m.require(same, "the strides or dilations differ")
    pads = np.maximum(a.pads, b.pads)
    k1, k2 = widened(m, w1, a, pads), widened(m, w2, b, pads)
    m.require(k1.shape == k2.shape, "the kernels are not aligned")
    m.require(prod(k1.shape[2:]) <= prod(w1.shape[2:]) + prod(w2.shape[2:]), "the kernel that holds both has more taps")
    given, bias = [z.astype(np.float64) for z in (b1, b2) if z is not None], None
    if given:
        m.require(all(z.shape == w1.shape[:1] for z in given), "a bias is not one number per channel")
        bias = m.const(sum(given), like=w1, hint=f"{m.first.output.name}_bias")
    weight = m.const(k1 + k2, like=w1, hint=f"{m.first.output.name}_weight")
    kernel, around = list(k1.shape[2:]), pads.reshape(-1).tolist()
    made = m.op.Conv(x, weight, bias, like=m.first, pads=around, kernel_shape=kernel, auto_pad=None)
    return made if y is None else m.op.Add(y, made, like=m.anchor)


_NORM: Final = op.BatchNormalization(var("x"), const("scale"), const("shift"), const("mean"), const("var"), name="bn")


@rewrite(op.Add(op.Conv(var("x"), const("w"), const("b").opt(), name="conv"), either(var("x"), _NORM)))
def merge_identity(
    m: Match,
    x: Value,
    w: Array,
    b: Array | None,
    scale: Array | None = None,
    shift: Array | None = None,
    mean: Array | None = None,
    var: Array | None = None,
) -> Value:
    """Conv(x; W, b) + x = Conv(x; W + I, b), I the identity as a kernel.

    Conv(x; W, b) + BatchNormalization(x) = Conv(x; W + aI, b + c), BatchNormalization(x) = a x + c.
    """
    m.require(not quantized(m, x), "the convolutions are quantized")
    m.require(w.shape[0] == w.shape[1] * m.conv.attr("group"), "the channel count changes")
    own, weight, channels = window(m, m.conv, w), w.astype(np.float64), np.arange(w.shape[0])
    m.require((own.strides == 1).all(), "the convolution has strides")
    reach = own.dilations * (np.array(w.shape[2:]) - 1)
    m.require((own.pads.sum(axis=0) == reach).all(), "the size of the image changes")
    m.require(not (own.pads[0] % own.dilations).any(), "no tap looks at the position itself")
    factor, bias = np.ones(w.shape[0]), m.value("b") if b is not None else None
    if scale is not None and shift is not None and mean is not None and var is not None:
        m.require(not may_train(m.bn) and m.opset >= 9, "it is in training, or an old form")
        affine = linear.batch_norm_affine(scale, shift, mean, var, m.bn.attr("epsilon", 1e-5))
        factor, c = m.known(affine, "var + epsilon is not positive")
        m.require(np.isfinite(factor).all() and np.isfinite(c).all(), "the statistics are not finite")
        m.require(factor.size == w.shape[0], "channel count differs")
        bias = m.const(c + (0 if b is None else b.astype(np.float64)), like=w, hint=f"{m.conv.output.name}_bias")
    weight[(channels, channels % w.shape[1], *own.pads[0] // own.dilations)] += factor
    return m.op.Conv(x, m.const(weight, like=w), bias, like=m.conv)


@register
class ParallelConvMerging(RewritePass):
    """Conv(x; W, b) + Conv(x; V, c) = Conv(x; W + V, b + c); also with a BatchNormalization of x, or x, as a term.

    Applies when: strides, dilations, groups and channels are equal, and the zero-padded kernels cover the same
    positions without more taps than before.
    Not done: padding that depends on the input, quantized convolutions.
    """

    info = PassInfo("parallel-conv-merging", opt_level=3, after=("conv-bn-folding",), ops=("Conv",))
    rules = (merge_convs, merge_identity)
