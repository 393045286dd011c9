"""Folds a constant factor of a value upstream: into the weights of its producers.

Nothing is changed: the result is a list of weight edits, together equal to the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from onnxopt.analysis import linear, types
from onnxopt.analysis.constants import is_read_by_many
from onnxopt.analysis.linear import before_move, before_split, fits, narrowed, underflows
from onnxopt.analysis.shapes.sizes import broadcast_shape, registrar
from onnxopt.graph.node import Node, producer
from onnxopt.graph.value import Value
from onnxopt.operators import HOMOGENEOUS, LINEAR
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array

REACH: Final = 24  # nodes examined for a factor
READERS: Final = 3  # readers of a value on the way
_MAX_SHARED: Final = 8  # values with several readers


@dataclass(eq=False, repr=False)
class Edit:
    """Input `place` of `node` becomes `wide`(input), rounded to its type.

    Computed on demand: most edits are dropped because a related edit is impossible.
    """

    node: Node
    place: int
    wide: Callable[[Array], Array]

    def then(self, other: Edit) -> Edit:
        """Return the composition of two edits of the same input."""
        return Edit(self.node, self.place, lambda w: other.wide(self.wide(w)))

    @property
    def old(self) -> Value:
        value = self.node.inputs[self.place]
        assert value is not None
        return value

    @property
    def array(self) -> Array:
        return self._made[0]

    @property
    def lost(self) -> str:
        """Why the type cannot hold the result; empty if it can."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Array, str]:
        wide = self.wide(self.old.array)
        array = wide.astype(self.old.array.dtype)
        if not linear.is_finite(array):
            return array, "the folded constant overflows its type"
        return array, "the folded constant underflows its type" if underflows(wide, array) else ""


_Rule: TypeAlias = "Callable[[Node, Value, Array, Reach], list[Edit] | None]"
_RULES: Final[dict[str, _Rule]] = {}
_rule: Final = registrar(_RULES)


class SharedFactor(NamedTuple):
    """The factor required by some readers of a value."""

    factor: Array
    readers: int = 1


class Reach(NamedTuple):
    """Limits of a search: `nodes` left, and whether weights `shared` by several products may be edited.

    `met` holds values on the way with several readers: all must require the same factor (`all_agree`). If None, a
    value has one reader.
    """

    nodes: int = REACH
    shared: bool = False
    met: dict[Value, SharedFactor] | None = None

    def visits(self, value: Value, factor: Array) -> bool:
        """Note a value with several readers, and the factor of the first. Returns whether the search goes on."""
        if self.met is None or readers_of(value) > READERS or len(self.met) == _MAX_SHARED:
            return False
        self.met[value] = SharedFactor(factor)
        return True

    def revisits(self, value: Value, factor: Array) -> bool:
        """Count a further reader. Returns whether the factors are equal."""
        assert self.met is not None
        first = self.met[value] = self.met[value]._replace(readers=self.met[value].readers + 1)
        return bool(np.array_equal(first.factor, factor))

    def all_agree(self) -> bool:
        """Whether all readers of each met value require its factor; for a tensor read beside its parts, all parts."""
        met = self.met or {}
        if any(m.readers != readers_of(v) for v, m in met.items()):
            return False
        splits = [n for v in met if (n := producer(v, "Split")) is not None]
        return all(
            v in met for n in splits if (whole := n.operands[0]) and readers_of(whole) > 1 for v in (whole, *_parts(n))
        )


def are_products(node: Node, w: Value) -> bool:
    """Whether `w` is read only by several products like `node`, as a factor and not as a bias."""
    place = node.places(w)
    if (
        len(w.users) < 2
        or w.is_output
        or place not in ([0], [1])
        or not (node.op == "MatMul" or linear.is_affine(node))
    ):
        return False
    return all(u.op == node.op and u.graph is node.graph and u.places(w) == place for u in w.users)


# -- the search -----------------------------------------------------------------------------------------------


def _widens(factor: Array, value: Value) -> bool:
    """Whether a factor may widen a value: then no weight has a factor for each element."""
    shape = types.shape(value)
    return factor.ndim > 0 and (shape is None or not fits(factor, shape))


def upstream_edits(value: Value | None, reader: Node, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits that multiply `value` by `factor`, a number or broadcastable array; None if impossible."""
    node = producer(value)
    if value is None or node is None or not reach.nodes or value.is_output:
        return None
    factor = narrowed(factor)
    if node.graph is not reader.graph or node.has_references or _widens(factor, value):
        return None
    if readers_of(value) > 1:
        if reach.met is not None and value in reach.met:
            return [] if reach.revisits(value, factor) else None
        if not reach.visits(value, factor):
            return None
    return _into_maker(node, value, factor, reach._replace(nodes=reach.nodes - 1))


def _into_maker(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits of the producer's weights or operands that multiply its result `value`."""
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, value, factor, reach)
    passes = value.index == 0 and len(node.outputs) == 1 and commutes(node, factor)
    before = before_move(node, factor) if passes else None
    return upstream_edits(node.inputs[0], node, before, reach) if before is not None else None


@_rule("Add", "Sub")
def _into_all(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits for c (x + y) = c x + c y, or for a Concat."""
    return _all(into(node, i, factor) or upstream_edits(v, node, factor, reach) for i, v in enumerate(node.inputs))


@_rule("Concat")
def _into_parts(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    if factor.ndim:
        return None
    split = _split_of(node)
    if split is not None:
        return upstream_edits(split.inputs[0], split, factor, reach)
    return _into_all(node, value, factor, reach)


@_rule("Mul")
def _into_one(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits for c (x y) = (c x) y."""
    return into(node, 0, factor) or into(node, 1, factor) or _either(node, factor, reach, 0, 1)


def _either(node: Node, factor: Array, reach: Reach, *places: int) -> list[Edit] | None:
    """Return edits that multiply one of the operands; values met on a failed path are forgotten."""
    for i in places:
        met = dict(reach.met or {})
        edits = upstream_edits(node.inputs[i], node, factor, reach)
        if edits is not None:
            return edits
        if reach.met is not None:
            reach.met.clear()
            reach.met.update(met)
    return None


def commutes(node: Node, factor: Array) -> bool:
    """Whether f(c x) = c f(x) for this c."""
    return node.op in LINEAR or pads_zeros(node) or (node.op in HOMOGENEOUS and bool((factor > 0).all()))


def pads_zeros(node: Node) -> bool:
    if node.op != "Pad" or node.graph is None or node.graph.opset() < 11:
        return False
    value = node.input(2)
    return node.attr("mode") == "constant" and (value is None or (value.constant and not value.array.any()))


def _all(parts: Iterable[list[Edit] | None]) -> list[Edit] | None:
    """Return the merged edits of all parts. Two parts of a Split edit different columns of the same weights."""
    edits: dict[tuple[Node, int], Edit] = {}
    for part in parts:
        if part is None:
            return None
        for e in part:
            first = edits.get((e.node, e.place))
            edits[e.node, e.place] = e if first is None else first.then(e)
    return list(edits.values())


def into(node: Node, index: int, factor: Array) -> list[Edit] | None:
    """Return the edit of a stored constant, with few readers, by the factor; None if the constant would grow."""
    value = node.inputs[index]
    if value is None or not value.is_stored or not is_float(value.array):
        return None
    if is_read_by_many(value, value.array.nbytes):
        return None
    z = value.array
    try:
        size = prod(broadcast_shape(z.shape, factor.shape))
    except ValueError:
        return None
    return [Edit(node, index, lambda w: scaled(w, factor))] if size <= max(z.size, factor.size) else None


def scaled(w: Array, factor: Array) -> Array:
    """Return the product in float64."""
    return np.asarray(w.astype(np.float64) * factor)


def own_weights(node: Node, index: int, shared: bool = False) -> Value | None:
    """Return a stored float constant read only by `node` (or, if `shared`, by similar products), else None."""
    w = node.input(index)
    if w is None or not w.is_stored or not (w.only_user is node or (shared and are_products(node, w))):
        return None
    return w if is_float(w.array) else None


def is_quantized(node: Node) -> bool:
    return any(producer(v, "DequantizeLinear") is not None for v in node.operands)


@_rule("MatMul")
def _into_matmul(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits for c (x W) = x (c W); of two computed operands one is scaled."""
    if is_quantized(node) or factor.ndim > 1:
        return None
    if (w := own_weights(node, 1, reach.shared)) is not None:
        fits = w.array.ndim >= 2 and (not factor.ndim or w.array.shape[-1] == factor.size)
        return [Edit(node, 1, lambda w: scaled(w, factor))] if fits else None
    if not factor.ndim and own_weights(node, 0, reach.shared) is not None:
        return [Edit(node, 0, lambda w: scaled(w, factor))]
    if types.rank(node.inputs[1]) in (None, 1):
        return None
    return _either(node, factor, reach, *((1,) if factor.ndim else (1, 0)))


@_rule("Conv", "ConvTranspose", "Gemm")
def _into_affine(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits for c (x W + b) = x (c W) + c b."""
    w = own_weights(node, 1, reach.shared)
    if w is None or is_quantized(node):
        return None
    channels = linear.output_channels(node, w.array)
    if factor.ndim:  # channels are the last axis for a Gemm, and the second for a convolution
        rank, axis = (1, -1) if node.op == "Gemm" else (w.array.ndim - 1, 0)
        if factor.ndim != rank or not factor.size == factor.shape[axis] == channels:
            return None
    bias = into(node, 2, factor.reshape(-1) if factor.ndim else factor) if node.input(2) is not None else []
    each = np.broadcast_to(factor.reshape(-1), (channels,))
    return None if bias is None else [Edit(node, 1, lambda w: linear.scale_outputs(node, w, each)), *bias]


@_rule("RotaryEmbedding")
def _before_rotation(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    return None if factor.ndim else upstream_edits(node.inputs[0], node, factor, reach)


@_rule("LayerNormalization", "RMSNormalization", "BatchNormalization")
def _into_normalization(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits for c (n(x) s + b) = n(x) (c s) + c b."""
    if node.op == "BatchNormalization":
        if factor.ndim or node.attr("training_mode", 0) or node.graph is None or node.graph.opset() < 14:
            return None
    elif factor.ndim > 1 or (factor.ndim and node.attr("axis") != -1):
        return None  # a scale of higher rank would be as large as the scaled value
    if len(node.results) > 1:
        return None
    parts = [into(node, 1, factor)]
    if node.input(2) is not None:
        parts.append(into(node, 2, factor))
    return _all(parts)


def _factors_of_parts(node: Node, value: Value, factor: Array, reach: Reach) -> dict[Value, Array]:
    """Return the factors of the parts of a Split; none if the whole has other readers and not all parts are met."""
    if reach.met is None or readers_of(node.operand(0)) <= 1:
        return {value: factor}
    reach.met.setdefault(value, SharedFactor(factor))
    asked = {v: reach.met[v].factor for v in _parts(node) if v in reach.met}
    return asked if len(asked) == len(_parts(node)) else {}


@_rule("Split")
def _through_split(node: Node, value: Value, factor: Array, reach: Reach) -> list[Edit] | None:
    """Return edits for a part of a Split, with factor 1 for other parts.

    If the whole has other readers, all parts are scaled once all are met.
    """
    asked = _factors_of_parts(node, value, factor, reach)
    if not asked:
        return []
    joined = before_split(node, asked, 1.0)
    return None if joined is None else upstream_edits(node.inputs[0], node, joined, reach)


def _split_of(concat: Node) -> Node | None:
    """Return the Split whose parts, in any order and sign, are exactly the inputs of `concat` and not read elsewhere.

    A single number scaling the Concat then scales the Split's input.
    """
    parts = [_unsigned(v) for v in concat.operands]
    split = parts[0].producer if parts else None
    if split is None or split.op != "Split" or split.graph is not concat.graph or split.has_references:
        return None
    if len({*parts}) < len(concat.inputs) or not all(map(_is_only_read, parts)):
        return None
    return split if {*parts} == {*_parts(split)} else None


def _unsigned(value: Value) -> Value:
    """Return the operand of a Neg read only once, else the value."""
    node = value.producer
    negated = node.inputs[0] if node is not None and node.op == "Neg" and _is_only_read(value) else None
    return value if negated is None else negated


def _is_only_read(value: Value) -> bool:
    return not value.is_output and readers_of(value) <= 1


def _parts(split: Node) -> list[Value]:
    return [v for v in split.results if v.is_used]


def readers_of(value: Value) -> int:
    """Return the number of reads of a value's contents, Shape and Size excluded; an upper bound for many readers."""
    users = value.users
    sizes = sum(u.op in ("Shape", "Size") for u in users) if len(users) <= _MAX_SHARED else 0
    return sum(users.values()) - sizes
