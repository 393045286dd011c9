"""Adapters of operators that onnx's version converter converts wrongly, or leaves unconverted.

The faults were found by running each operator of each opset from 7 on, converted up, against the original in
onnxruntime. An operator without a form in the newer opset is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onnx import GraphProto, NodeProto

from onnxopt.conversion.known import Known
from onnxopt.conversion.steps import Steps
from onnxopt.proto.messages import DEFAULT_DOMAINS, attribute_value, body_graphs, make_node

Adapter = Callable[["Conversion", NodeProto, NodeProto], "list[NodeProto]"]
# Where the meaning of an operator changed: the converter sees an Identity of its first operand in its place.
HIDDEN: Final = {"Hardmax": 13, "GroupNormalization": 21}


class Unconvertible(Exception):
    """A node has no form in the newer opset; says why."""


class Conversion:
    """A graph's conversion from one version of the default domain to another."""

    def __init__(self, known: Known, current: int, target: int) -> None:
        self.known, self.current, self.target = known, current, target

    def crosses(self, version: int) -> bool:
        """Return whether the conversion begins below `version` and ends at `version` or above."""
        return self.current < version <= self.target

    def is_hidden(self, node: NodeProto) -> bool:
        return node.domain in DEFAULT_DOMAINS and self.crosses(HIDDEN.get(node.op_type, 0))

    def hide(self, graph: GraphProto) -> None:
        """Put an Identity in place of each hidden node. Raises Unconvertible."""
        for node in graph.node:
            if node.domain in DEFAULT_DOMAINS:
                self._refuse(node)
            if self.is_hidden(node):
                node.op_type = "Identity"
                del node.input[1:], node.attribute[:]
            for _, body in body_graphs(node):
                self.hide(body)

    def _refuse(self, node: NodeProto) -> None:
        if node.op_type == "Dropout" and len(node.output) > 1 and node.output[1] in self.known.reads:
            if self.crosses(10) or self.crosses(12):
                raise Unconvertible(f"the mask of Dropout, `{node.output[1]}`, has another type or other values there")
        mode = _attribute(node, "coordinate_transformation_mode")
        if node.op_type == "Resize" and self.crosses(13) and mode == "tf_half_pixel_for_nn":
            raise Unconvertible(f"Resize, which makes `{node.output[0]}`, has no mode {mode} from opset 13 on")

    def adapted(self, old: NodeProto, new: NodeProto) -> list[NodeProto]:
        """Return the nodes in place of `new`, the converter's form of `old`. Raises Unconvertible."""
        if old.domain not in DEFAULT_DOMAINS:
            return [new]
        since, adapter = _ADAPTERS.get(old.op_type, (0, None))
        return adapter(self, old, new) if adapter is not None and self.crosses(since) else [new]


def _attribute(node: NodeProto, name: str) -> Any:
    return next((attribute_value(a) for a in node.attribute if a.name == name), None)


def _hardmax(conversion: Conversion, old: NodeProto, new: NodeProto) -> list[NodeProto]:
    """Before opset 13, Hardmax joined the axes before `axis`, and the axes from `axis` on."""
    steps = Steps(conversion.known, old.output[0])
    axis = _attribute(old, "axis")
    flat = steps("Flatten", old.input[0], axis=1 if axis is None else axis)
    largest = steps("Hardmax", flat, axis=-1)
    empty = {"allowzero": 1} if conversion.target >= 14 else {}
    steps("Reshape", largest, steps("Shape", old.input[0]), name=old.output[0], **empty)
    return steps.nodes


def _group_normalization(conversion: Conversion, old: NodeProto, new: NodeProto) -> list[NodeProto]:
    """Before opset 21, scale and bias had an element for each group, not for each channel."""
    steps = Steps(conversion.known, old.output[0])
    groups = steps.constant([_attribute(old, "num_groups")])
    channels = steps("Shape", old.input[0], start=1, end=2)
    one = steps.constant([1])
    table = steps("Concat", groups, steps("Div", channels, groups), axis=0)
    wide = [steps("Expand", steps("Unsqueeze", operand, one), table) for operand in old.input[1:]]
    made = NodeProto()
    made.CopyFrom(old)
    made.input[1:] = [steps("Reshape", operand, channels) for operand in wide]
    return [*steps.nodes, made]


def _resize(conversion: Conversion, old: NodeProto, new: NodeProto) -> list[NodeProto]:
    """Before opset 11, Resize read the element at x / scale, rounded down to enlarge, and up to shrink."""
    if new.op_type != "Resize":
        raise Unconvertible(f"{old.op_type}, which makes `{old.output[0]}`, became {new.op_type}")
    mode = _attribute(old, "mode") or "nearest"
    nearest: dict[str, str] = {}
    if mode == "nearest":
        scales = _attribute(old, "scales")
        scales = scales if scales is not None else conversion.known.constant(old.input[1])
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
