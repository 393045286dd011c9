"""`onnxopt.optimize`: the command `onnxopt optimize IN OUT` as a function."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, cast

from onnxopt.api.files import IN_MEMORY, input_files, model_file, name_of, temporary_folder
from onnxopt.api.keywords import refuse, refuse_second
from onnxopt.api.result import Result
from onnxopt.api.running import run
from onnxopt.api.settings import OfAResult, make_options
from onnxopt.api.telling import log
from onnxopt.errors import UsageError, file_path
from onnxopt.io.load import load_whole
from onnxopt.optimizer import Report
from onnxopt.optimizer.remarks import remarks
from onnxopt.pipeline import Instrument
from onnxopt.pipeline.context import Trace
from onnxopt.verification import VerifyOptions
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    import numpy as np

    from onnxopt.api.files import AnyModel


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
    """Optimize a model file or a ModelProto, which is not changed, and verify the result against it.

    Returns the model and a report. The result is written to `output`, if that is given, as `onnxopt optimize` writes
    it; else it is returned in memory, with all its weights. Rewrites that make the result wrong are left out, and
    named in `report.rolled_back`. What the command prints goes to `logging.getLogger("onnxopt")`.

    What to run:
        level: 0 copies, 1 is exact, 2 may re-associate floating point, 3 has structural algebra too.
        pipeline: text of a pipeline, in place of the level's. extra: passes that join it.
        disable: passes or rules, which are left out; `RULE@VALUE` leaves out one match.
        config: values of config keys. target: what the result is for, a name or several.
        plugins: Python files or modules with passes.
        max_constant_bytes: how much one constant fold may add. max_rewrites: stop after so many.
        allow_domains: operator domains that may enter the model.

    What becomes of the model:
        freeze_initializers: initializers that are also inputs are constants.
        dims: sizes of dynamic dims by name. shapes: shapes of inputs by name.
        make_dynamic: names for fixed dims by `INPUT:AXIS`, `*:0` for the first of all inputs, which become dynamic.
        infer_shapes: declare the types and shapes of all values, as far as they are known.
        target_opset: convert the model to this opset first. inline_functions: put functions in place of their calls.
        dtype: `float16` or `bfloat16` for what is float32; keep_io: but for inputs and outputs.
        strip_qdq: drop pairs of QuantizeLinear and DequantizeLinear, and take weights as floats; keep: names of those
        that stay.
        inputs, outputs: values at which the model is cut first.
        external: where weights beside the model go: `auto`, `inline`, `copy` or `reuse`.
        rename: other names for inputs, outputs and symbolic dims, by those of the model. name_nodes: name
        nodes that have no name.
        provenance: write version, pipeline and the original's hash into the metadata.

    How it is verified:
        verify: False is the one way out. strict: raise for what differs, instead of leaving it out, and for what is not
        proven. allow_unverified: False raises for what could not be compared.
        input: data for inputs by name, arrays or .npy files. verify_dims: sizes of dims that stay dynamic.
        rtol, atol: largest differences, in place of what rounding explains. seed: of random inputs.
        custom_op_libraries: files that register custom operators with onnxruntime.
        timeout: in seconds. verify_memory: bytes that both models may take.

    What it may take, and who watches:
        memory: bytes that a process for parts of the model may take, 0 for half of the machine. work: seconds of
        folding and converting. reproducer: a folder for what repeats a failure; zero_weights: without the weights.
        instruments, trace: watch each attempt, as in a `PassContext`. progress: is called with the name of each step
        and pass.

    Raises UsageError, ModelError, WriteError, PassError, DomainError; VerificationError with `error.report` where no
    right result is found; TypeError for a keyword that does not exist.
    """
    given = locals()
    settings = cast("OfAResult", {name: given[name] for name in OfAResult.__annotations__})
    refuse("optimize", wrong, inspect.signature(optimize).parameters if wrong else ())
    if output is not None and not isinstance(output, (str, os.PathLike)):
        refuse_second("optimize", output)
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
                dtype=options.dtype,
                strip_qdq=strip_qdq,
                keep=options.keep,
                custom_op_libraries=custom_op_libraries,
                freed=options.freed,
            )
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
            again=instruments,
            trace=trace,
            reproducer=None if reproducer is None else Path(reproducer),
            zero_weights=zero_weights,
        )
        if output is None:
            report.data = []  # which are in the model
        log(report, remarks(report, options, [os.fspath(plugin) for plugin in plugins]), verified=verify)
        return Result(report, load_whole(made) if output is None else made.absolute())


def optimize_file(source: AnyModel, destination: str | os.PathLike[str], **settings: Any) -> Report:
    """`optimize` with a path for the result; returns its report."""
    return optimize(source, file_path(destination), **settings).report
