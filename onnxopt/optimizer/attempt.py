"""A single run of the passes on a file or an in-memory model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import InvariantError, OnnxOptError, UsageError, file_path
from onnxopt.graph.dims import specialise
from onnxopt.io import Staged, blaming, check_choice, refuse_overwriting_input
from onnxopt.io.load import Watch
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.optimizer.results import DifferentResult, Report
from onnxopt.pipeline import Instrument, Pass, PassContext, PipelineReport, Sequential, execute, pipeline_text
from onnxopt.pipeline.context import Trace
from onnxopt.verification import DIFFERENT, PROVEN, UNVERIFIED, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.conversion.int64_left import Int64
    from onnxopt.graph import Model
    from onnxopt.verification import Verification, Verifier

Progress = Callable[[str], None]

_GROWN: Final = 1 << 16  # bytes of growth worth a warning


class _Tell(Instrument):
    """Announces each pass before it runs."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.progress(p.name)


def optimize_model(
    model: Model,
    options: OptimizeOptions | None = None,
    instruments: Sequence[Instrument] = (),
    trace: Trace | None = None,
) -> PipelineReport:
    """Optimize an in-memory model in place, without verification, and return the report.

    Raises UsageError for unknown names and settings, and PassError, which leaves the model partially optimized.
    """
    options = options or OptimizeOptions()
    fixed, converted = specialise(model, options.dims, options.shapes), options.convert(model)
    options = _with_names(options, model)
    report = execute(options.passes(), model, options.context(instruments, trace))
    report.warnings += converted.told
    _finish(model, options, outputs=bool(fixed or converted.freed))
    return report


def _with_names(options: OptimizeOptions, model: Model) -> OptimizeOptions:
    """Return the options with names in place of positions. Raises UsageError for a name that the model cannot have."""
    if not options.rename:
        return options
    from onnxopt.conversion.rename import checked_names

    return replace(options, rename=checked_names(model, options.rename))


def _finish(model: Model, options: OptimizeOptions, *, outputs: bool) -> None:
    """Declare known shapes and rename, after the passes: places and matches use the names of the file.

    outputs: declare shapes of outputs, as sizes were given.
    """
    if outputs or options.infer_shapes:
        from onnxopt.optimizer.declared import declare_outputs, declare_values

        declare_outputs(model)
        if options.infer_shapes:
            declare_values(model)
    if options.rename:
        from onnxopt.conversion.rename import rename

        rename(model, options.rename)
    if options.name_nodes:
        from onnxopt.conversion.name_nodes import name_nodes

        name_nodes(model)


def attempt(
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions | None = None,
    *,
    verify_options: VerifyOptions | None = None,
    verifier: Verifier | None = None,
    strict: bool = False,
    allow_unverified: bool = True,
    progress: Progress = lambda name: None,
    instruments: Sequence[Instrument] = (),
    trace: Trace | None = None,
    reproducer: str | Path | None = None,
    zero_weights: bool = False,
    home: Path | None = None,
) -> Report:
    """Optimize a file into another, once. The destination is written only if the verdict permits. Returns the report.

    verify_options: None for no verification. verifier: started in advance, to load while this module is imported.
    strict: refuse unproven results; allow_unverified: accept results without verdict. reproducer: folder for what is
    needed to repeat a failing pass, without weights if `zero_weights`. home: final folder of the destination, for
    references to data files. An unchanged model is copied byte for byte.

    Raises ModelError, WriteError, PassError, and DifferentResult (a VerificationError) with the report as
    `error.report`.
    """
    options = options or OptimizeOptions()
    check_choice(options.external)
    source, destination = file_path(source), file_path(destination)
    watch = Watch(source)
    passes, ctx = options.passes(), options.context(instruments, trace)
    ctx.watch(_Tell(progress))
    phases: dict[str, float] = {}
    clock = start = time.perf_counter()

    def phase(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        phases[name] = now - clock
        clock = now

    if verify_options is not None and verifier is None and not options.only_copy:
        from onnxopt.verification import Verifier

        verifier = Verifier(source, options.judging(verify_options))
    # The verifier imports onnxruntime and runs the original while the passes run.
    with verifier or nullcontext(), blaming(source):
        progress("loading")
        model = options.load(source, stored=True)
        data = Watch.data(model)
        fixed = specialise(model, options.dims, options.shapes)
        options = _with_names(options, model)
        if verifier is not None:
            verifier.describe(model.proto, model.data_of, override=not options.freeze_initializers)
        nodes, converted = model.node_count(), options.convert(model)
        before_bytes = _bytes_of(source, model)
        refuse_overwriting_input(source, destination, model)
        with Staged(destination, home) as staged:
            phase("load")
            try:
                pipeline = execute(passes, model, ctx)
                pipeline.nodes_before = nodes
                int64 = _int64_left(model, converted.int64, options)
                _finish(model, options, outputs=bool(fixed or converted.freed))
                phase("passes")
                progress("writing")
                changed = model.version > 0
                if options.provenance:
                    from onnxopt.io.save import write_provenance

                    write_provenance(model, source, pipeline_text(passes.passes))
                staged.write(model, options.external)
            except OnnxOptError as e:
                if isinstance(e, InvariantError) and e.failed is None:
                    ctx = _accuse(source, passes, ctx, e, options)
                _keep(reproducer, source, passes, ctx, e, options, zero_weights)
                raise
            phase("write")
            report = Report(str(source), str(destination), pipeline, before_bytes, staged.bytes)
            report.pipeline.warnings += converted.told
            report.brought_in = model.brought_in
            report.target, report.choices = str(ctx.target), options.choices(model)
            report.phases, report.changed, report.data = phases, changed, staged.read
            report.fixed_dims, report.freed_dims, report.int64 = fixed, dict(converted.freed), int64
            judge = verifier if changed else None
            if judge is not None:
                judge.submit(staged.path, model.tolerances, options.rename)
                progress("verifying")
                judge.progress = lambda done: progress(f"verifying {done:.0%}")
            if changed and report.bytes_after - report.bytes_before >= _GROWN:
                from onnxopt.optimizer.growth import growth

                # While the verifier runs both models.
                report.pipeline.warnings += growth(report, source, options, judge is not None)
            if judge is not None:
                from onnxopt.verification import let_in

                try:
                    verdict = judge.finish()
                except FileNotFoundError:
                    watch.refuse_removed()
                    raise
                verdict = let_in(verdict, options.allow_domains)
                if verdict.status == DIFFERENT and (options.target_opset or options.chosen or options.make_dynamic):
                    from onnxopt.optimizer.conversion import judged

                    verdict = judged(verdict, staged.path, source, options, judge)
                report.verification = verdict
                phase("verify")
            report.seconds = time.perf_counter() - start
            data.refuse()
            if (found := report.verification) is not None and _is_refused(found, strict, allow_unverified):
                watch.refuse()  # the result was compared with the earlier file
                raise DifferentResult(report)
            staged.commit()
        return report


def _int64_left(model: Model, before: int, options: OptimizeOptions) -> Int64 | None:
    if not options.int32:
        return None
    from onnxopt.conversion.int64_left import int64_left

    return int64_left(model, before, keep_io=options.keep_io)


def _is_refused(found: Verification, strict: bool, allow_unverified: bool) -> bool:
    unproven = strict and found.status not in PROVEN
    return found.is_refused or unproven or (not allow_unverified and found.status == UNVERIFIED)


def _bytes_of(source: Path, model: Model) -> int:
    """Return the bytes of a model file and its data files."""
    if not model.data_files:
        return source.stat().st_size
    from onnxopt.analysis.stats import file_bytes

    return file_bytes(model)


def _accuse(
    source: Path, passes: Sequential, ctx: PassContext, error: InvariantError, options: OptimizeOptions
) -> PassContext:
    """Repeat the run with a check after each pass, and name the faulty pass in `error`.

    Returns the checking context.
    """
    from onnxopt.pipeline.instruments import CheckEach

    checking = replace(ctx, instruments=(CheckEach(),), trace=None)
    try:
        execute(passes, options.load_converted(source), checking)
    except OnnxOptError as e:
        error.message, error.failed = e.message, e.failed
    return checking


def _keep(
    reproducer: str | Path | None,
    source: Path,
    passes: Sequential,
    ctx: PassContext,
    error: OnnxOptError,
    options: OptimizeOptions,
    zero_weights: bool,
) -> None:
    if error.failed is None or isinstance(error, UsageError):
        return
    if reproducer is None:
        error.hint += f"{'' if error.hint.endswith('?') else ';'} --reproducer DIR keeps what is needed to report it"
        return
    from onnxopt.pipeline.reproducer import keep_reproducer

    model = options.load_converted(source)
    keep_reproducer(reproducer, model, passes, ctx, error, options.freeze_initializers, zero_weights=zero_weights)
