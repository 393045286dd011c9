"""What a file says of the shapes of values in bodies, which no runtime holds it to: it is forgotten before inference.

In the main graph nothing is believed of values inside; `inference` does not read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import NodeProto, TypeProto

from onnxopt.graph.dim_names import rename_dims
from onnxopt.graph.graph import Graph
from onnxopt.protos import body_graphs, qualified


def forget_claims(owner: NodeProto, scope: Graph, called: Collection[str]) -> None:
    """What bodies call a dim holds in one run of one body: outside, and in the next run, it may be another size. What
    they are given, and what operators make that can be followed, need not even have the shape that is said of it: no
    runtime checks it, but for a Loop's counter and condition and what a Scan collects."""
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
    """The Loops in it, and itself, that carry a sequence or an optional, and as which input. What is in these has the
    shape with which it starts, by onnx; in the next trip it need not."""
    for _, body in body_graphs(owner):
        if owner.op_type == "Loop":
            for i, info in enumerate(body.input):
                if i < len(owner.input) and info.type.WhichOneof("value") in ("sequence_type", "optional_type"):
                    yield owner, i
        for node in body.node:
            yield from carried(node)


def _is_opaque(node: NodeProto, scope: Graph, called: Collection[str]) -> bool:
    """Is it of an operator that only the file knows? One without a name is hidden."""
    op = qualified(node.op_type, node.domain)
    return bool(op) and op not in called and not scope.knows(op)


def forget_shape(kind: TypeProto) -> None:
    """Also that of what is in a sequence or an optional."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        kind.tensor_type.ClearField("shape")
    elif which in ("sequence_type", "optional_type"):
        forget_shape(getattr(kind, which).elem_type)
