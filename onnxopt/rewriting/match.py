"""What a rule sees: the bound nodes, guards that say why not, types, and a builder for the replacement.

Nothing a rule builds touches the graph before the rule has returned: declining costs nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.broadcasting import one_element
from onnxopt.analysis.weights.copies import READ_BY_MANY, READERS, gives_way, is_read_by_many
from onnxopt.analysis.weights.linear import is_finite
from onnxopt.analysis.weights.underflow import underflows
from onnxopt.element_types import is_float
from onnxopt.graph.emission import check_call, describe_as, make_call
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.protos import Array, numpy_dtype, tensor_bytes
from onnxopt.rewriting.forms import FORMS
from onnxopt.rewriting.forms import attributes as written_as_attributes
from onnxopt.rewriting.matcher import Bindings
from onnxopt.rewriting.rule import Declined

if TYPE_CHECKING:
    from typing import Protocol, overload

_FEW: Final = 1 << 14  # bytes that may be written for a constant that is not stored


class Match:
    """One match of a rule. Named nodes of the pattern are attributes: `m.conv`; `m.anchor` is the root."""

    def __init__(self, bindings: Bindings, anchor: Node, options: Any = None) -> None:
        assert anchor.graph is not None
        if bindings.nodes:
            self.__dict__.update(bindings.nodes)  # first, so that no name of a pattern hides what a match has
        self.bindings = bindings
        self.anchor = anchor
        self.options = options  # the pass that the rule belongs to
        self.graph: Graph = anchor.graph
        self.new_nodes: list[Node] = []
        self.new_constants: dict[Value, str] = {}  # and how they should be called
        self.borrowed: list[Node] = []  # nodes whose proto a new one takes over, unchanged
        self._constants: tuple[list[Value], list[Value], bool] | None = None
        # Of a pattern with several roots: what is replaced, and where the replacement goes.
        self.results: list[Value] | None = None
        self.before: Node | None = anchor

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Node: ...

    def arguments(self) -> dict[str, Any]:
        """The rule function's keyword arguments: values, and arrays for constants."""
        found: dict[str, Any] = dict(self.bindings.values)
        for name in self.bindings.constants:
            value = found[name]
            if value is not None:
                found[name] = value.array
        return found

    @property
    def op(self) -> Builder:
        """Makes new nodes; not kept, because a match in a cycle would outlive its rewrite."""
        return Builder(self)

    def replaces(self, node: Node) -> bool:
        """Will the rewrite leave `node` without readers? Its proto can then pass to a new node."""
        if node in self.borrowed:
            return False
        for n, p in self.bindings.covered:
            if n is node and (not p.shared or n is self.anchor):
                return True
        return False

    # -- guards ------------------------------------------------------------------------------------------

    def require(self, condition: object, reason: str) -> None:
        """Decline with `reason` unless `condition`. Raises TypeError where the two are exchanged."""
        if reason.__class__ is not str:
            raise TypeError(f"require(condition, reason): the reason is text, not {reason!r}")
        if not condition:
            raise Declined(reason)

    def skip(self) -> NoReturn:
        """Decline without a reason: nothing is missing, there is nothing to do."""
        raise Declined("")

    def value(self, name: str) -> Value:
        """The Value behind a bound name (a constant's parameter is its array)."""
        value = self.bindings.values[name]
        assert value is not None
        return value

    # -- types -------------------------------------------------------------------------------------------

    def shape(self, value: Value) -> Shape | None:
        """Dims as int, symbol or None; None for unknown rank."""
        return types.shape(value)

    def rank(self, value: Value) -> int | None:
        return types.rank(value)

    def dtype(self, value: Value) -> int:
        """ONNX element type; 0 when unknown."""
        return types.dtype(value)

    @property
    def opset(self) -> int:
        """Version of the default domain in force at the anchor."""
        return self.graph.opset()

    # -- building ----------------------------------------------------------------------------------------

    def const(self, array: Any, like: Array | Value | None = None, hint: str = "") -> Value:
        """A new constant, cast once to the type of `like` (an array or value).

        Compute it wide: float64 for floats. Declines where that makes infinity, or the cast does, of what is finite,
        where the cast loses it to zero (`underflows`), where a constant that is not stored would be written out, and
        where it is a large copy of what many others read.
        """
        data = np.asarray(array)
        if like is not None:
            dtype = self._type_of(like) if isinstance(like, Value) else like.dtype
            wide, data = data, data.astype(dtype, copy=False)
            self._require_in_range(wide, data)
        bound, many, has_unstored = self._bound()
        if many:
            self.require_few_copies(data.nbytes)
        if has_unstored:
            stored = sum(tensor_bytes(*v.constant_type()) for v in bound if v.is_stored)
            if data.nbytes > stored + _FEW:
                return self._fill(data)
        value = Value("", self.graph)
        value.constant = True
        value.array = data
        self.new_constants[value] = hint or self._hint(like)
        return value

    def _require_in_range(self, wide: Array, data: Array) -> None:
        """Decline where `data`, which is `wide` in its type, is infinite or zero and should not be."""
        if is_float(data) and not is_finite(data) and (is_finite(wide) or self._is_made_of_finite()):
            raise Declined("the folded constant overflows its type")
        if data is not wide and is_float(data) and underflows(wide, data):
            raise Declined("the folded constant underflows its type")

    def require_attributes_in_range(self, attributes: Mapping[str, Any]) -> None:
        """Decline where a float attribute, which has 32 bits, would be infinite or zero and should not be."""
        for number in attributes.values():
            if isinstance(number, float) and np.isfinite(number):
                wide = np.array(number)
                with np.errstate(over="ignore"):
                    self._require_in_range(wide, wide.astype(np.float32))

    def ints(self, numbers: Any) -> Value:
        """A new constant of int64, which is what axes, sizes and the targets of Reshapes are."""
        return self.const(np.array(numbers, np.int64))

    def require_few_copies(self, copy: int) -> None:
        """Decline where a constant of so many bytes is a large copy of what many others read, before it is computed;
        not where it takes the place of another that is as large."""
        bound, many, _ = self._bound()
        if many and any(is_read_by_many(v, copy) for v in many):
            if not any(gives_way(v, copy, self.anchor) for v in bound):
                raise Declined(READ_BY_MANY)

    def _bound(self) -> tuple[list[Value], list[Value], bool]:
        """The constants that are bound, those of them that many read, and whether one is not stored; the same for all
        that a rule makes."""
        if self._constants is None:
            found, many, has_unstored = [], [], False
            for v in self.bindings.values.values():
                if v is not None and v.constant:
                    found.append(v)
                    if len(v.users) > READERS:
                        many.append(v)
                    if v.producer is not None and not v.is_stored:
                        has_unstored = True
            self._constants = found, many, has_unstored
        return self._constants

    def _fill(self, data: Array) -> Value:
        element = one_element(data) if self.opset >= 9 else None
        if element is None:
            raise Declined("repeated elements stay a node: written out they would take the bytes")
        value: Value = self.op.ConstantOfShape(self.ints(data.shape), value=element.reshape(1))
        value.constant = True
        value.array = np.broadcast_to(element, data.shape)
        return value

    def _is_made_of_finite(self) -> bool:
        return all(is_finite(v.array) for v in self._bound()[0] if is_float(v.array))

    def _type_of(self, value: Value) -> np.dtype[Any]:
        if value.constant:
            return value.array.dtype
        data_type = self.dtype(value)
        self.require(data_type, "its type is unknown")
        return numpy_dtype(data_type)

    def adopt(self, inputs: list[Value | None]) -> None:
        """What was an attribute is a constant of the graph, where a new node reads it."""
        for v in inputs:
            if v is not None and not v.name and v.constant and v.producer is None and v not in self.new_constants:
                self.new_constants[v] = self._hint(None)

    def _hint(self, like: Array | Value | None) -> str:
        if isinstance(like, Value) and like.constant:
            return like.name
        for value in self.bindings.values.values():
            if value is not None and value.constant and like is not None and value._array is like:
                return value.name
        output = next((v for v in self.anchor.outputs if v is not None), None)
        return f"{output.name}_const" if output is not None else "const"


if TYPE_CHECKING:

    class Build(Protocol):
        """Makes a node; its result, or a tuple of them where `outputs` are asked for."""

        @overload
        def __call__(
            self, *inputs: Value | None, outputs: int, like: Node | None = None, domain: str = "", **attributes: Any
        ) -> tuple[Value, ...]: ...
        @overload
        def __call__(
            self, *inputs: Value | None, like: Node | None = None, domain: str = "", **attributes: Any
        ) -> Value: ...


class Builder:
    """`m.op.Conv(x, w, b, like=node, pads=[...])`: new nodes; attributes of `like` are kept unless named.

    `m.op[name](…)` is one of any name, of other domains, too: `m.op["com.microsoft::Gelu"](x)`.
    """

    def __init__(self, m: Match) -> None:
        self._m = m

    def __getattr__(self, op_type: str) -> Build:
        return self[op_type]

    def __getitem__(self, op: str) -> Build:
        home, _, op_type = op.rpartition("::")

        def build(
            *inputs: Value | None,
            like: Node | None = None,
            outputs: int = 1,
            domain: str = home,
            **attributes: Any,
        ) -> Any:
            m = self._m
            ins = list(inputs)
            if op in m.graph.model.without and (like is None or like.op != op):
                raise Declined(m.graph.model.without[op])
            form = FORMS.get(op_type) if not domain else None
            if form is not None and m.opset < form.since and any(v is not None for v in ins[1:]):
                written = written_as_attributes(form, ins[1:])
                if isinstance(written, str):
                    raise Declined(written)
                ins, attributes = ins[:1], {**attributes, **written}
            while ins and ins[-1] is None:
                ins.pop()
            m.require_attributes_in_range(attributes)
            results = [Value("", m.graph) for _ in range(outputs)]
            same = like is not None and (op_type, domain) == (like.proto.op_type, like.proto.domain)
            if like is not None and same and not attributes and m.replaces(like):
                check_call(m.graph, like.op, like.proto, ins, results, m.anchor)
                proto = like.proto
                m.borrowed.append(like)
            else:
                model = like.proto if like is not None else None
                proto = make_call(m.graph, op_type, domain, ins, results, attributes, like=model, place=m.anchor)
                if like is None:
                    describe_as(proto, m.anchor.proto)
            m.adopt(ins)
            node = Node(proto, ins, [*results])
            for i, v in enumerate(results):
                v.producer, v.index, v.unasked = node, i, True
            m.new_nodes.append(node)
            return results[0] if outputs == 1 else tuple(results)

        return build
