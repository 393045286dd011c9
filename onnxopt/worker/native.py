"""Calls of onnxruntime and onnx on model data, in the process of a `Sandbox`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, checker

from onnxopt.proto.element_types import CAST_OTHERWISE
from onnxopt.proto.messages import Array, array_to_tensor, element_type, is_external, numpy_dtype, tensor_value_info
from onnxopt.runtime import onnxruntime
from onnxopt.worker.serving import Refused, Tell, serve


class Native:
    """Functions called by the parent on model data."""

    def __init__(self, tell: Tell = lambda state: None, threads: int = 0) -> None:
        """Create a server. `threads`: of a session; 0: one per core."""
        self.tell = tell
        self.threads = threads

    def evaluate(self, data: bytes, wanted: Sequence[str], most: int) -> dict[str, Array]:
        """Return the `wanted` values of a model without inputs, run in a single session.

        Values above `most` bytes are left out.
        """
        self.tell("")
        found = run_session(data, wanted, self.threads)
        return {name: array for name, array in found.items() if array.nbytes <= most}

    def evaluate_each(
        self, data: bytes, wanted: Collection[str], most: int, leave_out: Collection[int]
    ) -> dict[str, Array]:
        """Return the `wanted` values of nodes that can run, each in a session of its own.

        leave_out: indices of nodes known to crash; their readers are not run. A node that raises excludes only its
        readers. The announced state is the index of the running node.
        """
        model = ModelProto.FromString(data)
        given = {t.name: t for t in model.graph.initializer}
        made: dict[str, Array] = {}
        for i, node in enumerate(model.graph.node):
            reads = [*dict.fromkeys(filter(None, node.input))]
            if i in leave_out or any(name not in given and name not in made for name in reads):
                continue
            self.tell(str(i))
            operands = [given[name] if name in given else array_to_tensor(made[name], name) for name in reads]
            one = _model_of(model, node, operands)
            made |= {name: array for name, array in self._evaluate_node(one).items() if array.nbytes <= most}
        return {name: array for name, array in made.items() if name in wanted}

    def _evaluate_node(self, one: ModelProto) -> dict[str, Array]:
        """Return the outputs of a model of a single node, from the first engine that can run the node.

        Empty if neither can: there is no kernel, or the node raises.
        """
        data, outputs = one.SerializeToString(), [o.name for o in one.graph.output]
        with suppress(Exception):
            return run_session(data, outputs, self.threads)
        with suppress(Exception):
            found = _reference(data, outputs)
            if one.graph.node[0].op_type in ("Cast", "CastLike"):
                return {name: a for name, a in found.items() if element_type(a) not in CAST_OTHERWISE}
            return found
        return {}

    def convert(self, data: bytes, target: int) -> bytes:
        """Return a model converted to opset `target`. Raises Refused."""
        from onnx import version_converter

        self.tell("")
        try:
            converted: ModelProto = version_converter.convert_version(ModelProto.FromString(data), target)
        except Exception as e:
            raise Refused(first_line(e)) from None
        return bytes(converted.SerializeToString())

    def definition(self, call: bytes, types: Sequence[bytes], opset: int) -> tuple[int, bytes]:
        """Return (opset, serialized function) by which the standard defines an operator call.

        Empty without definition. Raises Refused.
        """
        from onnx import NodeProto, defs

        self.tell("")
        try:
            schema = defs.get_schema(NodeProto.FromString(call).op_type, opset, "")
            if schema.has_context_dependent_function:
                own = min(schema.context_dependent_function_opset_versions)
                return own, schema.get_context_dependent_function_with_opset_version(own, call, list(types))
            own = min(schema.function_opset_versions)
            return own, schema.get_function_with_opset_version(own)
        except Exception as e:
            raise Refused(first_line(e)) from None

    def objection(self, data: bytes) -> str:
        """Return why onnx's checker with shape inference rejects a model, or ""."""
        self.tell("")
        return objection(ModelProto.FromString(data))


def run_session(data: bytes, wanted: Sequence[str], threads: int = 0) -> dict[str, Array]:
    """Return the `wanted` values of a model without inputs, by onnxruntime with optimizations off.

    threads: 0 for one per core, which start and end slower than a few numbers are computed.
    """
    rt = onnxruntime()
    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    # Threads would spin for milliseconds after each session.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = rt.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(list(wanted), {})
    made = zip(wanted, session.get_outputs(), results)
    return {name: _typed(np.asarray(r), o.type) for name, o, r in made if r is not None}


def _typed(array: Array, kind: str) -> Array:
    """Return the array with its true type: onnxruntime returns 8-bit floats, unknown to numpy, as uint8."""
    if array.dtype != np.uint8 or kind == "tensor(uint8)":
        return array
    name = kind.removeprefix("tensor(").removesuffix(")")
    return array.view(numpy_dtype(TensorProto.DataType.Value(name.upper())))


def _reference(data: bytes, wanted: Sequence[str]) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(data).run(None, {})
    return {name: np.asarray(r) for name, r in zip(wanted, results)}


def objection(model: ModelProto) -> str:
    """Return why onnx's checker with shape inference rejects a model, or ""; the model is changed.

    The checker finds data files only from the model's folder: external weights become inputs. The checker requires a
    shape for every output, and stops at the first fault. A model without some output shape is therefore checked again
    without the output.
    """
    _take_weights_out(model)
    found = _fault(model)
    said = [o for o in model.graph.output if _has_shape(o)]
    if not found or len(said) == len(model.graph.output):
        return found
    del model.graph.output[:]
    model.graph.output.extend(said)
    return _fault(model)


def _fault(model: ModelProto) -> str:
    try:
        checker.check_model(model, full_check=True)
    except Exception as e:
        return first_line(e)
    return ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _model_of(model: ModelProto, node: NodeProto, operands: Sequence[TensorProto]) -> ModelProto:
    """Return a model of a single node. `operands`: constants."""
    one = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    one.graph.name = model.graph.name
    one.graph.node.append(node)
    one.graph.initializer.extend(operands)
    one.graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    return one


def _has_shape(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (
        kind not in ("tensor_type", "sparse_tensor_type") or getattr(value.type, kind).HasField("shape")
    )


def _take_weights_out(model: ModelProto) -> None:
    """Replace external weights by inputs."""
    kept = [t for t in model.graph.initializer if not is_external(t)]
    given = {i.name for i in model.graph.input}
    for t in model.graph.initializer:
        if is_external(t) and t.name not in given:
            model.graph.input.append(tensor_value_info(t.name, t.data_type, t.dims))
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def main() -> None:
    """Serve as the worker process of a `Sandbox`."""
    serve(Native, early=False)
