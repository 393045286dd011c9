"""Verdict and its one-line message: from compared outputs, pieces and noise, and from the strength of the cases."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onnxopt.verification import DIFFERENT, EQUAL, IN_PIECES, INCONCLUSIVE, LOADS_PLAIN, VERIFIED, WITHIN_NOISE
from onnxopt.verification.compare import EMPTY, proves_nothing
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.job import Answer, Opened
from onnxopt.verification.model.facts import always_empty
from onnxopt.verification.records import LEFT_OUT, CaseRecord, OutputRecord, Pieces, Place, Verification
from onnxopt.verification.rounding import NOTHING, OTHER_SIGN

_BEYOND: Final = 1e3  # times the noise of the whole; correct results stay far below
_MAX_DIMS: Final = 8  # dynamic dims named in a message


def conclude(verdict: Verification) -> None:
    """Set status and worst output of a verdict, from outputs alone."""
    outputs = verdict.outputs
    verdict.exact = all(o.ok and not o.max_abs for o in outputs)
    worst = max(outputs, key=lambda o: (not o.ok, o.max_rel), default=None)
    if worst is not None:
        verdict.worst, verdict.worst_rel = worst.name, worst.max_rel
    wrong = any(not o.ok for o in outputs)
    verdict.status = DIFFERENT if wrong else EQUAL if verdict.exact else VERIFIED


def settle(
    verdict: Verification, pieces: Pieces, places: list[Place], noise: Mapping[str, Mapping[str, float]]
) -> None:
    """Set the verdict from the second look. `noise`: by case."""
    verdict.pieces, verdict.places, verdict.noise = pieces, places, largest_noise(noise)
    open_ = [o for _, o in _differing(verdict.cases)]
    # Rounding explains no expected file, and no missing elements.
    if any(getattr(o, "against", "") or o.note.endswith(NOTHING) for o in open_):
        return
    if pieces.complete and pieces.cuts > pieces.noisy:
        verdict.status, why = IN_PIECES, "no piece does"
    elif pieces.complete or _is_noise(verdict, places, noise):
        verdict.status, why = WITHIN_NOISE, "rounding alone does as much"
    else:
        verdict.status = DIFFERENT if places else verdict.status
        return
    for o in open_:
        o.ok, o.note = True, f"{o.note}, and {why}"


def _differing(cases: Sequence[CaseRecord]) -> list[tuple[CaseRecord, OutputRecord]]:
    return [(c, o) for c in cases for o in c.outputs if not o.ok]


def _is_noise(verdict: Verification, places: Sequence[Place], noise: Mapping[str, Mapping[str, float]]) -> bool:
    """Return whether rounding alone changes each differing output as much, in the same case, and no place is gross.

    False if nothing differs.
    """
    every = [(noise.get(c.name, verdict.noise), o) for c, o in _differing(verdict.cases)]
    is_fine = bool(every or places) and not any(p.is_gross for p in places)
    return is_fine and all(o.max_rel <= known.get(o.name, 0.0) for known, o in every)


def largest(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the largest number of each output, over all cases."""
    most: dict[str, float] = {}
    for name, number in found:
        most[name] = max(number, most.get(name, 0.0))
    return most


def largest_noise(noise: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the largest noise of each output. `noise`: by case."""
    return largest(pair for known in noise.values() for pair in known.items())


def word(verdict: Verification, weak: Sequence[str], opened: Opened, declared: Mapping[str, float]) -> None:
    """Set the message of a verdict.

    weak: reasons why the cases prove little; opened: the engine; declared: changes of outputs declared by passes.
    """
    allowed = "".join(f"; {name} declares {share:g}" for name, share in declared.items())
    if verdict.status == DIFFERENT:
        verdict.message = _accusation(verdict) + allowed
        return
    note = verdict.pieces.note if verdict.status == VERIFIED and verdict.pieces is not None else ""
    verdict.message = ", ".join(filter(None, [_agreement(verdict), note, _cases(verdict), _evaluator(opened)]))
    if opened.around:
        verdict.message += f", {opened.around}"
        if "behind" not in opened.around:
            weak = [*weak, "nodes behind could not run, as their shapes are unknown"]
        verdict.status = IN_PIECES if verdict.status in (EQUAL, VERIFIED) else verdict.status
    verdict.message += allowed
    if weak:
        verdict.status, verdict.reasons = INCONCLUSIVE, [*weak]
        some = [*weak[:3], *([f"and {len(weak) - 3} more"] if len(weak) > 3 else [])]
        verdict.message += f"; but {'; '.join(some)}"


def _evaluator(opened: Opened) -> str:
    """Return, in words, that the reference evaluator ran the model, and why; "" for onnxruntime."""
    by = "" if opened.refused.startswith("onnxruntime ") else "onnxruntime: "
    return f"by the reference evaluator ({by}{opened.refused})" if opened.refused else ""


def _sizes(dims: Sequence[tuple[str, int]]) -> str:
    """Return dims as `n=2 t=3`, shortened if many."""
    more = len(dims) - _MAX_DIMS
    return " ".join(f"{k}={v}" for k, v in dims[:_MAX_DIMS]) + (f" and {more} more" if more > 0 else "")


def told_optimized(verdict: Verification, why: str, labels: tuple[str, str], *, original: bool) -> None:
    """Add a refusal of the result by onnxruntime with default optimizations, as used in deployment.

    why: reason of the refusal, or ""; original: the original loads.
    """
    a, b = labels
    if why and original:
        verdict.message = (
            f"onnxruntime with its default optimizations loads {a} and not {b}: {why}; "
            f"without them it is {verdict.status}: {verdict.message}"
        )
        verdict.status, verdict.hint = LOADS_PLAIN, ""
    elif why:
        neither = f"onnxruntime with its default optimizations loads neither {a} nor {b}: {why}"
        verdict.hint = "; ".join(filter(None, [neither, verdict.hint]))


def _agreement(verdict: Verification) -> str:
    if verdict.status == EQUAL:
        return "bit for bit the same"
    whole = f"{verdict.worst_rel:.1e} of the range of `{verdict.worst}`"
    noise = verdict.noise.get(verdict.worst)
    pieces = verdict.pieces
    if verdict.status == IN_PIECES and pieces is not None:
        agree = "the one piece agrees" if pieces.cuts == 1 else f"all {pieces.cuts:,} pieces agree"
        within = f"within {pieces.worst_rel:.1e} of what each gives" if pieces.worst_rel else "bit for bit"
        alone = f", rounding alone to {noise:.1e}" if noise is not None else ""
        why = f"`{verdict.worst}` has {OTHER_SIGN}, as zeros have" if _is_by_zeros(verdict) else ""
        why = why or f"their roundings add up to {whole}{alone}"
        return f"{agree}, {within}" + (f"; {why}" if verdict.worst_rel else "")
    if verdict.status == WITHIN_NOISE:
        return f"it differs by {whole}" + (f", rounding alone by {noise:.1e}" if noise is not None else "")
    return f"largest difference {whole}"


def worst_of(cases: Sequence[CaseRecord]) -> tuple[CaseRecord, OutputRecord] | None:
    """Return (case, output) with the largest difference; None if all agree."""
    return max(_differing(cases), key=lambda pair: pair[1].max_rel, default=None)


def _accusation(verdict: Verification) -> str:
    worst, text = worst_of(verdict.cases), ""
    if worst is not None:
        case, output = worst
        dims = ", ".join(f"{k}={v}" for k, v in case.dims.items())
        text = f"output `{output.name}` {output.note}" + (f" ({dims})" if dims else "")
        noise = verdict.noise.get(output.name)
        if noise is not None and output.max_rel < float("inf"):
            text += f", rounding alone by {noise:.1e}"
    if verdict.places:
        place = verdict.places[0]
        more = f" and {len(verdict.places) - 1} more" if len(verdict.places) > 1 else ""
        there = f"it goes wrong at `{place.value}`{more}"
        text = f"{text}; {there}" if worst is not None else f"{there}: {place.record.note}"
    return text or verdict.message


def _cases(verdict: Verification) -> str:
    """Return the number of cases, and their sizes."""
    count = sum(c.note != LEFT_OUT for c in verdict.cases)
    dims = "; ".join(map(_sizes, {tuple(c.dims.items()): None for c in verdict.cases if c.dims}))
    return f"{count} case{'s' if count != 1 else ''}" + (f" ({dims})" if dims else "")


def could_jump(plan: Plan) -> bool:
    """Return whether rounding may flip a decision or a draw, and change outputs arbitrarily."""
    return plan.decides or plan.random or plan.stateful


def is_unexplained(verdict: Verification, plan: Plan, *, narrow: bool = False) -> bool:
    """Return whether the whole differs far beyond rounding in a model without decisions.

    A different shape, or NaN, is beyond any rounding. narrow: type without comparison to float64, so zero noise is
    unknown.
    """
    noise = max(verdict.noise.values(), default=math.inf)
    noise = math.inf if narrow and not noise else noise
    beyond = [o for o in verdict.outputs if o.max_abs == math.inf and not o.note.startswith("type")]
    return not (could_jump(plan) or _is_by_zeros(verdict)) and (bool(beyond) or _BEYOND * noise < verdict.worst_rel)


def _is_by_zeros(verdict: Verification) -> bool:
    """Return whether only signs of zeros differ: pieces agree bit for bit, and infinities have the other sign."""
    is_exact = verdict.pieces is not None and verdict.pieces.complete and not verdict.pieces.worst_rel
    return is_exact and all(o.note.startswith(OTHER_SIGN) for o in verdict.outputs if o.max_abs)


# -- coverage of the cases --------------------------------------------------------------------------------
# Independent of any result: variation of the original's outputs.

_PROVES_NOTHING: Final = "all cases have zeros, ones or a batch of one, on which wrong results agree as well"


class Proof(NamedTuple):
    """Why the cases prove little."""

    weak: dict[str, str]  # reason, by output
    none: str = ""  # why no case proves anything, or ""


def proof(
    files: Sequence[Path], plan: Plan, answers: Sequence[Answer], *, fixed: bool, called: Mapping[str, str]
) -> Proof:
    """Return the proof of the cases, counting only those that prove something (`Recipe.proves`).

    files: original and result; fixed: inputs are the same in all cases; called: {result output: original output} if
    renamed.
    """
    ran = [a for a in answers if a.evidence]
    found = [a for a in ran if a.proves]
    if not plan.inputs or not ran:
        return Proof({})
    if not found:
        return Proof({}, _PROVES_NOTHING)
    weak = _weak(found, fixed)
    empty = _empty_in_both(files, called) if EMPTY in weak.values() else set()  # no inputs could show more
    return Proof({name: f"output `{name}` {said}" for name, said in weak.items() if name not in empty})


def _weak(answers: Sequence[Answer], fixed: bool) -> dict[str, str]:
    """Return why outputs are weak evidence. An output fed in some case (a default given out) is an input."""
    names = [name for name in answers[0].evidence if all(name in a.evidence for a in answers)]
    found = {name: proves_nothing([a.evidence[name] for a in answers], fixed) for name in names}
    return {name: said for name, said in found.items() if said}


def _empty_in_both(files: Sequence[Path], called: Mapping[str, str]) -> set[str]:
    """Return the outputs without elements in both files; none if inference fails, which decides no verdict."""
    with contextlib.suppress(Exception):
        empty = always_empty(files[0])
        return empty & {called.get(name, name) for name in always_empty(files[1])} if empty else empty
    return set()


def together(
    answers: Sequence[Answer], wrong: Collection[str], most: int, *, all_: bool
) -> list[tuple[list[str], bool]]:
    """Return groups of at most `most` cases to compare in pieces, each with whether its cases prove anything.

    Only cases in `wrong` are used, unless `all_` is set or no case is wrong. Groups are not mixed, as a mixed group
    would claim the coverage of a case without proof.
    """
    asked = [a for a in answers if all_ or a.case.name in wrong] or answers
    found = []
    for proves in (True, False):
        names = sorted((a.case.name for a in asked if a.proves is proves), key=lambda name: name not in wrong)
        found += [(names[i : i + most], proves) for i in range(0, len(names), most)]
    return found
