"""Operators that onnx's version converter converts wrongly, or as if nothing had changed: adapters of our own.

Found by running it: each operator of each opset from 7 on, converted up, against the original in onnxruntime. What has
no form in the newer opset is refused, by the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onnx import GraphProto, NodeProto

from onnxopt.protos import DEFAULT_DOMAINS, attribute_value, body_graphs, is_external, make_node, tensor_to_array

Adapter = Callable[["Conversion", NodeProto, NodeProto], "list[NodeProto]"]
# Where the meaning of an operator changed: the converter sees an Identity of its first operand in its place.
HIDDEN: Final = {"Hardmax": 13, "GroupNormalization": 21}


class Unconvertible(Exception):
    """A node has no form in the newer opset; says why."""


class Conversion:
    """A graph's conversion from one version of the default domain to another. `known`: constants by name."""

    def __init__(self, graph: GraphProto, current: int, target: int) -> None:
        self.current, self.target = current, target
        self.known: dict[str, Any] = {}
        self._names: set[str] = set()
        self._read: set[str] = set()
        self._learn(graph)

    def _learn(self, graph: GraphProto) -> None:
        self._names.update(v.name for v in (*graph.input, *graph.initializer))
        self._read.update(o.name for o in graph.output)
        for tensor in graph.initializer:
            if not is_external(tensor) and len(tensor.dims) == 1 and tensor.dims[0] <= 8:
                self.known[tensor.name] = tensor_to_array(tensor)
        for node in graph.node:
            self._names.update(node.output)
            self._read.update(node.input)
            if node.op_type == "Constant" and node.output and node.attribute and not is_external(node.attribute[0].t):
                self.known[node.output[0]] = attribute_value(node.attribute[0])
            for _, body in body_graphs(node):
                self._learn(body)

    def crosses(self, version: int) -> bool:
        """Does the conversion go from before this version to it, or beyond?"""
        return self.current < version <= self.target

    def is_hidden(self, node: NodeProto) -> bool:
        return node.domain in DEFAULT_DOMAINS and self.crosses(HIDDEN.get(node.op_type, 0))

    def hide(self, graph: GraphProto) -> None:
        """Put what the converter is not to see in place of such nodes. Raises Unconvertible."""
        for node in graph.node:
            if node.domain in DEFAULT_DOMAINS:
                self._refuse(node)
            if self.is_hidden(node):
                node.op_type = "Identity"
                del node.input[1:], node.attribute[:]
            for _, body in body_graphs(node):
                self.hide(body)

    def _refuse(self, node: NodeProto) -> None:
        if node.op_type == "Dropout" and len(node.output) > 1 and node.output[1] in self._read:
            if self.crosses(10) or self.crosses(12):
                raise Unconvertible(f"the mask of Dropout, `{node.output[1]}`, has another type or other values there")
        mode = _attribute(node, "coordinate_transformation_mode")
        if node.op_type == "Resize" and self.crosses(13) and mode == "tf_half_pixel_for_nn":
            raise Unconvertible(f"Resize, which makes `{node.output[0]}`, has no mode {mode} from opset 13 on")

    def adapted(self, old: NodeProto, new: NodeProto) -> list[NodeProto]:
        """What takes the place of `new`, which the converter made of `old`. Raises Unconvertible."""
        if old.domain not in DEFAULT_DOMAINS:
            return [new]
        since, adapter = _ADAPTERS.get(old.op_type, (0, None))
        return adapter(self, old, new) if adapter is not None and self.crosses(since) else [new]

    def fresh(self, name: str) -> str:
        """A name that no value has, made of this one."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _attribute(node: NodeProto, name: str) -> Any:
    return next((attribute_value(a) for a in node.attribute if a.name == name), None)


class _Steps:
    """Nodes one after the other, of which each makes one value."""

    def __init__(self, conversion: Conversion, base: str) -> None:
        self._conversion, self._base = conversion, base
        self.nodes: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        node = make_node(op, "", "", attributes)
        node.input.extend(inputs)
        node.output.append(to or self._conversion.fresh(f"{self._base}_{op.lower()}"))
        self.nodes.append(node)
        return str(node.output[0])

    def ints(self, *numbers: int) -> str:
        return self("Constant", value_ints=list(numbers))


def _hardmax(conversion: Conversion, old: NodeProto, new: NodeProto) -> list[NodeProto]:
    """Before opset 13 the axes before `axis` were one, and so were those from it on."""
    steps = _Steps(conversion, old.output[0])
    axis = _attribute(old, "axis")
    flat = steps("Flatten", old.input[0], axis=1 if axis is None else axis)
    largest = steps("Hardmax", flat, axis=-1)
    empty = {"allowzero": 1} if conversion.target >= 14 else {}
    steps("Reshape", largest, steps("Shape", old.input[0]), to=old.output[0], **empty)
    return steps.nodes


def _group_normalization(conversion: Conversion, old: NodeProto, new: NodeProto) -> list[NodeProto]:
    """Before opset 21 scale and bias were those of a group, not of a channel."""
    steps = _Steps(conversion, old.output[0])
    groups = steps.ints(_attribute(old, "num_groups"))
    channels = steps("Shape", old.input[0], start=1, end=2)
    one = steps.ints(1)
    table = steps("Concat", groups, steps("Div", channels, groups), axis=0)
    wide = [steps("Expand", steps("Unsqueeze", operand, one), table) for operand in old.input[1:]]
    made = NodeProto()
    made.CopyFrom(old)
    made.input[1:] = [steps("Reshape", operand, channels) for operand in wide]
    return [*steps.nodes, made]


def _resize(conversion: Conversion, old: NodeProto, new: NodeProto) -> list[NodeProto]:
    """Before opset 11 numbers were taken from where x / scale is: of what grows from the one before it, of what shrinks
    from the one behind."""
    if new.op_type != "Resize":
        raise Unconvertible(f"{old.op_type}, which makes `{old.output[0]}`, became {new.op_type}")
    mode = _attribute(old, "mode") or "nearest"
    nearest: dict[str, str] = {}
    if mode == "nearest":
        scales = _attribute(old, "scales")
        scales = scales if scales is not None else conversion.known.get(old.input[1])
        if old.op_type == "Resize" and (scales is None or (min(scales) < 1 < max(scales))):
            why = "not known" if scales is None else "above and below 1"
            raise Unconvertible(f"Resize, which makes `{old.output[0]}`, has scales that are {why}")
        nearest = {"nearest_mode": "ceil" if scales is not None and min(scales) < 1 else "floor"}
    made = NodeProto()
    made.CopyFrom(new)
    changed = {"coordinate_transformation_mode": "asymmetric", **nearest}
    kept = [a for a in new.attribute if a.name not in changed]
    del made.attribute[:]
    made.attribute.extend([*kept, *make_node("Resize", "", "", changed).attribute])
    return [made]


_ADAPTERS: Final[Mapping[str, tuple[int, Adapter]]] = {
    "Hardmax": (13, _hardmax),
    "GroupNormalization": (21, _group_normalization),
    "Resize": (11, _resize),
    "Upsample": (11, _resize),
}
