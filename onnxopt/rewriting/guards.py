"""What rules of several passes share: guards, and the Conv or Gemm that takes the place of another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from onnxopt.analysis.weights.linear import bias_of
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.protos import Array
from onnxopt.rewriting.forms import listed_axes, operands
from onnxopt.rewriting.match import Match

_FEW: Final = 4  # readers that are looked at


def quantized(m: Match, x: Value) -> bool:
    """Is the match between DequantizeLinear and QuantizeLinear? Runtimes look for exactly that structure."""
    if x.producer is not None and x.producer.op == "DequantizeLinear":
        return True
    for v in m.anchor.outputs:
        if v is not None:
            for user in v.users:
                if user._op == "QuantizeLinear":
                    return True
    return False


def widens(m: Match, x: Value, c: Value) -> bool:
    """May broadcasting with the constant `c` give more dims, or larger ones, than `x` has?"""
    dims = c.constant_type()[1]
    if not dims:
        return False
    shape = m.shape(x)
    if shape is None or len(shape) < len(dims):
        return True
    return any(d not in (1, n) for d, n in zip(dims, shape[len(shape) - len(dims) :]))


def is_number(m: Match, c: Array, x: Value) -> bool:
    """Is the constant one number, with no more axes than `x` has: it gives the result none?"""
    return c.size == 1 and c.ndim <= (m.rank(x) or 0)


def only_read_by(m: Match, node: Node, *ops: str) -> None:
    """Decline unless all that reads `node` are such operators of its scope, with constants, maybe dequantized, beside
    it: `node` goes with the last of them, so that it does not matter whether what is equal was computed once or
    several times."""
    value = node.output

    def alike(user: Node) -> bool:
        others = [v for v in user.inputs if v is not value]
        return user.op in ops and user.graph is node.graph and all(v is None or _is_weight(v) for v in others)

    m.require(value.feeds_only(alike), f"{node.op} output used elsewhere")


def _is_weight(v: Value) -> bool:
    node = v.producer
    if node is None or node.op != "DequantizeLinear":
        return v.constant
    return all(i is None or i.constant for i in node.inputs)


def keeps_shape(dims: Shape, target: list[int], allowzero: bool) -> bool:
    """Is Reshape of `dims` to `target` (with its 0 = copy and -1 = infer) the identity?"""
    unknown = 0
    for d, t in zip(dims, target):
        if t == 0 and not allowzero:
            continue
        if isinstance(d, int) and d == t:
            continue
        unknown += 1
        if t != -1:
            return False
    if unknown == 0:
        return True
    # One -1: what is left over, if nothing else changes and no zero beside it makes it ambiguous.
    ambiguous = any(d == 0 for d, t in zip(dims, target) if t != -1)
    return unknown == 1 and not ambiguous and not (allowzero and 0 in target)


def known_axes(m: Match, node: Node) -> list[int] | None:
    """The axes that a node lists, None where it lists none; declines where they are computed."""
    given = [*operands(node), None][1]
    m.require(given is None or given.constant, "the axes are computed")
    return listed_axes(node)


def reduced_axes(m: Match, node: Node, rank: int) -> list[int]:
    """The axes that a Reduce takes, of an input of that rank, in order; declines where there are none."""
    axes = known_axes(m, node)
    m.require(axes or not node.attr("noop_with_empty_axes", 0), "reduces nothing")
    return sorted(a % rank for a in axes) if axes else list(range(rank))


def without_ones(m: Match, node: Node, x: Value) -> tuple[Value, bool]:
    """What a Reduce of `x` over dims of one makes, and whether it reduces at all; declines where a dim is another."""
    axes: Sequence[int] | None = known_axes(m, node)
    dims = m.shape(x)
    if not axes:
        if node.attr("noop_with_empty_axes", 0):
            return x, False
        axes = range(len(dims or ()))
    m.require(dims is not None and all(-len(dims) <= a < len(dims) and dims[a] == 1 for a in axes), "reduces")
    if node.keeps_dims or not axes:
        return x, True
    places = sorted(a % len(dims or ()) for a in axes)
    return m.op.Squeeze(x, m.ints(places)), True


def bias_per_channel(m: Match, node: Node, b: Array | None, channels: int) -> Array:
    """What a Conv or Gemm adds, in float64, per output channel; declines for a Gemm's full matrix and what is none."""
    found = bias_of(node, b, channels)
    m.require(found is not None, "the bias is not one per channel")
    assert found is not None
    return found


def again(m: Match, node: Node, x: Value, weight: Value, bias: Value | None) -> Value:
    """The same Conv or Gemm of x, with these: a Gemm adds all of its bias then."""
    changes: dict[str, Any] = {"beta": None} if node.op == "Gemm" else {}
    result: Value = m.op[node.op](x, weight, bias, like=node, **changes)
    return result


def ends_formula(x: Value, factor: Array) -> bool:
    """Does `x` times `factor` end a normalization or a Gelu that is written out?

    Runtimes find these by their formulas and run each as one operator: a factor that went on into the weights of the
    next product would leave one node fewer in the model and several more in the runtime.
    """
    return _normalized(x) or (factor.size == 1 and factor.item() == 0.5 and _gated(x))


def scales_formula(node: Node, factor: Array) -> bool:
    """Is what `node` multiplies by `factor` one of the two that such a normalization or Gelu multiplies in the end?"""
    half = factor.size == 1 and factor.item() == 0.5
    ends = (u.output for u in islice(node.output.users, _FEW) if u.op in ("Mul", "Div"))
    return any(_normalized(v) or (half and _gated(v)) for v in ends)


def shifts_formula(x: Value) -> bool:
    """Is `x` a normalization that is written out, maybe with its scale, of which a term would be the bias?"""
    node = _maker(x)
    scaled = node is not None and node.op == "Mul" and any(v is not None and _normalized(v) for v in node.inputs)
    return scaled or _normalized(x)


def _normalized(x: Value) -> bool:
    """Is it y / sqrt(…) or y (1 / sqrt(…)), the end of a LayerNormalization or RMSNormalization but for its scale?"""
    node = _maker(x)
    if node is not None and node.op == "Mul":
        inverse = (_maker(v) for v in node.inputs)
        return any(n is not None and n.op in ("Div", "Reciprocal") and _made_by(n.inputs[-1], "Sqrt") for n in inverse)
    return node is not None and node.op == "Div" and _made_by(node.inputs[1], "Sqrt")


def scaled_from(node: Node) -> Value | None:
    """What is normalized, where the node is the scale or the bias behind a LayerNormalization that is written out."""
    x = next((v for v in node.inputs if v is not None and not v.constant), None)
    if node.op not in ("Add", "Mul") or x is None or len([v for v in node.inputs if v is not None and v.constant]) != 1:
        return None
    maker = _maker(x)
    if node.op == "Add" and maker is not None and maker.op == "Mul":
        return scaled_from(maker)
    if maker is None or not _normalized(x):
        return None
    centred = next((m for v in maker.inputs if (m := _maker(v)) is not None and m.op == "Sub"), None)
    return centred.inputs[0] if centred is not None else None


def _gated(x: Value) -> bool:
    """Is it y (1 + erf(…)) or y (1 + tanh(…)), twice a Gelu?"""
    node = _maker(x)
    gates = node.inputs if node is not None and node.op == "Mul" else ()
    sums = (_maker(v) for v in gates)
    return any(
        n is not None and n.op == "Add" and any(_made_by(v, f) for v in n.inputs for f in ("Erf", "Tanh")) for n in sums
    )


def _made_by(value: Value | None, op: str) -> bool:
    node = _maker(value)
    return node is not None and node.op == op


def _maker(value: Value | None) -> Node | None:
    """What computes `value`, whatever hands it on: a Cast that is going to go hides no formula."""
    node = value.producer if value is not None else None
    while node is not None and node.op in ("Cast", "Identity") and node.inputs[0] is not None:
        node = node.inputs[0].producer
    return node
