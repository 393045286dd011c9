"""Branches with which the original cannot come to an end, whatever the sizes: nobody has a result of them.

An If that gives one number of axes or another, before what takes only one. onnx's inference is asked, of the original
alone: it knows nothing of how a rewrite came to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnxopt.verification.programs.program import Program, bodies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import GraphProto, ModelProto, NodeProto

_MANY: Final = 16  # parts, of each of which it would be asked


def cannot_be_taken(program: Program, i: int, name: str) -> bool:
    """Does the model fail whenever node i, an If of the main graph, takes this branch, and not for the other's sake?"""
    node = program.nodes[i]
    branches = bodies(node)
    is_main = program.graph is program.skeleton.proto.graph
    if not is_main or node.op_type != "If" or name not in branches or len(program.hiding) > _MANY:
        return False
    others = [body for other, body in branches.items() if other != name]
    return _fails(program, i, branches[name]) and not any(_fails(program, i, body) for body in others)


def _fails(program: Program, i: int, taken: GraphProto) -> bool:
    """Is there an error, of tensors of any size, with this branch in place of node i?"""
    from onnxopt.inferring import InferenceError, infer_shapes, inferable

    try:
        inferred = infer_shapes(inferable(_with_branch(program, i, taken)), strict=True)
    except InferenceError:
        return True
    except Exception:
        return False  # it cannot be asked
    return _has_odd_transpose(inferred.graph)


def _has_odd_transpose(graph: GraphProto) -> bool:
    """Does a Transpose put fewer axes in order than there are? onnx does not mind, runtimes do."""
    infos = [i for i in (*graph.input, *graph.value_info, *graph.output) if i.type.tensor_type.HasField("shape")]
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in infos}
    for node in graph.node:
        if node.op_type == "Transpose" and not node.domain and node.input:
            axes = next((len(a.ints) for a in node.attribute if a.name == "perm"), 0)
            if axes and ranks.get(node.input[0], axes) != axes:
                return True
    return False


def _with_branch(program: Program, i: int, taken: GraphProto) -> ModelProto:
    """The original, with the branch in place of node i. Of what hides other parts, which may not run, nothing is
    known; nor is what the file says of shapes, which nobody has to keep."""
    from onnx import ModelProto, NodeProto

    model = ModelProto()
    model.CopyFrom(program.skeleton.proto)
    graph = model.graph
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    del graph.node[:], graph.value_info[:], graph.output[:]
    hiding = set(program.hiding)
    for j, node in enumerate(program.nodes):
        if j != i:
            graph.node.append(_hidden(node) if j in hiding else node)
            continue
        graph.node.extend(_open(taken.node))
        given = zip((o.name for o in taken.output), node.output)
        graph.node.extend(NodeProto(op_type="Identity", input=[o], output=[to]) for o, to in given if to)
    graph.initializer.extend(taken.initializer)
    return model


def _open(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    return [_hidden(node) if bodies(node) else node for node in nodes]


def _hidden(node: NodeProto) -> NodeProto:
    """An operator that onnx does not know."""
    from onnx import NodeProto

    return NodeProto(op_type="", input=node.input, output=node.output)
