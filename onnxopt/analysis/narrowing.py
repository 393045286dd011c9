"""Narrow float types: supporting operators, conversion of weights, masks visible to callers, and the fewest Casts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from onnx import TensorProto
from onnx.defs import OpSchema

from onnxopt.analysis import types
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node
from onnxopt.graph.schema import find_schema, formals, is_standard
from onnxopt.operators import IN_RANGE, of_form
from onnxopt.operators.operands import CONTRIB_DOMAIN, contrib_types
from onnxopt.proto.element_types import BY_NAME
from onnxopt.proto.messages import Array, numpy_dtype

NARROW: Final = {name: BY_NAME[name].code for name in ("float16", "bfloat16")}

_SUM: Final = "it sums over many elements"
_RANGE: Final = "its results leave the range, or lose their digits"
_ANGLE: Final = "a large angle has no digits left behind the point"
_PLACE: Final = "it reads coordinates, which need more digits"
_DRAWS: Final = "it would draw other numbers"
_NO_KERNEL: Final = "runtimes have no kernel for it in this type"
_DECIDES_STEPS: Final = "its scale decides which step a number is rounded to"

# Operators that stay wide although the standard allows narrow types, and the reason.
STAYS_WIDE: Final = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2"), _SUM),
    **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp", "CumSum", "LpNormalization", "DFT", "STFT"), _SUM),
    **dict.fromkeys(("MeanVarianceNormalization", "Mean", "Det"), _SUM),
    **dict.fromkeys(("Pow", "Exp", "Log", "Reciprocal", "Softplus", "Sinh", "Cosh", "Tan", "Acos", "Asin"), _RANGE),
    **dict.fromkeys(("Sin", "Cos"), _ANGLE),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool", "GridSample", "AffineGrid"), _PLACE),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _DRAWS),
    **dict.fromkeys(("Multinomial", "Bernoulli"), _DRAWS),
    **dict.fromkeys(("QuantizeLinear", "QLinearConv", "QLinearMatMul"), _DECIDES_STEPS),
    "EyeLike": _NO_KERNEL,
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), "what it is given and gives keeps its type"),
}
_SCATTERING: Final = ("ScatterND", "ScatterElements")
_SCATTERED: Final = (("ScatterND", "max"), ("ScatterND", "min"))
NOT_STANDARD: Final = "the standard does not have it in this type"
NOT_CONTRIB: Final = "onnxruntime does not have it in this type"
NOT_KNOWN: Final = "which types this operator takes is not known"
# Inputs that stay wide in a narrow operator: Resize's region of interest and scales.
_WIDE_INPUTS: Final = {"Resize": (1, 2)}
# Operators with most of the work: the reason to convert a model.
_HEAVY: Final = of_form("window", "contract", "recurrent")
# Attributes with the result type.
RESULT_TYPE: Final = {"Cast": "to", "ConstantOfShape": "value"}
_FILL: Final = 1e9  # larger numbers stand for infinity: a mask's -1e9, or the lowest float32


def stays_wide(node: Node) -> str:
    """Return why a node stays wide although the standard may allow narrow types; empty if it need not."""
    reduction = node.attr("reduction", "none") if node.op in _SCATTERING else "none"
    if reduction in ("add", "mul"):
        return _SUM
    return _NO_KERNEL if (node.op, reduction) in _SCATTERED else STAYS_WIDE.get(node.op, "")


def is_heavy(op: str) -> bool:
    """Whether an operator has most of the work of a model."""
    own = contrib_types().get(op)
    return op in _HEAVY or (own is not None and own.heavy)


def not_narrow(node: Node) -> str:
    """Return why no input or output of an operator may be narrow."""
    if node.op in contrib_types() or node.domain == CONTRIB_DOMAIN:
        return NOT_CONTRIB
    return NOT_KNOWN if node.domain and not is_standard(node.domain) else NOT_STANDARD


@dataclass(frozen=True)
class Slots:
    """Float32 inputs and outputs of an operator allowed to be narrow. `more`: further ones of a variadic operator."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    more: tuple[bool, bool] = (False, False)

    def takes(self, index: int) -> bool:
        return self.inputs[index] if index < len(self.inputs) else self.more[0]

    def gives(self, index: int) -> bool:
        return self.outputs[index] if index < len(self.outputs) else self.more[1]


NONE: Final = Slots((), ())


@cache
def slots(op: str, opset: int, dtype: str) -> Slots:
    """Return the slots of an operator at an opset, by its schema or its symbols: narrow inputs make narrow outputs."""
    if (own := contrib_types().get(op)) is not None:
        is_there = dtype in own.types
        given, made = (tuple(is_there and s == "T" for s in symbols) for symbols in (own.inputs, own.outputs))
        return Slots(given, made)
    schema = find_schema(op, opset)
    return _slots_of(schema, dtype) if schema is not None and "::" not in op else NONE


def _slots_of(schema: OpSchema, dtype: str) -> Slots:
    op, kind = schema.name, f"tensor({dtype})"
    free = {c.type_param_str for c in schema.type_constraints if kind in c.allowed_type_strs}
    kept = _WIDE_INPUTS.get(op, ())
    free -= deciding(op, schema.since_version)
    inputs = tuple(i.type_str in free and k not in kept for k, i in enumerate(schema.inputs))
    bound = {i.type_str for i, taken in zip(schema.inputs, inputs) if taken}
    outputs = tuple(o.type_str in free and (op in RESULT_TYPE or o.type_str in bound) for o in schema.outputs)
    if op == "ConstantOfShape":
        inputs = (False,) * len(inputs)
    if op == "DequantizeLinear":  # from opset 23 on its result has its own type, by default the scale's
        outputs = inputs[1:2]
    more = _is_variadic(schema.inputs) and inputs[-1], _is_variadic(schema.outputs) and outputs[-1]
    return Slots(inputs, outputs, more)


def deciding(op: str, opset: int) -> set[str]:
    """Return the type variables of operands that decide, by inference, the type of a result with its own variable."""
    known = formals(op, opset)
    if known is None or op in ("Cast", "DequantizeLinear"):  # results get the requested type
        return set()
    given, made = known
    own = [o.allowed for o in made if not o.only and o.symbol not in {i.symbol for i in given}]
    return {i.symbol for i in given if i.allowed in own}


def _is_variadic(parameters: Sequence[Any]) -> bool:
    return bool(parameters) and parameters[-1].option == parameters[-1].option.Variadic


@dataclass(frozen=True)
class Narrowed:
    """A weight in the narrow type; `why`: reason to stay wide. `masks`: holds a number for infinity out of range."""

    array: Array
    why: str = ""
    masks: bool = False


def narrowed(array: Array, dtype: str) -> Narrowed:
    """Return the array in the narrow type; a mask's minus infinity becomes the lowest number."""
    target = numpy_dtype(NARROW[dtype])
    with np.errstate(all="ignore"):
        found = array.astype(target)
        sizes = np.abs(array)
        lost = np.isfinite(array) & ~np.isfinite(found)
        if lost.any():
            if sizes[lost].min() < _FILL:
                return Narrowed(found, f"its largest number, {sizes[lost].max():.1e}, is beyond {dtype}'s range")
            found = np.where(lost, np.copysign(BY_NAME[dtype].high, array), found).astype(target)
        largest = sizes[np.isfinite(sizes)].max(initial=0)
        if 0 < largest < BY_NAME[dtype].tiny and BY_NAME[dtype].tiny > BY_NAME["float32"].tiny:
            return Narrowed(found, f"its largest number, {largest:.1e}, is too small for {dtype}")
    return Narrowed(found, masks=bool(lost.any()))


def fill(node: Node, dtype: str) -> Narrowed:
    """Return the narrowed fill value of a ConstantOfShape."""
    return narrowed(np.asarray(node.attr("value", np.zeros(1, np.float32))), dtype)


# -- masks visible to callers: -3.4e38 must stay, and not become -65504 as in float16 --------------------------

HANDS_ON: Final = IN_RANGE | {"Mul", "Gemm"}  # a finite number for infinity passes through factors and summands


def masks_given_out(
    model: Model, scopes: Iterable[Graph], dtype: str, weight: Callable[[Value], Narrowed]
) -> set[Value | None]:
    """Return the model outputs with a finite number for infinity, and the values of this kind upstream.

    `scopes`: the model's scopes, inner ones first; `weight`: returns the narrowed form of a constant.
    """
    holding = set[Value | None]()

    def holds(value: Value | None) -> bool:
        if value is None or not value.constant:
            return value in holding
        return types.dtype(value) == TensorProto.FLOAT and weight(value).masks

    for node in (node for scope in reversed([*scopes]) for node in scope):
        made = RESULT_TYPE.get(node.op) == "value" and fill(node, dtype).masks
        if made or (node.op in HANDS_ON and any(map(holds, node.inputs))):
            holding.update(node.outputs)
    return _made_of([v for v in model.graph.outputs if v in holding], holding)


def _made_of(values: Iterable[Value | None], holding: Set[Value | None]) -> set[Value | None]:
    """Return these values and the values in `holding` they are computed from."""
    stack, found = [*values], set[Value | None]()
    while stack:
        value = stack.pop()
        if value is None or value in found:
            continue
        found.add(value)
        stack += [v for v in (value.producer.inputs if value.producer is not None else ()) if v in holding]
    return found


# -- minimum cut of a network (Dinic's algorithm) --------------------------------------------------------------

ALWAYS: Final = 1 << 40  # capacity of an edge that must not be cut


class Network:
    """Vertices numbered from 0, edges with a capacity. Linear in edges for each length of a shortest path."""

    def __init__(self, size: int) -> None:
        self._edges: list[list[int]] = [[] for _ in range(size)]
        self._to: list[int] = []
        self._left: list[int] = []  # residual capacity; an edge and its reverse have adjacent indices

    def add_vertex(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, a: int, b: int, capacity: int) -> None:
        for x, y, c in ((a, b, capacity), (b, a, 0)):
            self._edges[x].append(len(self._to))
            self._to.append(y)
            self._left.append(c)

    def add_star(self, centre: int, vertices: set[int]) -> None:
        """Add a cost of 1 if any of `vertices`, however many, is on another side than `centre`."""
        others = vertices - {centre}
        if len(others) == 1:
            self._join(centre, centre, others, 1)
        elif others:
            there, back = self.add_vertex(), self.add_vertex()
            self.add_edge(centre, there, 1)
            self.add_edge(back, centre, 1)
            self._join(there, back, others, ALWAYS)

    def _join(self, there: int, back: int, others: Collection[int], capacity: int) -> None:
        for other in others:
            self.add_edge(there, other, capacity)
            self.add_edge(other, back, capacity)

    def tie(self, a: int, b: int) -> None:
        """Keep two vertices on the same side."""
        self._join(a, a, (b,), ALWAYS)

    def source_side(self, source: int, sink: int) -> set[int]:
        """Return the vertices on the source's side of the minimum cut with the fewest vertices."""
        while True:
            level = self._levels(source, sink)
            if sink not in level:
                return set(level)
            following = [0] * len(self._edges)
            while self._push(source, sink, level, following):
                pass

    def _levels(self, source: int, sink: int) -> dict[int, int]:
        level, waiting = {source: 0}, deque([source])
        while waiting and sink not in level:
            a = waiting.popleft()
            for e in self._edges[a]:
                b = self._to[e]
                if self._left[e] and b not in level:
                    level[b] = level[a] + 1
                    waiting.append(b)
        return level

    def _push(self, source: int, sink: int, level: dict[int, int], following: list[int]) -> bool:
        """Augment along a path; False if none is left. A dead end is not entered again."""
        path: list[int] = []
        a = source
        while a != sink:
            edges = self._edges[a]
            while following[a] < len(edges):
                e = edges[following[a]]
                if self._left[e] and level.get(self._to[e], -1) == level[a] + 1:
                    break
                following[a] += 1
            if following[a] < len(edges):
                path.append(edges[following[a]])
                a = self._to[path[-1]]
            elif not path:
                return False
            else:
                a = self._to[path.pop() ^ 1]
                following[a] += 1
        least = min(self._left[e] for e in path)
        for e in path:
            self._left[e] -= least
            self._left[e ^ 1] += least
        return True
