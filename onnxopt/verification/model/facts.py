"""Facts that hold in every run: conditions with a single value, parts that never run, empty outputs.

Facts are derived from the file alone, by onnx's inference and by ranges. Ranges of `ranges` ignore rounding and
overflow; here, bounds include both, and a fact of a comparison holds for NaN and empty tensors as well.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.proto.element_types import BY_CODE, ElementType
from onnxopt.proto.messages import tensor_type
from onnxopt.verification.model.dataflow import Changing
from onnxopt.verification.model.nodes import deciding_of, first_of, int_of
from onnxopt.verification.model.operators import COMPARING, EXACT, HANDED_ON, MEASURING, STANDARD, having
from onnxopt.verification.model.ranges import ANY, Range, Ranges, common, joined, of_type
from onnxopt.verification.model.shapes import ELEMENTS, UNKNOWN, Call, Known, Shape
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.model.views import forget_claims, forget_defaults

_MOST_ELEMENTS: Final = 2.0**40  # of a tensor, and iterations of a loop
_INT32: Final = 2**31
_WHOLE: Final = 2.0**53  # below, float64 represents all integers
_BOOL: Final = 9  # of TensorProto.DataType
_LEAST_DIGITS: Final = 8  # of a float type that is followed
_ROUNDINGS: Final = 64  # of an operator that approximates a function
_FLOAT32: Final = BY_CODE[1]
_LEAST_ERROR: Final = _ROUNDINGS * _FLOAT32.epsilon  # relative; runtimes may compute float64 in float32
_CLOSE: Final = having("close")  # with the error of `_ROUNDINGS`
_COPYING: Final = (HANDED_ON | EXACT) - having("window") - _CLOSE - {"Dropout"}  # or bending elements
_OF_NOTHING: Final = {  # the result of an empty operand
    "ReduceMax": Range(-math.inf, -math.inf, True, False),
    "ReduceMin": Range(math.inf, math.inf, True, False),
}
_BOUNDING: Final = frozenset(("Min", "Max", "Clip"))
_SIGNED: Final = having("signed") | {"ReduceL1", "ReduceL2", "ReduceMean", "ReduceSumSquare", "Sum", "Dropout"}
_EITHER: Final = Range(0.0, 1.0, True, False)
_COPIES: Final = frozenset(("Identity", "Cast"))
_CONNECTIVES: Final[dict[str, Callable[..., bool]]] = {
    "Not": operator.not_,
    "And": operator.and_,
    "Or": operator.or_,
    "Xor": operator.xor,
    **dict.fromkeys(_COPIES, bool),  # of zeros and ones
}
Reads = Sequence[Range | None]
_MAX_DEPTH: Final = 4  # connectives between two conditions


class Facts(Ranges):
    """Forward analysis of ranges that no computed number leaves.

    truths: possible conditions of an If, by its first result; single: values that are one number, or one vector of
    sizes, in every run. Both hold for all visits of a body, and all bodies that use the name.
    """

    def __init__(self, graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> None:
        super().__init__(functions)
        self.truths: dict[str, set[bool]] = {}
        self._seen: dict[str, set[float | Shape]] = {}  # numbers and vectors of a value; NaN for further values
        self._types: dict[str, tuple[int, Sequence[int | str | None] | None]] = {}  # element type and shape
        self._makers: dict[str, NodeProto] = {}
        self.analyse(graph)

    @functools.cached_property
    def single(self) -> set[str]:
        """The values that are one number, or one vector of sizes, in every run."""
        return {name for name, known in self._seen.items() if len(known) == 1 and math.nan not in known}

    def walk(self, graph: GraphProto) -> None:
        infos = (*graph.value_info, *graph.input, *graph.output)
        for name in (*(o for node in graph.node for o in node.output), *(i.name for i in infos)):
            self._types.pop(name, None)  # the name may denote a value of a sibling body
            self._makers.pop(name, None)
        self._types.update((i.name, tensor_type(i.type)) for i in infos)
        super().walk(graph)

    def _set(self, names: Iterable[str], facts: Iterable[Range | None]) -> None:
        names, facts = [*names], [*facts]
        for name, fact in zip(names, facts):
            elements = fact.elements if fact and UNKNOWN not in fact.elements else ()
            number = fact.low if fact and _is_single(fact) else math.nan
            self._seen.setdefault(name, set()).add(elements or number)
        super()._set(names, facts)

    def transfer(self, node: NodeProto, reads: Sequence[Range | None]) -> Sequence[Range | None]:
        self._makers.update(dict.fromkeys(node.output, node))
        decide = _DECIDING.get(node.op_type) if node.domain in STANDARD else None
        if decide and (decided := decide(node, reads)):
            return decided
        made = super().transfer(node, reads)
        if node.op_type == "Constant":
            return made
        found = [self._held(node, name, fact or ANY) for name, fact in zip(node.output, made)]
        if elements := self._elements(node):
            numbers = [*map(float, elements)]
            bounds = (found[0] or ANY) if UNKNOWN in elements else Range(min(numbers), max(numbers), True, False)
            found[0] = bounds._replace(elements=elements)
        return found

    def _made(self, node: NodeProto, known: Sequence[Range]) -> Range:
        known, op = [r._replace(elements=()) for r in known], node.op_type
        if op not in _BOUNDING:
            made = super()._made(node, known)
            return joined(made, _OF_NOTHING[op]) if op in _OF_NOTHING else made
        # The result is an operand, and a runtime may ignore NaN.
        return common(super()._made(node, [ANY if r.nan else r for r in known]), functools.reduce(joined, known))

    def _range(self, name: str) -> Range:
        return self.of(name) or ANY

    # -- vectors of sizes ---------------------------------------------------------------------------------

    def _elements(self, node: NodeProto) -> Shape:
        """Return the elements of a vector computed from dims, `UNKNOWN` among them; () for further values.

        Larger numbers than int32 holds may have overflowed.
        """
        if node.op_type not in ELEMENTS or node.domain not in STANDARD or not node.input:
            return ()
        found = Call(node, [*map(self._known, node.input)], self.integers).computed(ELEMENTS) or ()
        return found if all(isinstance(n, int) and abs(n) < _INT32 for n in found) else ()

    def _known(self, name: str) -> Known:
        if name in self.constants:
            return Known(tuple(self.constants[name].dims), tuple(self.integers(name)) or None)
        dims = self._types.get(name, (0, None))[1]
        if dims is None:
            return Known()
        return Known(tuple(d if isinstance(d, int) else UNKNOWN for d in dims), self._range(name).elements or None)

    # -- booleans -----------------------------------------------------------------------------------------

    def _condition(self, name: str, depth: int = _MAX_DEPTH) -> Range:
        """Return the range of a condition, computed again from booleans that the enclosing branches imply."""
        fact, node = self.of(name) or _EITHER, self._makers.get(name)
        if _is_single(fact) or node is None or not depth or not self._is_connective(node):
            return fact
        return _connected(node.op_type, [self._condition(operand, depth - 1) for operand in node.input])

    def _is_connective(self, node: NodeProto) -> bool:
        """Return whether a node is a connective of booleans, or copies zeros and ones."""
        if node.op_type not in _CONNECTIVES or node.domain not in STANDARD:
            return False
        first = self._range(node.input[0])
        return node.op_type not in _COPIES or (first.integer and first.low >= 0 and first.high <= 1)

    def _implied(self, name: str, truth: bool) -> Iterator[tuple[str, Range]]:
        """Yield (value, range) implied by a condition."""
        yield name, _truth(truth)
        node = self._makers.get(name)
        if node is None or not self._is_connective(node):
            return
        if node.op_type == "Not" or node.op_type in _COPIES:
            yield from self._implied(node.input[0], truth is (node.op_type != "Not"))
        elif node.op_type == ("And" if truth else "Or"):
            for operand in node.input:
                yield from self._implied(operand, truth)

    # -- bodies -------------------------------------------------------------------------------------------

    def entering(self, node: NodeProto, body: GraphProto, reads: Sequence[Range | None]) -> Sequence[Range | None]:
        found = super().entering(node, body, reads)
        if node.op_type != "Loop":
            return found
        last = min((reads[0] or ANY).high - 1, _MOST_ELEMENTS)
        return [Range(0.0, max(last, 0.0), True, False), *found[1:]]

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[Range | None]
    ) -> Sequence[Range | None]:
        if node.op_type != "If":
            return super()._bodies(node, bodies, reads)
        possible = _possible(self._condition(node.input[0]))
        self.truths.setdefault(first_of(node), set()).update(possible)
        names = [a.name for a in node.attribute if a.HasField("g")]
        made: list[Sequence[Range | None]] = []
        for name, body in zip(names, bodies):
            truth = name == "then_branch"
            implied = dict(self._implied(node.input[0], truth))
            before = {value: self.facts.get(value) for value in implied}
            self.facts.update(implied)
            found = self._body(node, body, [])
            super()._set(before, before.values())
            made += [found] if truth in possible else []
        return [self.either(*pair) if len(pair) > 1 else pair[0] for pair in zip(*made)]

    def _inside(self) -> Facts:
        inner: Facts = super()._inside()
        inner._types, inner._makers = {}, {}
        return inner

    # -- numbers ------------------------------------------------------------------------------------------

    def _held(self, node: NodeProto, name: str, fact: Range) -> Range | None:
        """Return the bounds of computed numbers, from a range without rounding and overflow."""
        op = node.op_type if node.domain in STANDARD else ""
        kind = BY_CODE.get(self._types[name][0]) if name in self._types else None
        whole = of_type(kind.code) if kind is not None else None
        if op in MEASURING:
            return Range(0.0, _MOST_ELEMENTS, True, False)
        if op not in _COPYING:
            return _whole(fact if op in _CLOSE else ANY, whole) if whole else _rounded(op, kind, fact)
        return Range(max(fact.low, whole.low), min(fact.high, whole.high), True, False) if whole else fact


def _comparison(node: NodeProto, reads: Reads) -> list[Range | None]:
    """Return the truth of a comparison."""
    x, y = (r or ANY for r in reads)
    low, high = (0.0, 0.0) if node.input[0] == node.input[1] else (x.low - y.high, x.high - y.low)
    return [_compared(node.op_type, low, high, x.nan or y.nan)]


def _chosen(node: NodeProto, reads: Reads) -> list[Range | None]:
    """Return the fact of a Where of known condition."""
    condition = reads[0]
    return [reads[1 if condition.low else 2]] if condition and _is_single(condition) else []


def _as_truth(node: NodeProto, reads: Reads) -> list[Range | None]:
    """Return the truth of a Cast to booleans."""
    x = reads[0] or ANY
    truth = _connected("Not", [_compared("Equal", x.low, x.high, x.nan)])
    return [truth] if int_of(node, "to") == _BOOL else []


# Facts of the results, by operator; [] if undecided.
_DECIDING: Final[dict[str, Callable[[NodeProto, Reads], list[Range | None]]]] = {
    **dict.fromkeys(COMPARING, _comparison),
    **dict.fromkeys(
        _CONNECTIVES.keys() - _COPIES, lambda node, reads: [_connected(node.op_type, [r or _EITHER for r in reads])]
    ),
    "Where": _chosen,
    "Cast": _as_truth,
}


def _compared(op: str, low: float, high: float, nan: bool) -> Range:
    """Return the range of a comparison, by bounds of the difference of its operands. NaN compares false."""
    if op.startswith("Less"):
        low, high = -high, -low
    if op == "Equal":
        always, never = low == high == 0, low > 0 or high < 0
    else:
        always, never = (low >= 0, high < 0) if op.endswith("OrEqual") else (low > 0, high <= 0)
    return _truth(not never) if never or (always and not nan) else _EITHER


def _connected(op: str, operands: Sequence[Range]) -> Range:
    """Return the range of a connective, by all values that its operands may have."""
    made = set(itertools.starmap(_CONNECTIVES[op], itertools.product(*map(_possible, operands))))
    return Range(float(min(made)), float(max(made)), True, False)


def _possible(condition: Range) -> set[bool]:
    return {bool(condition.low), bool(condition.high)}


def _is_single(fact: Range) -> bool:
    return fact.low == fact.high and not fact.nan


def _truth(value: bool) -> Range:
    return Range(float(value), float(value), True, False)


def _whole(fact: Range, limits: Range) -> Range:
    """Return the range of computed integers: of the type if any may overflow."""
    low, high = (end(n) if math.isfinite(n) else n for end, n in ((math.floor, fact.low), (math.ceil, fact.high)))
    is_held = limits.low <= low and high <= limits.high and max(-low, high) < _WHOLE and not fact.nan
    return Range(float(low), float(high), True, False) if is_held else limits


def _rounded(op: str, kind: ElementType | None, fact: Range) -> Range | None:
    """Return the range of computed floats; None if unknown."""
    if kind is None or kind.kind != "f" or kind.digits < _LEAST_DIGITS:
        return None
    if op not in _CLOSE:
        return Range(0.0) if op in _SIGNED and fact.never_negative else None
    low, high = _widened(kind, fact)
    overflows = math.isinf(low) or math.isinf(high)
    return Range(low, high, fact.integer and op not in ("Div", "Sqrt"), fact.nan or overflows)


def _widened(kind: ElementType, fact: Range) -> tuple[float, float]:
    """Return the bounds with errors of rounding, infinite beyond the type."""
    error = max(_ROUNDINGS * kind.epsilon, _LEAST_ERROR)
    low, high = (n * (1.0 + error * sign * math.copysign(1.0, n)) for n, sign in ((fact.low, -1), (fact.high, 1)))
    least = _ROUNDINGS * max(kind.tiny, _FLOAT32.tiny)  # smaller numbers may become zero
    low, high = (0.0 if 0 < low < least else low), (0.0 if -least < high < 0 else high)
    return (-math.inf if low < -kind.high else low), (math.inf if high > kind.high else high)


# -- of a file --------------------------------------------------------------------------------------------


def always_empty(path: Path) -> set[str]:
    """Return the outputs of a file without elements for any inputs, according to shape inference.

    Declared empty inputs are not trusted.
    """
    proto = Skeleton(path).proto
    for dim in (d for given in proto.graph.input for d in given.type.tensor_type.shape.dim):
        if not dim.dim_value:
            dim.ClearField("dim_value")
    model = _inferred(proto)
    nothing = _stacks_of_nothing(model)
    return {o.name for o in model.graph.output if o.name in nothing or 0 in (tensor_type(o.type)[1] or ())}


def _stacks_of_nothing(model: ModelProto) -> set[str]:
    """Return the results that a zero-trip Loop stacks, unknown to inference, and copies of these."""
    facts, nothing = Facts(model.graph, model.functions), set[str]()
    for node in (n for n in model.graph.node if n.domain in STANDARD):
        if node.op_type == "Loop" and any((facts.of(name) or ANY).high <= 0 for name in deciding_of(node)):
            nothing.update(filter(None, node.output[len(node.input) - 2 :]))
        elif node.op_type in _COPIES and node.input[0] in nothing:
            nothing.update(node.output)
    return nothing


def can_change(proto: ModelProto) -> Changing:
    """Return the `Changing` analysis of a model, with facts. Declared shapes and defaults are removed."""
    model = _inferred(proto)
    return Changing(model.graph, model.functions, Facts(model.graph, model.functions))


def _inferred(proto: ModelProto) -> ModelProto:
    """Return the model with inferred shapes. Changes `proto`."""
    from onnxopt.proto.inference import infer_shapes, inferable  # with onnx's library, of some megabytes

    forget_defaults(proto)
    forget_claims(proto.graph)
    return infer_shapes(inferable(proto), values=True)
