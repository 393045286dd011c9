"""Raise the opset of a model, by onnx's version converter, without losing what the converter does not carry.

The converter goes through a representation of its own, which has no room for metadata of nodes, quantization
annotations, most value_info, or external data. It is given a skeleton; what it changed is put back into the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnx import GraphProto, ModelProto, NodeProto

from onnxopt.conversion.adapters import Conversion, Unconvertible
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph.ir_version import raise_ir_version
from onnxopt.protos import attribute_bytes, body_graphs, is_external, tensor_bytes, tensor_value_info

if TYPE_CHECKING:
    from onnxopt.worker.limits import Limits

_DATA_UP_TO: Final = 1 << 10  # adapters read constants such as scales and axes; weights stay where they are


def convert_opset(proto: ModelProto, target: int, path: Path, limits: Limits | None = None) -> bool:
    """Change `proto` so that it uses version `target` of the default domain; False where it does already.

    The converter runs in a process of its own: of odd models it crashes.

    Raises UsageError for a version that is lower, or that the installed onnx does not know; ModelError where an
    operator cannot be converted, and for models with functions, which import versions of their own.
    """
    from onnx import defs

    current = opset_of(proto)
    if target == current:
        return False
    if target < current or not current:
        raise UsageError(f"{path} uses opset {current}, which is not converted down to {target}", "name a higher one")
    if target > defs.onnx_opset_version():
        raise UsageError(
            f"the installed onnx knows opsets up to {defs.onnx_opset_version()}, not {target}", "install a newer onnx"
        )
    if proto.functions:
        raise ModelError(f"{path} has functions, whose opset is their own", "put them in place by --inline-functions")
    if any(t.algorithm.node or t.initialization.node for t in proto.training_info):
        raise ModelError(f"{path} has training graphs, which are not converted", "leave out --target-opset")
    conversion = Conversion(proto.graph, current, target)
    try:
        converted = _converted(proto, conversion, path, limits).graph
        _take_nodes(proto.graph, converted, conversion)
    except Unconvertible as e:
        raise ModelError(f"{path} cannot be converted to opset {target}: {e}", "try a lower opset") from None
    raise_ir_version(proto, _ir_version(target))
    for o in proto.opset_import:
        if o.domain in ("", "ai.onnx"):
            o.version = target
    return True


def opset_of(proto: ModelProto) -> int:
    """The version of the default domain; 0 without one."""
    return next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)


def _ir_version(opset: int) -> int:
    """The first IR version that has the opset."""
    from onnx import helper

    return int(helper.find_min_ir_version_for([helper.make_opsetid("", opset)]))


def _converted(proto: ModelProto, conversion: Conversion, path: Path, limits: Limits | None) -> ModelProto:
    from onnxopt.worker.limits import Limits
    from onnxopt.worker.room import Declined, Room
    from onnxopt.worker.serving import Refused

    target, skeleton = conversion.target, _skeleton(proto)
    conversion.hide(skeleton.graph)
    try:
        with Room(limits or Limits()) as room:
            return ModelProto.FromString(room.call("convert", skeleton.SerializeToString(), target))
    except Refused as e:
        reason, hint = str(e), "onnx's version converter says so; try a lower opset, or export the model again"
    except Declined as e:
        reason, hint = f"onnx's version converter {e}", "try a lower opset, or export the model again"
    raise ModelError(f"{path} cannot be converted to opset {target}: {reason}", hint)


def _skeleton(proto: ModelProto) -> ModelProto:
    """The model without large data: those initializers are inputs. Names and nodes are the same."""
    skeleton = ModelProto(ir_version=max(proto.ir_version, 4))
    skeleton.opset_import.extend(proto.opset_import)
    graph, source = skeleton.graph, proto.graph
    graph.name = source.name or "main"
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    given = {i.name for i in source.input}
    for tensor in source.initializer:
        if tensor.name in given:
            continue
        if is_external(tensor) or tensor_bytes(tensor.data_type, tensor.dims) > _DATA_UP_TO:
            graph.input.append(tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            graph.initializer.append(tensor)
    for sparse in source.sparse_initializer:
        graph.input.append(tensor_value_info(sparse.values.name, sparse.values.data_type, sparse.dims))
    return skeleton


def _take_nodes(graph: GraphProto, converted: GraphProto, conversion: Conversion) -> None:
    """The nodes of `converted` in `graph`: its own protos where nothing changed, their names and notes elsewhere."""
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
    """Operator, operands and attributes, whatever the order in which they are written."""
    return node.op_type, _trimmed(node.input), _trimmed(node.output), attribute_bytes(node)


def _trimmed(names: Iterable[str]) -> list[str]:
    """Without the absent ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found
