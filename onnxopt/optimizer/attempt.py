"""A single run of the passes on a file or an in-memory model, and the report of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import ModelError, OnnxOptError, VerificationError, file_path
from onnxopt.graph.dims import specialise
from onnxopt.io import Staged, blaming, check_choice, refuse_overwriting_input
from onnxopt.io.load import Watch
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.pipeline import Instrument, Pass, PipelineReport, Sequential, execute, pipeline_text
from onnxopt.pipeline.context import Trace
from onnxopt.pipeline.records import WRONG, Site
from onnxopt.plaintext import cleaned, counted
from onnxopt.verification import DIFFERENT, INCONCLUSIVE, LOADS_PLAIN, PROVEN, UNVERIFIED, WITHIN_NOISE

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.optimizer.forms import Choice
    from onnxopt.optimizer.remarks import Int64
    from onnxopt.verification import Verification, Verifier, VerifyOptions


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class RolledBack:
    """A rewrite left out. Without `value`, the whole rule or pass."""

    pass_text: str
    rule: str  # empty for a pass without rules
    scope: str
    match: list[str]
    message: str
    value: str = ""  # made by the rewritten node
    fault: str = WRONG  # effect on the result

    @property
    def name(self) -> str:
        """The name for `--disable`."""
        return self.rule or self.pass_text.partition("{")[0]

    @property
    def site(self) -> Site | None:
        """The excluded match; None for the whole rule or pass."""
        return Site(self.name, self.value, self.scope, f"left out: {self.fault}") if self.value else None


@dataclass(eq=False, repr=False)
class Report:
    """The report of an optimization. Bytes include the data files of the model.

    `verification`: None if not requested, or without changes (`changed`).
    """

    source: str
    destination: str
    pipeline: PipelineReport
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    changed: bool = True  # False: all computations are unchanged, node by node
    verification: Verification | None = None
    phases: dict[str, float] = field(default_factory=dict)  # by phase
    rolled_back: list[RolledBack] = field(default_factory=list)
    fixed_dims: dict[str, int] = field(default_factory=dict)  # {dynamic dim: fixed size}
    freed_dims: dict[str, int] = field(default_factory=dict)  # {symbol: size replaced}
    int64: Int64 | None = None  # values that stay int64, although requested as int32
    stats: dict[str, Any] | None = None  # `ModelStats` before and after, if requested
    target: str = "any"
    choices: list[Choice] = field(default_factory=list)  # made for the target
    brought_in: int = 0  # small external tensors now inside the model, as runtimes require
    data: list[str] = field(default_factory=list)  # data files read by the result, by name in its folder

    @property
    def ok(self) -> bool:
        """Whether the result computes the original's function: unchanged, or proven by verification."""
        return not self.changed or (self.verification is not None and self.verification.ok)

    def remarks(self, options: OptimizeOptions, plugins: Sequence[str] = ()) -> list[str]:
        """Return warnings and hints about a run with `options` and the loaded `plugins`."""
        if not (self.rolled_back or options.disable or plugins):
            return []
        from onnxopt.optimizer.remarks import remarks

        return remarks(self, options, plugins)

    def to_dict(self) -> dict[str, Any]:
        return dict(asdict(self))

    def __str__(self) -> str:
        """Return the lines printed by the command."""
        from onnxopt.reporting.plain import left_out, lines

        data = self.to_dict()
        return "\n".join([*lines(data), *left_out(cleaned(data["rolled_back"]))])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        from onnxopt.reporting.html.figures import notebook

        return notebook(self.to_dict())

    def __repr__(self) -> str:
        nodes = f"{self.pipeline.nodes_before:,} → {counted(self.pipeline.nodes_after, 'node')}"
        return f"Report({nodes}{f', {self.verification.status}' if self.verification else ''})"


class DifferentResult(VerificationError):
    """The result differs from the original, or is not proven although required. Nothing was written.

    `report` gives the details.
    """

    def __init__(self, report: Report) -> None:
        verification = report.verification
        assert verification is not None
        what, hint = _REFUSED[verification.status]
        hint = verification.hint or hint
        if verification.status == UNVERIFIED:
            hint = "; ".join(filter(None, [hint, "--allow-unverified, without --strict, writes it all the same"]))
        super().__init__(f"{report.source}: {what}: {verification.message}", hint)
        if not self.hint.startswith(_NOT_WRITTEN):
            self.hint = f"{_NOT_WRITTEN}; {self.hint}"
        self.report = report


class ConversionFault(ModelError):
    """The opset conversion alone makes a model with a different function."""

    def __init__(self, message: str, hint: str, own: int) -> None:
        super().__init__(message, hint)
        self.own = own  # the model's opset


_NOT_WRITTEN = "nothing was written"
_REFUSED = {
    DIFFERENT: ("the result differs from the original", "`onnxopt bisect` finds the rewrite; report it"),
    LOADS_PLAIN: ("the result loads without optimizations only", "find the pass with --disable NAME, and report it"),
    WITHIN_NOISE: (
        "the result is within rounding noise only, which --strict refuses",
        "--rtol says how much an output may differ, -O1 changes no bit",
    ),
    INCONCLUSIVE: ("verification is inconclusive, which --strict refuses", "give real data with --input"),
    UNVERIFIED: ("the result is not verified, which --strict and builds refuse", ""),
}


# -- a run ------------------------------------------------------------------------------------------------------------

Progress = Callable[[str], None]

_GROWN: Final = 1 << 16  # bytes of growth worth a warning


class _PassProgress(Instrument):
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
    from onnxopt.optimizer.finish import checked_names

    return replace(options, rename=checked_names(model, options.rename))


def _finish(model: Model, options: OptimizeOptions, *, outputs: bool) -> None:
    """Declare known shapes and rename, after the passes: places and matches use the names of the file.

    outputs: declare shapes of outputs, as sizes were given.
    """
    if not (outputs or options.infer_shapes or options.rename or options.name_nodes):
        return
    from onnxopt.optimizer import finish

    if outputs or options.infer_shapes:
        finish.declare_outputs(model)
    if options.infer_shapes:
        finish.declare_values(model)
    finish.rename(model, options.rename)
    if options.name_nodes:
        finish.name_nodes(model)


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
    strict: refuse unproven results; allow_unverified: accept results without verdict. reproducer: folder for data to
    repeat a failing pass, without weights if `zero_weights`. home: final folder of the destination, for references to
    data files. An unchanged model is copied byte for byte.

    Raises ModelError, WriteError, PassError, and DifferentResult (a VerificationError) with the report as
    `error.report`.
    """
    options = options or OptimizeOptions()
    check_choice(options.external)
    source, destination = file_path(source), file_path(destination)
    watch = Watch(source, seen=verifier.seen if verifier is not None else None)
    passes, ctx = options.passes(), options.context(instruments, trace)
    ctx.watch(_PassProgress(progress))
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
        # The parent describes fixed sizes, and reports errors in names before any work.
        describes = bool(options.dims or options.shapes or (verifier is not None and verifier.names_inputs))
        if verifier is not None and not (describes or verifier.is_described):
            verifier.prepare(override=not options.freeze_initializers)
        progress("loading")
        model = options.load(source, stored=True)
        data = Watch.data(model)
        fixed = specialise(model, options.dims, options.shapes)
        options = _with_names(options, model)
        if verifier is not None and describes:
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
                _write(model, staged, source, passes, options)
            except OnnxOptError as e:
                from onnxopt.optimizer.remarks import keep_failure

                keep_failure(e, source, passes, ctx, options, reproducer, zero_weights=zero_weights)
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
                from onnxopt.optimizer.remarks import growth

                report.pipeline.warnings += growth(report)
            if judge is not None:
                report.verification = _verdict(judge, staged.path, source, watch, options)
                phase("verify")
            report.seconds = time.perf_counter() - start
            data.refuse()
            if _is_refused(report.verification, strict, allow_unverified):
                watch.refuse()  # the result was compared with the earlier file
                raise DifferentResult(report)
            staged.commit()
        return report


def _write(model: Model, staged: Staged, source: Path, passes: Sequential, options: OptimizeOptions) -> None:
    if options.provenance:
        from onnxopt.io.save import write_provenance

        write_provenance(model, source, pipeline_text(passes.passes))
    staged.write(model, options.external)


def _verdict(judge: Verifier, result: Path, source: Path, watch: Watch, options: OptimizeOptions) -> Verification:
    """Return the verdict on a submitted result. Raises ModelError for a fault of a requested conversion alone."""
    from onnxopt.verification import let_in

    try:
        verdict = let_in(judge.finish(), options.allow_domains)
    except FileNotFoundError:
        watch.refuse_removed()
        raise
    if verdict.status != DIFFERENT or not (options.target_opset or options.chosen or options.make_dynamic):
        return verdict
    from onnxopt.optimizer.remarks import judged

    return judged(verdict, result, source, options, judge)


def _int64_left(model: Model, before: int, options: OptimizeOptions) -> Int64 | None:
    if not options.int32:
        return None
    from onnxopt.optimizer.remarks import int64_left

    return int64_left(model, before, keep_io=options.keep_io)


def _is_refused(found: Verification | None, strict: bool, allow_unverified: bool) -> bool:
    if found is None:
        return False
    unproven = strict and found.status not in PROVEN
    return found.is_refused or unproven or (not allow_unverified and found.status == UNVERIFIED)


def _bytes_of(source: Path, model: Model) -> int:
    """Return the bytes of a model file and its data files."""
    if not model.data_files:
        return source.stat().st_size
    from onnxopt.analysis.stats import file_bytes

    return file_bytes(model)
