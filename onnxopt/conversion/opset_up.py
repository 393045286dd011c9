"""Raise the opset of a model by onnx's version converter, and keep all data that the converter drops.

The converter's representation has no metadata of nodes, quantization annotations, external data, and little
value_info. The converter is given a skeleton, and changed nodes are put back into the model. It runs in a separate
process, because some models crash it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto

from onnxopt.conversion.adapters import Conversion, Unconvertible
from onnxopt.conversion.known import Known, skeleton
from onnxopt.errors import ModelError
from onnxopt.proto.messages import attribute_bytes, body_graphs
from onnxopt.worker import Limits


def raise_opset(proto: ModelProto, current: int, target: int, path: Path, limits: Limits) -> None:
    """Change the nodes of `proto` to a newer version of the default domain. Raises ModelError for an operator without a
    form there."""
    conversion = Conversion(Known(proto), current, target)
    try:
        converted = _converted(proto, conversion, path, limits).graph
        _take_nodes(proto.graph, converted, conversion)
    except Unconvertible as e:
        raise ModelError(f"{path} cannot be converted to opset {target}: {e}", "try a lower opset") from None


def _converted(proto: ModelProto, conversion: Conversion, path: Path, limits: Limits) -> ModelProto:
    from onnxopt.worker.service import Declined, Sandbox
    from onnxopt.worker.serving import Refused

    target, light = conversion.target, skeleton(proto)
    conversion.hide(light.graph)
    try:
        with Sandbox(limits) as sandbox:
            return ModelProto.FromString(sandbox.call("convert", light.SerializeToString(), target))
    except Refused as e:
        reason, hint = str(e), "onnx's version converter says so; try a lower opset, or export the model again"
    except Declined as e:
        reason, hint = f"onnx's version converter {e}", "try a lower opset, or export the model again"
    raise ModelError(f"{path} cannot be converted to opset {target}: {reason}", hint)


def _take_nodes(graph: GraphProto, converted: GraphProto, conversion: Conversion) -> None:
    """Put the nodes of `converted` into `graph`; changed nodes keep their former names and notes."""
    by_output = {name: node for node in graph.node for name in node.output if name}
    nodes = []
    for new in converted.node:
        old = next((by_output[name] for name in new.output if name in by_output), None)
        if old is None:
            new.name = ""  # it has that of the node it belongs to, and names must differ
            nodes.append(new)
            continue
        *before, made = conversion.adapted(old, new)
        nodes += [*before, _merged(old, made, conversion)]
    own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    graph.initializer.extend(t for t in converted.initializer if t.name not in own)
    del graph.node[:]
    graph.node.extend(nodes)


def _merged(old: NodeProto, new: NodeProto, conversion: Conversion) -> NodeProto:
    """`old` if `new` says the same, bodies merged; else `new` with the name and the notes of `old`."""
    before = dict(body_graphs(old))
    for name, body in body_graphs(new):
        if name in before:
            _take_nodes(before[name], body, conversion)
            body.CopyFrom(before[name])
    if _call(old) == _call(new):
        return old
    node = NodeProto()
    node.CopyFrom(new)
    node.name, node.doc_string = old.name, old.doc_string
    if not node.metadata_props:
        node.metadata_props.extend(old.metadata_props)
    return node


def _call(node: NodeProto) -> tuple[object, ...]:
    """Return operator, operands and attributes, independent of the order in the file."""
    return node.op_type, _trimmed(node.input), _trimmed(node.output), attribute_bytes(node)


def _trimmed(names: Iterable[str]) -> list[str]:
    """Without the absent ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found
