"""What a model does with the numbers of its inputs, and so which of them it may be given.

A number is followed as far as it is known what becomes of it: through what hands it on, and what adds or multiplies a
constant. What indexes is below the size of what it indexes. What becomes a size stays small. What is only computed with
and compared may be any number of its type. Where an operator changes what it does is an edge, a bound of a Clip or what
is compared with: numbers on both sides of it, as they would have to be fed, say more than others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onnxopt.element_types import TYPES
from onnxopt.record import record
from onnxopt.verification.model.breakpoints import breakpoints, keys, words
from onnxopt.verification.model.constants import constants
from onnxopt.verification.model.constants import numbers as numbers_of
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

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

FREE: Final = ""
INDEX: Final = "index"
SIZE: Final = "size"
UNKNOWN: Final = "unknown"
_ROLES: Final = (FREE, INDEX, SIZE, UNKNOWN)
_MOST: Final = 64  # edges of an input
_ROOTS: Final = 8  # inputs that one value is followed from
_HUGE: Final = 1000.0
_VAST: Final = 1e6  # what is multiplied by less may be a sound (32768), or a moment (1000), unless that is negative
_FAR: Final = 1e6  # a moment in seconds: what is counted from there is small beside it
_MASKS: Final = ((1.0, 0.0), (-1.0, 1.0), (1.0, -1.0))  # factors and terms: the mask, and what it leaves out
_TINY: Final = 1e-30
# Ends of narrower integers by type, as far as float32 tells all integers about them.
_ENDS: Final[dict[int, tuple[float, ...]]] = {
    2: (127,),
    4: (127, 255, 32767),
    5: (127, -128, 255),
    **dict.fromkeys((6, 7), (127, -128, 255, 32767, -32768, 65535)),
    **dict.fromkeys((12, 13), (127, 255, 32767, 65535)),
}
_STRING: Final = 8
_JOINING: Final = having("joined", "mutual")
_TEXT: Final = having("words")
_KNOWN: Final = HANDED_ON | AFFINE | FORGETTING | having("computes") | SINKS.keys()
_BOOL: Final = 9
_FLOATS: Final = frozenset(t.code for t in TYPES if t.kind == "f")
_READABLE: Final = frozenset(t.code for t in TYPES if t.kind in "fiuS")


@record(frozen=True)
class Use:
    """Of one input. `role`: the most delicate thing that becomes of integers. `floats`: they are computed with as
    floats; `linear`: so that large ones say as much as small ones; `origin`: what is subtracted first, where that is
    large. `mask`: they are multiplied by so much that nothing else counts. `rows`: how many there are of what it
    indexes, or how a dim of that is called. `jumps`: what is on an edge is not what it would be beside it. `levelled`:
    what is on one side of an edge becomes all alike. `exact`: they are compared, and what is an edge itself goes with
    one side of it. `whole`: ends of narrower integers than those that floats become,
    as they would have to be fed. `size`: floats become integers that are sizes."""

    role: str = FREE
    floats: bool = False
    mask: bool = False
    jumps: bool = False
    edges: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    rows: tuple[int | str, ...] = ()
    linear: bool = True
    origin: float = 0.0
    levelled: bool = False
    whole: tuple[float, ...] = ()
    exact: bool = False
    size: bool = False

    @property
    def bound(self) -> int | None:
        return min((r for r in self.rows if isinstance(r, int)), default=None)

    @property
    def asks(self) -> bool:
        """Are there numbers, or words, that say more than others do, and are safe to try?"""
        if self.role == UNKNOWN:  # a kernel that nothing is known of may read beyond its memory
            return False
        return bool(self.words or self.edges) or self.role != INDEX or not self.rows


class _Trace(NamedTuple):
    """What a value is made of: `roots` (input, factor, term) where it is that input times the factor plus the term;
    `inputs` all integers that it depends on, `cast` all floats that were made integers on the way."""

    roots: tuple[tuple[str, float, float], ...]
    inputs: frozenset[str] = frozenset()
    floating: bool = False
    cast: frozenset[str] = frozenset()


class _Found:
    def __init__(self) -> None:
        self.role = FREE
        self.floats = False
        self.mask = False
        self.jumps = False
        self.edges: dict[float, None] = {}
        self.words: dict[str, None] = {}
        self.rows: list[int | str] = []
        self.linear = True
        self.origin = 0.0
        self.levelled = False
        self.exact = False
        self.whole: dict[float, None] = {}
        self.size = False
        self.sized = False  # do integers that it becomes do more than being computed with?


def uses(graph: GraphProto) -> dict[str, Use]:
    """By input, for those that somebody reads and something is known of."""
    return _Sweep(graph).uses()


class _Sweep:
    def __init__(self, graph: GraphProto) -> None:
        self.found: dict[str, _Found] = {}
        self.shapes = {i.name: _dims(i) for i in graph.input}
        self.traces: dict[str, _Trace] = {}
        self.constants: dict[str, TensorProto] = {}
        self.turned: dict[str, Sequence[int | str]] = {}  # constants in another order of axes
        self._numbers: dict[str, list[float]] = {}
        listed = {t.name for t in graph.initializer}
        for i in graph.input:
            kind = i.type.tensor_type.elem_type if i.type.HasField("tensor_type") else 0
            if kind in _READABLE and i.name not in listed:
                whole = kind not in _FLOATS and kind != _STRING
                self.traces[i.name] = _Trace(((i.name, 1.0, 0.0),), frozenset((i.name,)) if whole else frozenset())
                self._of(i.name)
        self._walk(graph)

    def uses(self) -> dict[str, Use]:
        return {
            name: Use(
                f.role,
                f.floats,
                f.mask,
                f.jumps,
                tuple(f.edges),
                tuple(f.words),
                tuple(dict.fromkeys(f.rows)),
                f.linear,
                f.origin,
                f.levelled,
                () if f.sized else tuple(f.whole),
                f.exact,
                f.size,
            )
            for name, f in self.found.items()
        }

    def _walk(self, graph: GraphProto) -> None:
        traces = self.traces
        self.constants.update((t.name, t) for t in graph.initializer)
        for node in graph.node:
            kind = node.op_type
            if kind == "Constant":
                self.constants.update(constants([node]))
                continue
            reads = [traces.get(name) for name in node.input]
            if kind not in STEADY or node.domain not in STANDARD:
                for name in (name for trace in reads if trace is not None and trace.floating for name in trace.inputs):
                    self._of(name).linear = False
            if kind in ("If", "Loop", "Scan"):
                self._bodies(node, reads)
            elif any(reads):
                if (made := self._after(node, reads)) is not None:
                    traces[node.output[0]] = made
                    if kind in ("Split", "Unsqueeze"):
                        traces.update((name, made) for name in node.output)
            elif kind in HANDED_ON and node.input and node.input[0] in self.constants:
                self.constants[node.output[0]] = self.constants[node.input[0]]
                if kind == "Transpose":
                    self._turned(node)

    def _bodies(self, node: NodeProto, reads: Sequence[_Trace | None]) -> None:
        """What a loop carries is followed through one trip."""
        kind = node.op_type
        if kind == "Loop" and reads and reads[0] is not None:
            self._sink(reads[0], SIZE)
        carried = reads[1:] if kind == "Loop" else reads
        for body in (a.g for a in node.attribute if a.HasField("g")):
            skipped = 1 if kind == "Loop" else 0
            for given, trace in zip(body.input[skipped:], carried if kind != "If" else ()):
                if trace is not None:
                    self.traces[given.name] = trace
            self._walk(body)
            made = body.output[1:] if kind == "Loop" else body.output
            for name, given in zip(node.output, made):
                if (trace := self.traces.get(given.name)) is not None:
                    self.traces[name] = trace

    # -- one node ----------------------------------------------------------------------------------------

    def _after(self, node: NodeProto, reads: Sequence[_Trace | None]) -> _Trace | None:
        kind = node.op_type
        if node.domain == "ai.onnx.ml":
            self._keys(node, reads)
            return None
        if node.domain not in STANDARD:
            for trace in reads:
                self._sink(trace, UNKNOWN)
            return None
        self._edges(node, reads)
        sinks = SINKS.get(kind, {})
        data = []
        for k, trace in enumerate(reads):
            if trace is None:
                continue
            role = sinks.get(k, FREE)
            if role == FREE and (trace.floating or kind in _KNOWN):
                data.append(trace)
            else:
                self._sink(trace, role or UNKNOWN)
                if role == INDEX:
                    self._indexed(node, k, trace)
        if not data or kind in FORGETTING:
            return None
        return self._made(node, reads, data)

    def _made(self, node: NodeProto, reads: Sequence[_Trace | None], data: Sequence[_Trace]) -> _Trace | None:
        kind = node.op_type
        inputs = data[0].inputs if len(data) == 1 else frozenset().union(*(t.inputs for t in data))
        floating = any(t.floating for t in data)
        cast = frozenset().union(*(t.cast for t in data))
        if kind == "Cast":
            to = next((a.i for a in node.attribute if a.name == "to"), 1)
            if to == _BOOL:
                return None
            floating = to in _FLOATS
            if floating:
                for name in inputs:
                    self._of(name).floats = True
            elif any(t.floating or not (t.inputs or t.cast) for t in data):
                cast |= self._whole(data, to)
        roots: tuple[tuple[str, float, float], ...] = ()
        if kind in AFFINE:
            roots = self._affine(node, reads)
        elif kind in HANDED_ON:
            every = data if kind in _JOINING else data[:1]
            roots = tuple(dict.fromkeys(r for t in every for r in t.roots))[:_ROOTS]
        return _Trace(roots, inputs, floating, cast) if roots or inputs or cast else None

    def _whole(self, data: Sequence[_Trace], to: int) -> frozenset[str]:
        """The floats that become integers of this type, of which there are narrower ones."""
        for name, a, b in (root for t in data for root in t.roots):
            if abs(a) > _TINY:
                self._of(name).whole.update(dict.fromkeys((end - b) / a for end in _ENDS.get(to, ())))
        return frozenset(name for t in data for name, *_ in t.roots)

    def _affine(self, node: NodeProto, reads: Sequence[_Trace | None]) -> tuple[tuple[str, float, float], ...]:
        kind = node.op_type
        if kind == "Neg":
            return tuple((n, -a, -b) for n, a, b in reads[0].roots) if reads[0] is not None else ()
        found = []
        for k, trace in enumerate(reads[:2]):
            other = self.numbers(node.input[1 - k])[:1] if trace is not None and len(node.input) == 2 else []
            for name, a, b in trace.roots if trace is not None else ():
                if kind in ("Add", "Sub"):
                    c = other[0] if other else 0.0  # what else is added may be anything: nothing, for a guess
                    sign = -1.0 if kind == "Sub" and k else 1.0
                    found.append((name, sign * a, sign * b + (-c if kind == "Sub" and not k else c)))
                    if abs(c) >= _FAR and trace is not None and trace.floating and a:
                        self._of(name).origin = -found[-1][2] / found[-1][1]
                elif other and other[0] and kind == "Mul":
                    computed = trace is not None and (trace.floating or not trace.inputs)
                    if computed and (a, b) in _MASKS and _leaves_out(other[0], whole=(a, b) == _MASKS[0]):
                        self._of(name).mask = True
                    found.append((name, a * other[0], b * other[0]))
                elif other and other[0] and kind == "Div" and not k:
                    found.append((name, a / other[0], b / other[0]))
        return tuple(found[:_ROOTS])

    def _edges(self, node: NodeProto, reads: Sequence[_Trace | None]) -> None:
        for k, trace in enumerate(reads):
            if trace is not None and trace.roots:
                kind = node.op_type
                met = list(breakpoints(node, k, self.numbers))
                self._meet(trace, met, jumps=kind not in CUTTING, levels=kind in LEVELLING)
                for name, *_ in trace.roots if met and kind in COMPARING else ():
                    self._of(name).exact = True
        if node.op_type in _TEXT:
            self._words(node, reads)

    def _meet(self, trace: _Trace, numbers: Iterable[float], *, jumps: bool = True, levels: bool = False) -> None:
        for number in numbers:
            for name, a, b in trace.roots:
                met = self._of(name).edges
                if len(met) < _MOST and abs(a) > _TINY:
                    met[(number - b) / a] = None
                    self._of(name).jumps |= jumps
                    self._of(name).levelled |= levels

    def _keys(self, node: NodeProto, reads: Sequence[_Trace | None]) -> None:
        """What is looked up in a table of ai.onnx.ml."""
        numbers = keys(node)
        for trace in reads:
            if trace is not None:
                self._meet(trace, numbers)
        self._words(node, reads)

    def _words(self, node: NodeProto, reads: Sequence[_Trace | None]) -> None:
        """Strings that are looked up, left out, compared with or split at."""
        held = (self.constants[name] for name in node.input if name in self.constants)
        texts = words(node, (s for tensor in held for s in tensor.string_data))
        for trace in reads:
            for name, *_ in trace.roots if trace is not None else ():
                self._of(name).words.update(dict.fromkeys(texts))

    def _indexed(self, node: NodeProto, k: int, trace: _Trace) -> None:
        """Of what it indexes, each row: the last one too."""
        at = AXIS.get((node.op_type, k))
        shape = self._shape(node.input[0]) if at is not None else ()
        if at is None or not shape:
            return
        axis = next((a.i for a in node.attribute if a.name == at[1]), at[0])
        rows = shape[axis] if -len(shape) <= axis < len(shape) else 0
        if isinstance(rows, int) and rows:
            rows += operator(node.op_type).role(k) == LENGTH
        for name, a, b in trace.roots:
            if (a, b) == (1.0, 0.0) and rows:
                self._of(name).rows.append(rows)
            elif len(trace.roots) == 1 and isinstance(rows, int) and a == 1.0 and abs(b) < rows:
                self._of(name).rows.append(rows - int(b))

    # -- what is known -----------------------------------------------------------------------------------

    def _of(self, name: str) -> _Found:
        found = self.found.get(name)
        if found is None:
            found = self.found[name] = _Found()
        return found

    def _sink(self, trace: _Trace | None, role: str) -> None:
        for name in trace.inputs if trace is not None else ():
            found = self._of(name)
            found.role = max(found.role, role, key=_ROLES.index)
        for name in trace.cast if trace is not None else ():
            self._of(name).sized = True
            self._of(name).size |= role == SIZE

    def _shape(self, name: str) -> Sequence[int | str]:
        if name in self.turned:
            return self.turned[name]
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return self.shapes.get(name, ())

    def _turned(self, node: NodeProto) -> None:
        dims = self._shape(node.input[0])
        order = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(len(dims)))[::-1])
        if sorted(order) == list(range(len(dims))):
            self.turned[node.output[0]] = [dims[k] for k in order]

    def numbers(self, name: str) -> list[float]:
        """Those of a small constant, each once; none of what is no such."""
        if name not in self.constants:
            return []
        if name not in self._numbers:
            self._numbers[name] = numbers_of(self.constants[name])
        return self._numbers[name]


def _leaves_out(factor: float, *, whole: bool) -> bool:
    """Is nothing else left beside what is multiplied by this: the `whole` input, or what it differs from one by?"""
    return abs(factor) >= (_VAST if whole and factor > 0 else _HUGE)


def _dims(info: Any) -> Sequence[int | str]:
    dims = info.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims]
