"""A hash of a model's contents. Detects edits of the protos that bypass the version counter."""

from __future__ import annotations

from typing import Any, Final

from onnxopt.graph.model import Model
from onnxopt.graph.writer import write_deferred
from onnxopt.proto.messages import tensor_bytes

# bytes; smaller tensors (scales, target shapes) are hashed by content, larger ones by name and type
_SMALL_BYTES: Final = 4096


def fingerprint(model: Model) -> bytes:
    """Return a hash of the model without the (read-only) data of large weights. Updates the model's proto."""
    import hashlib  # OpenSSL takes its time to load

    found = hashlib.sha256()

    def add(*messages: Any) -> None:
        for m in messages:
            found.update(m.SerializeToString(deterministic=True))

    proto, _ = write_deferred(model, _SMALL_BYTES)
    graph = proto.graph
    add(*proto.opset_import, *proto.metadata_props, *proto.functions)
    add(*graph.input, *graph.output, *graph.value_info, *graph.metadata_props, *graph.node)
    for tensor in graph.initializer:
        found.update(f"{tensor.name}: {tensor.data_type}{list(tensor.dims)}".encode(errors="replace"))
        if tensor_bytes(tensor.data_type, tensor.dims) < _SMALL_BYTES:
            add(tensor)
    for node in model.nodes():
        named = (v.name if v is not None else "" for v in (*node.inputs, None, *node.outputs))
        found.update(f"{node.op}({','.join(named)})".encode(errors="replace"))
    return found.digest()
