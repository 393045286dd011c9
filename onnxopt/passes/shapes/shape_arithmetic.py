"""Index arithmetic on dynamic shapes: merged if equal, removed if shapes give the result."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from itertools import chain, combinations, islice, repeat
from typing import Any, Final, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.constants import REFUSED, is_refused
from onnxopt.analysis.shapes.integers import chosen_parts
from onnxopt.analysis.shapes.operators import ELSEWHERE
from onnxopt.analysis.shapes.rounding import factors, scales_of
from onnxopt.analysis.shapes.sizes import Dims, cuts_of
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.analysis.shapes.symbolic import Expr, Size
from onnxopt.graph import Graph, Model, Value
from onnxopt.graph.node import Node, present
from onnxopt.operators import CUTTING, of_form
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import BY_CODE
from onnxopt.proto.messages import Array, make_node, numpy_dtype
from onnxopt.rewriting.replace import cannot_hold, hold, remove_dead

_SIZE_TYPES = (TensorProto.INT64, TensorProto.INT32)
_READ = ("Expand", "Reshape", "Slice")  # their operands may be simplified when more is known
_PICKS = (*CUTTING, "Shape")  # other passes find the Shape with the picked dims
_HAND_ON = of_form("same", "order", "join") | {"Cast"}
Seen = MutableMapping[Hashable, Value]


@register
class ShapeArithmetic(ModelPass):
    """Expresses integers computed from shapes by the symbols of the inputs.

    Applies when:
    * all elements are numbers: a constant;
    * two tensors hold the same expressions: a single one is kept;
    * a Reshape target equals the input shape up to one dim: 0 and -1;
    * an Expand target equals the input dim: 1;
    * a Slice end is the axis size: no end;
    * computed sizes are dims of an existing tensor: its Shape;
    * a Where's result is known: a Concat of parts of its operands.

    Keeps: Shape nodes whose dims are needed as data.
    Not done: sizes computed from data; function bodies, which have no shapes.
    """

    info = PassInfo("shape-arithmetic", opt_level=1, after=("canonicalize",), before=("elim-identity",))

    def run(self, model: Model, ctx: PassContext) -> None:
        scopes = [g for g in model.open_scopes() if not g.root.is_function]
        if not _has(scopes, "Shape", "Size", *ELSEWHERE):
            dynamic = _has(scopes, *_READ) or not all(map(_is_static, model.graph.inputs))
            if model.is_vague or (dynamic and model.inferred_version < 0):
                types.update(model)
            if not model.is_vague:
                return  # computations on numbers are left to constant folding
        if model.inferred_version < 0:
            types.update(model)
        if not model.graph.skipped:
            data, model.sizes = _known(model), None  # inference during the sweep needs data of its own
            _run_graph(model.graph, data, {}, ctx)
            model.sizes = data if data.kept else None


def _has(scopes: Iterable[Graph], *ops: str) -> bool:
    return any(g.by_op.get(op) for g in scopes for op in ops)


def _is_static(v: Value) -> bool:
    """Whether all dims are known numbers, without inference."""
    return v.shape is not None and all(isinstance(d, int) for d in v.shape)


def _known(model: Model) -> ShapeData:
    """Return the shape data, kept between rounds in models without bodies."""
    kept = None if model.graph.owners else model.sizes
    return kept if isinstance(kept, ShapeData) else ShapeData(kept=not model.graph.owners)


def _run_graph(graph: Graph, data: ShapeData, seen: Seen, ctx: PassContext) -> None:
    there: dict[Dims, _Listed] = {}
    alone: list[tuple[Value, int]] = []  # with the number of shapes listed before
    choices: list[Node] = []
    contents, dims = data.contents, data.dims
    for node in data.sweep(graph):
        for body in node.bodies.values() if node.bodies else ():
            if not body.skipped:
                _run_graph(body, data, ChainMap({}, seen), ctx)  # results of a body are not visible outside
        if node.op in _SIMPLIFY:
            _SIMPLIFY[node.op](node, data, ctx)
        elif node.op == "Where":
            choices.append(node)
        made = [*node.outputs]
        for value in made:
            if value is not None and value in contents and not _share(node, value, data, seen, ctx):
                alone.append((value, len(there)))
        for value in made:
            if value is not None and value in dims and Expr in map(type, dims[value]):
                _list_computed(value, dims[value], there)
    for node in choices:
        if node.graph is not None:  # removed if an operand of another
            _join_chosen(node, data, ctx)
    for value, before in reversed(alone):  # the whole before its parts
        _read_off(value, data, there, before, ctx)


def _list_computed(value: Value, dims: Dims, there: dict[Dims, _Listed]) -> None:
    """List the computed dims, and runs of these, of a value that meets others at its readers."""
    computed = [i for i, d in enumerate(dims) if type(d) is Expr and d.name[0] == "{"]
    if not computed or dims in there or not _is_met(value):
        return
    partly = value.graph.opset() >= 15  # Shape has start and end from opset 15 on
    for i, j in combinations(range(len(dims) + 1), 2) if partly else [(0, len(dims))]:
        if any(i <= k < j for k in computed):
            there.setdefault(dims[i:j], _Listed(value, i, len(there)))


def _share(node: Node, value: Value, data: ShapeData, seen: Seen, ctx: PassContext) -> bool:
    """Make readers of known integers read a constant, or the first equal value. Graph outputs become constant, too.

    Returns whether the value was replaced.
    """
    content = data.contents.get(value)
    dtype = value.dtype or types.dtype(value)
    if content is None or value.constant or dtype not in _SIZE_TYPES or not value.is_used:
        return False
    elements = content.reshape(-1).tolist()
    kinds = {*map(type, elements)}
    if type(None) in kinds:
        return False
    if Expr not in kinds:
        low, high = BY_CODE[dtype].integers
        fits = all(low <= e <= high for e in elements)
        return fits and _make_constant(node, value, np.array(elements, numpy_dtype(dtype)).reshape(content.shape), ctx)
    return bool(value.users) and _read_first(node, value, (dtype, content.shape, *elements), seen, ctx)


def _read_first(node: Node, value: Value, key: Hashable, seen: Seen, ctx: PassContext) -> bool:
    """Make readers of `value` read the first value of the same sizes. Returns whether there is one."""
    first = seen.get(key, value)
    maker = first.producer
    if first is value or maker is None or maker.graph is None:  # the one before was removed with its last reader
        seen[key] = value
        return False
    if not _may(ctx, "equal", node, value, first, value):
        return False
    value.redirect_readers(first)
    return True


def _make_constant(node: Node, value: Value, array: Array, ctx: PassContext) -> bool:
    """Hold `array` in place of the value, or make its readers read a constant. Returns whether it was replaced."""
    is_copy = node.op == "Identity" and node.operand(0).is_stored  # an output that is constant already
    held = value.is_output and len(node.outputs) == 1 and not is_copy and not cannot_hold(value, array)
    if not (held or value.users) or not _may(ctx, "constant", node, value, array, value):
        return False
    if held:
        hold(value, array)
        remove_dead(node)
    else:
        value.redirect_readers(node.scope.constant(array, value.name, node))
    return True


def _may(ctx: PassContext, what: str, node: Node, value: Value, made: Array | Value, at: Node | Value) -> bool:
    """Whether `made` may take the place of `value`: no runtime rejects it, and the pass has fuel."""
    return ctx.spend(what, at=at, unless=REFUSED if is_refused(value, made) else "")


def _is_computed(value: Value) -> bool:
    """Whether a value is more than picked dims of tensors."""
    seen, stack = {value}, [value]
    while stack:
        v = stack.pop()
        if v.constant or v.producer is None or v.producer.op in _PICKS:
            continue
        if v.producer.op not in _HAND_ON:
            return True
        new = {*present(v.producer.inputs)} - seen
        seen |= new
        stack += new
    return False


def _is_met(value: Value) -> bool:
    """Whether the value meets another at a reader; an additional reader in a chain would prevent folds and fusions."""
    if value.constant:
        return False
    reader = value.only_user
    if reader is None:
        return value.is_used
    met = (v for v in reader.operands if not v.constant)
    return len([*islice(met, 2)]) > 1  # at most two are counted, since a Concat may have thousands


class _Listed(NamedTuple):
    """The first tensor with these sizes, from dim `start` on. `place`: number of entries listed before."""

    tensor: Value
    start: int
    place: int


def _read_off(value: Value, data: ShapeData, there: Mapping[Dims, _Listed], before: int, ctx: PassContext) -> None:
    """Replace a vector of sizes by the Shape of a tensor with these dims, if its computation becomes dead."""
    content, node = _read_vector(value, data), value.producer
    found = there.get(tuple(content)) if content is not None else None
    if content is None or node is None or found is None or found.place >= before:
        return
    alone = any(not v.constant and v.only_user is node for v in present(node.inputs))  # an operand dies with the node
    if types.dtype(value) != TensorProto.INT64 or not alone or not _is_computed(value):
        return
    maker = found.tensor.producer
    if maker is None or maker.graph is None:
        return
    whole = len(content) == types.rank(found.tensor)
    attributes: dict[str, Any] = {} if whole else {"start": found.start, "end": found.start + len(content)}
    listed = Value("", value.graph)
    listed.producer = Node(make_node("Shape", "", "", attributes), [found.tensor], [listed])
    if _may(ctx, "read_off", node, value, listed, value):
        value.redirect_readers(node.scope.make("Shape", [found.tensor], before=node, **attributes))
        remove_dead(node)


def _read_vector(value: Value, data: ShapeData) -> list[Any] | None:
    """Return the elements of a vector of sizes that only nodes read: callers get the computed value anyway."""
    content = data.contents.get(value)
    if content is None or content.ndim != 1 or not value.users or value.is_output:
        return None
    return list(content.tolist())


def _join_chosen(node: Node, data: ShapeData, ctx: PassContext) -> None:
    """Replace Where(x == -1, 1, x), used by exporters for the kept dims of an Expand, by a Concat of known parts."""
    value, condition = node.output, node.inputs[0]
    content = _read_vector(value, data)
    if content is None or types.dtype(value) not in _SIZE_TYPES:
        return
    if condition is None or condition.only_user is not node:
        return  # the condition stays: nothing is saved
    parts = chosen_parts(data, node, content)
    if parts is None or len(parts) < 2:
        return
    numbers = {i: _detached(p, value) for i, p in enumerate(parts) if isinstance(p, list)}
    held: list[Value | None] = [p if isinstance(p, Value) else numbers[i] for i, p in enumerate(parts)]
    joined = Value("", value.graph)
    joined.producer = Node(make_node("Concat", "", "", {"axis": 0}), held, [joined])
    if _may(ctx, "joined", node, value, joined, value):
        graph = node.scope
        for v in numbers.values():
            graph.attach_constant(v, value.name, node)
        value.redirect_readers(graph.make("Concat", held, before=node, axis=0))
        remove_dead(node)


def _detached(elements: list[int], like: Value) -> Value:
    """Return a constant outside the graph."""
    made = Value("", like.graph)
    made.array, made.constant = np.array(elements, numpy_dtype(types.dtype(like))), True
    return made


def _set_target(node: Node, index: int, target: list[int], ctx: PassContext, what: str) -> bool:
    given = node.operand(index)
    array = np.array(target, numpy_dtype(types.dtype(given)))
    if not ctx.spend(what, at=node, unless=REFUSED if is_refused(given, array, [node]) else ""):
        return False
    node.set_input(index, node.scope.constant(array, given.name, node))
    return True


def _computed(node: Node, index: int, data: ShapeData) -> list[Size | None] | None:
    """Return the elements of a computed input of known type, else None."""
    value = node.input(index)
    content = None if value is None or value.constant else data.content(value)
    if content is None or content.ndim != 1 or not types.dtype(value):
        return None
    return list(content.reshape(-1).tolist())


def _reshape(node: Node, data: ShapeData, ctx: PassContext) -> None:
    """Make a Reshape target constant, with 0 for a copied dim and -1 for a single other unknown dim.

    A -1 next to a dim of 0 is an error in runtimes. Dims that are always 0 are detected; a batch of 0 at run time then
    fails, the price of a constant target.
    """
    target = _computed(node, 1, data)
    dims = None if target is None else data.shape(node.input(0))
    if target is None or dims is None or (node.attr("allowzero", 0) and 0 in target):
        return
    result = _entries(target, dims, data.shape(node.outputs[0]))
    if result.count(-1) <= 1 and _set_target(node, 1, result, ctx, "reshape") and node.attr("allowzero", 0):
        node.set_attr("allowzero", 0)  # a zero copies from now on


def _entries(target: list[Size | None], dims: Dims, made: Dims | None) -> list[int]:
    """Return the entries of a constant target; several are -1 if there is none."""
    found = [_entry(t, d) for t, d in zip(target, chain(dims, repeat(None)))]
    if None in found and 0 in dims:
        return [-1, -1]  # no elements: runtimes reject a -1
    result = [-1 if e is None else e for e in found]
    if result.count(-1) > 1 and made is not None:  # dims left to the runtime by the file may be known
        sizes = zip(target, made, result, strict=True)
        return [d if t == -1 and isinstance(d, int) and d > 0 else r for t, d, r in sizes]
    return result


def _entry(size: Size | None, dim: Size | None) -> int | None:
    """Return the entry of a Reshape target for a size, next to a dim of the operand; None if only -1 stands for it."""
    if isinstance(size, Expr) and size == dim:
        return 0
    return size if isinstance(size, int) else None


def _expand(node: Node, data: ShapeData, ctx: PassContext) -> None:
    """Make an Expand target constant, with 1 where it equals the dim."""
    target = _computed(node, 1, data)
    dims = None if target is None else data.shape(node.input(0))
    if target is None or dims is None:
        return
    offset = len(target) - len(dims)
    result: list[int] = []
    for i, t in enumerate(target):
        if isinstance(t, int):
            result.append(t)
        elif t is not None and i >= offset and t == dims[i - offset]:
            result.append(1)
        else:
            return
    _set_target(node, 1, result, ctx, "expand")


def _slice(node: Node, data: ShapeData, ctx: PassContext) -> None:
    """Make the bounds of a Slice constant: start 0 for minus the size, no end for the size or more."""
    dims = data.shape(node.input(0))
    found = cuts_of(data, node, len(dims)) if dims is not None else None
    if dims is None or found is None or any(step != 1 for *_, step in found):
        return
    given = node.operand(2)
    last = BY_CODE[types.dtype(given)].integers[1]
    for index, bounds in (
        (1, [_bound(start, -1 * dims[axis], 0) for axis, start, _, _ in found]),
        (2, [_bound(end, dims[axis], last) for axis, _, end, _ in found]),
    ):
        if None not in bounds and _computed(node, index, data) is not None:
            _set_target(node, index, [b or 0 for b in bounds], ctx, "slice")


def _bound(bound: Size | None, whole: Size | None, number: int) -> int | None:
    """Return the bound as a number: `number` if the whole axis is taken; None if unknown."""
    if bound == whole:
        return number
    return bound if isinstance(bound, int) else None


def _resize(node: Node, data: ShapeData, ctx: PassContext) -> None:
    """Make the scales of a Resize constant, from sizes or scales proportional to the dims."""
    at, graph = scales_of(node), node.scope
    given = node.input(at + 1) or node.input(at)
    if given is None or given.constant or node.has_references:
        return
    found = factors(data, node)
    if found is None:
        return
    scales = Value("", graph)
    scales.array, scales.constant = np.array(found, np.float32), True
    made = Value("", graph)
    made.producer = node.copy([*node.inputs[:at], scales], [made])
    if _may(ctx, "resize", node, node.output, made, node):
        node.set_input(at, graph.constant(scales.array, given.name, node))
        node.remove_input(at + 1)


_SIMPLIFY: Final[dict[str, Callable[[Node, ShapeData, PassContext], None]]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
    "Resize": _resize,
    "Upsample": _resize,
}
