"""Shapes declared inside bodies, which no runtime checks: removed before shape inference.

Declarations of inner values of the main graph are not read by `inference` at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import NodeProto, TypeProto

from onnxopt.graph.dims import rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.proto.messages import body_graphs, qualified


def forget_claims(owner: NodeProto, scope: Graph, called: Collection[str]) -> None:
    """Remove declared shapes and dim names from the bodies of a node.

    A dim name in a body holds for a single execution: outside, and in the next iteration, the size may differ. Declared
    shapes of body inputs and of known operators' results may be wrong. Runtimes check only a Loop's counter and
    condition, and collected outputs of a Scan.
    """
    for _, body in body_graphs(owner):
        kept = {o for n in body.node if _is_opaque(n, scope, called) for o in n.output}
        if owner.op_type == "Loop":
            kept.update(i.name for i in body.input[:2])
        elif owner.op_type == "Scan":
            scanned = next((a.i for a in owner.attribute if a.name == "num_scan_inputs"), 0)
            kept.update(o.name for o in body.output[len(body.input) - scanned :])
        for info in (*body.input, *body.value_info, *body.output):
            rename_dims(info.type, lambda name: "")
            if info.name not in kept:
                forget_shape(info.type)
        for node in body.node:
            forget_claims(node, scope, called)


def carried(owner: NodeProto) -> Iterator[tuple[NodeProto, int]]:
    """Yield (Loop, input index) for each sequence or optional carried by the Loop or a nested one.

    onnx infers the elements' shape from the initial value; later iterations may change it.
    """
    for _, body in body_graphs(owner):
        if owner.op_type == "Loop":
            for i, info in enumerate(body.input):
                if i < len(owner.input) and info.type.WhichOneof("value") in ("sequence_type", "optional_type"):
                    yield owner, i
        for node in body.node:
            yield from carried(node)


def _is_opaque(node: NodeProto, scope: Graph, called: Collection[str]) -> bool:
    """Whether only the file defines the operator. A node without operator is hidden, and not opaque."""
    op = qualified(node.op_type, node.domain)
    return bool(op) and op not in called and not scope.knows(op)


def forget_shape(kind: TypeProto) -> None:
    """Remove the shape from a type, also from elements of a sequence or optional."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        kind.tensor_type.ClearField("shape")
    elif which in ("sequence_type", "optional_type"):
        forget_shape(getattr(kind, which).elem_type)
