"""Conversions of element types on request: --dtype and --int32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.int64 import INT32, INT64, Group, Groups, int64_values, is_int64, open_scopes
from onnxopt.analysis.narrowing import ALWAYS, NARROW, Network
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.errors import ModelError, UsageError, any_of
from onnxopt.graph import Model, Value
from onnxopt.graph.node import Node, present
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, option, register
from onnxopt.proto.messages import Array, tensor_bytes
from onnxopt.rewriting.narrow_plan import FloatPlan
from onnxopt.rewriting.narrowed import Calls, convert, forget_unstored
from onnxopt.rewriting.retyping import NARROW_SIDE, WIDE_SIDE, Plan, Retyping

# Conversion of a float32 model to float16 or bfloat16 with a minimum of Casts.


@register
@dataclass(eq=False, repr=False)
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
        _learn_types(model)
        decline = partial(ctx.decline, "narrow")
        plan = FloatPlan(
            model.graph,
            Calls(model, self.dtype, decline),
            keep_io=self.keep_io,
            decline=decline,
            leaves_out=ctx.leaves_out if ctx.excluded else None,
        )
        chosen = dict.fromkeys(node for node in plan.cut()[0] if ctx.spend("narrow", at=node))
        if chosen or plan.interface:
            convert(plan, chosen)

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


_VALUE: Final = 1 << 20  # cost, in Casts, of an int64 value, or of a constant of _LARGE bytes or more
_LARGE: Final = 1 << 14
_CONSTANT: Final = 1  # cost of a smaller constant


@register
@dataclass(eq=False, repr=False)
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
        plan.chosen = {g for g in plan.cut() if ctx.spend("narrow", at=g.node)}
        if plan.chosen or plan.interface:
            Retyping(plan).apply()


class Int64Plan(Plan[Group]):
    """Chooses the groups to convert. `interface`: inputs and outputs of the model that become int32."""

    wide, narrow = INT64, INT32

    def __init__(self, model: Model, *, keep_io: bool) -> None:
        super().__init__(model, open_scopes(model))
        graph = model.graph
        inputs, outputs = ([], []) if keep_io or graph.skipped else (graph.inputs, graph.outputs)
        given = {v for v in inputs if is_int64(v) and v.name not in graph.initializers}
        self.groups = Groups(model, given)
        made = {v for v in outputs if v not in given and self._may_be_given_out(v)}
        self.interface = made | {v for v in given if not v.is_output}

    def _may_be_given_out(self, value: Value) -> bool:
        """Whether a node makes an output of the model, and may make it of another type."""
        is_made = value.producer is not None and not value.is_stored and not value.is_input
        return is_made and is_int64(value) and value not in self.model.repeated and self.groups.fits(value)

    def values(self) -> Iterator[Value]:
        """Yield the int64 values in scopes that passes may change."""
        for scope in self.open:
            yield from (v for v in (*scope.inputs, *scope.initializers.values()) if is_int64(v))
            yield from (v for node in scope for v in present(node.outputs) if is_int64(v))

    def all_groups(self) -> list[Group]:
        return [g for found in self.groups.of.values() for g in found]

    def cut(self) -> list[Group]:
        """Return the groups to convert: a minimum cut, by the costs of int64 values and Casts."""
        free = [g for g in self.all_groups() if not g.why]
        vertex = {g: i + 2 for i, g in enumerate(free)}
        network = Network(len(vertex) + 2)

        for value in dict.fromkeys(self.values()):
            self._add(value, network, vertex)
        stays = network.source_side(WIDE_SIDE, NARROW_SIDE)
        return [g for g, i in vertex.items() if i not in stays]

    def _add(self, value: Value, network: Network, vertex: Mapping[Group, int]) -> None:
        """Add the costs of a value."""
        side, readers = self.star(value, vertex)
        if value.is_stored:
            large = tensor_bytes(*value.constant_type()) >= _LARGE
            _add_value(network, readers, _VALUE if large else _CONSTANT)
            return
        network.add_star(side, readers)
        _add_value(network, {side, *readers}, _VALUE)

    # -- answers for the conversion ----------------------------------------------------------------------

    def maker(self, value: Value) -> Group | None:
        return self.groups.makers.get(value)

    def reader(self, node: Node, index: int) -> Group | None:
        return self.groups.reader(node, index)

    def constant(self, value: Value) -> Array:
        return self.groups.narrowed(value)

    def fill(self, node: Node) -> Array:
        return np.asarray(node.attr("value")).astype(np.int32)


def _add_value(network: Network, sides: set[int], cost: int) -> None:
    """Add the cost of a value of 64 bits, unless all its producers and readers are narrow."""
    if WIDE_SIDE not in sides and sides != {NARROW_SIDE}:
        wide = network.add_vertex()
        network.add_edge(wide, NARROW_SIDE, cost)
        for side in sides - {NARROW_SIDE}:
            network.add_edge(side, wide, ALWAYS)


def _learn_types(model: Model) -> None:
    """Infer types anew; also of values behind onnxruntime's own operators."""
    forget_unstored(model.open_scopes())
    types.update(model)
    for scope in reversed([*model.open_scopes()]):  # outer ones first
        untyped = (v for node in scope for v in present(node.outputs) if not v.dtype)
        if not scope.root.is_function and any(untyped):
            learn_shapes(scope)
