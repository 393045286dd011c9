"""Rules, operands in the form of every opset, and guards shared by rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxopt.analysis.linear import bias_of
from onnxopt.analysis.shapes.sizes import cuts
from onnxopt.analysis.types import dtype
from onnxopt.errors import PassError, broken
from onnxopt.graph.node import UNKNOWN, Node, producer
from onnxopt.graph.value import Shape, Value
from onnxopt.operators import REDUCTIONS
from onnxopt.proto.messages import Array, numpy_dtype
from onnxopt.rewriting.pattern import Call, Pattern, alternatives, depth, names

if TYPE_CHECKING:
    from onnxopt.rewriting.match import Match


class Declined(Exception):
    """A guard does not hold; the message is the reason. `stays`: the guard read only matched nodes and known shapes of
    their operands, and is not asked again before these change."""

    stays = False


def require(condition: object, reason: str) -> None:
    """Raise Declined with `reason` unless `condition`: a guard of a graph pass, which catches it."""
    if not condition:
        raise Declined(reason)


class Rule:
    """A rewrite rule. `apply(m, **bound)` returns the replacements of the anchor's outputs where `source` matches."""

    def __init__(self, name: str, source: Pattern, apply: Callable[..., Any]) -> None:
        self.name, self.source, self.apply = name, source, apply

    @cached_property
    def roots(self) -> tuple[Call, ...]:
        """Calls at which a match may start."""
        return tuple(c for c in alternatives(self.source) if isinstance(c, Call))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Operators of the anchor node."""
        return frozenset(o for c in self.roots for o in c.ops)

    @cached_property
    def depth(self) -> int:
        return depth(self.source)

    @property
    def equation(self) -> str:
        """First line of the function's docstring."""
        return (self.apply.__doc__ or "").strip().partition("\n")[0]

    @property
    def line(self) -> str:
        """Source location: `passes.py:12`."""
        code = self.apply.__code__
        return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"

    def __call__(self, m: Match, **bound: Any) -> Any:
        return self.apply(m, **bound)


def failure(rule: Rule, m: Match, error: BaseException) -> PassError:
    """Return the error for a rule that raised an exception."""
    return broken(
        f"{m.graph.model.name}: {m.graph.path}: rule {rule.name} failed at {m.anchor!r}", error, rule.name, "rule"
    )


def rewrite(pattern: Pattern) -> Callable[[Callable[..., Any]], Rule]:
    """Make a function a rewrite rule.

    The function's first parameter is the match `m`; the others are exactly the pattern's variable names. The function
    returns the replacement of the anchor's first output (a Value), or a tuple with an entry for each output. Raises
    TypeError if parameters and names differ.
    """

    def decorate(function: Callable[..., Any]) -> Rule:
        if not all(isinstance(c, Call) for c in alternatives(pattern)):
            raise TypeError(f"{function.__name__}: a pattern starts with the call of an operator: op.Relu(var('x'))")
        expected, code = set(names(pattern)), function.__code__
        parameters = set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
        if parameters != expected:
            raise TypeError(
                f"{function.__name__}: parameters {sorted(parameters)} are not the pattern's names {sorted(expected)}"
            )
        if not function.__doc__ and sys.flags.optimize < 2:  # python -OO drops docstrings
            raise TypeError(f"{function.__name__}: a rule states its equation in its docstring")
        return Rule(function.__name__, pattern, function)

    return decorate


# -- operands that older opsets write as attributes ---------------------------------------------------------------


class AttributeForm(NamedTuple):
    """Opset range of the attribute form: `names` are attributes from `first`, and inputs in this order from `since`."""

    first: int
    since: int
    names: tuple[str, ...]


FORMS: Final = {
    "Clip": AttributeForm(6, 11, ("min", "max")),
    "Pad": AttributeForm(2, 11, ("pads", "value")),
    "Slice": AttributeForm(1, 10, ("starts", "ends", "axes")),
    "Split": AttributeForm(2, 13, ("split",)),
    "Squeeze": AttributeForm(1, 13, ("axes",)),
    "Unsqueeze": AttributeForm(1, 13, ("axes",)),
    **dict.fromkeys(REDUCTIONS, AttributeForm(1, 18, ("axes",))),
    "ReduceSum": AttributeForm(1, 13, ("axes",)),
}
_SCALAR_ATTRIBUTES: Final = frozenset({"max", "min", "value"})  # of the data's type; the others are integer lists


def _as_operand(node: Node, name: str, x: Value | None) -> Value | None:
    """Return a detached value for an attribute, constant if readable; None if absent."""
    attribute = node.attr(name)
    if attribute is None:
        return None
    value = Value("", node.scope)
    kind = dtype(x) if x is not None and name in _SCALAR_ATTRIBUTES else TensorProto.INT64
    if kind in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64) and attribute is not UNKNOWN:
        value.constant = True
        value.array = np.array(attribute, numpy_dtype(kind))
    return value


def canonical_operands(node: Node) -> list[Value | None]:
    """Return the inputs of a node, with detached constants for attributes that later opsets take as inputs."""
    form = FORMS.get(node.op)
    if form is None or not form.first <= node.scope.opset() < form.since or len(node.inputs) != 1:
        return node.inputs
    x = node.inputs[0]
    found = [x, *(_as_operand(node, name, x) for name in form.names)]
    while found and found[-1] is None:
        found.pop()
    return found


def constant_cuts(node: Node, rank: int) -> list[tuple[int, int, int, int]]:
    """Return (axis, start, end, step) of a Slice of a value of this rank; none if computed, or invalid."""
    given = [*canonical_operands(node), None, None, None, None][1:5]
    if any(v is not None and (not v.constant or v.array.size > rank) for v in given):
        return []
    starts, ends, axes, steps = ([] if v is None else v.array.reshape(-1).tolist() for v in given)
    return cuts(starts, ends, axes or None, steps or None, rank) or []


def listed_axes(node: Node, place: int = 1) -> list[int] | None:
    """Return the axes listed by a Reduce*, Squeeze or Unsqueeze, or in operand `place`; None if computed or absent."""
    given = dict(enumerate(canonical_operands(node))).get(place)
    return [int(a) for a in given.array.reshape(-1)] if given is not None and given.constant else None


def attributes(form: AttributeForm, values: list[Value | None]) -> dict[str, object]:
    """Return `values`, the inputs after the data, as attributes of the older form. Raises Declined if impossible."""
    found: dict[str, object] = dict.fromkeys(form.names)
    for i, v in enumerate(values):
        if v is None:
            continue
        if i >= len(form.names) or not v.constant:
            raise Declined(f"an attribute has to say it before opset {form.since}")
        name, array = form.names[i], v.array
        if name in _SCALAR_ATTRIBUTES and not (array.astype(np.float32).astype(array.dtype) == array).all():
            raise Declined("the attribute holds single precision only")
        found[name] = float(array.reshape(())) if name in _SCALAR_ATTRIBUTES else array.reshape(-1).tolist()
    return found


# -- guards and builders shared by rules of several passes --------------------------------------------------------

_MAX_READERS: Final = 4  # readers examined
FORMULA: Final = "it ends a normalization or Gelu, which runtimes run as one operator"
FOLDS: Final = ("conv-add-folding", "matmul-scale-folding", "scale-propagation")  # passes that take factors of formulas


def quantized(m: Match, x: Value) -> bool:
    """Whether the match is between DequantizeLinear and QuantizeLinear, a structure runtimes search for."""
    if producer(x, "DequantizeLinear"):
        return True
    return any(user._op == "QuantizeLinear" for v in m.anchor.results for user in v.users)


def widens(m: Match, x: Value, c: Value) -> bool:
    """Whether broadcasting `x` with `c` may give more or larger dims than `x` has."""
    dims, shape = m.shape(c), m.shape(x)
    if not dims:
        return dims is None
    if shape is None or len(shape) < len(dims):
        return True
    return any(d is None or d not in (1, n) for d, n in zip(dims, shape[len(shape) - len(dims) :]))


def is_number(m: Match, c: Array, x: Value) -> bool:
    """Whether the constant has a single element and no more axes than `x`."""
    return c.size == 1 and c.ndim <= (m.rank(x) or 0)


def only_read_by(m: Match, node: Node, *ops: str) -> None:
    """Decline unless all readers of `node` are operators `ops` in its scope with constant (or dequantized) other
    operands.

    `node` is removed with the last of these readers, so the result does not depend on common subexpressions.
    """
    value = node.output

    def alike(user: Node) -> bool:
        others = [v for v in user.inputs if v is not value]
        return user.op in ops and user.graph is node.graph and all(v is None or _is_weight(v) for v in others)

    m.require(value.feeds_only(alike), f"{node.op} output used elsewhere")


def _is_weight(v: Value) -> bool:
    node = producer(v, "DequantizeLinear")
    return v.constant if node is None else all(i.constant for i in node.operands)


def keeps_shape(dims: Shape, target: list[int], allowzero: bool) -> bool:
    """Whether Reshape of `dims` to `target` (0: copy, -1: infer) is the identity."""
    others = [t for d, t in zip(dims, target) if d != t and (t or allowzero)]
    if not others:
        return True
    # A single -1 is inferred correctly if all else is unchanged and no zero makes it ambiguous.
    ambiguous = any(d == 0 for d, t in zip(dims, target) if t != -1)
    return others == [-1] and not ambiguous and not (allowzero and 0 in target)


def known_axes(m: Match, node: Node) -> list[int] | None:
    """Return the axes listed by a node, None if absent; declines if they are computed."""
    given = [*canonical_operands(node), None][1]
    m.require(given is None or given.constant, "the axes are computed")
    return listed_axes(node)


def reduced_axes(m: Match, node: Node, rank: int) -> list[int]:
    """Return the sorted axes reduced by a Reduce* of an input of this rank; declines if none."""
    axes = known_axes(m, node)
    m.require(axes or not node.attr("noop_with_empty_axes", 0), "reduces nothing")
    return sorted(a % rank for a in axes) if axes else list(range(rank))


def without_ones(m: Match, node: Node, x: Value) -> tuple[Value, bool]:
    """Return (result, whether it reduces) for a Reduce* of `x` over axes of size 1; declines for other sizes."""
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
    """Return the bias of a Conv or Gemm by output channel, in float64; declines for any other form of bias."""
    return m.known(bias_of(node, b, channels), "the bias is not one per channel")


def again(m: Match, node: Node, x: Value, weight: Value, bias: Value | None) -> Value:
    """Build the same Conv or Gemm with other operands; the beta of a Gemm becomes 1."""
    changes: dict[str, Any] = {"beta": None} if node.op == "Gemm" else {}
    result: Value = m.op[node.op](x, weight, bias, like=node, **changes)
    return result


def ends_formula(x: Value, factor: Array) -> bool:
    """Whether `x` times `factor` ends a decomposed normalization or Gelu.

    Runtimes fuse these formulas. Folding the factor into the next weights would save one node in the model and cost
    several in the runtime.
    """
    return _normalized(x) or (factor.size == 1 and factor.item() == 0.5 and _gated(x))


def scales_formula(node: Node, factor: Array) -> bool:
    """Whether the product of `node` and `factor` is an operand of the last product of a decomposed normalization or
    Gelu."""
    half = factor.size == 1 and factor.item() == 0.5
    ends = (u.output for u in islice(node.output.users, _MAX_READERS) if u.op in ("Mul", "Div"))
    return any(_normalized(v) or (half and _gated(v)) for v in ends)


def shifts_formula(x: Value) -> bool:
    """Whether `x` is a decomposed normalization, perhaps scaled, to which a term would be the bias."""
    return _normalized(x) or any(map(_normalized, _operands(x, "Mul")))


def _normalized(x: Value) -> bool:
    """Whether a value is y / sqrt(…) or y (1 / sqrt(…)), an unscaled LayerNormalization or RMSNormalization."""
    inverse = [_operands(v, "Div", "Reciprocal") for v in _operands(x, "Mul")]
    return any(_maker(read[-1], "Sqrt") for read in (*inverse, _operands(x, "Div")) if read)


def scaled_from(node: Node) -> Value | None:
    """Return the normalized value if the node is scale or bias of a decomposed LayerNormalization, else None."""
    x = next((v for v in node.operands if not v.constant), None)
    if node.op not in ("Add", "Mul") or x is None or len([v for v in node.operands if v.constant]) != 1:
        return None
    if node.op == "Add" and (scale := _maker(x, "Mul")):
        return scaled_from(scale)
    centred = (_operands(v, "Sub") for v in _operands(x)) if _normalized(x) else ()
    return next((read[0] for read in centred if read), None)


def _gated(x: Value) -> bool:
    """Whether a value is y (1 + erf(…)) or y (1 + tanh(…)), twice a Gelu."""
    return any(_maker(term, "Erf", "Tanh") for gate in _operands(x, "Mul") for term in _operands(gate, "Add"))


def _operands(value: Value, *ops: str) -> list[Value]:
    """Return the operands of the producer of `value`, if one of `ops` (any, without `ops`), else none."""
    node = _maker(value, *ops)
    return node.operands if node is not None else []


def _maker(value: Value, *ops: str) -> Node | None:
    """Return the producer of `value`, if one of `ops` (any, without `ops`), else None.

    Cast and Identity, which may be removed later, are looked through.
    """
    while (node := producer(value, "Cast", "Identity")) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return producer(value, *ops)
