"""Creation of a plan from the original, and the optimizer's own cases. Memory and work of a run."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, TypeProto

from onnxopt.errors import UsageError
from onnxopt.proto.element_types import BY_CODE, TYPES
from onnxopt.proto.messages import tensor_bytes, tensor_to_array, tensor_type
from onnxopt.verification import VerifyOptions
from onnxopt.verification.inputs.cases import OWN, Recipe, missing
from onnxopt.verification.inputs.feeding import Data, Read, read_array
from onnxopt.verification.inputs.plan import NO_USE, InputSpec, Plan
from onnxopt.verification.inputs.sizes import Sizes, sums
from onnxopt.verification.inputs.uses import Use, Uses
from onnxopt.verification.inputs.windows import FLAT, muted, windowed
from onnxopt.verification.model.decisions import MAY_DECIDE, Changing, Deciding, is_random_model
from onnxopt.verification.model.nodes import int_of, operators_of, overridable, required
from onnxopt.verification.model.operators import COMPARING, CUTTING, MATRICES, MUTING, WINDOWS, having
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.worker import spare

# -- memory and work --------------------------------------------------------------------------------------

_ROOM: Final = 1 << 28  # bytes of memory for inference


def least(path: str, feeds: dict[str, Any]) -> int:
    """Return a lower bound of the bytes of values alive at once in the main graph; 0 if unknown."""
    graph = _inferred(path, feeds)
    sizes = _known_bytes(graph)
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last |= {o.name: len(graph.node) for o in graph.output}
    return _most_alive(graph, sizes, last)


def _most_alive(graph: GraphProto, sizes: Mapping[str, int], last: Mapping[str, int]) -> int:
    """Return the most bytes of values alive at once. last: {value: its last reader}."""
    live = most = 0
    for i, node in enumerate(graph.node):
        live += sum(sizes[name] for name in node.output)
        most = max(most, live)
        live -= sum(sizes[name] for name in {*node.input, *node.output} if last.get(name, i) == i)
    return most


def _known_bytes(graph: GraphProto) -> Counter[str]:
    """Return {value computed in the main graph: its bytes}, if its shape is known."""
    sizes: Counter[str] = Counter()
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
            sizes[info.name] = tensor_bytes(tensor.elem_type, (d.dim_value for d in tensor.shape.dim))
    return sizes


def products(path: str, feeds: dict[str, Any]) -> int:
    """Return the multiplications of convolutions and matrix products in the main graph.

    Nodes of unknown shape are not counted.
    """
    graph = _inferred(path, feeds)
    infos = (*graph.input, *graph.value_info, *graph.output)
    shapes = {i.name: [dim.dim_value for dim in i.type.tensor_type.shape.dim] for i in infos}
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    return sum(_products_of(node, shapes) for node in graph.node if node.op_type in _PRODUCTS and not node.domain)


def _products_of(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    operand, weight, result = (shapes.get(name, []) for name in (*node.input[:2], node.output[0]))
    if node.op_type == "ConvTranspose":
        return math.prod(operand) * math.prod(weight[1:]) if operand else 0
    terms = math.prod(weight[1:]) if node.op_type == "Conv" else operand[-1] if operand else 0
    return math.prod(result) * terms if result and weight else 0


_PRODUCTS: Final = having("product")


def _inferred(path: str, feeds: dict[str, Any]) -> GraphProto:
    """Return the main graph with shapes inferred for these feeds; an empty graph if inference fails."""
    from onnxopt.proto.inference import infer_shapes, inferable

    with contextlib.suppress(Exception):  # found out by running
        model = Skeleton(path).proto
        for given in model.graph.input:
            value = feeds.get(given.name)
            if isinstance(value, np.ndarray):
                dims = [TensorShapeProto.Dimension(dim_value=size) for size in value.shape]
                given.type.tensor_type.shape.CopyFrom(TensorShapeProto(dim=dims))
        for values in (True, False):  # elements of large vectors may not fit
            with contextlib.suppress(MemoryError), spare(_ROOM):
                return infer_shapes(inferable(model), values=values).graph
    return GraphProto()


# -- the plan ---------------------------------------------------------------------------------------------

_NARROW: Final = frozenset(t.code for t in TYPES if t.is_foreign)


def make_plan(proto: ModelProto, array: Callable[[TensorProto], Any] | None = None, uses: Uses | None = None) -> Plan:
    """Return the plan of the original. array: reads initializers with data outside `proto`; uses: if known."""
    uses = uses or Uses(proto.graph, proto.functions)
    graph = uses.graph
    ops = operators_of(graph, proto.functions)
    plan = Plan(names=[i.name for i in graph.input])
    _add_inputs(plan, proto, uses, array)
    plan.random = is_random_model(proto)
    plan.stateful = any(int_of(n, "training_mode") for n in graph.node if n.op_type == "BatchNormalization")
    _add_operators(plan, graph, proto.functions, ops)
    if plan.symbols:
        _add_sizes(plan, graph, proto.functions, windows=not WINDOWS.isdisjoint(ops))
    plan.narrow = any(i.type.tensor_type.elem_type in _NARROW for i in (*graph.input, *graph.output))
    plan.nodes = len(graph.node)
    plan.bytes = sum(tensor_bytes(t.data_type, t.dims) for t in graph.initializer)  # approximately
    if not ops.isdisjoint(("If", "Loop")):
        plan.hides = Changing(graph, proto.functions).hides
    return plan


def _add_inputs(plan: Plan, proto: ModelProto, uses: Uses, array: Callable[[TensorProto], Any] | None) -> None:
    graph = uses.graph
    plan.inputs = [_spec(i.name, i.type, uses.found) for i in required(graph)]
    given, initializers = overridable(proto), {t.name: t for t in graph.initializer}
    listed = (initializers[i.name] for i in graph.input if i.name in initializers and i.name in given)
    plan.overridable = {t.name: (array or tensor_to_array)(t) for t in listed if t.data_location == t.DEFAULT}


def _add_operators(plan: Plan, graph: GraphProto, functions: Sequence[FunctionProto], ops: frozenset[str]) -> None:
    """Set the properties that follow from operators which decide, mute or cut off values."""
    if not ops.isdisjoint(MAY_DECIDE):
        plan.decides = Deciding(graph, functions).found
    plan.mutes = not MUTING.isdisjoint(ops) and not MATRICES.isdisjoint(ops)
    plan.muted = [] if ops.isdisjoint(FLAT) else muted(graph)
    plan.cuts = bool(ops & CUTTING) or (plan.decides and bool(ops & COMPARING))


def _add_sizes(plan: Plan, graph: GraphProto, functions: Sequence[FunctionProto], *, windows: bool) -> None:
    found = Sizes(graph, {i.name: i.shape for i in plan.inputs}, functions)
    plan.addends, plan.demanded, plan.traced = sums(graph), found.required, found.traced
    plan.baked, plan.stride = found.baked, found.stride
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
    if not tensor.elem_type:
        raise ValueError(f"input `{name}` has no element type")  # an invalid model, reported by its loader
    known = BY_CODE.get(tensor.elem_type)
    if known is None or known.kind == "c":
        return InputSpec(name, "", why=f"input `{name}` is {'complex' if known else 'of unknown type'}")
    use = found.get(name, NO_USE)
    bound, compared = (use.bound, use.decisive) if known.kind in "iu" else (None, ())
    return InputSpec(name, known.name, _declared(name, kind), bound=bound, use=use, compared=compared)


def _declared(name: str, kind: TypeProto) -> tuple[int | str, ...]:
    """Return the shape of an input, with a name for each unknown dim, and of two dims for an unknown rank."""
    dims = tensor_type(kind)[1]
    return tuple(f"{name}[{i}]" if d is None else d for i, d in enumerate((None, None) if dims is None else dims))


# -- the optimizer's own cases ----------------------------------------------------------------------------


def own_cases(
    original: ModelProto,
    array: Callable[[TensorProto], Any] | None,
    options: VerifyOptions,
    *,
    override: bool = True,
    stepwise: bool = False,
    uses: Uses | None = None,
) -> tuple[Plan, list[tuple[Recipe, Read]]]:
    """Return the plan of the original, and the optimizer's own cases with readers of their data.

    Arguments: see `Verifier.describe`; stepwise: see `Job`; uses: of the original's inputs, if known. Raises
    UsageError for unknown inputs and dims.
    """
    plan = make_plan(original, array, uses)
    if options.int32:
        plan.hold_int32()
    if not override:
        plan.overridable = {}
    given = {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}
    fix_dims(plan, options.dims)
    is_long = stepwise or 2 * plan.bytes > options.memory  # each run reads all weights
    recipes = (r for r in OWN if not missing(r, plan, given) and not (r.single and is_long))
    return plan, [(r, partial(Data, given)) for r in recipes]


def fix_dims(plan: Plan, dims: dict[str, int]) -> None:
    """Fix dynamic dims of the inputs to the given sizes. Raises UsageError for an unknown dim."""
    for name in dims:
        if name not in plan.symbols:
            has = f"it has {', '.join(plan.symbols)}" if plan.symbols else "all its dims are fixed"
            raise UsageError(f"no input of the model has a dynamic dim {name!r}", has)
    plan.fix(dims)
