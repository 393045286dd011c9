"""The Python API: load, save, optimize, verify, stats. The command line is a thin layer over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.errors import UsageError, VerificationError
from onnxopt.io import Staged, from_proto, load, refuse_overwriting_input, save
from onnxopt.passes.constant_folding import ConstantFolding
from onnxopt.passes.levels import passes_for, passes_named
from onnxopt.pipeline import Pass, PassContext, PipelineReport, run_fixpoint
from onnxopt.verification import Verification, Verifier, VerifyOptions, verify

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.analysis.cost import ModelStats
    from onnxopt.graph import Model

Progress = Callable[[str], None]


@dataclass(frozen=True)
class OptimizeOptions:
    """`level` 0 to 3; `passes` (names) replaces the level's; `disable` takes passes out.

    `max_constant_bytes`: how much a constant fold may add to the file. `max_rewrites`: stop after so many.
    `freeze_initializers`: treat initializers that are also graph inputs as constants.
    `check`: verify the graph's invariants after every pass.
    """

    level: int = 2
    passes: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    max_constant_bytes: int | None = None
    max_rewrites: int | None = None
    freeze_initializers: bool = False
    check: bool = False


@dataclass
class Report:
    """What one optimization did. `verification` is None when it was not asked for."""

    source: str
    destination: str
    pipeline: PipelineReport
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    verification: Verification | None = None
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Result:
    """The optimized ModelProto and the report."""

    model: ModelProto
    report: Report


def select_passes(options: OptimizeOptions) -> list[Pass]:
    """The passes that `options` ask for, with their options set. Raises UsageError for unknown names."""
    if not 0 <= options.level <= 3:
        raise UsageError(f"there is no level {options.level}", "levels are 0 to 3")
    chosen = passes_for(options.level) if options.passes is None else passes_named(options.passes)
    disabled = {p.name for p in passes_named(options.disable)}
    passes = [p for p in chosen if p.name not in disabled]
    if options.max_constant_bytes is not None:
        passes = [
            replace(p, max_bytes=options.max_constant_bytes) if isinstance(p, ConstantFolding) else p for p in passes
        ]
    return passes


def optimize_model(
    model: Model, options: OptimizeOptions | None = None, progress: Progress = lambda name: None
) -> PipelineReport:
    """Optimize an in-memory model in place."""
    options = options or OptimizeOptions()
    ctx = PassContext(opt_level=options.level, max_rewrites=options.max_rewrites, check=options.check)
    return run_fixpoint(model, select_passes(options), ctx, progress)


def optimize(
    model: str | Path | ModelProto,
    level: int = 2,
    *,
    passes: Sequence[str] | None = None,
    disable: Sequence[str] = (),
    max_constant_bytes: int | None = None,
    max_rewrites: int | None = None,
    freeze_initializers: bool = False,
) -> Result:
    """Optimize a model file or a ModelProto and return the result; neither is changed.

    A model with external data comes back with references into the folder it was loaded from: use
    `optimize_file` to write such a model. Raises ModelError, PassError, UsageError.
    """
    from onnxopt.graph import write_model

    options = OptimizeOptions(
        level=level,
        passes=tuple(passes) if passes is not None else None,
        disable=tuple(disable),
        max_constant_bytes=max_constant_bytes,
        max_rewrites=max_rewrites,
        freeze_initializers=freeze_initializers,
    )
    start = time.perf_counter()
    if isinstance(model, (str, Path)):
        loaded, source = load(model, freeze_initializers=freeze_initializers), str(model)
    else:
        loaded, source = from_proto(model, freeze_initializers=freeze_initializers), ""
    pipeline = optimize_model(loaded, options)
    report = Report(source, "", pipeline, seconds=time.perf_counter() - start)
    return Result(write_model(loaded), report)


def optimize_file(
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions | None = None,
    *,
    check_result: bool = True,
    verify_options: VerifyOptions | None = None,
    verifier: Verifier | None = None,
    progress: Progress = lambda name: None,
) -> Report:
    """Optimize one file into another. The destination appears only when the result is verified.

    Raises ModelError, WriteError, PassError; VerificationError when the result differs from the original, with
    the Report as `error.report`. A model nothing was changed in is copied, byte for byte. `verifier`: one that was
    started before, to have it load while this module was imported.
    """
    options = options or OptimizeOptions()
    source, destination = Path(source), Path(destination)
    passes = select_passes(options)
    phases: dict[str, float] = {}
    clock = start = time.perf_counter()

    def phase(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        phases[name] = now - clock
        clock = now

    if check_result and passes and verifier is None:
        verifier = Verifier(source, verify_options or VerifyOptions())
    try:
        if verifier is not None:
            verifier.start()  # imports onnxruntime and runs the original while the passes run
        progress("loading")
        model = load(source, freeze_initializers=options.freeze_initializers)
        if verifier is not None:
            verifier.describe(model.proto, override=not options.freeze_initializers)
        refuse_overwriting_input(source, destination)
        with Staged(destination) as staged:
            phase("load")
            ctx = PassContext(opt_level=options.level, max_rewrites=options.max_rewrites, check=options.check)
            pipeline = run_fixpoint(model, passes, ctx, progress)
            phase("passes")
            progress("writing")
            staged.write(model)
            phase("write")
            report = Report(str(source), str(destination), pipeline, source.stat().st_size, staged.path.stat().st_size)
            report.phases = phases
            if verifier is not None and model.version:
                verifier.submit(staged.path)
                progress("verifying")
                report.verification = verifier.finish()
                phase("verify")
            report.seconds = time.perf_counter() - start
            if report.verification is not None and report.verification.status == "different":
                raise DifferentResult(report)
            staged.commit()
        return report
    finally:
        if verifier is not None:
            verifier.close()


class DifferentResult(VerificationError):
    """The result differs from the original; `report` says where. Nothing was written."""

    def __init__(self, report: Report) -> None:
        verification = report.verification
        assert verification is not None
        super().__init__(
            f"{report.source}: the result differs from the original: {verification.message}",
            verification.hint or "nothing was written; find the pass with --disable, and report it",
        )
        self.report = report


def stats(model: str | Path) -> ModelStats:
    """Operators, nodes, initializers, parameters and bytes of a model file."""
    from onnxopt.analysis.cost import model_stats

    return model_stats(load(model))


__all__ = [
    "DifferentResult",
    "OptimizeOptions",
    "Report",
    "Result",
    "Verification",
    "VerifyOptions",
    "load",
    "optimize",
    "optimize_file",
    "optimize_model",
    "save",
    "stats",
    "verify",
]
