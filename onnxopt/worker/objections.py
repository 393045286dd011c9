"""Objections of onnx's checker to a model, except to missing output shapes, which runtimes accept."""

from __future__ import annotations

import onnx
from onnx import ModelProto, ValueInfoProto, checker

from onnxopt.proto.messages import is_external


def objection(source: bytes | str) -> str:
    """Return why onnx's checker with shape inference rejects a model or file, or "".

    The checker requires a shape for every output, and stops at the first fault. A model without some output shape is
    therefore checked again without the output.
    """
    found = _fault(source)
    if not found:
        return ""
    try:
        model = ModelProto.FromString(source) if isinstance(source, bytes) else _without_weights(source)
    except Exception:  # unreadable for the checker too
        return found
    said = [o for o in model.graph.output if _has_shape(o)]
    if len(said) == len(model.graph.output):
        return found
    del model.graph.output[:]
    model.graph.output.extend(said)
    return _fault(model)


def _fault(source: bytes | str | ModelProto) -> str:
    if isinstance(source, str) and not _is_text(source):
        source = _without_weights(source)
    try:
        checker.check_model(source, full_check=True)
    except Exception as e:
        return first_line(e)
    return ""


def _is_text(path: str) -> bool:
    """Return whether a path can be passed to C++. On Linux, file names are bytes, perhaps no valid UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _has_shape(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (
        kind not in ("tensor_type", "sparse_tensor_type") or getattr(value.type, kind).HasField("shape")
    )


def _without_weights(file: str) -> ModelProto:
    """Return a model with external weights as inputs, since data files are found only from the model's folder."""
    model = onnx.load(file, load_external_data=False)
    kept = [t for t in model.graph.initializer if not is_external(t)]
    given = {i.name for i in model.graph.input}
    for t in model.graph.initializer:
        if is_external(t) and t.name not in given:
            model.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model
