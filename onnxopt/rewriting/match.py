"""A match as seen by a rule: bound nodes, guards with reasons, types, and a builder for the replacement.

Nothing a rule builds touches the graph before the rule returns: declining costs and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.constants import READ_BY_MANY, READERS, gives_way, is_read_by_many, one_element
from onnxopt.analysis.linear import is_finite, underflows
from onnxopt.graph.emission import check_call, describe_as, make_call
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array, numpy_dtype, tensor_bytes
from onnxopt.rewriting.matcher import Bindings
from onnxopt.rewriting.rule import FORMS, Declined
from onnxopt.rewriting.rule import attributes as written_as_attributes

if TYPE_CHECKING:
    from typing import Protocol, overload

T = TypeVar("T")

_MAX_WRITTEN_BYTES: Final = 1 << 14  # bytes for writing out a constant that is not stored


class Match:
    """A match of a rule. Named nodes of the pattern are attributes: `m.conv`; `m.anchor` is the root."""

    def __init__(self, bindings: Bindings, anchor: Node, options: Any = None) -> None:
        assert anchor.graph is not None
        if bindings.nodes:
            self.__dict__.update(bindings.nodes)  # first, so that names in a pattern cannot hide attributes below
        self.bindings = bindings
        self.anchor = anchor
        self.options = options  # the pass of the rule
        self.graph: Graph = anchor.graph
        self.new_nodes: list[Node] = []
        self.new_constants: dict[Value, str] = {}  # with name hints
        self.borrowed: list[Node] = []  # nodes whose proto passes to a new node unchanged
        self._constants: tuple[list[Value], list[Value], bool] | None = None
        # For replacements of several nodes: replaced values, and the insertion point.
        self.results: list[Value] | None = None
        self.before: Node | None = anchor

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Node: ...

    def arguments(self) -> dict[str, Any]:
        """Return the rule function's keyword arguments: values, and arrays for constants."""
        found: dict[str, Any] = dict(self.bindings.values)
        for name in self.bindings.constants:
            value = found[name]
            if value is not None:
                found[name] = value.array
        return found

    @property
    def op(self) -> Builder:
        """The node builder; not cached, since a reference cycle would outlive the rewrite."""
        return Builder(self)

    def replaces(self, node: Node) -> bool:
        """Whether the rewrite leaves `node` without readers, so that its proto may pass to a new node."""
        if node in self.borrowed:
            return False
        for n, p in self.bindings.covered:
            if n is node and (not p.shared or n is self.anchor):
                return True
        return False

    # -- guards ------------------------------------------------------------------------------------------

    def require(self, condition: object, reason: str, stays: bool = False) -> None:
        """Decline with `reason` unless `condition`. `stays`: see `Declined`. Raises TypeError if the arguments are
        swapped."""
        if reason.__class__ is not str:
            raise TypeError(f"require(condition, reason): the reason is text, not {reason!r}")
        if not condition:
            declined = Declined(reason)
            declined.stays = stays
            raise declined

    def known(self, found: T | None, reason: str) -> T:
        """Return `found`. Declines with `reason` if it is None."""
        if found is None:
            raise Declined(reason)
        return found

    def skip(self) -> NoReturn:
        """Decline without a reason: nothing to do."""
        raise Declined("")

    def value(self, name: str) -> Value:
        """Return the Value bound to a name (for constants the rule's parameter is the array)."""
        value = self.bindings.values[name]
        assert value is not None
        return value

    # -- types -------------------------------------------------------------------------------------------

    shape = staticmethod(types.shape)
    dims = staticmethod(types.dims_of)
    rank = staticmethod(types.rank)
    dtype = staticmethod(types.dtype)

    @property
    def opset(self) -> int:
        """Version of the default domain in force at the anchor."""
        return self.graph.opset()

    def put_behind(self, x: Value) -> None:
        """Insert new nodes directly behind the producer of `x`, before all of its readers in this scope."""
        maker = x.producer if x.graph is self.graph else None
        self.before = self.graph.first if maker is None else maker.next

    # -- building ----------------------------------------------------------------------------------------

    def const(self, array: Any, like: Array | Value | None = None, hint: str = "") -> Value:
        """Return a new constant, cast once to the type of `like` (an array or value); pass float64 for floats.

        Declines if finite numbers overflow to infinity or underflow to zero (`underflows`), if elements of an unstored
        constant would be written out, and if a large constant with many readers would be copied.
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
            if data.nbytes > stored + _MAX_WRITTEN_BYTES:
                return self._fill(data)
        value = Value("", self.graph)
        value.constant = True
        value.array = data
        self.new_constants[value] = hint or self._hint(like)
        return value

    def _require_in_range(self, wide: Array, data: Array) -> None:
        """Decline if casting `wide` to `data` gives unwanted infinities or zeros."""
        if is_float(data) and not is_finite(data):
            if is_finite(wide) or all(is_finite(v.array) for v in self._bound()[0] if is_float(v.array)):
                raise Declined("the folded constant overflows its type")
        if data is not wide and is_float(data) and underflows(wide, data):
            raise Declined("the folded constant underflows its type")

    def require_attributes_in_range(self, attributes: Mapping[str, Any]) -> None:
        """Decline if a float attribute (32 bits) would become infinite or zero."""
        for number in attributes.values():
            if isinstance(number, float) and np.isfinite(number):
                wide = np.array(number)
                with np.errstate(over="ignore"):
                    self._require_in_range(wide, wide.astype(np.float32))

    def ints(self, numbers: Any) -> Value:
        """Return a new int64 constant, for axes, sizes and Reshape targets."""
        return self.const(np.array(numbers, np.int64))

    def require_few_copies(self, copy: int) -> None:
        """Decline if `copy` bytes would duplicate a large constant with many readers, unless the copy replaces one as
        large.

        Called before the copy is computed.
        """
        bound, many, _ = self._bound()
        if many and any(is_read_by_many(v, copy) for v in many):
            if not any(gives_way(v, copy, self.anchor) for v in bound):
                raise Declined(READ_BY_MANY)

    def _bound(self) -> tuple[list[Value], list[Value], bool]:
        """Return (bound constants, those with many readers, whether any is unstored), cached."""
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

    def _type_of(self, value: Value) -> np.dtype[Any]:
        if value.constant:
            return value.array.dtype
        data_type = self.dtype(value)
        self.require(data_type, "its type is unknown")
        return numpy_dtype(data_type)

    def adopt(self, inputs: list[Value | None]) -> None:
        """Register detached constants, made from attributes, that a new node reads."""
        for v in inputs:
            if v is not None and not v.name and v.constant and v.producer is None and v not in self.new_constants:
                self.new_constants[v] = self._hint(None)

    def _hint(self, like: Array | Value | None) -> str:
        if isinstance(like, Value) and like.constant:
            return like.name
        for value in self.bindings.values.values():
            if value is not None and value.constant and like is not None and value._array is like:
                return value.name
        output = next(iter(self.anchor.results), None)
        return f"{output.name}_const" if output is not None else "const"


if TYPE_CHECKING:

    class Build(Protocol):
        """Makes a node; returns the result, or a tuple if `outputs` is given."""

        @overload
        def __call__(
            self, *inputs: Value | None, outputs: int, like: Node | None = None, domain: str = "", **attributes: Any
        ) -> tuple[Value, ...]: ...
        @overload
        def __call__(
            self, *inputs: Value | None, like: Node | None = None, domain: str = "", **attributes: Any
        ) -> Value: ...


def _in_form_of_opset(
    op: str, opset: int, ins: list[Value | None], attributes: dict[str, Any]
) -> tuple[list[Value | None], dict[str, Any]]:
    """Return the inputs and attributes of a standard operator: operands are attributes in old forms."""
    form = FORMS.get(op)
    if form is None or opset >= form.since or all(v is None for v in ins[1:]):
        return ins, attributes
    return ins[:1], {**attributes, **written_as_attributes(form, ins[1:])}


class Builder:
    """`m.op.Conv(x, w, b, like=node, pads=[...])`: makes new nodes; attributes of `like` are kept unless named.

    `m.op[name](…)` takes any name, other domains included: `m.op["com.microsoft::Gelu"](x)`.
    """

    def __init__(self, m: Match) -> None:
        self._m = m

    def __getattr__(self, op_type: str) -> Build:
        return self[op_type]

    def __getitem__(self, op: str) -> Build:
        home, _, op_type = op.rpartition("::")

        def build(
            *inputs: Value | None, like: Node | None = None, outputs: int = 1, domain: str = home, **attributes: Any
        ) -> Any:
            m = self._m
            ins = list(inputs)
            if op in m.graph.model.without and (like is None or like.op != op):
                raise Declined(m.graph.model.without[op])
            if not domain:
                ins, attributes = _in_form_of_opset(op_type, m.opset, ins, attributes)
            while ins and ins[-1] is None:
                ins.pop()
            m.require_attributes_in_range(attributes)
            results = [Value("", m.graph) for _ in range(outputs)]
            same = like is not None and (op_type, domain) == (like.proto.op_type, like.proto.domain)
            if like is not None and same and not attributes and m.replaces(like):
                check_call(m.graph, like.proto, ins, results, m.anchor)
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
