"""Deduplication of equal constants."""

from __future__ import annotations

from collections.abc import Iterator

from onnxopt.analysis.weights.contents import MAX_BYTES, Contents
from onnxopt.graph import Graph, Value
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.proto.messages import tensor_bytes
from onnxopt.startup.record import record


@register
@record(frozen=True)
class DeduplicateConstants(GraphPass):
    """Merges initializers of equal type, shape and bytes; equal ones of bodies (both branches of an If) move to the
    outer graph.

    Keeps: inputs, outputs, and constants named by annotations; external data, which is not read for the comparison;
    small constants of bodies. A function cannot hold or read initializers.
    """

    info = PassInfo("deduplicate-constants", opt_level=1)
    max_bytes: int = option(MAX_BYTES, "larger constants are not compared")
    max_copy: int = option(1 << 10, "each body may have its own of up to this many bytes")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        contents = Contents(self.max_bytes)
        for value in _read_alone(graph):
            kept = contents.first_like(value)
            if kept is not value and ctx.spend("duplicate_constant", at=value):
                value.replace_all_uses_with(kept)
                graph.remove_initializer(value)
        if graph.owner is None and graph.owners and graph.holds_initializers:
            self._share(graph, contents, ctx)

    def _share(self, graph: Graph, contents: Contents, ctx: PassContext) -> None:
        """Replace constants equal in two bodies, or in a body and `graph`, by a constant of `graph`."""
        outer: dict[Value, Value] = {}  # shared constants of `graph`, by first equal value
        for body in _bodies(graph):
            for value in _read_alone(body):
                if tensor_bytes(*value.constant_type()) <= self.max_copy:
                    continue
                first = contents.first_like(value)
                if first is value or not ctx.spend("duplicate_constant", at=value):
                    continue
                kept = first if first.graph is graph else outer.get(first)
                if kept is None:
                    kept = outer[first] = graph.constant(first.array, first.name)
                    _give_way(first, kept)
                _give_way(value, kept)


def _read_alone(graph: Graph) -> list[Value]:
    """Return the initializers that are only read: neither inputs nor outputs."""
    return [v for v in graph.initializers.values() if v.constant and v.users and not v.is_input and not v.output_count]


def _bodies(graph: Graph) -> Iterator[Graph]:
    """Yield nested bodies of operators that let them read outer values."""
    for owner in graph.owners:
        for body in owner.bodies.values():
            if not body.is_bound_by_name and not body.skipped:
                yield body
                yield from _bodies(body)


def _give_way(value: Value, kept: Value) -> None:
    scope = value.graph
    value.replace_all_uses_with(kept)
    scope.remove_initializer(value)
