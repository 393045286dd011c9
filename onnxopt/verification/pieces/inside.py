"""Bodies compared: both branches of an If, the first turn of a Loop or Scan, on the values that A captures there; and
functions of the model, on what they are called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxopt.verification.functions import domain_of
from onnxopt.verification.pieces.program import Program, bodies, type_of
from onnxopt.verification.pieces.runner import Failed
from onnxopt.verification.pieces.walk import Walk

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto


def walk_bodies(outer: Walk, i: int, j: int) -> Iterator[tuple[str, Walk]]:
    """(attribute, walk) of each body of node i of A and node j of B, on the cases of the walk around them.

    Nothing for bodies whose values are not known any more, or that do not run on them.
    """
    x, y = outer.a.nodes[i], outer.b.nodes[j]
    if x.op_type != y.op_type or x.domain != y.domain:
        return
    theirs = held(outer.b, y)
    for name, graph in held(outer.a, x).items():
        if name not in theirs:
            continue
        a, b = Program(outer.a.skeleton, graph, outer.a), Program(outer.b.skeleton, theirs[name], outer.b)
        cases = [_given(outer, x, a, b, case) for case in range(len(outer.original.values))]
        if not cases or None in cases:
            continue
        known: list[dict[str, Any]] = [c for c in cases if c is not None]
        kinds = outer.original.types
        carried = {inner: name for body in (a, b) for inner, name in _carried(x, body)}
        types = {n: kinds.get(n) or kinds.get(carried.get(n, "")) or type_of(v) for n, v in known[0].items()}
        walk = Walk(
            outer.runner.inside(a),
            outer.replay.runner.inside(b),
            known,
            types,
            memory=outer.memory,
            seed=outer.seed,
            held=outer.held,
            dtype=outer.dtype,
        )
        try:
            walk.run()
        except (Failed, ValueError):  # or a type that no input has
            continue
        yield name, walk


def held(program: Program, node: NodeProto) -> dict[str, GraphProto]:
    """The bodies of a node; of a call, what the function does, as far as it has the operators of the model."""
    model = program.skeleton.proto
    function = program.skeleton.functions.of(node)
    if function is None:
        return bodies(node)
    versions = {domain_of(o.domain): o.version for o in model.opset_import}
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


def _carried(node: NodeProto, body: Program) -> Iterator[tuple[str, str]]:
    """(name inside, name outside) of what a node hands to its body. Empty sequences tell no type of their own."""
    names = [i.name for i in body.graph.input]
    yield from zip(names[2:], node.input[2:]) if node.op_type == "Loop" else zip(names, node.input)


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


def _given(outer: Walk, node: NodeProto, a: Program, b: Program, case: int) -> dict[str, Any] | None:
    """What the bodies of a node are given in its first turn: what they capture, and their inputs."""
    known = outer.original.values[case]

    def value(name: str) -> Any:
        return outer.a.constant(name) if outer.a.is_constant(name) else known.get(name)

    inputs = [[i.name for i in body.graph.input] for body in (a, b)]
    is_call = not bodies(node) and bool(inputs[0])
    found = {name: value(name) for name in a.given - set(inputs[0])}
    for name in b.given - set(inputs[1]):
        of, view = outer.pairs.of.get(name, name), outer.replay.views.get(name)
        if name not in outer.cuts or of not in known:
            return None
        found[name] = known[of] if view is None else view(known[of], case)
    given: list[Any] = [value(name) for name in node.input] if is_call else []
    if node.op_type == "Loop":
        given = [np.array(0, np.int64), np.array(True), *(value(name) for name in node.input[2:])]
    elif node.op_type == "Scan":
        scanned = next((x.i for x in node.attribute if x.name == "num_scan_inputs"), 0)
        given = [value(name) for name in node.input]
        states = len(given) - scanned
        given[states:] = [v[0] if isinstance(v, np.ndarray) and v.ndim and len(v) else None for v in given[states:]]
    if any(len(names) != len(given) for names in inputs):
        return None
    for names in inputs:
        found |= dict(zip(names, given))
    return found if all(isinstance(v, (np.ndarray, list)) for v in found.values()) else None
