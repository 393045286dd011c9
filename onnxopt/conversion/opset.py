"""Conversion of a model to another opset, and the way up by onnx's version converter.

The converter's representation has no metadata of nodes, quantization annotations, external data, and little
value_info. The converter is given a skeleton, and changed nodes are put back into the model. The converter runs in a
separate process, because some models crash the converter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxopt.conversion.call import Call, Inexpressible, KnownValues, copy_description, skeleton
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph.schema import is_standard, raise_ir_version
from onnxopt.proto.functions import called_functions
from onnxopt.proto.messages import (
    DEFAULT_DOMAINS,
    all_nodes,
    attribute_bytes,
    body_graphs,
    numpy_dtype,
    training_graphs,
)
from onnxopt.worker.limits import Limits

LOWEST: Final = 11  # no older target: older opsets have no negative axes


def convert_opset(proto: ModelProto, target: int, path: Path, limits: Limits | None = None) -> bool:
    """Convert `proto` to version `target` of the default domain. Return False for a model of this version.

    Raises UsageError for a version beyond the installed onnx, and for a version below `LOWEST`; ModelError for an
    operator without a form there, and for models with functions, whose opset imports are their own.
    """
    from onnx import defs

    current, newest = opset_of(proto), defs.onnx_opset_version()
    if target == current:
        return False
    _refuse_opsets(current, target, newest, path)
    if what := further_graphs(proto):
        hint = "put them in place by --inline-functions" if proto.functions else "leave out --target-opset"
        raise ModelError(f"{path} has {what}", hint)
    del proto.functions[:]  # without a call, and of the opset before
    if target > current:
        raise_opset(proto, current, target, path, limits or Limits())
    else:
        from onnxopt.conversion.opset_down import lower_opset

        lower_opset(proto, current, target, path, limits or Limits())
    for o in proto.opset_import:
        if o.domain in DEFAULT_DOMAINS:
            o.version = target
    _set_ir_version(proto, lowered=target < current)
    return True


def _set_ir_version(proto: ModelProto, *, lowered: bool) -> None:
    """Raise the IR version to that of the imports in use; a lowered model gets this version and these imports."""
    from onnx import helper

    called = {*DEFAULT_DOMAINS, *(node.domain for node in all_nodes(proto.graph.node))}
    needed = [o for o in proto.opset_import if o.domain in called or not is_standard(o.domain)]
    least = helper.find_min_ir_version_for(needed, ignore_unknown=True)
    raise_ir_version(proto, least)
    if lowered:  # runtimes of that time do not read later ones
        proto.ir_version = least
        del proto.opset_import[:]
        proto.opset_import.extend(needed)


def further_graphs(proto: ModelProto) -> str:
    """Return the kind of graphs that no conversion of the opset reaches; empty for a model of one graph."""
    if proto.functions and called_functions(proto):
        return "functions, whose opsets are their own"
    has_training = any(graph.node for graph in training_graphs(proto))
    return "training graphs, which are not converted" if has_training else ""


def _refuse_opsets(current: int, target: int, newest: int, path: Path) -> None:
    """Raise UsageError for a target without conversion, and ModelError for an opset unknown to the installed onnx."""
    if not current or target < min(current, LOWEST):
        what = f"uses opset {current}" if current else "uses no operator of the standard"
        raise UsageError(f"{path} {what}, which is not converted down to {target}", f"the lowest is {LOWEST}")
    if target > newest:
        raise UsageError(f"the installed onnx knows opsets up to {newest}, not {target}", "install a newer onnx")
    if current > newest:
        raise ModelError(
            f"{path} uses opset {current}, the installed onnx knows up to {newest}", "install a newer onnx"
        )


def opset_of(proto: ModelProto) -> int:
    """Return the version of the default domain; 0 without an import."""
    return next((o.version for o in proto.opset_import if o.domain in DEFAULT_DOMAINS), 0)


# -- the way up -------------------------------------------------------------------------------------------------------


def raise_opset(proto: ModelProto, current: int, target: int, path: Path, limits: Limits) -> None:
    """Change the nodes of `proto` to a newer version of the default domain.

    Raises ModelError for an operator without a form there.
    """
    conversion = Conversion(KnownValues(proto), current, target)
    if conversion.crosses(11):
        conversion.known.infer(proto, current)  # Pad has an operand of the type of its data from then on
    try:
        converted = _converted(proto, conversion, path, limits).graph
        _take_nodes(proto.graph, converted, conversion)
    except Inexpressible as e:
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
            new.name = ""  # the converter repeats the name of another node, and names must differ
            nodes.append(new)
            continue
        *before, made = conversion.adapted(old, new)
        nodes += [*before, _merged(old, made, conversion)]
    del graph.node[:]
    graph.node.extend(nodes)
    own = {given.name for given in (*graph.initializer, *graph.input)}
    graph.initializer.extend(t for t in converted.initializer if t.name not in own)


def _merged(old: NodeProto, new: NodeProto, conversion: Conversion) -> NodeProto:
    """Return `old` if `new` is the same call, with merged bodies; else `new` with the name and notes of `old`."""
    before = dict(body_graphs(old))
    for name, body in body_graphs(new):
        if name in before:
            _take_nodes(before[name], body, conversion)
            body.CopyFrom(before[name])
    if _call(old) == _call(new):
        return old
    copy_description(new, old)
    return new


def _call(node: NodeProto) -> tuple[object, ...]:
    """Return operator, operands and attributes, independent of the order in the file."""
    return node.op_type, _trimmed(node.input), _trimmed(node.output), attribute_bytes(node)


def _trimmed(names: Iterable[str]) -> list[str]:
    """Return the names without absent ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


# -- operators that onnx's version converter converts wrongly, or leaves unconverted ----------------------------------

# Where the meaning of an operator changed: the converter sees an Identity of its first operand in its place.
HIDDEN: Final = {"Hardmax": 13, "GroupNormalization": 21}
# Where the converter makes a new node: the result gets another name, and adapters find nodes by their results.
REPLACED: Final = frozenset({"Upsample"})


class Conversion:
    """A conversion from one version of the default domain to a newer version.

    The adapters were found by running each operator of each opset from 7 on, converted up, against the original in
    onnxruntime. An operator without a form in the newer opset is refused by name.
    """

    def __init__(self, known: KnownValues, current: int, target: int) -> None:
        self.known, self.current, self.target = known, current, target

    def crosses(self, version: int) -> bool:
        """Return whether the conversion begins below `version` and ends at `version` or above."""
        return self.current < version <= self.target

    def hide(self, graph: GraphProto) -> None:
        """Put an Identity in place of each hidden node, and keep the names of replaced nodes. Raises Inexpressible."""
        for node in graph.node:
            if node.op_type in REPLACED and all(o.name != node.output[0] for o in graph.output):
                graph.output.append(ValueInfoProto(name=node.output[0]))  # the converter keeps the names of outputs
            if node.domain in DEFAULT_DOMAINS:
                self._refuse(node)
                if self.crosses(HIDDEN.get(node.op_type, 0)):
                    node.op_type = "Identity"
                    del node.input[1:], node.attribute[:]
            for _, body in body_graphs(node):
                self.hide(body)

    def _refuse(self, node: NodeProto) -> None:
        if node.op_type == "Dropout" and len(node.output) > 1 and node.output[1] in self.known.reads:
            if self.crosses(10) or self.crosses(12):
                raise Inexpressible(f"the mask of Dropout, `{node.output[1]}`, has another type or other values there")
        if node.op_type == "Resize" and self.crosses(13):
            mode = Call(node, self.current, self.known).attr("coordinate_transformation_mode")
            if mode == "tf_half_pixel_for_nn":
                raise Inexpressible(f"Resize, which makes `{node.output[0]}`, has no mode {mode} from opset 13 on")

    def adapted(self, old: NodeProto, new: NodeProto) -> list[NodeProto]:
        """Return the nodes in place of `new`, the converter's form of `old`. Raises Inexpressible."""
        since, adapter = _ADAPTERS.get(old.op_type, (0, None)) if old.domain in DEFAULT_DOMAINS else (0, None)
        if adapter is None or not self.crosses(since):
            return [new]
        return adapter(Call(old, self.current, self.known), Call(new, self.target, self.known))


def _hardmax(old: Call, new: Call) -> list[NodeProto]:
    """Before opset 13, Hardmax joined the axes before `axis`, and the axes from `axis` on."""
    op = old.op
    largest = op("Hardmax", op("Flatten", old.input(0), axis=old.attr("axis")), axis=-1)
    empty = {"allowzero": 1} if new.since >= 14 else {}
    op("Reshape", largest, op("Shape", old.input(0)), name=old.made[0], **empty)
    return op.nodes


def _group_normalization(old: Call, new: Call) -> list[NodeProto]:
    """Before opset 21, scale and bias had an element for each group, not for each channel."""
    op = old.op
    groups = op.constant([old.attr("num_groups")])
    channels = op("Shape", old.input(0), start=1, end=2)
    one = op.constant([1])
    table = op("Concat", groups, op("Div", channels, groups), axis=0)
    wide = [op("Expand", op("Unsqueeze", operand, one), table) for operand in old.node.input[1:]]
    return old.rewritten(inputs=[old.input(0), *(op("Reshape", operand, channels) for operand in wide)])


def _pad(old: Call, new: Call) -> list[NodeProto]:
    """Before opset 11, Pad had an attribute `value`. The converter makes it float32, or keeps it in the other modes."""
    inputs = list(new.node.input[:2])
    if old.attr("mode") == "constant" and old.attr("value"):
        inputs.append(new.op.constant(old.attr("value"), numpy_dtype(old.element_type() or TensorProto.FLOAT)))
    return new.rewritten(inputs=inputs, without=["value"])


def _resize(old: Call, new: Call) -> list[NodeProto]:
    """Before opset 11, Resize read the element at x / scale, rounded down to enlarge, and up to shrink."""
    nearest = {"nearest_mode": _rounding(old)} if old.attr("mode") == "nearest" else {}
    return new.rewritten(coordinate_transformation_mode="asymmetric", **nearest)


def _rounding(old: Call) -> str:
    """Return the `nearest_mode` that rounds as an older Resize or Upsample did."""
    scales = old.attr("scales")
    scales = scales if scales is not None else old.known.constant(old.input(1))
    if old.node.op_type == "Resize" and (scales is None or (min(scales) < 1 < max(scales))):
        why = "not known" if scales is None else "above and below 1"
        raise Inexpressible(f"Resize, which makes `{old.made[0]}`, has scales that are {why}")
    return "ceil" if scales is not None and min(scales) < 1 else "floor"


_ADAPTERS: Final[Mapping[str, tuple[int, Callable[[Call, Call], list[NodeProto]]]]] = {
    "Hardmax": (13, _hardmax),
    "GroupNormalization": (21, _group_normalization),
    "Pad": (11, _pad),
    "Resize": (11, _resize),
    "Upsample": (11, _resize),
}
