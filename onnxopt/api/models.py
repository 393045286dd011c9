"""Optimize a model in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.errors import UsageError, file_path
from onnxopt.io import blaming, from_proto, load
from onnxopt.optimizer import OptimizeOptions, Report, Result, optimize_model
from onnxopt.pipeline import Instrument
from onnxopt.pipeline.context import Trace
from onnxopt.pipeline.settings import names_in

if TYPE_CHECKING:
    from onnx import ModelProto


def optimize(
    model: str | Path | ModelProto,
    level: int = 2,
    *,
    pipeline: str | None = None,
    extra: Sequence[str] = (),
    disable: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    target: str | Sequence[str] = "any",
    max_rewrites: int | None = None,
    freeze_initializers: bool = False,
    allow_domains: Sequence[str] = (),
    instruments: Sequence[Instrument] = (),
    trace: Trace | None = None,
) -> Result:
    """Optimize a model file or a ModelProto and return the result; neither is changed.

    A model with external data comes back with references into the folder it was loaded from: use
    `optimize_file` to write such a model. Raises ModelError, PassError, UsageError, DomainError.
    """
    from onnx import ModelProto

    from onnxopt.graph import write_model

    if isinstance(level, OptimizeOptions):
        raise UsageError(
            "optimize takes a level, not OptimizeOptions",
            "optimize_model(load(FILE), options), or optimize_file(FILE, OUT, options)",
        )
    options = OptimizeOptions(
        level=level,
        pipeline=pipeline,
        extra=tuple(names_in(extra, "extra")),
        disable=tuple(names_in(disable, "disable")),
        config=config or {},
        target=target,
        max_rewrites=max_rewrites,
        freeze_initializers=freeze_initializers,
        allow_domains=allow_domains,
    )
    start = time.perf_counter()
    if not isinstance(model, ModelProto):
        file_path(model)  # raises for what is neither
    with blaming(model):
        if isinstance(model, ModelProto):
            loaded, source = from_proto(model, freeze_initializers=freeze_initializers), ""
        else:
            loaded, source = load(model, freeze_initializers=freeze_initializers), str(model)
        done = optimize_model(loaded, options, instruments, trace)
    report = Report(source, "", done, seconds=time.perf_counter() - start, changed=loaded.version > 0)
    return Result(write_model(loaded), report)
