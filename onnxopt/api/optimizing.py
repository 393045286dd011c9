"""`onnxopt.optimize`: the command `onnxopt optimize IN OUT` as a function."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from onnxopt.api.arguments import IN_MEMORY, input_files, model_file, name_of, refuse, temporary_folder
from onnxopt.api.settings import OF_A_RESULT, log, make_options, run
from onnxopt.arguments import kind
from onnxopt.errors import UsageError, file_path
from onnxopt.io.load import load_whole
from onnxopt.optimizer import Report
from onnxopt.pipeline import Instrument
from onnxopt.pipeline.context import Trace
from onnxopt.plaintext import an
from onnxopt.verification import VerifyOptions
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

    from onnxopt.api.arguments import AnyModel


class Result:
    """The optimized model and the report of the optimization."""

    def __init__(self, report: Report, model: ModelProto | Path) -> None:
        """`model`: the model, or the file of the result."""
        self.report = report
        self._model = model

    @cached_property
    def model(self) -> ModelProto:
        """The ModelProto with all weights. A written result is read at the first access."""
        return load_whole(self._model) if isinstance(self._model, Path) else self._model

    def __repr__(self) -> str:
        return f"Result(report={self.report!r})"

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def optimize(
    model: AnyModel,
    output: str | os.PathLike[str] | None = None,
    *,
    level: int = 2,
    pipeline: str | None = None,
    extra: Sequence[str] = (),
    disable: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    target: str | Sequence[str] = "any",
    plugins: Sequence[str | os.PathLike[str]] = (),
    freeze_initializers: bool = False,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    make_dynamic: Mapping[str, str] | None = None,
    target_opset: int | None = None,
    dtype: str | None = None,
    int32: bool = False,
    keep_io: bool = True,
    infer_shapes: bool = False,
    inline_functions: bool = False,
    strip_qdq: bool = False,
    keep: Sequence[str] = (),
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    external: str = "auto",
    rename: Mapping[str, str] | None = None,
    name_nodes: bool = False,
    provenance: bool = False,
    verify: bool = True,
    strict: bool = False,
    allow_unverified: bool = True,
    input: Mapping[str, str | os.PathLike[str] | np.ndarray[Any, Any]] | None = None,
    verify_dims: Mapping[str, int] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
    seed: int = 0,
    timeout: float = 600.0,
    verify_memory: int = 2 << 30,
    max_constant_bytes: int | None = None,
    max_rewrites: int | None = None,
    memory: int = 0,
    work: float = Limits.work,
    allow_domains: Sequence[str] = (),
    reproducer: str | os.PathLike[str] | None = None,
    zero_weights: bool = False,
    instruments: Sequence[Instrument] = (),
    trace: Trace | None = None,
    progress: Callable[[str], None] = lambda name: None,
    **wrong: Never,
) -> Result:
    """Optimize a model file or a ModelProto, and verify the result against the original; the original is not changed.

    Returns the model and a report. With `output`, the result is written like the result of `onnxopt optimize`;
    otherwise the result is returned in memory, with all weights. Faulty rewrites are left out, and named in
    `report.rolled_back`. Messages of the command go to `logging.getLogger("onnxopt")`.

    Passes:
        level: 0 copies, 1 is exact, 2 may re-associate floating point, 3 has structural algebra too.
        pipeline: pipeline text in place of the level's. extra: passes added to the level's.
        disable: passes or rules to skip; `RULE@VALUE` skips a single match.
        config: values of config keys. target: name or names of targets, the preferred first.
        plugins: Python files or modules with passes.
        max_constant_bytes: largest growth by a single constant fold. max_rewrites: stop after this number.
        allow_domains: operator domains that passes may add to the model.

    Changes of the model:
        freeze_initializers: treat initializers that are also inputs as constants.
        dims: sizes of dynamic dims by name. shapes: shapes of inputs by name.
        make_dynamic: symbols for fixed dims by `INPUT:AXIS`; `*:0` is the first axis of all inputs.
        infer_shapes: declare known types and shapes of all values.
        target_opset: convert the model to this opset first. inline_functions: inline model-local functions.
        dtype: `float16` or `bfloat16` in place of float32. int32: int32 in place of int64, where every number is
        proved to fit. keep_io: inputs and outputs keep their types.
        strip_qdq: drop pairs of QuantizeLinear and DequantizeLinear, with weights as floats; keep: names of quantizers
        to keep.
        inputs, outputs: optimize only the part of the model between these values.
        external: the place of external weights: `auto`, `inline`, `copy` or `reuse`.
        rename: new names of inputs, outputs and symbolic dims, by old names. name_nodes: name nodes without a name.
        provenance: write version, pipeline and the original's hash into the metadata.

    Verification:
        verify: False switches verification off. strict: raise for a different or unproven result, without roll-back.
        allow_unverified: False raises for an unverified result.
        input: data for inputs by name, arrays or .npy files. verify_dims: sizes of dims that stay dynamic.
        rtol, atol: largest differences, in place of the rounding analysis. seed: of random inputs.
        custom_op_libraries: files that register custom operators with onnxruntime.
        timeout: in seconds. verify_memory: bytes for both models.

    Limits and observers:
        memory: bytes for a process that runs parts of the model, 0 for half of the machine. work: seconds of folding
        and conversion. reproducer: a folder for the data to repeat a failure; zero_weights: without weights.
        instruments, trace: observers of each attempt, as in a `PassContext`. progress: called with the name of each
        step and pass.

    Raises UsageError, ModelError, WriteError, PassError, DomainError; VerificationError with `error.report` if no
    right result is found; TypeError for an unknown keyword.
    """
    given = locals()
    settings = {name: given[name] for name in OF_A_RESULT}
    refuse("optimize", wrong, inspect.signature(optimize).parameters if wrong else ())
    if output is not None and not isinstance(output, (str, os.PathLike)):
        meant = f"level={output}" if isinstance(output, int) else "each setting is a keyword, such as level=3"
        given_as = f"optimize() takes the path of the result as its second argument, not {an(kind(output))}"
        raise TypeError(f"{given_as}: {meant}")
    if not verify and (strict or input or verify_dims or rtol is not None or atol is not None):
        raise UsageError("verify=False contradicts strict, input, verify_dims, rtol and atol", "leave one of them out")
    if output is None and external != "auto":
        raise UsageError(f"external={external!r} is for a result that is written", "give its path as output")
    options = make_options(**settings)
    with ExitStack() as stack:
        source = stack.enter_context(model_file(model))
        verify_options = None
        if verify:
            files = stack.enter_context(input_files(input or {}, "input"))
            verify_options = VerifyOptions(
                rtol,
                atol,
                seed,
                files,
                timeout,
                verify_memory,
                memory,
                dims=dict(verify_dims or {}),
                custom_op_libraries=custom_op_libraries,
            )
            verify_options = options.judging(verify_options)
        made = stack.enter_context(temporary_folder()) / IN_MEMORY if output is None else Path(output)
        report = run(
            source,
            made,
            options,
            called=(name_of(source), str(output or "")),
            inputs=inputs,
            outputs=outputs,
            verify_options=verify_options,
            strict=strict,
            allow_unverified=allow_unverified,
            progress=progress,
            instruments=instruments,
            trace=trace,
            reproducer=None if reproducer is None else Path(reproducer),
            zero_weights=zero_weights,
        )
        if output is None:
            report.data = []  # which are in the model
        log(report, report.remarks(options, [os.fspath(plugin) for plugin in plugins]), verified=verify)
        return Result(report, load_whole(made) if output is None else made.absolute())


def optimize_file(source: AnyModel, destination: str | os.PathLike[str], **settings: Any) -> Report:
    """Optimize into a file, with the settings of `optimize`, and return the report."""
    return optimize(source, file_path(destination), **settings).report
