"""Creation of a plan from the original, and the optimizer's own cases. Memory and work of a run."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from onnxopt.verification.inputs.sizes import Side, Sizes, sums
from onnxopt.verification.inputs.uses import Use, Uses
from onnxopt.verification.inputs.windows import FLAT, muted, windowed
from onnxopt.verification.model.dataflow import MAY_CHANGE, Changing, is_random_model
from onnxopt.verification.model.nodes import int_of, operators_of, overridable, required
from onnxopt.verification.model.operators import COMPARING, CUTTING, MATRICES, MUTING, RARE, WINDOWS, having
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.worker import spare

# -- memory and work --------------------------------------------------------------------------------------

_ROOM: Final = 1 << 28  # bytes of memory for inference
_PRODUCTS: Final = having("product")


def least(path: str, feeds: dict[str, Any]) -> int:
    """Return a lower bound of the bytes of values alive at once in the main graph; 0 if unknown."""
    graph = _inferred(path, feeds)
    sizes = _sizes_of(graph)
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last |= {o.name: len(graph.node) for o in graph.output}
    live = most = 0
    for i, node in enumerate(graph.node):
        live += sum(sizes[name] for name in node.output)
        most = max(most, live)
        live -= sum(sizes[name] for name in {*node.input, *node.output} if last.get(name, i) == i)
    return most


def _sizes_of(graph: GraphProto) -> Counter[str]:
    """Return the bytes of values computed in the main graph, if the shape is known."""
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
    nodes = (n for n in graph.node if n.op_type in _PRODUCTS and not n.domain)
    return sum(_multiplications(n, *(shapes.get(name, []) for name in (*n.input[:2], n.output[0]))) for n in nodes)


def _multiplications(node: NodeProto, operand: list[int], weight: list[int], result: list[int]) -> int:
    if node.op_type == "ConvTranspose":
        return math.prod(operand) * math.prod(weight[1:]) if operand else 0
    if not (result and weight and operand):
        return 0
    return math.prod(result) * (math.prod(weight[1:]) if node.op_type == "Conv" else operand[-1])


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


def make_plan(proto: ModelProto, array: Callable[[TensorProto], Any] | None = None, side: Side | None = None) -> Plan:
    """Return the plan of the original. array: reads initializers with data outside `proto`.

    side: of the original, for its uses of inputs; it gets the sizes found.
    """
    uses = side.uses if side is not None else Uses(proto.graph, proto.functions)
    graph, functions = uses.graph, proto.functions
    ops = operators_of(graph, functions)
    plan = Plan([_spec(i.name, i.type, uses.found) for i in required(graph)], [i.name for i in graph.input])
    plan.overridable = _defaults(proto, array or tensor_to_array)
    plan.random = is_random_model(proto)
    _add_operators(plan, graph, functions, ops)
    if plan.symbols:
        found = Sizes(graph, functions, {i.name: i.shape for i in plan.inputs})
        _add_sizes(plan, graph, found, windows=not WINDOWS.isdisjoint(ops))
        if side is not None and not _is_guessed(plan, graph):
            side.sizes = found
    plan.narrow = not _NARROW.isdisjoint(i.type.tensor_type.elem_type for i in (*graph.input, *graph.output))
    plan.nodes = len(graph.node)
    plan.bytes = sum(tensor_bytes(t.data_type, t.dims) for t in graph.initializer)  # approximately
    return plan


def _defaults(proto: ModelProto, array: Callable[[TensorProto], Any]) -> dict[str, Any]:
    """Return the default values of inputs, by name."""
    given = overridable(proto)
    return {t.name: array(t) for t in proto.graph.initializer if t.name in given and t.data_location == t.DEFAULT}


def _is_guessed(plan: Plan, graph: GraphProto) -> bool:
    """Return whether shapes of inputs are guessed, for the choice of sizes alone."""
    return any(tensor_type(i.type)[1] != s.shape for i, s in zip(required(graph), plan.inputs))


def _add_operators(plan: Plan, graph: GraphProto, functions: Iterable[FunctionProto], ops: frozenset[str]) -> None:
    """Set the properties that follow from the operators: deciding, normalizing, muting, cutting off, hiding."""
    if not ops.isdisjoint(MAY_CHANGE):
        found = Changing(graph, functions)
        plan.decides, plan.hides = bool(found.deciding), found.hides
    plan.normalizes = "BatchNormalization" in ops
    plan.stateful = any(int_of(n, "training_mode") for n in graph.node if n.op_type == "BatchNormalization")
    plan.mutes = not MUTING.isdisjoint(ops) and not MATRICES.isdisjoint(ops)
    plan.muted = [] if ops.isdisjoint(FLAT) else muted(graph)
    plan.rare = [] if ops.isdisjoint(RARE) else [o for n in graph.node if n.op_type in RARE for o in n.output]
    plan.cuts = bool(ops & CUTTING) or (plan.decides and bool(ops & COMPARING))


def _add_sizes(plan: Plan, graph: GraphProto, found: Sizes, *, windows: bool) -> None:
    plan.addends, plan.demanded, plan.traced = sums(graph), found.required, found.traced
    plan.baked, plan.stride = found.baked, found.stride
    if windows:
        named = [s for s in plan.symbols if plan.is_batch(s) or s in plan.demanded]
        shapes = {i.name: i.shape for i in plan.inputs if not i.why}
        *plan.windows, plan.ragged = windowed(found.paths, shapes, named, found.divisor)


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
    is_long: bool = False,
    side: Side | None = None,
) -> tuple[Plan, list[tuple[Recipe, Read]]]:
    """Return the plan of the original, and the optimizer's own cases with readers of their data.

    Arguments: see `Verifier.describe`; is_long: there is no third run; side: see `make_plan`. Raises
    UsageError for unknown inputs and dims.
    """
    plan = make_plan(original, array, side)
    if not override:
        plan.overridable = {}
    given = given_inputs(plan, options)
    is_long |= 2 * plan.bytes > options.memory  # each run reads all weights
    recipes = (r for r in OWN if not missing(r, plan, given) and not (r.single and is_long))
    return plan, [(r, partial(Data, given)) for r in recipes]


def given_inputs(plan: Plan, options: VerifyOptions) -> dict[str, Any]:
    """Return the values of inputs given by `options`, and limit the plan to their sizes and integers.

    Raises UsageError.
    """
    if options.int32:
        plan.hold_int32()
    fix_dims(plan, options.dims)
    return {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}


def fix_dims(plan: Plan, dims: dict[str, int]) -> None:
    """Fix dynamic dims of the inputs to the given sizes. Raises UsageError for an unknown dim."""
    for name in dims:
        if name not in plan.symbols:
            has = f"it has {', '.join(plan.symbols)}" if plan.symbols else "all its dims are fixed"
            raise UsageError(f"no input of the model has a dynamic dim {name!r}", has)
    plan.fix(dims)
