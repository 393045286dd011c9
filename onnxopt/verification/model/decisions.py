"""Decisions of a model: operators with discontinuous results, and conditions of branches."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import or_
from typing import TYPE_CHECKING, Final

from onnxopt.proto.element_types import TYPES
from onnxopt.verification.model.constants import constants, single
from onnxopt.verification.model.dataflow import Forward
from onnxopt.verification.model.dependence import Changing, changing, is_fixed
from onnxopt.verification.model.leave_out import forget_claims, forget_defaults
from onnxopt.verification.model.operators import DECIDING, GIVE_OTHERS, MEASURING, STEPPED, WITH_BODIES
from onnxopt.verification.model.order import first_of, operator_names, reads_of

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto

_AS_IT_IS: Final = ("Identity", "Cast")
_FLOAT: Final = 1
_OPEN: Final = 2
_FLOAT_CODES: Final = frozenset(t.code for t in TYPES if t.kind == "f")


def is_decision(node: NodeProto) -> bool:
    """Return whether an operator's result is discontinuous."""
    return node.op_type in DECIDING


class Deciding(Forward[int]):
    """Forward analysis that finds decisions on floats that depend on inputs.

    Decisions on sizes do not count, as sizes are integers, or equal in every result. A fact is a set of flags:
    `_FLOAT`, and `_OPEN` for values that depend on inputs.
    """

    def __init__(self, graph: GraphProto, functions: Iterable[FunctionProto] = ()) -> None:
        super().__init__()
        self.nodes: list[NodeProto] = []  # nodes of the main graph that decide, or may in bodies or a function
        self._within = {f.name: operator_names(f.node) for f in functions}
        self.facts.update((i.name, _OPEN | _FLOAT * _may_be_floats(i.type)) for i in graph.input)
        for tensor in graph.initializer:
            self.facts[tensor.name] = self.facts.get(tensor.name, 0) | _FLOAT * (tensor.data_type in _FLOAT_CODES)
        self.follow(graph.node)

    @property
    def others(self) -> list[str]:
        """Return the non-float results of decisions in the main graph: comparisons, indices of maxima."""
        found = [n.output[0] for n in self.nodes if n.op_type in GIVE_OTHERS]
        return found + [n.output[1] for n in self.nodes if n.op_type == "TopK" and len(n.output) > 1 and n.output[1]]

    @property
    def steps(self) -> list[str]:
        """Return the results of decisions that are stepped floats."""
        return [n.output[0] for n in self.nodes if n.op_type in STEPPED]

    @property
    def within(self) -> list[str]:
        """Return the first results of nodes with possible decisions in bodies or a function."""
        return [first_of(n) for n in self.nodes if not is_decision(n) and n.op_type != "Cast"]

    def join(self, a: int, b: int) -> int:
        return a | b

    def _bodies(self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[int | None]) -> Sequence[int]:
        return self.transfer(node, [self.facts.get(name) for name in reads_of(node)])

    def transfer(self, node: NodeProto, reads: Sequence[int | None]) -> Sequence[int]:
        kind = node.op_type
        every = functools.reduce(or_, filter(None, reads), 0)
        if kind in MEASURING:
            return [0] * len(node.output)
        gives_floats = bool(every & _FLOAT)
        decides = self._decides(node)
        if every == _FLOAT | _OPEN and decides:
            self.nodes.append(node)
        if kind == "Cast":
            gives_floats = _target(node) in _FLOAT_CODES
        elif kind == "Constant":
            gives_floats = any(
                a.t.data_type in _FLOAT_CODES or a.name.startswith("value_float") for a in node.attribute
            )
        elif decides and kind not in WITH_BODIES:
            gives_floats = kind not in GIVE_OTHERS
        return [(every & _OPEN) | _FLOAT * gives_floats] * len(node.output)

    def _decides(self, node: NodeProto) -> bool:
        """Return whether a node decides, or may in bodies or a function."""
        kind = node.op_type
        if kind == "Cast":
            return _target(node) not in _FLOAT_CODES
        if kind in DECIDING or DECIDING & self._within.get(kind, frozenset()):
            return True
        return kind in WITH_BODIES and bool(DECIDING & operator_names([node]))


def _target(node: NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "to"), 1)


def _may_be_floats(kind: TypeProto) -> bool:
    return kind.tensor_type.elem_type in _FLOAT_CODES or kind.HasField("sequence_type")


def open_conditions(path: Path) -> set[str]:
    """Return the conditions of Ifs in a file that can change according to shape inference (see `conditions`).

    Inference finds fixed dims among dynamic dims. It takes longer, and is used only for conditions with a branch not
    taken.
    """
    from onnxopt.verification.model.skeleton import Skeleton

    model, dims = _inferred(Skeleton(path).proto)
    return set(conditions(model.graph, changing(model.graph, dims)))


def open_nodes(path: Path) -> set[str]:
    """Return the first outputs of nodes with changeable conditions in a file, at any depth (see `Changing.open`)."""
    from onnxopt.verification.model.skeleton import Skeleton

    return can_change(Skeleton(path).proto).open


def always_empty(path: Path) -> set[str]:
    """Return the outputs of a file without elements for any inputs, according to shape inference.

    Declared empty inputs are not trusted.
    """
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
    """Yield the stacked outputs of zero-trip Loops with constant trip count or condition, unknown to inference."""
    held = {t.name: t for t in graph.initializer} | dict(constants(graph.node))
    for node in (n for n in graph.node if n.op_type == "Loop" and not n.domain):
        trips, begins = ([single(held[name]) if name in held else None for name in node.input[:2]] + [None, None])[:2]
        if (trips is not None and trips <= 0) or begins == 0:
            yield from filter(None, node.output[len(node.input) - 2 :])


def can_change(proto: ModelProto) -> Changing:
    """Return the `Changing` analysis of a model after shape inference. Declared shapes and defaults are removed."""
    model, dims = _inferred(proto)
    return changing(model.graph, dims, model.functions)


def _inferred(proto: ModelProto) -> tuple[ModelProto, dict[str, list[int | None]]]:
    """Return (inferred model, {value: dims, None if unknown}). Changes `proto`."""
    from onnxopt.proto.inference import infer_shapes, inferable

    forget_defaults(proto)
    forget_claims(proto.graph)
    model = infer_shapes(inferable(proto), values=True)
    graph = model.graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    return model, {i.name: [d.dim_value if is_fixed(d) else None for d in i.type.tensor_type.shape.dim] for i in infos}


def conditions(graph: GraphProto, found: Changing) -> list[str]:
    """Return the changeable conditions of Ifs of the main graph, except outputs of the graph."""
    outputs = {o.name for o in graph.output}
    produced = {o for n in graph.node for o in n.output}
    deciding = {n.input[0] for n in graph.node if n.op_type == "If" and n.domain in ("", "ai.onnx")}
    return sorted((deciding - outputs) & produced & found.values)


def hides(graph: GraphProto, found: Changing, given_out: Collection[str]) -> bool:
    """Return whether some part may not run, or a loop may end, depending on data, besides branches on `given_out`."""
    seen = {n.output[0] for n in graph.node if n.op_type == "If" and n.input[0] in given_out}
    return bool(found.open - seen or found.turning)
