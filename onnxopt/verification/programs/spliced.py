"""A model with branches in place of the Ifs that take them: on whatever takes these, it is the same."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from onnxopt.verification.programs.program import Program, bodies

if TYPE_CHECKING:
    from onnx import NodeProto


def with_branches(program: Program, branches: Mapping[int, str], kept: Collection[str]) -> Program | None:
    """A main graph with these branches, by node, in place of Ifs, which gives out what is to be `kept`, too. None where
    they have names that others have."""
    from onnx import ModelProto

    skeleton = copy.copy(program.skeleton)
    skeleton.proto = ModelProto()
    skeleton.proto.CopyFrom(program.skeleton.proto)
    graph = skeleton.proto.graph
    del graph.node[:]
    names = {*program.maker, *program.given, *program.constants, *program.sparse}
    for i, node in enumerate(program.nodes):
        if i not in branches:
            graph.node.append(node)
            continue
        body = bodies(node)[branches[i]]
        made = [o for n in body.node for o in n.output if o]
        made += [t.name for t in body.initializer] + [t.values.name for t in body.sparse_initializer]
        if not names.isdisjoint(made):
            return None
        names.update(made)
        graph.node.extend(opened(node, branches[i]))
        graph.initializer.extend(body.initializer)
        graph.sparse_initializer.extend(body.sparse_initializer)
    for name in kept:
        graph.output.add(name=name)
    return Program(skeleton, fed=program.given & program.constants.keys())


def opened(node: NodeProto, branch: str) -> list[NodeProto]:
    """The nodes of a branch, and what hands its results on as those of the If."""
    from onnx import NodeProto

    body = bodies(node)[branch]
    given = zip((o.name for o in body.output), node.output)
    return [*body.node, *(NodeProto(op_type="Identity", input=[o], output=[to]) for o, to in given if to)]
