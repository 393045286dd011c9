"""Results of onnxruntime without its optimizations."""

from __future__ import annotations

from pathlib import Path
from threading import Timer
from typing import Any

import onnxruntime as rt
from onnx import ModelProto


def plain_session(model: ModelProto | Path, **settings: Any) -> rt.InferenceSession:
    """Returns a quiet session without threads; `settings`: of its SessionOptions."""
    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for name, setting in settings.items():
        setattr(options, name, setting)
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    return rt.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_within(seconds: float, session: rt.InferenceSession, feeds: dict[str, Any]) -> list[Any]:
    """Returns the results. Raises the runtime's error, also for a Loop without end within the given seconds."""
    options = rt.RunOptions()
    clock = Timer(seconds, setattr, (options, "terminate", True))
    clock.start()
    try:
        return list(session.run(None, feeds, options))
    finally:
        clock.cancel()


def outputs(model: ModelProto | Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs by name."""
    session = plain_session(model)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
