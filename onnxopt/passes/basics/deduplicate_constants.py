"""Equal constants are kept once."""

from __future__ import annotations

from onnxopt.analysis.weights.contents import MAX_BYTES, Contents
from onnxopt.graph import Graph
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.record import record


@register
@record(frozen=True)
class DeduplicateConstants(GraphPass):
    """Initializers with the same type, shape and bytes become one.

    Keeps: those that are inputs, outputs or named by annotations; data outside the file, which is not read for this.
    """

    info = PassInfo("deduplicate-constants", opt_level=1)
    max_bytes: int = option(MAX_BYTES, "larger constants are not compared")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        contents = Contents(self.max_bytes)
        for value in list(graph.initializers.values()):
            if not value.constant or value.is_input or value.output_count or not value.users:
                continue
            kept = contents.first_like(value)
            if kept is not value and ctx.spend("duplicate_constant", at=value):
                value.replace_all_uses_with(kept)
                graph.remove_initializer(value)
