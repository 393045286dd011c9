"""The Python API: load, save, optimize, verify, stats. The command line is a thin layer over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.errors import InvariantError, OnnxOptError, UsageError, VerificationError
from onnxopt.graph import specialise
from onnxopt.io import Staged, blaming, check_choice, from_proto, load, refuse_overwriting_input, save
from onnxopt.passes.levels import converting, pipeline_for
from onnxopt.pipeline import (
    Instrument,
    Pass,
    PassContext,
    PipelineReport,
    Sequential,
    execute,
    get_pass,
    is_rule,
    parse_pipeline,
    pipeline_text,
)
from onnxopt.pipeline.context import MEMORY, WORK, Trace
from onnxopt.pipeline.site import Site
from onnxopt.protos import is_external
from onnxopt.record import record
from onnxopt.verification import (
    DIFFERENT,
    INCONCLUSIVE,
    PROVEN,
    UNVERIFIED,
    WITHIN_NOISE,
    Verification,
    Verifier,
    VerifyOptions,
    let_in,
    verify,
)
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.analysis.cost import ModelStats
    from onnxopt.graph import Model

Progress = Callable[[str], None]


@record(frozen=True)
class OptimizeOptions:
    """What to run, and how.

    `level` 0 to 3; `pipeline` (text) replaces the level's, and its passes run whatever their level; `extra` passes join
    the level's; `disable` takes passes out, or single rules, or with `RULE@VALUE` what a rule (or pass) does at the
    node that makes the value. `config`: values of config keys, such as `constant-folding.max-bytes`.
    `target`: what the result is for. `max_rewrites`: stop after so many.
    `freeze_initializers`: treat initializers that are also graph inputs as constants.
    `dims` (by symbol) and `shapes` (by input) give dynamic inputs their sizes; the result takes no others.
    `allow_domains`: operator domains that may enter the model although it does not import them.
    `inline_functions`: put the bodies of model-local functions in place of their calls; `target_opset`: convert the
    model to this version of the default domain; `provenance`: write into the model's metadata what made it, from what;
    `external`: where weights that lie beside the model go: `copy` into a data file of the result, `inline` into the
    result, `reuse` leaves them and refers to them, `auto` copies, unless nothing changed and they are in the folder of
    the result (these four for files only). `dtype`: `float16` or `bfloat16`, what float32 becomes, with `keep_io` not
    where callers see it. `excluded`: single matches that made a result wrong. `limits`: what native code may take that
    runs on what the model says.
    """

    level: int = 2
    pipeline: str | None = None
    extra: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    target: str = "any"
    max_rewrites: int | None = None
    freeze_initializers: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    allow_domains: Sequence[str] = ()
    inline_functions: bool = False
    target_opset: int | None = None
    provenance: bool = False
    external: str = "auto"
    dtype: str = ""
    keep_io: bool = True
    excluded: tuple[Site, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def load(self, source: str | Path) -> Model:
        """The model in a file, as these options want it read. Raises ModelError and UsageError."""
        return load(
            source,
            freeze_initializers=self.freeze_initializers,
            inline_functions=self.inline_functions,
            target_opset=self.target_opset,
            limits=self.limits,
        )

    def passes(self) -> Sequential:
        """The pipeline. Raises UsageError for a level or name that does not exist, and where the text is wrong."""
        if not 0 <= self.level <= 3:
            raise UsageError(f"there is no level {self.level}", "levels are 0 to 3")
        chosen = pipeline_for(self.level, self.extra) if self.pipeline is None else parse_pipeline(self.pipeline)
        return converting(chosen, self.dtype, self.keep_io) if self.dtype else chosen

    def context(self, instruments: Sequence[Instrument] = (), trace: Trace | None = None) -> PassContext:
        """Settings to run it in. Raises UsageError for unknown names and keys."""
        required = self.extra if self.pipeline is None else tuple(_names(parse_pipeline(self.pipeline)))
        if self.dtype:  # at every level
            required = (*required, "convert-dtype", "elim-identity", "dead-code")
        whole = [name for name in self.disable if "@" not in name]
        return PassContext(
            opt_level=self.level,
            required_pass=required,
            disabled_pass=[get_pass(name).info.name for name in whole if not is_rule(name)],
            disabled_rule=[name for name in whole if is_rule(name)],
            config=self._limits() | dict(self.config),
            target=self.target,
            instruments=instruments,
            trace=trace,
            max_rewrites=self.max_rewrites,
            excluded=[*self.sites(), *self.excluded],
            allow_domains=self.allow_domains,
        )

    def _limits(self) -> dict[str, Any]:
        chosen = {MEMORY: self.limits.memory, WORK: self.limits.work}
        return {key.name: value for key, value in chosen.items() if value != key.default}

    def sites(self) -> list[Site]:
        """The single matches that `disable` names. Raises UsageError for a rule that does not exist."""
        found = [Site.parse(text) for text in self.disable if "@" in text]
        return [s if is_rule(s.name) else replace(s, name=get_pass(s.name).info.name) for s in found]


def _names(p: Pass) -> Iterator[str]:
    yield p.name
    for child in p.children:
        yield from _names(child)


@record
class RolledBack:
    """What a rule (or a pass without rules, `rule` empty) did to `value`, made the result wrong, and was left out; the
    whole rule or pass where `value` is empty."""

    pass_text: str
    rule: str
    scope: str
    match: list[str]
    message: str
    value: str = ""

    @property
    def name(self) -> str:
        """As `--disable` takes it."""
        return self.rule or self.pass_text.partition("{")[0]

    @property
    def site(self) -> Site | None:
        """None: all of it."""
        return Site(self.name, self.value, self.scope) if self.value else None


@record
class Report:
    """What one optimization did; bytes are those of the model and its data files. `verification` is None when it was
    not asked for, or nothing was `changed`."""

    source: str
    destination: str
    pipeline: PipelineReport
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    changed: bool = True  # False: what is computed is what was computed, node by node
    verification: Verification | None = None
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase
    rolled_back: list[RolledBack] = field(default_factory=list)
    fixed_dims: dict[str, int] = field(default_factory=dict)  # dynamic dims that were given a size
    stats: dict[str, Any] | None = None  # `ModelStats` before and after, where they were asked for

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@record
class Result:
    """The optimized ModelProto and the report."""

    model: ModelProto
    report: Report


class _Tell(Instrument):
    """Passes on the name of each pass before it runs."""

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
    """Optimize an in-memory model in place."""
    options = options or OptimizeOptions()
    if options.dims or options.shapes:
        specialise(model, options.dims, options.shapes)
    return execute(options.passes(), model, options.context(instruments, trace))


def optimize(
    model: str | Path | ModelProto,
    level: int = 2,
    *,
    pipeline: str | None = None,
    extra: Sequence[str] = (),
    disable: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    target: str = "any",
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
    from onnxopt.graph import write_model

    options = OptimizeOptions(
        level=level,
        pipeline=pipeline,
        extra=tuple(extra),
        disable=tuple(disable),
        config=config or {},
        target=target,
        max_rewrites=max_rewrites,
        freeze_initializers=freeze_initializers,
        allow_domains=allow_domains,
    )
    start = time.perf_counter()
    with blaming(model):
        if isinstance(model, (str, Path)):
            loaded, source = load(model, freeze_initializers=freeze_initializers), str(model)
        else:
            loaded, source = from_proto(model, freeze_initializers=freeze_initializers), ""
        done = optimize_model(loaded, options, instruments, trace)
    report = Report(source, "", done, seconds=time.perf_counter() - start, changed=loaded.version > 0)
    return Result(write_model(loaded), report)


def optimize_file(
    source: str | Path,
    destination: str | Path,
    options: OptimizeOptions | None = None,
    *,
    check_result: bool = True,
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
    """Optimize one file into another. The destination appears only when the result is verified.

    Raises ModelError, WriteError, PassError; VerificationError when the result differs from the original, with
    `strict` also when it is not shown to compute the same, and without `allow_unverified` when nothing could be
    compared, with the Report as `error.report`. A model nothing was changed in is copied, byte for byte. `verifier`:
    one that was started before, to have it load while this module was imported. A pass that fails leaves in the folder
    `reproducer` what is needed to run it again, with `zero_weights` without the weights. `home`: the folder that the
    caller brings the destination to, where references have to hold.
    """
    options = options or OptimizeOptions()
    check_choice(options.external)
    source, destination = Path(source), Path(destination)
    passes, ctx = options.passes(), options.context((*instruments, _Tell(progress)), trace)
    phases: dict[str, float] = {}
    clock = start = time.perf_counter()

    def phase(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        phases[name] = now - clock
        clock = now

    if check_result and passes.passes and verifier is None:
        asked = verify_options or VerifyOptions(limit=options.limits.memory)
        verifier = Verifier(source, replace(asked, dtype=options.dtype) if options.dtype else asked)
    # The verifier imports onnxruntime and runs the original while the passes run.
    with verifier or nullcontext(), blaming(source):
        progress("loading")
        model = options.load(source)
        fixed = specialise(model, options.dims, options.shapes) if options.dims or options.shapes else {}
        if verifier is not None:
            verifier.describe(model.proto, override=not options.freeze_initializers)
        before_bytes = _bytes_of(source, model)
        refuse_overwriting_input(source, destination, model.proto)
        with Staged(destination, home) as staged:
            phase("load")
            try:
                pipeline = execute(passes, model, ctx)
                phase("passes")
                progress("writing")
                changed = model.version > 0
                if options.provenance:
                    from onnxopt.io.provenance import write_provenance

                    write_provenance(model, source, pipeline_text(passes.passes))
                staged.write(model, options.external)
            except OnnxOptError as e:
                if isinstance(e, InvariantError) and e.failed is None:
                    ctx = _accuse(source, passes, ctx, e, options)
                _keep(reproducer, source, passes, ctx, e, options, zero_weights)
                raise
            phase("write")
            report = Report(str(source), str(destination), pipeline, before_bytes, staged.bytes)
            report.phases, report.fixed_dims, report.changed = phases, fixed, changed
            if verifier is not None and changed:
                verifier.submit(staged.path, model.tolerances)
                progress("verifying")
                report.verification = let_in(verifier.finish(), options.allow_domains)
                phase("verify")
            report.seconds = time.perf_counter() - start
            if (found := report.verification) is not None and (
                found.status == DIFFERENT
                or (strict and found.status not in PROVEN)
                or (not allow_unverified and found.status == UNVERIFIED)
            ):
                raise DifferentResult(report)
            staged.commit()
        return report


def _bytes_of(source: Path, model: Model) -> int:
    """Of a model's file and the data files that it reads."""
    if not any(map(is_external, model.proto.graph.initializer)):
        return source.stat().st_size
    from onnxopt.analysis.cost import file_bytes

    return file_bytes(model)


def _read_again(source: Path, options: OptimizeOptions) -> Model:
    model = options.load(source)
    if options.dims or options.shapes:
        specialise(model, options.dims, options.shapes)
    return model


def _accuse(
    source: Path, passes: Sequential, ctx: PassContext, error: InvariantError, options: OptimizeOptions
) -> PassContext:
    """Name in `error`, which the result as a whole ended in, the pass after which it is so: this run is repeated, and
    looked at after each pass. Returns the context that does so."""
    from onnxopt.pipeline.instruments import CheckEach

    checking = replace(ctx, instruments=(CheckEach(),), trace=None)
    try:
        execute(passes, _read_again(source, options), checking)
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
        error.hint += "; --reproducer DIR keeps what is needed to report it"
        return
    from onnxopt.pipeline.reproducer import keep_reproducer

    model = _read_again(source, options)
    keep_reproducer(reproducer, model, passes, ctx, error, options.freeze_initializers, zero_weights=zero_weights)


class DifferentResult(VerificationError):
    """The result differs from the original, or is not shown to compute the same where only that will do; `report`
    says where. Nothing was written."""

    def __init__(self, report: Report) -> None:
        verification = report.verification
        assert verification is not None
        what, hint = _REFUSED[verification.status]
        hint = verification.hint or hint
        if verification.status == UNVERIFIED:
            hint = "; ".join(filter(None, [hint, "--allow-unverified, without --strict, writes it all the same"]))
        super().__init__(f"{report.source}: {what}: {verification.message}", hint)
        if not self.hint.startswith(_NOTHING):
            self.hint = f"{_NOTHING}; {self.hint}"
        self.report = report


_NOTHING = "nothing was written"
_REFUSED = {
    DIFFERENT: ("the result differs from the original", "find the pass with --disable, and report it"),
    WITHIN_NOISE: (
        "the result is within rounding noise only, which --strict refuses",
        "--rtol says how much an output may differ, -O1 changes no bit",
    ),
    INCONCLUSIVE: ("verification is inconclusive, which --strict refuses", "give real data with --input"),
    UNVERIFIED: ("the result is not verified, which --strict and builds refuse", ""),
}


def stats(
    model: str | Path,
    *,
    work: bool = False,
    top: int = 0,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ModelStats:
    """Operators, nodes, initializers, parameters and bytes of a model file.

    `work`: MACs, FLOPs and memory of a run too, with the `top` nodes that compute most; `dims` (by symbol) and `shapes`
    (by input) give dynamic inputs their sizes for that.
    """
    from onnxopt.analysis.cost import model_stats, model_work
    from onnxopt.settling import settle_shapes

    with blaming(model):
        measured = load(model)
        counted = model_stats(measured)
        if not work:
            return counted

        def loaded() -> Model:
            again = load(model, inline_functions=True)
            if dims or shapes:
                specialise(again, dims or {}, shapes or {})
            return again

        if measured.functions or dims or shapes:
            measured = loaded()
        settle_shapes(measured, loaded)
        return replace(counted, work=model_work(measured, top))


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
