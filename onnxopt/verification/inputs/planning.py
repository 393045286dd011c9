"""Creation of a plan from the original's ModelProto."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from onnxopt.proto.element_types import BY_CODE, TYPES
from onnxopt.proto.messages import tensor_bytes
from onnxopt.verification.inputs.dead_channels import muted
from onnxopt.verification.inputs.plan import NO_USE, InputSpec, Plan
from onnxopt.verification.inputs.sizes import baked, batches, demanded, strides, sums
from onnxopt.verification.inputs.uses import Use, Uses
from onnxopt.verification.inputs.windows import windowed
from onnxopt.verification.model.decisions import Deciding, conditions, hides
from onnxopt.verification.model.dependence import changing, is_fixed, is_random_model
from onnxopt.verification.model.operators import COMPARING, CUTTING, MATRICES, MUTING, WINDOWS
from onnxopt.verification.model.order import operator_names, read

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto

_NARROW: Final = frozenset(t.code for t in TYPES if t.is_foreign)


def make_plan(proto: ModelProto, array: Callable[[TensorProto], Any] | None = None) -> Plan:
    """Return the plan of the original. `array`: reads initializers with data outside `proto`."""
    graph = read(proto.graph)
    ops = operator_names(n for nodes in (graph.node, *(f.node for f in proto.functions)) for n in nodes)
    plan = Plan(names=[i.name for i in graph.input])
    _add_inputs(plan, proto, graph, array)
    plan.random = is_random_model(proto)
    plan.stateful = "BatchNormalization" in ops and _trains(proto)
    deciding = Deciding(graph, proto.functions)
    plan.decides = bool(deciding.nodes)
    plan.decisions, plan.steps, plan.within = deciding.others, deciding.steps, deciding.within
    plan.mutes = not MUTING.isdisjoint(ops) and not MATRICES.isdisjoint(ops)
    plan.muted = muted(graph)
    plan.cuts = bool(ops & CUTTING) or (plan.decides and bool(ops & COMPARING))
    if plan.symbols:
        _add_sizes(plan, graph, proto.functions, windows=not WINDOWS.isdisjoint(ops))
    plan.narrow = any(i.type.tensor_type.elem_type in _NARROW for i in (*graph.input, *graph.output))
    plan.nodes = len(graph.node)
    plan.bytes = sum(_bytes(t) for t in graph.initializer)
    if "If" in ops or "Loop" in ops:
        can_change = changing(graph, functions=proto.functions)
        plan.conditions = conditions(graph, can_change)
        plan.hides = hides(graph, can_change, plan.conditions)
    return plan


def _add_inputs(plan: Plan, proto: ModelProto, graph: GraphProto, array: Callable[[TensorProto], Any] | None) -> None:
    from onnxopt.proto.messages import tensor_to_array

    initializers = {t.name: t for t in graph.initializer}
    followed = Uses(graph, proto.functions)
    found, numbers = followed.found, followed.compared()
    specs = (_spec(i.name, i.type, found) for i in graph.input if i.name not in initializers)
    plan.inputs = [replace(i, compared=numbers[i.name]) if i.name in numbers and "int" in i.kind else i for i in specs]
    if proto.ir_version >= 4:  # before, every initializer had to be listed as an input
        listed = (initializers[i.name] for i in graph.input if i.name in initializers)
        plan.overridable = {t.name: (array or tensor_to_array)(t) for t in listed if t.data_location == t.DEFAULT}


def _add_sizes(plan: Plan, graph: GraphProto, functions: Sequence[FunctionProto], *, windows: bool) -> None:
    plan.addends, plan.batches, plan.baked = sums(graph), batches(graph), baked(graph)
    plan.stride = strides(graph)
    plan.demanded = demanded(graph, {i.name: i.shape for i in plan.inputs}, functions)
    if windows:
        named = [s for s in plan.symbols if plan.is_batch(s) or s in plan.demanded]
        shapes = {i.name: i.shape for i in plan.inputs if not i.why}
        *plan.windows, plan.ragged = windowed(graph, shapes, named, functions)


def _spec(name: str, kind: TypeProto, found: Mapping[str, Use]) -> InputSpec:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        inner = _spec(name, kind.sequence_type.elem_type, found)
        return InputSpec(name, inner.kind, inner.shape, True, why=inner.why)
    if which == "optional_type":
        return _spec(name, kind.optional_type.elem_type, found)
    if which != "tensor_type":
        return InputSpec(name, "", why=f"input `{name}` is a {which or 'value of unknown type'}")
    tensor = kind.tensor_type
    shape: tuple[int | str, ...] = tuple(
        d.dim_value if is_fixed(d) else d.dim_param or f"{name}[{i}]" for i, d in enumerate(tensor.shape.dim)
    )
    if not tensor.HasField("shape"):
        shape = (f"{name}[0]", f"{name}[1]")
    if not tensor.elem_type:
        raise ValueError(f"input `{name}` has no element type")  # an invalid model, reported by its loader
    known = BY_CODE.get(tensor.elem_type)
    if known is None or known.kind == "c":
        return InputSpec(name, "", why=f"input `{name}` is {'complex' if known else 'of unknown type'}")
    use = found.get(name, NO_USE)
    return InputSpec(name, known.name, shape, bound=use.bound if known.kind in "iu" else None, use=use)


def _trains(proto: ModelProto) -> bool:
    nodes = (n for n in proto.graph.node if n.op_type == "BatchNormalization")
    return any(a.name == "training_mode" and a.i for n in nodes for a in n.attribute)


def _bytes(tensor: TensorProto) -> int:
    """Return the approximate bytes of an initializer."""
    return tensor_bytes(tensor.data_type, tensor.dims)
