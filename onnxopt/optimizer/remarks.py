"""Remarks about a result: rewrites left out, growth, faults of an opset conversion, int64 values, failed passes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from onnxopt.analysis import types
from onnxopt.analysis.int64 import INT64, int64_values
from onnxopt.conversion.opset import opset_of
from onnxopt.errors import InvariantError, ModelError, OnnxOptError, UsageError, few
from onnxopt.graph import Model, Value
from onnxopt.io import Staged
from onnxopt.io.load import read_proto
from onnxopt.optimizer.attempt import ConversionFault
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.passes.conversions import Int64Plan
from onnxopt.pipeline import PassContext, Sequential, execute
from onnxopt.verification import DIFFERENT, UNVERIFIED, Verification, Verifier
from onnxopt.verification.runtime import missing

if TYPE_CHECKING:
    from onnxopt.optimizer.attempt import Report, RolledBack


_MAX_SITES: Final = 3  # in a hint


def remarks(report: Report, options: OptimizeOptions, plugins: Sequence[str] = ()) -> list[str]:
    """Return warnings with their details, and hints. `plugins`: loaded files and modules."""
    absent = [site for site in options.sites() if site not in report.pipeline.left_out]
    told = [f"warning: --disable {site}: there was nothing to leave out" for site in absent]
    return [*told, *_idle(plugins, options), *_rolled_back(report.rolled_back)]


def not_for_target(options: OptimizeOptions) -> list[str]:
    """Return warnings for named passes idle on the target. Raises UsageError if no pass runs."""
    from onnxopt.pipeline import get_pass
    from onnxopt.pipeline.settings import idle_passes

    ctx = options.context()
    idle, others = idle_passes(options.passes(), ctx.targets, ctx.disabled_pass)
    told = "; ".join(f"{name} {why}" for name, why in idle.items())
    if idle and not others:
        target = get_pass(next(iter(idle))).info.targets[0]
        raise UsageError(f"no pass runs: {told}", f"--target {target}, if that is what the result is for")
    return [f"warning: a pass does not run: {told}"] if idle else []


def _rolled_back(rolled_back: Sequence[RolledBack]) -> Iterator[str]:
    if not rolled_back:
        return
    import shlex

    from onnxopt.reporting.plain import left_out

    for line in left_out([asdict(r) for r in rolled_back], matched=True):
        yield line if line.startswith(" ") else f"warning: {line}"
    without = shlex.quote(",".join(str(r.site or r.name) for r in rolled_back))
    disable = f"--disable {without} leaves it out at once, " if len(rolled_back) <= _MAX_SITES else ""
    more = f"{disable}--strict makes this an error, `onnxopt bisect` shows the smallest part"
    yield f"hint: {_reporting_advice(rolled_back)}{more}"


def _reporting_advice(rolled_back: Sequence[RolledBack]) -> str:
    """Return advice about wrong rewrites: a plugin's are its author's to correct."""
    if all(r.name == "convert-dtype" for r in rolled_back):  # a narrower type may be insufficient, which is no bug
        return ""
    from onnxopt.pipeline.registry import get_pass, origin

    try:
        homes = {origin(get_pass(re.split("[{(]", r.pass_text)[0])) for r in rolled_back}
    except OnnxOptError:  # an unnamed combination of passes
        return "report it; "
    return "report it; " if "onnxopt" in homes else f"correct it in {few(sorted(homes))}; "


def _idle(plugins: Sequence[str], options: OptimizeOptions) -> Iterator[str]:
    """Yield warnings for loaded plugins without a running pass: a pass must be registered and requested.

    A plugin may also only declare references.
    """
    if not plugins:
        return
    from onnxopt.pipeline.registry import registered_by
    from onnxopt.verification.runtime import DECLARED

    names = registered_by(plugins)
    if not names and {reference.by for reference in DECLARED.values()} & {Path(plugin).name for plugin in plugins}:
        return
    asked = " ".join((*options.extra, options.pipeline or "")).replace("_", "-")
    if not names:
        yield f"warning: --plugin {few(plugins)}: no pass is registered there; @register above it does that"
    elif not any(name in asked for name in names):
        yield f"warning: --plugin {few(plugins)}: {few(names)} did not run; --with {names[0]} adds it"


# -- growth of the file -----------------------------------------------------------------------------------------------

_PERCENT: Final = 1  # of the file; less growth is ignored
_MAX_NAMED: Final = 3
_REMEDIES: Final = {"constant-folding": "--max-constant-bytes 0"}  # default: leave the pass out


def growth(report: Report) -> list[str]:
    """Return a line: the growth, the passes that added constants, and options to avoid them; [] for little growth."""
    more = report.bytes_after - report.bytes_before
    if more < report.bytes_before * _PERCENT // 100:
        return []
    from onnxopt.reporting.plain import size

    said = f"the file is {size(more)} larger than the original"
    grown = sorted((p for p in report.pipeline.passes if -p.bytes > more // 10), key=lambda p: p.bytes)[:_MAX_NAMED]
    if not grown:
        return [f"{said}: what was converted or put inline takes more room"]
    added = " and ".join(f"{p.name} made constants of {size(-p.bytes)}" for p in grown)
    remedies = ", ".join(_REMEDIES.get(p.name, f"--disable {p.name}") for p in grown)
    return [f"{said}: {added}; {remedies} keeps it small"]


# -- faults of a conversion -------------------------------------------------------------------------------------------


_RAISED: Final = "onnx's version converter makes that of it; try a lower opset, or export the model again"
_LOWERED: Final = "an older form of an operator computes something else: report it, or try a higher opset"


def judged(
    verdict: Verification, result: Path, source: Path, options: OptimizeOptions, verifier: Verifier
) -> Verification:
    """Return the verdict on a result with converted opset.

    If onnxruntime lacks an operator of the opset even without optimization, the verdict comes from onnx's reference
    evaluator. Raises ModelError if making dims dynamic alone causes the fault, and ConversionFault if the opset
    conversion alone does.
    """
    own, model = opset_of(read_proto(source, weights=False)), options.load_specialised(source)
    opset = model.opsets.get("", 0)
    if verdict.status != DIFFERENT or (opset == own and not options.make_dynamic):
        return verdict
    with TemporaryDirectory() as folder:
        converted = Path(folder) / "converted.onnx"
        with Staged(converted) as staged:
            staged.write(options.load_converted(source), options.external)
            staged.commit()
        verifier.submit(converted)
        alone = verifier.finish()
        if alone.status != DIFFERENT:
            return verdict
        if options.make_dynamic and alone.cases:
            raise ModelError(f"{source}: {', '.join(options.freed)} cannot be dynamic: {alone.message}", alone.hint)
        lacks = missing(alone.message)
        if alone.cases or not lacks:
            hint = _RAISED if opset > own else _LOWERED
            raise ConversionFault(f"{source} cannot be converted to opset {opset}: {alone.message}", hint, own)

        def by_reference(path: Path, rename: Mapping[str, str]) -> Verification:
            with Verifier(source, replace(verifier.options, without=lacks)) as judge:
                judge.describe(model.proto, model.data_of, override=not options.freeze_initializers)
                judge.submit(path, rename=rename)
                return judge.finish()

        found = by_reference(result, options.rename)
        lacks_it = found.status == UNVERIFIED
        if lacks_it or (found.status == DIFFERENT and by_reference(converted, {}).status == DIFFERENT):
            hint = "compare it in a runtime that has it, or choose an older opset"
            asks = "--target" if options.target_opset is None else "--target-opset"
            return Verification(UNVERIFIED, f"{lacks}, which {asks} asks for", hint=hint)
        return found


# -- int64 values left ------------------------------------------------------------------------------------------------

_INTERFACE: Final = "inputs and outputs of the model keep their type"
_OVERRIDABLE: Final = "callers may override an initializer"
_SKIPPED: Final = "a scope is marked onnxopt.skip"
_CASTS: Final = "int32 would only add Casts"


@dataclass(frozen=True)
class RemainingValue:
    """A value that is int64 in the result."""

    value: str
    node: str  # producer, or a reader
    why: str
    what: str = ""  # the operator, or the value with unknown numbers, of the reason


@dataclass
class Int64:
    """Numbers of int64 values in the model and in the result, and the values left."""

    before: int
    after: int
    left: list[RemainingValue]


def count_int64(model: Model) -> int:
    """Return the number of int64 values of a model, without values of functions, which have no types."""
    types.update(model)
    return sum(1 for _ in int64_values(model))


def int64_left(model: Model, before: int, *, keep_io: bool) -> Int64:
    """Return the int64 values of the result, each with a reason. `before`: their number in the original."""
    types.refresh_allowed(model)
    types.update(model)
    plan = Int64Plan(model, keep_io=keep_io)
    left = [_left(plan, v, keep_io=keep_io) for v in int64_values(model)]
    return Int64(before, len(left), left)


def _left(plan: Int64Plan, value: Value, *, keep_io: bool) -> RemainingValue:
    """Return a value that is int64 in the result, with the reason."""
    graph, groups = value.graph, plan.groups
    assert value.constant or types.dtype(value) == INT64
    node = value.producer or next(iter(value.users), None)
    told = repr(node) if node is not None else ""
    if graph.skipped:
        return RemainingValue(value.name, told, _SKIPPED)
    if graph.owner is None and (why := _kept_type(value, keep_io)):
        return RemainingValue(value.name, told, why)
    maker = groups.makers.get(value)
    readers = (groups.reader(n, i) for n in value.users for i in n.places(value))
    blamed = next((g for g in (maker, *readers) if g is not None and g.why), None)
    if blamed is not None:
        return RemainingValue(value.name, told if blamed is maker else repr(blamed.node), blamed.why, blamed.what)
    if graph.owner is not None and (value in graph.inputs or value.is_output):
        return RemainingValue(value.name, told, "bodies are given, and give, int64", graph.owner.op)
    return RemainingValue(value.name, told, _CASTS)


def _kept_type(value: Value, keep_io: bool) -> str:
    """Return why a value of the main graph keeps its type as input or output; empty for a value that may change."""
    is_input = value in value.graph.inputs
    if is_input and value.name in value.graph.initializers:
        return _OVERRIDABLE
    return _INTERFACE if (is_input or value.is_output) and (keep_io or value.is_stored) else ""


# -- a failed pass ----------------------------------------------------------------------------------------------------


def keep_failure(
    error: OnnxOptError,
    source: Path,
    passes: Sequential,
    ctx: PassContext,
    options: OptimizeOptions,
    reproducer: str | Path | None,
    *,
    zero_weights: bool,
) -> None:
    """Keep a reproducer of a failed pass in a folder; without a folder, add the option to the hint.

    For a violated invariant, the run is repeated first, to find the faulty pass.
    """
    if isinstance(error, InvariantError) and error.failed is None:
        ctx = _accuse(source, passes, ctx, error, options)
    if error.failed is None or isinstance(error, UsageError):
        return
    if reproducer is None:
        error.hint += f"{'' if error.hint.endswith('?') else ';'} --reproducer DIR keeps what is needed to report it"
        return
    from onnxopt.pipeline.reproducer import keep_reproducer

    model = options.load_converted(source)
    keep_reproducer(reproducer, model, passes, ctx, error, options.freeze_initializers, zero_weights=zero_weights)


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
