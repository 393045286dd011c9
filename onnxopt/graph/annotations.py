"""Quantization annotations of a graph: removed together with the annotated value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import TensorAnnotation

    from onnxopt.graph.graph import Graph
    from onnxopt.graph.value import Value


def values_named(graph: Graph) -> set[str]:
    """Return the names of all values of a scope, sparse initializers included."""
    names = {v.name for node in graph for v in node.outputs if v is not None}
    names.update(graph.initializers, (v.name for v in graph.inputs))
    names.update(s.values.name for s in graph.proto.sparse_initializer)
    names.update(name for v, name in graph.model.hiding.items() if v.graph is graph)
    return names


def pin(graph: Graph) -> None:
    """Keep the initializers that annotations of the main graph name, even if no node reads them.

    Initializers added later are not pinned.
    """
    for annotation in graph.proto.quantization_annotation:
        for value in _named(graph, annotation):
            value.output_count += 1
            graph.pinned.add(value)


def _named(graph: Graph, annotation: TensorAnnotation) -> list[Value]:
    found = (graph.initializers.get(entry.value) for entry in annotation.quant_parameter_tensor_names)
    return [value for value in found if value is not None]


def drop_vanished(graph: Graph, names: set[str] | None = None) -> bool:
    """Remove annotations of removed values, and unpin the initializers they name. Returns whether any annotation went.

    Annotations of names unknown to the index stay as in the file. `names`: the names of the scope, if known.
    """
    annotations = graph.proto.quantization_annotation
    if not annotations:
        return False
    names = values_named(graph) if names is None else names
    once = graph.model.names
    gone = [i for i, a in enumerate(annotations) if a.tensor_name not in names and a.tensor_name in once]
    for i in reversed(gone):
        if graph is graph.model.graph:
            for value in _named(graph, annotations[i]):
                value.output_count -= value in graph.pinned
        del annotations[i]
    return bool(gone)
