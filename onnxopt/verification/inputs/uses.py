"""Forward analysis of uses of input numbers, which determine the range of values to feed.

Numbers are followed through moves, and through addition or multiplication of constants. An index stays below the size
of the indexed axis, a size stays small, and a number only computed with and compared may be any of its type. At each
breakpoint, propagated back to the input, numbers on both sides prove more than others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from onnx import FunctionProto, GraphProto, NodeProto, TensorProto

from onnxopt.proto.element_types import TYPES
from onnxopt.proto.messages import tensor_type
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.nodes import adds_up, int_of, required, value_of
from onnxopt.verification.model.operators import (
    AFFINE,
    AXIS,
    COMPARING,
    CUTTING,
    FORGETTING,
    HANDED_ON,
    LENGTH,
    LEVELLING,
    SINKS,
    STANDARD,
    STEADY,
    having,
    operator,
)
from onnxopt.verification.model.ranges import breakpoints, keys, words

FREE: Final = ""
INDEX: Final = "index"
SIZE: Final = "size"
UNKNOWN: Final = "unknown"
_ROLES: Final = (FREE, INDEX, SIZE, UNKNOWN)
_MAX_EDGES: Final = 64  # breakpoints of an input
_ROOTS: Final = 8  # inputs followed from a single value
_HUGE: Final = 1000.0
_VAST: Final = 1e6  # smaller positive factors may scale sound (32768) or time (1000)
_MIN_TIMESTAMP: Final = 1e6  # a time in seconds: inputs are close to the number
_MASKS: Final = ((1.0, 0.0), (-1.0, 1.0), (1.0, -1.0))  # (factor, term) of a mask, and of its complement
_TINY: Final = 1e-30
# Ends of narrower integer types, as far as float32 distinguishes integers near them.
_ENDS: Final[dict[int, tuple[float, ...]]] = {
    2: (127,),
    4: (127, 255, 32767),
    5: (127, -128, 255),
    **dict.fromkeys((6, 7), (127, -128, 255, 32767, -32768, 65535)),
    **dict.fromkeys((12, 13), (127, 255, 32767, 65535)),
}
_ML: Final = "ai.onnx.ml"
_STRING: Final = 8
_BOOL: Final = 9
_FLOAT_CODES: Final = frozenset(t.code for t in TYPES if t.kind == "f")
_READABLE: Final = frozenset(t.code for t in TYPES if t.kind in "fiuS")
_JOINING: Final = having("joined", "mutual")
_MOVING: Final = having("moves")
_TEXT: Final = having("words")
_KNOWN: Final = HANDED_ON | AFFINE | FORGETTING | having("computes") | SINKS.keys()
# Distance of the second breakpoint at a comparand, by operator and operand.
_EDGE_OFFSETS: Final = {"Equal": 0, "Less": -1, "GreaterOrEqual": -1, "Greater": 1, "LessOrEqual": 1}


@dataclass
class Use:
    """Use of an input."""

    role: str = FREE  # use of integers, the most restrictive
    floats: bool = False  # integers are cast to floats
    mask: bool = False  # multiplied by a factor large enough to hide all remaining terms
    jumps: bool = False  # results are discontinuous at a breakpoint
    edges: tuple[float, ...] = ()  # breakpoints, propagated back to the input
    words: tuple[str, ...] = ()  # strings that the model compares with
    rows: tuple[int | str, ...] = ()  # sizes of indexed axes: numbers or symbols
    linear: bool = True  # large floats prove as much as small floats
    origin: float = 0.0  # large constant subtracted first
    levelled: bool = False  # numbers on one side of a breakpoint become equal
    whole: tuple[float, ...] = ()  # ends of narrower integer types than the one floats are cast to, propagated back
    exact: bool = False  # compared: a breakpoint itself belongs to one of its sides
    size: bool = False  # floats are cast to integers used as sizes
    repeats: bool = False  # a repeated index reduces elements
    compared: tuple[int, ...] = ()  # integers that select a branch: comparands, and beside
    opposite: tuple[int, ...] = ()  # on the opposite side of comparands

    @property
    def bound(self) -> int | None:
        """The smallest known size of an indexed axis, else None."""
        return min((r for r in self.rows if isinstance(r, int)), default=None)

    @property
    def decisive(self) -> tuple[int, ...]:
        """Integers on both sides of comparands: first selecting a branch, then the opposite branch."""
        return tuple(dict.fromkeys((*self.compared, *self.opposite)))

    @property
    def asks(self) -> bool:
        """Whether certain numbers or words prove more than others, and are safe to try."""
        if self.role == UNKNOWN:  # an unknown kernel may read out of bounds
            return False
        return bool(self.words or self.edges) or self.role != INDEX or not self.rows


# (input, factor, term, whether only moved and shifted, without guesses): the value is input * factor + term.
_Roots = tuple[tuple[str, float, float, bool], ...]


class _Trace(NamedTuple):
    """Origin of a value."""

    roots: _Roots
    inputs: frozenset[str] = frozenset()  # integer inputs that the value depends on
    floating: bool = False
    cast: frozenset[str] = frozenset()  # float inputs cast to integers on the way

    @property
    def origins(self) -> list[tuple[str, float]]:
        """(input, term) of the inputs that were only moved and shifted."""
        return [(name, b) for name, _, b, is_exact in self.roots if is_exact]


class Uses(Forward[_Trace]):
    """The uses of a graph's inputs."""

    def __init__(self, graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> None:
        super().__init__(functions)
        self.graph = graph
        self.found: defaultdict[str, Use] = defaultdict(Use)  # by input
        self.tables: dict[str, list[tuple[TensorProto, int]]] = {}  # {input: [(indexed constant, row minus input)]}
        self._shapes = {i.name: [*(tensor_type(i.type)[1] or ())] for i in graph.input}
        for i in required(graph):
            kind = i.type.tensor_type.elem_type
            if kind in _READABLE:
                inputs = frozenset[str]() if kind in _FLOAT_CODES or kind == _STRING else frozenset((i.name,))
                self.facts[i.name] = _Trace(((i.name, 1.0, 0.0, True),), inputs)
                self.found[i.name]
        self._sized: set[str] = set()  # inputs cast to integers that are used beyond arithmetic
        self.walk(graph)
        for name in self._sized:
            self.found[name].whole = ()

    # -- transfer of facts --------------------------------------------------------------------------------

    def join(self, a: _Trace, b: _Trace) -> _Trace:
        roots = tuple(dict.fromkeys((*a.roots, *b.roots)))[:_ROOTS]
        return _Trace(roots, a.inputs | b.inputs, a.floating or b.floating, a.cast | b.cast)

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[_Trace | None]) -> Sequence[_Trace | None]:
        self._steady(node, reads)
        if node.op_type == "Loop" and reads:
            self._sink(reads[0], SIZE)
        return super().entering(node, body, reads)

    def transfer(self, node: NodeProto, reads: Sequence[_Trace | None]) -> Sequence[_Trace | None]:
        if any(reads):
            self._steady(node, reads)
            made = self._after(node, reads)
        else:
            made = None
            self._hand_on_constant(node)
        return [made if k == 0 or node.op_type == "Split" else None for k in range(len(node.output))]

    def _after(self, node: NodeProto, reads: Sequence[_Trace | None]) -> _Trace | None:
        if node.domain not in (*STANDARD, _ML):
            for trace in reads:
                self._sink(trace, UNKNOWN)
            return None
        self._meet_breakpoints(node, reads)
        if node.domain == _ML:
            return None
        data = [trace for k, trace in enumerate(reads) if trace is not None and not self._is_sunk(node, k, trace)]
        return self._made(node, reads, data) if data and node.op_type not in FORGETTING else None

    def _is_sunk(self, node: NodeProto, k: int, trace: _Trace) -> bool:
        """Return whether operand `k` is used otherwise than as data, and record the use."""
        role = SINKS.get(node.op_type, {}).get(k, FREE)
        if (node.op_type, k) in AXIS:
            self._index(node, k, trace)
        if role == FREE and (trace.floating or node.op_type in _KNOWN):
            return False
        self._sink(trace, role or UNKNOWN)
        for name in trace.inputs if role == INDEX and adds_up(node) else ():
            self.found[name].repeats = True
        return True

    def _made(self, node: NodeProto, reads: Sequence[_Trace | None], data: Sequence[_Trace]) -> _Trace | None:
        kind = node.op_type
        roots = self._affine(node, reads) if kind in AFFINE else ()
        if kind in HANDED_ON:
            roots = _handed_on(kind, data)
        inputs = frozenset[str]().union(*(t.inputs for t in data))
        cast = frozenset[str]().union(*(t.cast for t in data))
        if not (roots or inputs or cast):
            return None
        made = _Trace(roots, inputs, any(t.floating for t in data), cast)
        return self._cast(made, int_of(node, "to", 1)) if kind == "Cast" else made

    def _cast(self, trace: _Trace, to: int) -> _Trace | None:
        """Return the origin after a Cast. Floats cast to integers have breakpoints of narrower types."""
        if to == _BOOL:
            return None
        if to in _FLOAT_CODES:
            for name in trace.inputs:
                self.found[name].floats = True
        elif trace.floating or not (trace.inputs or trace.cast):
            for name, a, b, _ in trace.roots:
                self._add(name, "whole", ((end - b) / a for end in _ENDS.get(to, ()) if abs(a) > _TINY))
            trace = trace._replace(cast=trace.cast.union(name for name, *_ in trace.roots))
        return trace._replace(floating=to in _FLOAT_CODES)

    def _affine(self, node: NodeProto, reads: Sequence[_Trace | None]) -> _Roots:
        kind, found = node.op_type, list[tuple[str, float, float, bool]]()
        for k, trace in enumerate(reads[:2]):
            other = self.numbers(node.input[1 - k]) if len(node.input) == 2 else []
            step = _step(kind, k, other)
            if trace is None or step is None:
                continue
            self._meet_large(kind, trace, *step)
            factor, term = step
            keeps = factor > 0 and len(other) == 1 and kind in ("Add", "Sub")
            found += [(n, a * factor, b * factor + term, is_exact and keeps) for n, a, b, is_exact in trace.roots]
        return tuple(found[:_ROOTS])

    def _meet_large(self, kind: str, trace: _Trace, factor: float, term: float) -> None:
        """Record the origin of timestamps, and factors that make masks."""
        for name, a, b, _ in trace.roots:
            if abs(term) >= _MIN_TIMESTAMP and trace.floating and a:
                self.found[name].origin = -(b * factor + term) / (a * factor)
            if kind == "Mul" and (trace.floating or not trace.inputs) and _hides(a, b, factor):
                self.found[name].mask = True

    # -- uses by operators -------------------------------------------------------------------------------

    def _steady(self, node: NodeProto, reads: Sequence[_Trace | None]) -> None:
        if node.op_type not in STEADY or node.domain not in STANDARD:
            for name in (name for trace in reads if trace is not None and trace.floating for name in trace.inputs):
                self.found[name].linear = False

    def _meet_breakpoints(self, node: NodeProto, reads: Sequence[_Trace | None]) -> None:
        """Record the breakpoints of an operator, keys looked up in tables of ai.onnx.ml, and words compared with."""
        kind, texts = node.op_type, self._words(node)
        for k, trace in enumerate(reads):
            if trace is None or not trace.roots:
                continue
            met = keys(node) if node.domain == _ML else list(breakpoints(node, k, self.numbers))
            for name, a, b, _ in trace.roots:
                self._add(name, "words", texts)
                self._add_edges(name, [(number - b) / a for number in met] if abs(a) > _TINY else (), kind)
            if met and kind in COMPARING:
                self._compare(node, k, trace)

    def _add_edges(self, name: str, edges: Iterable[float], kind: str) -> None:
        use = self.found[name]
        for edge in edges:
            if len(use.edges) < _MAX_EDGES:
                self._add(name, "edges", [edge])
                use.jumps |= kind not in CUTTING
                use.levelled |= kind in LEVELLING

    def _words(self, node: NodeProto) -> list[str]:
        """Return the strings that an operator compares with."""
        if node.op_type not in _TEXT and node.domain != _ML:
            return []
        held = (self.constants[name] for name in node.input if name in self.constants)
        return words(node, (s for tensor in held for s in tensor.string_data))

    def _compare(self, node: NodeProto, k: int, trace: _Trace) -> None:
        """Record that breakpoints belong to a side, and integers on both sides of a single constant."""
        for name, *_ in trace.roots:
            self.found[name].exact = True
        number = self.numbers(node.input[1 - k])
        if len(number) != 1 or number[0] % 1:
            return
        step = _EDGE_OFFSETS[node.op_type] * (-1 if k else 1)
        for name, term in trace.origins:
            if not (number[0] - term) % 1:
                n = int(number[0] - term)
                self._add(name, "compared", [n, n + step])
                self._add(name, "opposite", [n - 1 if n > 0 else n + 1])

    def _index(self, node: NodeProto, k: int, trace: _Trace) -> None:
        """Record the indexed table, and the size of the indexed axis, including the last row."""
        first, name = AXIS[node.op_type, k]
        axis = int_of(node, name, first)
        rows = self._rows(node, k, axis)
        if node.op_type == "Gather" and axis == 0 and node.input[0] in self.constants:
            for name, term in trace.origins:
                self.tables.setdefault(name, []).append((self.constants[node.input[0]], int(term)))
        for name, a, b, _ in trace.roots if rows else ():
            if (a, b) == (1.0, 0.0):
                self._add(name, "rows", [rows])
            elif len(trace.roots) == 1 and isinstance(rows, int) and a == 1.0 and abs(b) < rows:
                self._add(name, "rows", [rows - int(b)])

    def _rows(self, node: NodeProto, k: int, axis: int) -> int | str | None:
        """Return one more than the largest index into an axis; the name of a dynamic axis, and 0 if unknown."""
        if node.op_type == "OneHot":
            return next(map(int, self.numbers(node.input[1])), 0)
        shape = self._shape(node.input[0])
        rows = shape[axis] if -len(shape) <= axis < len(shape) else 0
        if rows and isinstance(rows, int) and operator(node.op_type).role(k) == LENGTH:
            rows += 1
        return rows

    def _add(self, name: str, field: str, more: Iterable[Any]) -> None:
        """Extend a field of a use, without repetition."""
        found = self.found[name]
        setattr(found, field, tuple(dict.fromkeys((*getattr(found, field), *more))))

    def _sink(self, trace: _Trace | None, role: str) -> None:
        if trace is None:
            return
        for name in trace.inputs:
            found = self.found[name]
            found.role = max(found.role, role, key=_ROLES.index)
        for name in trace.cast:
            self._sized.add(name)
            self.found[name].size |= role == SIZE

    # -- known values ------------------------------------------------------------------------------------

    def _shape(self, name: str) -> Sequence[int | str | None]:
        if name in self._shapes:
            return self._shapes[name]
        return tuple(self.constants[name].dims) if name in self.constants else ()

    def _hand_on_constant(self, node: NodeProto) -> None:
        """Propagate a moved constant's numbers regardless of positions, and a transposed constant's dims."""
        first = node.input[0] if node.input else ""
        if node.op_type not in HANDED_ON or first not in self.constants:
            return
        self.constants[node.output[0]] = self.constants[first]
        if node.op_type == "Transpose":
            dims = self._shape(first)
            order = value_of(node, "perm", [*range(len(dims))][::-1])
            if sorted(order) == list(range(len(dims))):
                self._shapes[node.output[0]] = [dims[k] for k in order]


def _handed_on(kind: str, data: Sequence[_Trace]) -> _Roots:
    every = data if kind in _JOINING else data[:1]
    moved = ((n, a, b, is_exact and kind in _MOVING) for t in every for n, a, b, is_exact in t.roots)
    return tuple(dict.fromkeys(moved))[:_ROOTS]


def _hides(a: float, b: float, factor: float) -> bool:
    """Return whether a factor of a mask, or of its complement, hides all remaining terms."""
    # A positive factor of the input itself, not of 1 - input, may be a scale.
    return (a, b) in _MASKS and abs(factor) >= (_VAST if b == 0.0 and factor > 0 else _HUGE)


def _step(kind: str, k: int, other: Sequence[float]) -> tuple[float, float] | None:
    """Return (factor, term) of operand `k` in the result beside the operand `other`, else None.

    An unknown addend is assumed to be 0.
    """
    c = other[0] if other else 0.0
    match kind:
        case "Neg":
            return -1.0, 0.0
        case "Add":
            return 1.0, c
        case "Sub":
            return (-1.0, c) if k else (1.0, -c)
    if not c or (kind == "Div" and k):
        return None
    return (c if kind == "Mul" else 1 / c), 0.0
