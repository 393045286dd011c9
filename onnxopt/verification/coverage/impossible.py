"""Branches with which the original cannot come to an end, whatever the sizes: nobody has a result of them.

An If that gives one number of axes or another, before what takes only one, or another If that asks for the number and
fails in each of its branches. onnx's inference is asked, of the original alone: it knows nothing of how a rewrite came
to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnxopt.verification.coverage.counterparts import opened
from onnxopt.verification.model.decisions import forget_defaults
from onnxopt.verification.programs.program import bodies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto, NodeProto, TensorProto

    from onnxopt.verification.programs.program import Program

_MANY: Final = 16  # parts, of each of which it would be asked
_ASKED: Final = 48  # models that inference is asked about


def cannot_be_taken(program: Program, i: int, name: str) -> bool:
    """Does the model fail whenever node i, an If of the main graph, takes this branch, and not for the other's sake?"""
    known = program.impossible  # each set of cases asks of the same branches
    if (i, name) not in known:
        known[i, name] = _cannot_be_taken(program, i, name)
    return known[i, name]


def _cannot_be_taken(program: Program, i: int, name: str) -> bool:
    node = program.nodes[i]
    is_main = program.graph is program.skeleton.proto.graph
    if not is_main or node.op_type != "If" or name not in bodies(node) or len(program.hiding) > _MANY:
        return False
    return _Failing(program).fails(i, name) and not any(
        _Failing(program).fails(i, other) for other in bodies(node) if other != name
    )


class _Failing:
    """Is there an error, of tensors of any size, with a branch in place of an If?"""

    def __init__(self, program: Program) -> None:
        from onnx import ModelProto

        self._nodes = program.nodes
        self._left = _ASKED
        self._model = ModelProto()
        self._model.CopyFrom(program.skeleton.proto)
        forget_defaults(self._model)
        graph = self._model.graph
        for info in graph.input:  # nor is what the file says of shapes known, which nobody has to keep
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
        del graph.node[:], graph.value_info[:], graph.output[:]

    def fails(self, i: int, branch: str) -> bool:
        return self._fail(self._nodes, i, branch, [])

    def _fail(self, nodes: Sequence[NodeProto], i: int, branch: str, initializers: Sequence[TensorProto]) -> bool:
        """Do these nodes fail so? Or does another of their Ifs, whichever branch that takes?"""
        initializers = [*initializers, *bodies(nodes[i])[branch].initializer]
        nodes = [*nodes[:i], *opened(nodes[i], branch), *nodes[i + 1 :]]
        made = [o for n in nodes for o in n.output if o]
        if len(made) > len(set(made)):
            return False  # branches of two Ifs may call what they make alike
        if self._is_error(nodes, initializers):
            return True
        for k in range(i, len(nodes)):
            others = bodies(nodes[k]) if nodes[k].op_type == "If" else {}
            if self._left > 0 and others and all(self._fail(nodes, k, other, initializers) for other in others):
                return True
        return False

    def _is_error(self, nodes: Sequence[NodeProto], initializers: Sequence[TensorProto]) -> bool:
        """Of what hides other parts, which may not run, nothing is known."""
        from onnxopt.inferring import InferenceError, infer_shapes, inferable

        self._left -= 1
        model = type(self._model)()
        model.CopyFrom(self._model)
        model.graph.node.extend(_hidden(n) if bodies(n) else n for n in nodes)
        model.graph.initializer.extend(initializers)
        try:
            inferred = infer_shapes(inferable(model), strict=True)
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


def _hidden(node: NodeProto) -> NodeProto:
    """An operator that onnx does not know."""
    from onnx import NodeProto

    return NodeProto(op_type="", input=node.input, output=node.output)
