"""Evaluate constant nodes with a real runtime: onnxruntime for the whole cone at once, optimizations off.

Where it has no kernel (float16 on CPU, an opset it does not know), onnx's ReferenceEvaluator answers node by
node; where that has none either, the node stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_names
from onnxopt.ort import onnxruntime
from onnxopt.protos import Array, array_to_tensor, numpy_dtype

Arrays = dict[Value, Array]


def run_cone(graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]) -> Arrays:
    """Arrays of the `wanted` outputs of `nodes` (in topological order), as far as they can be had.

    One session for all; if that fails, one for each node, so that a node which raises takes only its own
    consumers with it.
    """
    if not nodes:
        return {}
    try:
        return _run_onnxruntime(graph, nodes, known, wanted)
    except Exception:  # one of them has no kernel, or raises: find out which
        return _one_by_one(graph, nodes, known, wanted)


def _one_by_one(graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]) -> Arrays:
    have: Arrays = {}
    for node in nodes:
        inputs: Arrays = {}
        for v in node.inputs:
            if v is not None and (found := have.get(v, known.get(v))) is not None:
                inputs[v] = found
        if any(v is not None and v not in inputs for v in node.inputs):
            continue
        outputs = [v for v in node.outputs if v is not None]
        for run in (_run_onnxruntime, _run_reference):
            try:
                have.update(run(graph, [node], inputs, outputs))
                break
            except Exception:  # no kernel, or a genuine error at run time: the next, or leave the node
                continue
    return {v: have[v] for v in wanted if v in have}


def _model(graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]) -> ModelProto:
    model = ModelProto(ir_version=max(8, graph.model.ir_version))
    for domain, version in (graph.root.opsets or graph.model.opsets).items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = "constants"
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None)
    model.graph.initializer.extend(array_to_tensor(known[v], v.name) for v in read if v in known)
    for node in nodes:
        write_names(node)
    model.graph.node.extend(n.proto for n in nodes)
    model.graph.output.extend(ValueInfoProto(name=v.name) for v in wanted)
    return model


def _run_onnxruntime(
    graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]
) -> Arrays:
    rt = onnxruntime()
    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.log_severity_level = 4
    data = _model(graph, nodes, known, wanted).SerializeToString()
    session = rt.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run([v.name for v in wanted], {})
    made = zip(wanted, session.get_outputs(), results)
    return {v: _typed(np.asarray(r), o.type) for v, o, r in made if r is not None}


def _typed(array: Array, kind: str) -> Array:
    """onnxruntime hands out the bytes of the 8-bit floats, which numpy does not have, as uint8."""
    if array.dtype != np.uint8 or kind == "tensor(uint8)":
        return array
    name = kind.removeprefix("tensor(").removesuffix(")")
    return array.view(numpy_dtype(TensorProto.DataType.Value(name.upper())))


def _run_reference(
    graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]
) -> Arrays:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(_model(graph, nodes, known, wanted)).run(None, {})
    return {v: np.asarray(r) for v, r in zip(wanted, results)}
