"""Conversions of element types on request: --dtype and --int32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.int64 import INT32, INT64, Group, Groups, int64_values, is_int64, open_scopes
from onnxopt.analysis.narrowing import ALWAYS, NARROW, RESULT_TYPE, Network
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.errors import ModelError, UsageError, any_of
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node, present
from onnxopt.graph.structure import interface_of
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, option, register
from onnxopt.proto.messages import make_node, tensor_bytes
from onnxopt.rewriting.narrow_plan import Plan
from onnxopt.rewriting.narrowed import Calls, Conversion, forget_unstored

# Conversion of a float32 model to float16 or bfloat16 with a minimum of Casts.


@register
@dataclass(frozen=True, eq=False, repr=False)
class ConvertDtype(ModelPass):
    """Converts float32 values and weights to a narrower type, with Casts around operators that stay float32.

    Stays wide: operators without narrow types in the standard; sums over many elements, powers and exponentials,
    angles, coordinates, random numbers, quantizers (table with reasons in `analysis/narrowing.py`); readers of weights
    that overflow or underflow; inputs and outputs of bodies, operators of unknown domains. A call of a function becomes
    a call of a narrow copy, unless the copy would only add Casts.
    Where both types are possible, the type with the fewest Casts is chosen.
    """

    info = PassInfo("convert-dtype", opt_level=2)
    dtype: str = option("float16", "float16 or bfloat16")
    keep_io: bool = option(True, "the model's inputs and outputs stay float32")

    def run(self, model: Model, ctx: PassContext) -> None:
        if not self._is_possible(model):
            return
        forget_unstored(model.open_scopes())
        types.update(model)
        for scope in reversed([*model.open_scopes()]):  # outer ones first: behind onnxruntime's own operators
            if not scope.root.is_function and _lacks_types(scope):
                learn_shapes(scope)
        decline = partial(ctx.decline, "narrow")
        plan = Plan(
            model.graph,
            Calls(model, self.dtype, decline),
            keep_io=self.keep_io,
            decline=decline,
            leaves_out=ctx.leaves_out if ctx.excluded else None,
        )
        chosen = dict.fromkeys(node for node in plan.narrow() if ctx.spend("narrow", at=node))
        if chosen or plan.interface:
            Conversion(plan, chosen).apply()

    def _is_possible(self, model: Model) -> bool:
        """Whether the model has standard operators; most tree models have none. Raises UsageError and ModelError."""
        if self.dtype not in NARROW:
            raise UsageError(f"there is no conversion to {self.dtype!r}", f"to {any_of([*NARROW])}")
        opset, least = model.opsets.get("", 0), 13 if self.dtype == "bfloat16" else 7
        if 0 < opset < least:
            raise ModelError(
                f"{model.name}: {self.dtype} takes opset {least}, the model has {opset}",
                f"--target-opset {least} converts it first",
            )
        return opset > 0


def _lacks_types(scope: Graph) -> bool:
    """Whether the element type of a result is unknown."""
    return any(not v.dtype for node in scope for v in present(node.outputs))


_VALUE: Final = 1 << 20  # cost, in Casts, of an int64 value, or of a constant of _LARGE bytes or more
_LARGE: Final = 1 << 14
_CONSTANT: Final = 1  # cost of a smaller constant
_WIDE, _NARROW = 0, 1


@register
@dataclass(frozen=True, eq=False, repr=False)
class ConvertInt32(ModelPass):
    """Int64 values become int32, with Casts where an operator takes or gives only int64.

    Applies when: the operator's schema has both types there, and interval analysis proves that every number fits.
    Keeps: values that may need 64 bits, inputs and outputs of the model (unless `keep_io` is off) and of bodies,
    functions, operators of other domains. Of all such models the result has the fewest int64 values, then Casts.
    """

    info = PassInfo("convert-int32", opt_level=2)
    keep_io: bool = option(True, "the model's inputs and outputs stay int64")

    def run(self, model: Model, ctx: PassContext) -> None:
        types.update(model)
        if next(iter(int64_values(model)), None) is None:
            return
        plan = Int64Plan(model, keep_io=self.keep_io)
        for group in plan.all_groups():
            if group.why:
                ctx.decline("narrow", group.why, repr(group.node))
        chosen = {g for g in plan.narrow() if ctx.spend("narrow", at=g.node)}
        if chosen or plan.given or plan.given_out:
            _Conversion(plan, chosen).apply()


class Int64Plan:
    """Chooses the groups to convert. `given`, `given_out`: inputs and outputs of the model that become int32."""

    def __init__(self, model: Model, *, keep_io: bool) -> None:
        self.model = model
        graph = model.graph
        inputs, outputs = ([], []) if keep_io or graph.skipped else (graph.inputs, graph.outputs)
        given = {v for v in inputs if is_int64(v) and v.name not in graph.initializers}
        self.groups = Groups(model, given)
        self.given_out = {v for v in outputs if v not in given and self._may_be_given_out(v)}
        self.given = {v for v in given if not v.is_output}

    def _may_be_given_out(self, value: Value) -> bool:
        """Whether an output of the model may have another type."""
        return is_int64(value) and value not in self.model.repeated and _is_made(value) and self.groups.fits(value)

    def values(self) -> Iterator[Value]:
        """Yield the int64 values in scopes that passes may change."""
        for scope in open_scopes(self.model):
            yield from (v for v in (*scope.inputs, *scope.initializers.values()) if is_int64(v))
            yield from (v for node in scope for v in present(node.outputs) if is_int64(v))

    def all_groups(self) -> list[Group]:
        return [g for found in self.groups.of.values() for g in found]

    def narrow(self) -> list[Group]:
        """Return the groups to convert: a minimum cut, by the costs of int64 values and Casts."""
        free = [g for g in self.all_groups() if not g.why]
        vertex = {g: i + 2 for i, g in enumerate(free)}
        network = Network(len(vertex) + 2)

        def of(group: Group | None) -> int:
            return _WIDE if group is None else vertex.get(group, _WIDE)

        for value in dict.fromkeys(self.values()):
            self._add(value, network, of)
        stays = network.source_side(_WIDE, _NARROW)
        return [g for g, i in vertex.items() if i not in stays]

    def _add(self, value: Value, network: Network, of: Callable[[Group | None], int]) -> None:
        """Add the costs of a value. `of`: the vertex of a group."""
        readers = {of(self.groups.reader(n, i)) for n in value.users for i in n.places(value)}
        if value.is_output:
            readers.add(_NARROW if value in self.given_out else _WIDE)
        if value.is_stored:
            large = tensor_bytes(*value.constant_type()) >= _LARGE
            _add_value(network, readers, _VALUE if large else _CONSTANT)
            return
        maker = _NARROW if value in self.given else of(self.groups.makers.get(value))
        network.add_star(maker, readers - {maker})
        _add_value(network, {maker, *readers}, _VALUE)


def _add_value(network: Network, sides: set[int], cost: int) -> None:
    """Add the cost of a value of 64 bits, unless all its producers and readers are narrow."""
    if _WIDE not in sides and sides != {_NARROW}:
        wide = network.add_vertex()
        network.add_edge(wide, _NARROW, cost)
        for side in sides - {_NARROW}:
            network.add_edge(side, wide, ALWAYS)


def _read(value: Value, readers: list[tuple[Node, int]]) -> None:
    """Make operands (node, place) read the value."""
    for node, i in readers:
        node.set_input(i, value)


class _Conversion:
    """Converts groups to int32, and inserts a Cast between a value and readers of a different type."""

    def __init__(self, plan: Int64Plan, narrow: set[Group]) -> None:
        self.plan = plan
        self.model = plan.model
        self.narrow = narrow
        self.constants: dict[Value, Value] = {}

    def apply(self) -> None:
        values = list(dict.fromkeys(self.plan.values()))
        for group in self.narrow:
            if group.outputs:
                self._set_type(group.node)
        for value in values:
            self._convert(value)
        self._declare()

    def _convert(self, value: Value) -> None:
        """Give each reader the value in its type."""
        plan = self.plan
        readers = [(n, i) for n in value.users for i in n.places(value)]
        narrow = [(n, i) for n, i in readers if plan.groups.reader(n, i) in self.narrow]
        if value in plan.given or value in plan.given_out:
            self._change(value, [r for r in readers if r not in narrow])
        elif not value.is_stored and plan.groups.makers.get(value) in self.narrow:
            self._make(value, INT32, narrow, len(narrow) < len(readers) or value.is_output)
        elif narrow:
            stored = value.is_stored
            _read(self._constant(value) if stored else self._cast(value, INT32, behind=value.producer), narrow)

    def _new(self, value: Value, data_type: int) -> Value:
        made = Value(self.model.names.fresh(value.name, "_int32" if data_type == INT32 else "_int64"), value.graph)
        made.dtype, made.shape = data_type, value.shape
        return made

    def _cast(self, value: Value, data_type: int, behind: Node | None) -> Value:
        """Return a Cast of the value, inserted in the scope of the value."""
        made, graph = self._new(value, data_type), value.graph
        node = Node(make_node("Cast", "", "", {"to": data_type}), [value], [made])
        graph.insert(node, behind.next if behind is not None else graph.first)
        return made

    def _make(self, value: Value, data_type: int, readers: list[tuple[Node, int]], is_kept: bool) -> None:
        """Make the producer return another type, for these readers; if kept, a Cast gives the value as before."""
        node, index, graph = value.producer, value.index, value.graph
        assert node is not None
        made = self._new(value, data_type)
        made.producer, made.index, node.outputs[index], node.stale = node, index, made, True
        graph.touch(node)
        _read(made, readers)
        if is_kept:
            cast = Node(make_node("Cast", "", "", {"to": types.dtype(value)}), [made], [])
            graph.insert(cast, node.next)
            graph.take_over(value, cast)

    def _change(self, value: Value, wide: list[tuple[Node, int]]) -> None:
        """Make an input or output of the model int32, under the same name; readers `wide` read an int64 value."""
        is_narrow = value in self.plan.given or self.plan.groups.makers.get(value) in self.narrow
        value.dtype = INT32
        if not is_narrow:
            self._make(value, INT64, wide, True)
        elif wide:
            _read(self._cast(value, INT64, behind=value.producer), wide)

    def _constant(self, value: Value) -> Value:
        if value not in self.constants:
            array = self.plan.groups.narrowed(value)
            self.constants[value] = value.graph.constant(array, f"{value.name}_int32", value.producer)
        return self.constants[value]

    def _set_type(self, node: Node) -> None:
        """Set the attribute with the result type of an operator, if any."""
        attribute = RESULT_TYPE.get(node.op)
        if attribute == "value":
            node.set_attr("value", node.attr("value").astype("int32"))
        elif attribute is not None:
            node.set_attr(attribute, INT32)

    def _declare(self) -> None:
        """Update the declared types of inputs and outputs."""
        model, proto = self.model, self.model.proto.graph
        changed = {v.name for v in (*self.plan.given, *self.plan.given_out)}
        for info in (*proto.value_info, *proto.input, *proto.output):
            if info.name in changed and info.type.tensor_type.elem_type == INT64:
                info.type.tensor_type.elem_type = INT32
        if changed:
            model.interface = interface_of(model.proto)
        model.analyses.clear()
        model.version += 1


def _is_made(value: Value) -> bool:
    """Whether a node produces the value, and the value is neither a constant nor an input."""
    return value.producer is not None and not value.is_stored and not value.is_input
