"""Transformations of models before a run: element types, roundings to narrower floats, float64, equal random draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.proto.messages import array_to_tensor, make_attribute, tensor_to_array
from onnxopt.verification.compare import CODES
from onnxopt.verification.model.dataflow import count_draws, draws
from onnxopt.verification.model.nodes import (
    Functions,
    Name,
    bodies_of,
    domain_of,
    first_of,
    held_as,
    inferred_infos,
    inside,
    int_of,
    operator_of,
    ordered,
)
from onnxopt.verification.model.operators import MATRICES, SIZED, having
from onnxopt.verification.model.skeleton import Operand, Skeleton
from onnxopt.verification.programs.program import Program, add_cast
from onnxopt.verification.programs.runner import Prepare
from onnxopt.verification.run import Failed
from onnxopt.verification.runtime import schemas

# -- element types ----------------------------------------------------------------------------------------


def tensor_types(model: ModelProto) -> dict[str, str]:
    """Return the types of tensors by name, as written by onnxruntime, as far as known.

    If a name also occurs in a body, the outer type is returned.
    """
    kinds = {code: f"tensor({name.lower()})" for name, code in TensorProto.DataType.items()}
    known = {}
    for info in inferred_infos(model):
        code = info.type.tensor_type.elem_type
        if code and code in kinds:
            known[info.name] = kinds[code]
    versions = {domain_of(o.domain): o.version for o in model.opset_import}
    functions = {(domain_of(f.domain), f.name) for f in model.functions}
    defined = {key: v for key, v in schemas().items() if key not in functions}

    def add(graph: GraphProto) -> None:
        """Add to `known` the types of results, derived from operand types by operator schemas."""
        stored = {t.name: kinds[t.data_type] for t in graph.initializer if t.data_type in kinds}
        for node in ordered(graph.node):
            for body in bodies_of(node):
                add(body)
            domain = domain_of(node.domain)
            fitting = [s for s in defined.get((domain, node.op_type), ()) if s.since_version <= versions.get(domain, 0)]
            if not fitting or known.keys() >= {*filter(None, node.output)}:
                continue
            _add_results(node, max(fitting, key=lambda s: s.since_version), known, stored)

    add(model.graph)
    return known


def _add_results(node: NodeProto, schema: Any, known: dict[str, str], stored: Mapping[str, str]) -> None:
    """Add to `known` the types of a node's results, by its schema. `stored`: types of initializers."""
    bound: dict[str, str] = {}
    for name, operand in zip(node.input, schema.inputs):
        if kind := known.get(name) or stored.get(name, ""):
            bound.setdefault(operand.typeStr, kind)
    for name, result in zip(node.output, schema.outputs):
        kind = bound.get(result.typeStr, result.typeStr)
        if name and kind.startswith("tensor("):
            known.setdefault(name, kind)


# -- roundings --------------------------------------------------------------------------------------------
# Hardware for narrow types rounds likewise. onnxruntime's CPU provider has few kernels for narrow types: float16 is
# computed in float32 without rounding between operators, losing overflow, and bfloat16 hardly runs. A float32 product
# replaced by a float16 product is then equal bit for bit, but not on further devices. Models with narrow floats are
# therefore compared again with roundings. A difference is reported, but is no fault, since this runtime shows none.

_RAW: Final = "\N{RIGHTWARDS ARROW}raw"  # suffix of an operator's result before rounding
_WIDE_SUFFIX: Final = "\N{RIGHTWARDS ARROW}wide"
_FLOAT: Final = 1
_AS_IT_IS: Final = having("retypes", "control") | {"Constant"}


def round_results(model: ModelProto, held: Collection[str], code: int) -> None:
    """Add roundings to a model, in place.

    held: values of the narrower type; code: the type's number in onnx. Calls of functions with values of the type
    inside stay unchanged, as such functions take no wider values.
    """
    _round(model.graph, set(held), code, "", Functions(model).holding(lambda node: _makes(node, code)))


def has_narrow(model: ModelProto) -> bool:
    """Return whether a model contains narrow floats."""
    graph = model.graph
    nodes = inside((*graph.node, *(n for f in model.functions for n in f.node)))
    given, stored = (i.type.tensor_type.elem_type for i in graph.input), (t.data_type for t in graph.initializer)
    casts = (int_of(n, "to") for n in nodes if n.op_type == "Cast")
    return not {*CODES.values()}.isdisjoint((*given, *stored, *casts))


def with_roundings(skeleton: Skeleton) -> Skeleton:
    """Return the skeleton, changed in place: results in narrow floats are rounded."""
    kinds: dict[str, str] = {}
    with contextlib.suppress(Exception):  # inference is no source of verdicts
        kinds.update(tensor_types(skeleton.proto))
    for name, code in CODES.items():
        if held := {value for value, kind in kinds.items() if kind == f"tensor({name})"}:
            round_results(skeleton.proto, held, code)
    return skeleton


def rounds(node: NodeProto) -> bool:
    """Return whether a node is an added rounding."""
    return bool(node.op_type == "Cast" and node.input[0].endswith(_RAW))


def name_in_file(name: str) -> str:
    """Return the name of a value in the file, without added suffixes."""
    for suffix in (_RAW, _WIDE_SUFFIX):
        name = name.partition(suffix)[0]
    return name


def _makes(node: NodeProto, code: int) -> bool:
    return any(a.name in ("to", "dtype", "value") and code in (a.i, a.t.data_type) for a in node.attribute)


def _round(graph: GraphProto, outer: set[str], code: int, depth: str, calls: Collection[Name]) -> None:
    known = outer.union(t.name for t in graph.initializer if t.data_type == code)
    nodes = list(graph.node)
    del graph.node[:]
    wide: dict[str, str] = {}  # {value: widened value}
    for node in nodes:
        for body in bodies_of(node):
            _round(body, known, code, f"{depth}\N{PRIME}", calls)
        if node.op_type in _AS_IT_IS or operator_of(node) in calls:
            graph.node.append(node)
            continue
        for name in sorted(known.intersection(node.input).difference(wide)):
            wide[name] = f"{name}{_WIDE_SUFFIX}{depth}"
            add_cast(graph, name, wide[name], _FLOAT)
        node.input[:] = [wide.get(name, name) for name in node.input]
        _add_rounded(graph, node, known, code)


def _add_rounded(graph: GraphProto, node: NodeProto, known: Collection[str], code: int) -> None:
    """Add a node to a graph, with its results among `known` rounded."""
    narrow = [name for name in node.output if name in known]
    node.output[:] = [name + _RAW if name in narrow else name for name in node.output]
    if narrow:
        _widen(node, code)
    graph.node.append(node)
    for name in narrow:
        add_cast(graph, name + _RAW, name, code)


def _widen(node: NodeProto, code: int) -> None:
    """Set an attribute with the result type to float32."""
    for a in node.attribute:
        if a.name == "dtype" and a.i == code:
            a.i = _FLOAT
        elif a.name == "value" and a.t.data_type == code:
            a.t.CopyFrom(array_to_tensor(tensor_to_array(a.t).astype("float32"), a.t.name))


# -- random draws -----------------------------------------------------------------------------------------
# An equal node with equal operands is replaced by A's draw in B. Since the result may rename operands (a removed
# Identity, a folded shape), each operand of such a node gets a name derived from the node's first result, and is
# compared like any value. Further results (the mask of a Dropout) are renamed likewise.
# A node that draws in a body, or in a function inlined in the other model, has no result to replace. It gets a fixed
# seed.

_READ: Final = "\N{RIGHTWARDS ARROW}read"
_DRAWN: Final = "\N{RIGHTWARDS ARROW}drawn"
_SEED: Final = 47


def draw_alike(a: Skeleton, b: Skeleton) -> None:
    """Change both models in place."""
    mine, theirs = _drawing(a), _drawing(b)
    alike = [name for name in mine.keys() & theirs.keys() if name and mine[name].op_type == theirs[name].op_type]
    both = {name: max(len(mine[name].output), len(theirs[name].output)) for name in alike}
    for skeleton in (a, b):
        model = skeleton.proto
        skeleton.operands = _name_alike(model.graph, both)
        _seed(model.graph.node, both)
        for function in model.functions:
            _seed(function.node, ())


def _drawing(skeleton: Skeleton) -> dict[str, NodeProto]:
    """Return the nodes of the main graph that draw, by first result."""
    return {n.output[0]: n for n in skeleton.proto.graph.node if n.output and draws(n)}


def _name_alike(graph: GraphProto, results: Mapping[str, int]) -> dict[str, Operand]:
    """Add an Identity before each operand, and after each further result, of nodes that make `results` (name: count).

    Returns the operands by new name.
    """
    found: dict[str, Operand] = {}
    taken = {name for node in graph.node for name in node.output if _READ in name or _DRAWN in name}
    nodes: list[NodeProto] = []
    for node in graph.node:
        result = next(iter(node.output), "")
        if result not in results:
            nodes.append(node)
            continue
        for i, read in enumerate(node.input):
            if read and (name := f"{result}{_READ}{i}") not in taken:
                found[name], node.input[i] = Operand(read, result), name
                nodes.append(_identity(read, name))
        nodes += [node, *_name_results(node, results[result], taken)]
    del graph.node[:]
    graph.node.extend(nodes)
    return found


def _name_results(node: NodeProto, count: int, taken: Collection[str]) -> Iterator[NodeProto]:
    """Rename further results of a node, up to `count` in all. Yields Identities to the previous names."""
    for k in range(1, count):
        own = node.output[k] if k < len(node.output) else ""
        if (name := f"{node.output[0]}{_DRAWN}{k}") not in taken:
            node.output[k : k + 1] = [name]
            yield from [_identity(name, own)] if own else []


def _identity(read: str, name: str) -> NodeProto:
    return NodeProto(op_type="Identity", input=[read], output=[name])


def _seed(nodes: Iterable[NodeProto], but: Collection[str]) -> None:
    """Add a seed to nodes that draw without a seed, except those named in `but`, and to all in bodies."""
    for node in nodes:
        for body in bodies_of(node):
            _seed(body.node, ())
        if draws(node) and first_of(node) not in but and all(a.name != "seed" for a in node.attribute):
            # An integer for Dropout, a float for all remaining operators.
            node.attribute.append(make_attribute("seed", _SEED if node.op_type == "Dropout" else float(_SEED)))


def draws_of_outputs(program: Program) -> int:
    """Return the number of random draws leading to outputs, except in branches on constant conditions."""
    if not program.random:
        return 0
    known = program.fixed.union(program.constants)
    nodes = program.at(program.cone(program.outputs, ()))
    return count_draws((n for n in nodes if n.op_type != "If" or n.input[0] not in known), program.skeleton.functions)


# -- float64, as far as runtimes have kernels -----------------------------------------------------------------

# Widened types, and their codes in onnx. Narrower types in the same model are intended, and stay.
NARROW: Final = {"float32": 1, "float16": 10}
_DOUBLE: Final = 11
_EIGHTS: Final = frozenset(range(17, 21))  # codes of 8-bit floats
_NARROWER: Final = {"float32": _EIGHTS | {10, 16}, "float16": _EIGHTS}
_TYPES: Final = ("to", "dtype", "output_datatype")  # attributes with the type of a result
_OF_ALL: Final = MATRICES | {"Einsum"}  # sums over all operands
_SUMS: Final = _OF_ALL | {"CumSum", "GlobalAveragePool"}  # sums over the first operand
_SUM_SUFFIX: Final = "\N{RIGHTWARDS ARROW}sum"
Change = Callable[[Any], Any]  # maps a constant to float64


def widening(dtype: str, change: Change) -> Prepare:
    """Return a function that widens numbers of type `dtype` in a model to float64, in place.

    change: converts constants, except in bodies and where constants decide shapes.
    """

    def prepare(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
        code = NARROW[dtype]
        if model.graph.sparse_initializer:
            raise Failed("it has sparse weights")
        _graph(model.graph, code, change, weights)
        for node in (n for function in model.functions for n in function.node):
            _node(node, code, as_double)
        return weights

    return prepare


def narrows(node: NodeProto, dtype: str) -> bool:
    """Return whether a node rounds floats of type `dtype` to a narrower type."""
    return not node.domain and node.op_type == "Cast" and any(a.i in _NARROWER[dtype] for a in node.attribute)


def is_sum(node: NodeProto) -> bool:
    """Return whether a node sums elements of its operands."""
    return not node.domain and (node.op_type in _SUMS or node.op_type.startswith("Reduce"))


def with_sums(dtype: str) -> Prepare:
    """Return a function that computes a model's sums in float64, rounded once; all else is unchanged."""

    def prepare(model: ModelProto, weights: dict[str, Any]) -> dict[str, Any]:
        graph = model.graph
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            if not is_sum(node):
                graph.node.append(node)
                continue
            for i, name in enumerate(node.input[:1] if node.op_type not in _OF_ALL else node.input):
                node.input[i] = f"{name}{_SUM_SUFFIX}{len(graph.node)}"
                add_cast(graph, name, node.input[i], _DOUBLE)
            made, node.output[0] = node.output[0], f"{node.output[0]}{_SUM_SUFFIX}"
            graph.node.append(node)
            add_cast(graph, node.output[0], made, NARROW[dtype])
        return weights

    return prepare


def as_double(array: Any) -> Any:
    """Return an array in float64."""
    return np.asarray(array).astype(np.float64)


def _double(tensor: TensorProto, change: Change) -> None:
    array = np.ascontiguousarray(change(tensor_to_array(tensor)))
    tensor.CopyFrom(array_to_tensor(array.reshape(tuple(tensor.dims)), tensor.name))


def _graph(graph: GraphProto, code: int, change: Change, weights: dict[str, Any]) -> None:
    """Widen the initializers, some in `weights`, and nodes of a graph."""
    exact = {name for n in graph.node if n.op_type in SIZED for name in n.input[1:]}
    for t in graph.initializer:
        if t.data_type == code and t.name in weights:
            weights[t.name], t.data_type = change(weights[t.name]), _DOUBLE
        elif t.data_type == code:
            _double(t, as_double if t.name in exact else change)
    for node in graph.node:
        _node(node, code, as_double if exact.intersection(node.output) else change)


def _node(node: NodeProto, code: int, change: Change) -> None:
    for a in node.attribute:
        if a.type == a.INT and a.name in _TYPES and a.i == code:
            a.i = _DOUBLE
        elif a.type == a.TENSOR and a.t.data_type == code:
            _double(a.t, change if node.op_type == "Constant" else as_double)
        elif a.type == a.GRAPH:
            _body(a.g, code)
        elif node.op_type == "Constant" and a.name.startswith("value_float") and code == NARROW["float32"]:
            number = held_as(a.name, a)
            _double(number, change)
            a.CopyFrom(make_attribute("value", number))


def _body(graph: GraphProto, code: int) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == code:
            info.type.tensor_type.elem_type = _DOUBLE
    _graph(graph, code, as_double, {})
