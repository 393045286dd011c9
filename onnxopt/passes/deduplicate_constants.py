"""Equal constants are kept once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from onnx import TensorProto

from onnxopt.graph import Graph, Value
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.protos import is_external, tensor_bytes


@register
@dataclass(frozen=True)
class DeduplicateConstants(GraphPass):
    """Initializers with the same type, shape and bytes become one.

    Keeps: those that are inputs, outputs or named by annotations; data outside the file, which is not read for this;
    one copy for each DequantizeLinear, whose weights runtimes fuse one by one.
    """

    info = PassInfo("deduplicate-constants", opt_level=1)
    max_bytes: int = option(1 << 26, "larger constants are not compared")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        groups: dict[Hashable, list[Value]] = {}
        for value in graph.initializers.values():
            if not value.constant or value.is_input or value.is_output or not value.users:
                continue
            if value.tensor is not None and is_external(value.tensor):
                continue
            if any(user.op == "DequantizeLinear" and user.inputs[0] is value for user in value.users):
                continue
            data_type, dims = value.constant_type()
            if data_type != TensorProto.STRING and tensor_bytes(data_type, dims) <= self.max_bytes:
                groups.setdefault((data_type, dims), []).append(value)
        for group in groups.values():
            if len(group) > 1:
                _merge(group, graph, ctx)


def _merge(group: list[Value], graph: Graph, ctx: PassContext) -> None:
    first: dict[bytes, Value] = {}
    for value in group:
        kept = first.setdefault(value.array.tobytes(), value)
        if kept is not value and ctx.spend("duplicate_constant", at=value):
            value.replace_all_uses_with(kept)
            graph.remove_initializer(value)
