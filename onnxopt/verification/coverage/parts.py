"""Nodes that hold parts which may not run, or call functions that do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.programs.program import bodies

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

    from onnxopt.verification.pieces.walk import Walk
    from onnxopt.verification.programs.program import Program

BRANCHES: Final = ("then_branch", "else_branch")


def held(program: Program, node: NodeProto) -> dict[str, GraphProto]:
    """The bodies of a node; of a call, what the function does, as far as it has the operators of the model."""
    model = program.skeleton.proto
    function = program.skeleton.functions.of(node)
    if function is None:
        return bodies(node)
    versions = program.skeleton.versions
    if any(versions.get(domain_of(o.domain)) != o.version for o in function.opset_import):
        return {}
    graph = type(model.graph)(name=function.name)
    for name in function.input:
        graph.input.add(name=name)
    for name in function.output:
        graph.output.add(name=name)
    given = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    for n in function.node:
        graph.node.append(_told(n, given))
    return {function.name: graph}


def _told(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """The node with the attributes that the call gives."""
    found = type(node)()
    found.CopyFrom(node)
    del found.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name and a.ref_attr_name not in given:
            continue
        added = found.attribute.add()
        added.CopyFrom(given[a.ref_attr_name] if a.ref_attr_name else a)
        added.name = a.name
        if a.HasField("g"):
            inner = [_told(n, given) for n in a.g.node]
            del added.g.node[:]
            added.g.node.extend(inner)
    return found


def is_decided(program: Program, node: NodeProto) -> bool:
    """Do constants say what of it runs?"""
    deciding = [n for n in node.input[: {"If": 1, "Loop": 2}.get(node.op_type, 0)] if n]
    return bool(deciding) and all(name in program.fixed or program.is_constant(name) for name in deciding)


def runs(walk: Walk, node: NodeProto, body: str) -> bool:
    """Does this body of a node of A run in any case? What is given is A's own, so that in a body it is what its first
    turn has."""
    kind, reads = node.op_type, [*node.input, "", ""]
    every = range(len(walk.original.values))
    if kind == "If":
        return any(taken(walk, node, k) == body for k in every)
    if kind != "Loop":
        return True
    return any(all(not r or holds(walk, r, k) for r in reads[:2]) for k in every)


def taken(walk: Walk, node: NodeProto, case: int) -> str:
    """The branch that an If of A takes in this case; empty where that is not known any more."""
    truth = holds(walk, node.input[0], case)
    return "" if truth is None else BRANCHES[not truth]


def holds(walk: Walk, condition: str, case: int) -> bool | None:
    """Is a condition of A true, or a number of turns no zero, in this case? None where that is not known any more."""
    a = walk.a
    value = a.constant(condition) if a.is_constant(condition) else walk.original.values[case].get(condition)
    return None if value is None else bool(np.all(np.asarray(value) > 0))
