"""Runs one rule or graph pass, alone and unverified, on a model: whether it fires, and whether the result is equal.

    outcome = examine(model, "implicit-broadcast", "expand_of_operand")
    assert not outcome.fault, outcome.fault

`tests/rules/apart.py` does the same in a separate process, which a runtime may corrupt.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import ModelProto

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.errors import ModelError, OnnxOptError, UsageError
from onnxopt.graph import Model, read_model, write_model
from onnxopt.pipeline import Fixpoint, Pass, PassContext, RewritePass, execute, get_pass
from onnxopt.pipeline.instruments import CheckEach
from tests.rules.comparing import Comparison, line_of
from tests.rules.feeding import Range, draws


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a rule on a model.

    `fired`: number of rewrites. `fault`: the fault of the result, or empty. `kind`: `wrong` (another number), `inexact`
    (nearly equal although nothing rounds), `types`, `refused` (by onnx's checker), `does not load`, `crash`, `raises`
    (in the pass), `unsettled` (no fixed point). `limits`: further differences by kind, no faults as such: `overflow`
    (huge numbers), `special` (NaN and infinities) and `rounded` (not of float64), above -O1 only except for PACKETS;
    `empty` (no result on empty inputs). `left_out`: why nothing was compared: an invalid model, or no runtime.
    `declined`: the reasons.
    """

    fired: int = 0
    fault: str = ""
    kind: str = ""
    limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: str = ""
    declined: tuple[str, ...] = ()
    result: bytes = b""


def examine(
    model: ModelProto,
    pass_name: str,
    rule_name: str | None = None,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    ranges: Mapping[str, Range] | None = None,
    folded: bool = False,
    before: Sequence[str] = (),
    empty: bool = True,
    note: Callable[[str], None] = lambda stage: None,
) -> Outcome:
    """Run the rule, or the whole pass, to its fixed point, and compare the result with the model.

    `options`: of the pass; `ranges`: of integer inputs. `folded`: constants are folded first, except fills, which stay
    nodes of known value, as large ones do. `before`: passes that run first. `empty`: also with empty inputs, if sizes
    are symbols. `note` receives the next step.
    """
    info = get_pass(pass_name).info
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as e:
        return Outcome(left_out=f"no model: {line_of(e)}")
    try:
        after, fired, declined = rewritten(model, pass_name, rule_name, options, folded, before)
    except ModelError as e:
        return Outcome(left_out=f"no model: {line_of(e)}")
    except OnnxOptError as e:
        said = f"raises: {line_of(e)}\n{traceback.format_exc()}"
        try:
            note("original")
            Comparison(model, draws(model, seed, ranges, empty))
        except Exception as none:
            return Outcome(1, left_out=f"not runnable: {line_of(none)}")
        return Outcome(1, said, "raises")
    if not fired:
        return Outcome(declined=declined)
    note("original")
    try:
        comparison = Comparison(model, draws(model, seed, ranges, empty), info.tolerance)
    except Exception as e:
        return Outcome(fired, left_out=f"not runnable: {line_of(e)}", declined=declined)
    note("result")
    kind, fault = _structural(model, after) or comparison.fault(after, info.opt_level <= 1) or ("", "")
    if not fault:
        note("again")
        if _goes_on(after, pass_name, rule_name, options, folded, before):
            kind, fault = "unsettled", "a second run changes something"
    said = fault and f"{kind}: {fault}"
    return Outcome(fired, said, kind, comparison.limits, "", declined, after.SerializeToString() if fault else b"")


def _goes_on(after: ModelProto, *run: Any) -> bool:
    """Returns whether a second run changes the result, also with dead code elimination, which may expose a change."""
    if not rewritten(after, *run)[1]:
        return False
    cleaned, *_ = rewritten(after, *run, clean=True)
    return rewritten(cleaned, *run, clean=True)[1] > 0


def rewritten(
    model: ModelProto,
    pass_name: str,
    rule_name: str | None = None,
    options: Mapping[str, Any] | None = None,
    folded: bool = False,
    before: Sequence[str] = (),
    clean: bool = False,
) -> tuple[ModelProto, int, tuple[str, ...]]:
    """Returns a copy rewritten by the rule alone, the number of rewrites, and reasons of declined matches.

    A graph pass runs as a whole, and `rule_name` selects its counter; without either, all counters and uncounted
    changes count. `clean`: dead code elimination follows.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    read = read_model(copy)
    p = configured(pass_name, options)
    names = [r.name for r in p.rules] if isinstance(p, RewritePass) else []
    if rule_name is not None and names and rule_name not in names:
        raise UsageError(f"{pass_name} has no rule {rule_name}", f"it has {', '.join(names)}")
    if rule_name is not None and isinstance(p, RewritePass):
        object.__setattr__(p, "rules", tuple(r for r in p.rules if r.name == rule_name))  # of this one
    level = 3 if rule_name else max(p.info.opt_level, 1)  # what a pass does of itself may depend on the level
    ctx = PassContext(opt_level=level, instruments=[CheckEach()])
    if folded:
        execute(configured("constant-folding", {"max_fill": 0}), read, ctx)
    for name in before:
        execute(Fixpoint((configured(name, None),)), read, ctx)
    state = read.version
    report = execute(Fixpoint((p, configured("dead-code", None)) if clean else (p,)), read, ctx)
    rules = report.of(pass_name).rules
    fired = sum(r.hits for name, r in rules.items() if rule_name in (None, name))
    if rule_name is None and not fired and not clean:
        fired = int(read.version > state)
    return _written(read), fired, tuple(reason for r in rules.values() for reason in r.declined)


def configured(pass_name: str, options: Mapping[str, Any] | None) -> Pass:
    p = get_pass(pass_name)()
    return dataclasses.replace(p, **options) if options else p


def _written(model: Model) -> ModelProto:
    written = ModelProto()
    written.CopyFrom(write_model(model))
    return written


def _structural(before: ModelProto, after: ModelProto) -> tuple[str, str] | None:
    """Returns the fault of a result found without a run."""
    try:
        onnx.checker.check_model(after, full_check=True)
    except Exception as e:
        return "refused", f"onnx.checker takes the model, and not the result: {line_of(e)}"
    for a, b in ((before.graph.input, after.graph.input), (before.graph.output, after.graph.output)):
        if [v.name for v in a] != [v.name for v in b]:
            return "types", f"{[v.name for v in a]} are {[v.name for v in b]}"
        for x, y in zip(a, b):
            if x.type.tensor_type.elem_type not in (0, y.type.tensor_type.elem_type):
                return "types", f"{x.name} was {x.type.tensor_type.elem_type}, is {y.type.tensor_type.elem_type}"
    return None
