"""What a model decides upon: operators whose results jump, and conditions that choose a branch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.element_types import TYPES
from onnxopt.verification.model.constants import constants, single
from onnxopt.verification.model.dependence import Changing, changing, is_fixed
from onnxopt.verification.model.operators import DECIDING, GIVE_OTHERS, MEASURING, STEPPED, WITH_BODIES
from onnxopt.verification.model.order import bodies_of, first_of, operator_names, reads_of

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto

_AS_IT_IS: Final = ("Identity", "Cast")
_FLOATS: Final = frozenset(t.code for t in TYPES if t.kind == "f")


def is_decision(node: NodeProto) -> bool:
    """Does its result jump?"""
    return node.op_type in DECIDING


def decides(proto: ModelProto) -> bool:
    """Does something float that the inputs change get decided upon?

    What becomes of sizes does not count: it is integers, or the same in every result.
    """
    return any(True for _ in _deciding(proto))


def decisions(proto: ModelProto) -> tuple[list[str], list[str], list[str]]:
    """What becomes of it in the main graph, where that is no float: a comparison, the index of what is largest; where
    it is steps; and what nodes make first in whose bodies, or function, it may be either."""
    found = list(_deciding(proto))
    others = [n.output[0] for n in found if n.op_type in GIVE_OTHERS]
    others += [n.output[1] for n in found if n.op_type == "TopK" and len(n.output) > 1 and n.output[1]]
    within = [first_of(n) for n in found if not is_decision(n) and n.op_type != "Cast"]
    return others, [n.output[0] for n in found if n.op_type in STEPPED], within


def _deciding(proto: ModelProto) -> Iterator[NodeProto]:
    """The nodes of the main graph that decide upon floats, or in whose bodies or function something may."""
    from onnx import TensorProto

    graph = proto.graph
    called = {f.name: operator_names(f.node) for f in proto.functions}
    deciding = [n for n in graph.node if _may_decide(n, called)]
    if not deciding:
        return
    floats = {
        i.name for i in graph.input if i.type.tensor_type.elem_type in _FLOATS or i.type.HasField("sequence_type")
    }
    floats |= {t.name for t in graph.initializer if t.data_type in _FLOATS}
    changing = {i.name for i in graph.input}
    for node in _leading_to(deciding, graph):
        reads = _reads(node)
        is_float = any(r in floats for r in reads)
        changes = node.op_type not in MEASURING and any(r in changing for r in reads)
        decided = changes and is_float
        if node.op_type == "Cast":
            target = next((a.i for a in node.attribute if a.name == "to"), TensorProto.FLOAT)
            if decided and target not in _FLOATS:
                yield node
            is_float = target in _FLOATS
        elif node.op_type == "Constant":
            is_float = any(
                a.t.data_type in _FLOATS or a.name in ("value_float", "value_floats") for a in node.attribute
            )
        elif node.op_type in DECIDING or DECIDING & called.get(node.op_type, frozenset()):
            if decided:
                yield node
            is_float = node.op_type not in GIVE_OTHERS
        elif decided and node.op_type in WITH_BODIES and DECIDING & operator_names([node]):
            yield node
        for output in node.output:
            if is_float and node.op_type not in MEASURING:
                floats.add(output)
            if changes:
                changing.add(output)


def _may_decide(node: NodeProto, called: Mapping[str, frozenset[str]]) -> bool:
    if node.op_type == "Cast":
        return any(a.name == "to" and a.i not in _FLOATS for a in node.attribute)
    if node.op_type in DECIDING or DECIDING & called.get(node.op_type, frozenset()):
        return True
    return node.op_type in WITH_BODIES and bool(DECIDING & operator_names([node]))


def _leading_to(nodes: Sequence[NodeProto], graph: GraphProto) -> Iterator[NodeProto]:
    """These nodes and those that make what they read, in the graph's order; what becomes of a size leads nowhere."""
    every = list(graph.node)
    made = {o: i for i, n in enumerate(every) for o in n.output}
    stack = [made[o] for n in nodes for o in n.output if o]
    found = set(stack)
    while stack:
        node = every[stack.pop()]
        if node.op_type not in MEASURING:
            new = {made[r] for r in _reads(node) if r in made} - found
            found |= new
            stack += new
    return (every[i] for i in sorted(found))


def _reads(node: NodeProto) -> Sequence[str]:
    return list(reads_of(node)) if node.op_type in WITH_BODIES else list(node.input)


def open_conditions(path: Path) -> set[str]:
    """The same of a file, as far as inference tells: of the dims that an If asks about one may be a number, whatever
    the others are. That takes longer, and is asked of those of which no case took both branches."""
    from onnxopt.verification.model.skeleton import Skeleton

    model, dims = _inferred(Skeleton(path).proto)
    return set(conditions(model.graph, changing(model.graph, dims)))


def open_nodes(path: Path) -> set[str]:
    """Of a file, as far as inference tells, what decides at every depth and can change: see `Changing.open`."""
    from onnxopt.verification.model.skeleton import Skeleton

    return can_change(Skeleton(path).proto).open


def always_empty(path: Path) -> set[str]:
    """The outputs of a file that have no element whatever callers give, as far as inference tells. An input of which
    the file says so may have some."""
    from onnxopt.verification.model.skeleton import Skeleton

    proto = Skeleton(path).proto
    for given in proto.graph.input:
        for dim in given.type.tensor_type.shape.dim:
            if not dim.dim_value:
                dim.ClearField("dim_value")
    model, dims = _inferred(proto)
    nothing = set(_of_no_turn(model.graph))
    for node in model.graph.node:
        if node.op_type in _AS_IT_IS and not node.domain and node.input[0] in nothing:
            nothing.update(node.output)
    return {o.name for o in model.graph.output if 0 in dims.get(o.name, ()) or o.name in nothing}


def _of_no_turn(graph: GraphProto) -> Iterator[str]:
    """What Loops stack that make no turn, as constants say: inference knows no length of it."""
    held = {t.name: t for t in graph.initializer} | dict(constants(graph.node))
    for node in (n for n in graph.node if n.op_type == "Loop" and not n.domain):
        trips, begins = ([single(held[name]) if name in held else None for name in node.input[:2]] + [None, None])[:2]
        if (trips is not None and trips <= 0) or begins == 0:
            yield from filter(None, node.output[len(node.input) - 2 :])


def can_change(proto: ModelProto) -> Changing:
    """Of a model, as far as inference tells. What it claims of shapes goes."""
    model, dims = _inferred(proto)
    return changing(model.graph, dims, model.functions)


def _inferred(proto: ModelProto) -> tuple[ModelProto, dict[str, list[int | None]]]:
    """The model, and what inference knows of shapes."""
    from onnxopt.inferring import infer_shapes, inferable

    forget_defaults(proto)
    _forget_claims(proto.graph)
    model = infer_shapes(inferable(proto), values=True)
    graph = model.graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    return model, {i.name: [d.dim_value if is_fixed(d) else None for d in i.type.tensor_type.shape.dim] for i in infos}


def forget_defaults(proto: ModelProto) -> None:
    """What initializers hold that callers may override is no proof either: onnx takes a default for a constant."""
    if proto.ir_version < 4:  # before, every initializer is listed as input, and is what it is
        return
    graph = proto.graph
    given = {i.name for i in graph.input}
    names = [t.name for t in graph.initializer], [t.values.name for t in graph.sparse_initializer]
    for tensors, its in zip((graph.initializer, graph.sparse_initializer), names):
        for k in reversed([k for k, name in enumerate(its) if name in given]):
            del tensors[k]


def _forget_claims(graph: GraphProto) -> None:
    """What the file says of the shapes of its own results is no proof."""
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for body in bodies_of(node):
            _forget_claims(body)


def conditions(graph: GraphProto, found: Changing) -> list[str]:
    """Values that decide an If of the main graph and are no outputs. What nothing changes takes one branch by right."""
    outputs = {o.name for o in graph.output}
    produced = {o for n in graph.node for o in n.output}
    deciding = {n.input[0] for n in graph.node if n.op_type == "If" and n.domain in ("", "ai.onnx")}
    return sorted((deciding - outputs) & produced & found.values)


def hides(graph: GraphProto, found: Changing, given_out: Collection[str]) -> bool:
    """Is there a part that some data run and others do not, or a turn of a loop, but for branches on what is
    `given_out`?"""
    seen = {n.output[0] for n in graph.node if n.op_type == "If" and n.input[0] in given_out}
    return bool(found.open - seen or found.turning)
