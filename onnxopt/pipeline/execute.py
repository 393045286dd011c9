"""Runs a pass: requirements, checks and hooks around `Pass.run`, and error messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from types import TracebackType
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.errors import (
    InstrumentError,
    InvariantError,
    ModelError,
    OnnxOptError,
    PassError,
    PreconditionError,
    UsageError,
    WriteError,
    broken,
    in_a_line,
    is_no_fault,
    is_starved,
    line_of,
    note_where,
)
from onnxopt.graph import Model
from onnxopt.graph.model import Left
from onnxopt.graph.node import Node
from onnxopt.graph.schema import newer
from onnxopt.graph.value import Type
from onnxopt.pipeline.base import Pass
from onnxopt.pipeline.context import PassContext, carry_over
from onnxopt.pipeline.decorators import LazyPass, check_model
from onnxopt.pipeline.records import Instrument, PipelineReport, call_hook, call_hooks
from onnxopt.pipeline.registry import get_pass, origin
from onnxopt.proto.messages import tensor_bytes

_LAST: Final = 3  # passes named in an error
_NOT_OF_A_PASS: Final = (ModelError, PreconditionError, WriteError, InstrumentError)


def execute(p: Pass, model: Model, ctx: PassContext | None = None) -> PipelineReport:
    """Run `p` on `model`, at any level, in `ctx` (default: the current context).

    A call inside another pass is part of the other's run. Raises PassError with pass, scope and node.
    """
    check_model(model, p)
    ctx = ctx or PassContext.current()
    if ctx.report is not None:
        run_pass(p, model, ctx, direct=True)
        return ctx.report
    with ctx.fork() as ctx:
        report = ctx.report = PipelineReport(nodes_before=model.node_count())
        ctx.constants = constant_bytes(model)
        if warning := newer(model.opsets.get("", 0)):
            report.warnings.append(warning)
        start = time.perf_counter()
        outer, model.allowed_domains = (model.allowed_domains, model.debug), ctx.allow_domains
        begun: list[Instrument] = []
        try:
            for instrument in ctx.instruments:
                call_hooks((instrument,), "begin", model)
                begun.append(instrument)
            run_pass(p, model, ctx, direct=True)
        except BaseException:
            _end(begun, model)  # the first error is raised
            raise
        finally:
            model.allowed_domains, model.debug = outer
        if failed := _end(begun, model):
            raise failed
        report.seconds = time.perf_counter() - start
        report.nodes_after = model.node_count()
        report.tolerances = dict(model.tolerances)
    return report


def _end(begun: Sequence[Instrument], model: Model) -> OnnxOptError | None:
    """Call the hook `end` of each instrument. Returns their first error."""
    first = None
    for instrument in begun:
        try:
            call_hooks((instrument,), "end", model)
        except OnnxOptError as e:
            first = first or e
    return first


def run_pass(p: Pass, model: Model, ctx: PassContext, *, direct: bool = False) -> None:
    """Run a pass with its requirements, checks and hooks. Skipped, with a reason, if ruled out, unless `direct`."""
    assert ctx.report is not None
    if isinstance(p, LazyPass):
        if obstacle := ctx.obstacle(p, model):
            ctx.report.leave_out(p.name, obstacle)
            return
        p = p.imported
    p = ctx.configured(p)
    if not direct and (obstacle := ctx.obstacle(p, model)):
        ctx.report.leave_out(p.name, obstacle)
        return
    ctx.report.skipped.pop(p.name, None)
    _meet_requirements(p, model, ctx)
    composite = bool(p.children)
    if not composite and not ctx.in_round:
        types.refresh_allowed(model)
    call_hooks(ctx.instruments, "before", model, p)
    _trace(p, model, ctx, True)
    key, looked = _key(p, ctx), None
    around, ctx.settled = ctx.settled, True
    if composite:
        p.run(model, ctx)
        call_hooks(ctx.instruments, "after", model, p)
    else:
        looked = _run_leaf(p, model, ctx, model.left_by.pop(key, None))
    if ctx.settled and ctx.fuel.left != 0:
        model.left_by[key] = Left(model.state, *(looked or (model.clock, None)))
    ctx.settled = ctx.settled and around
    _trace(p, model, ctx, False)


def _trace(p: Pass, model: Model, ctx: PassContext, is_before: bool) -> None:
    if (trace := ctx.trace) is not None:
        name = getattr(trace, "__name__", type(trace).__name__)
        call_hook(f"the trace function {name} failed", trace, model, p.info, is_before)


def is_current(p: Pass, model: Model, ctx: PassContext) -> bool:
    """Whether the model is unchanged since `p` last ran, with the same options and settings."""
    if isinstance(p, LazyPass):
        if not p.is_imported:
            return False
        p = p.imported
    left = model.left_by.get(_key(ctx.configured(p), ctx))
    return left is not None and left.state == model.state


def remaining(p: Pass, ctx: PassContext) -> list[Pass]:
    """Return the passes still to run before and after the present position, starting with `p`."""
    return [p, *(q for rest in reversed(ctx.rest) for q in rest)]


def _key(p: Pass, ctx: PassContext) -> Hashable:
    return p, ctx.targets, ctx.disabled_rule, ctx.excluded, repr(ctx.config) if ctx.config else ""


def _meet_requirements(p: Pass, model: Model, ctx: PassContext) -> None:
    if not p.info.required:
        return
    if p.name in ctx.requiring:
        cycle = [*ctx.requiring[ctx.requiring.index(p.name) :], p.name]
        raise PassError(f"passes require each other: {' → '.join(cycle)}", "take one of the requirements out")
    ctx.requiring.append(p.name)
    for name in p.info.required:
        needed = get_pass(name)()
        if not is_current(needed, model, ctx):
            run_pass(needed, model, ctx, direct=True)
    ctx.requiring.pop()


def _run_leaf(
    p: Pass, model: Model, ctx: PassContext, left: Left | None
) -> tuple[int, Mapping[Node, Sequence[str]]] | None:
    """Run a pass without children. Returns (clock, declined nodes) if reported by the pass.

    `left`: state in which the pass last left the model.
    """
    assert ctx.report is not None
    record = ctx.report.of(p.name)
    outer, ctx.rules, ctx.running, ctx.scope = (ctx.rules, ctx.running), record.rules, p.name, None
    around, ctx.left, ctx.looked = (ctx.left, ctx.looked), left, None
    debug = model.debug
    if origin(type(p)) != "onnxopt":  # authors of passes get early checks
        model.debug = True
        if model.inferred_version < 0:
            types.update(model)
    nodes, state, start = model.node_count(), model.state, time.perf_counter()
    hits = {what: rule.hits for what, rule in record.rules.items() if rule.hits}
    try:
        _check_requirements(p, model)
        check = p.promise(model)
        with np.errstate(all="ignore"):  # overflow is checked on the results
            p.run(model, ctx)
        if check is not None:
            check()
        p.ensures(model)
        carry_over(model, p.info.preserves, state)
        record.runs += 1
        record.seconds += time.perf_counter() - start
        record.nodes += nodes - model.node_count()
        if model.version != state[0]:
            record.changed = True
            before, ctx.constants = ctx.constants, constant_bytes(model)
            record.bytes += before - ctx.constants
            if p.info.tolerance:
                model.tolerances[p.name] = p.info.tolerance
        elif record.rules:
            ctx.only_looked(p, hits)
        call_hooks(ctx.instruments, "after", model, p)
        looked = ctx.looked
    except BaseException as e:
        error = _named(e, p, model, ctx)
        if error is e:
            raise
        raise error from e
    finally:
        ctx.rules, ctx.running = outer
        ctx.left, ctx.looked = around
        model.debug = debug
    ctx.history.append(p.name)
    return looked


def constant_bytes(model: Model) -> int:
    """Return the bytes of all constants of a model in memory; nothing is decoded."""
    types_of = Counter[Type]()  # few differ
    for scope in model.scopes():
        types_of.update([v._type or v.constant_type() for v in scope.initializers.values()])
        nodes = [node.attributes.get("value") for node in scope.by_op.get("Constant", ())]
        types_of.update([(a.t.data_type, tuple(a.t.dims)) for a in nodes if a is not None])
    return sum(count * tensor_bytes(*kind) for kind, count in types_of.items())


def _named(e: BaseException, p: Pass, model: Model, ctx: PassContext) -> BaseException:
    """Return the error with the name of the pass and the place; a new error for an unexpected exception."""
    if is_starved(e) or (isinstance(e, OnnxOptError) and (e.failed is not None or isinstance(e, _NOT_OF_A_PASS))):
        return e
    if isinstance(e, OnnxOptError):
        where = f" ({line})" if isinstance(e, PassError | InvariantError) and (line := line_of(e)) else ""
        e.message = f"pass {p.name}: {e.message}{where}{'' if isinstance(e, UsageError) else _after(ctx)}"
        e.failed = (len(ctx.history), str(p))
        return e
    where = model.name if ctx.scope is None else f"{model.name}: {ctx.scope.path}"
    if (node := _node_in(e.__traceback__)) is not None:
        where += f": {node!r}"
    if isinstance(e, KeyboardInterrupt):
        note_where(e, f"in pass {p.name} on {where}")
        return e
    error = broken(f"pass {p.name} failed on {where}", e, p.name, "pass")
    error.message += _after(ctx)
    error.failed = (len(ctx.history), str(p))
    return error


def _check_requirements(p: Pass, model: Model) -> None:
    """Check that the model suits the pass; errors of `requires` become PreconditionError."""
    try:
        p.requires(model)
    except PreconditionError:
        raise
    except BaseException as e:
        if is_no_fault(e):
            raise
        why = in_a_line(e) or type(e).__name__
        hint = f"give it a model that has what it requires, or go on without it by --disable {p.name}"
        raise PreconditionError(f"pass {p.name} cannot work on {model.name}: {why}", hint) from e


def _after(ctx: PassContext) -> str:
    """Return the last passes before, for messages."""
    names = list(dict.fromkeys(reversed(ctx.history)))[:_LAST][::-1]
    return f" (after {', '.join(names)})" if names else ""


def _node_in(tb: TracebackType | None) -> Node | None:
    """Return the node in use by the failing code: a variable of the innermost frame with a node."""
    found = None
    while tb is not None:
        frame = tb.tb_frame
        if not str(frame.f_globals.get("__name__")).startswith("onnxopt.graph."):
            found = next((v for v in frame.f_locals.values() if isinstance(v, Node)), found)
        tb = tb.tb_next
    return found
