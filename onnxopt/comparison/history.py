"""History of a run, repeated, or read from the JSON of `optimize --report` with every field's type checked."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from onnxopt.bisection import explain
from onnxopt.comparison.records import LARGE, History, graph_record
from onnxopt.errors import UsageError
from onnxopt.graph.dims import specialise
from onnxopt.io import blaming, load
from onnxopt.optimizer import OptimizeOptions, Report, optimize_model
from onnxopt.pipeline.instruments import Timeline
from onnxopt.pipeline.journal import Entry, Journal
from onnxopt.pipeline.records import WRONG
from onnxopt.verification import Verification, Verifier, VerifyOptions

_HINT: Final = "`onnxopt optimize IN OUT --report FILE` writes one"


def read_history(path: str | Path) -> History:
    """Return the history in a report file. Raises UsageError for an unreadable or invalid file."""
    path = Path(path)
    try:
        data = json.loads(path.read_bytes())
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}", _HINT) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON", _HINT) from None
    try:
        entries = [_read(_ENTRY, e) for e in data.get("journal", [])]
        journal = [Entry(**e | {"removed": tuple(e["removed"]), "made": tuple(e["made"])}, outputs=()) for e in entries]
        return History(_read(_REPORT, data), _read([_RUN], data.get("timeline", [])), journal)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError(f"{path} is not the report of an optimization", _HINT) from None


def repeat(
    source: str | Path, options: OptimizeOptions | None = None, progress: Callable[[str], None] = lambda name: None
) -> History:
    """Return the history of optimizing `source` in memory.

    Raises the errors of `optimize_file`, except WriteError and VerificationError.
    """
    options = options or OptimizeOptions()
    progress("optimizing again")
    start = time.perf_counter()
    timeline, journal = Timeline(), Journal()
    with blaming(source):
        model = options.load(source, stored=True)
        loaded = time.perf_counter()
        pipeline = optimize_model(model, options, (timeline, journal))
    ended = time.perf_counter()
    report = Report(str(source), "", pipeline, seconds=ended - start, fixed_dims=dict(options.dims))
    report.target, report.choices = str(options.context().target), options.choices(model)
    report.changed = model.version > 0
    report.phases = {"load": loaded - start, "passes": ended - loaded}
    made = graph_record(model).signature()
    if made[0] > LARGE:
        del model
        gc.collect()  # a graph is a large reference cycle, and two further graphs are about to be read
    return History(report.to_dict(), timeline.to_list(), journal.entries, True, made)


def judge(
    source: str | Path,
    result: str | Path,
    options: OptimizeOptions | None = None,
    entries: Sequence[Entry] = (),
    tolerances: Mapping[str, float] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> Verification:
    """Return the verdict on a result made with `options`, for the fixed sizes and frozen initializers.

    entries: journal of the run, to name rewrites at faults; tolerances: by pass, declared change of outputs; libraries:
    of custom operators.
    """
    options = options or OptimizeOptions()
    asked = VerifyOptions(limit=options.limits.memory, custom_op_libraries=libraries)
    with Verifier(source, options.judging(asked)) as verifier:
        verifier.start()
        model = load(source, stored=True)
        specialise(model, options.dims, options.shapes)
        verifier.describe(model.proto, model.data_of, override=not options.freeze_initializers)
        verifier.submit(result, tolerances)
        found = verifier.finish()
    found.hint = ""  # the hint addresses users who optimize
    explain(found.places, entries)
    return found


# -- fields shown, by type: further fields are ignored ------------------------------------------------------------
# A list has one kind of items; a dict has fields, or, with the key `str`, any names; all further kinds convert a value.


def _read(kind: Any, found: Any) -> Any:
    """Return a value with all fields converted. Raises any error of a conversion, and KeyError for a missing field."""
    if isinstance(kind, list):
        return [_read(kind[0], item) for item in found]
    if not isinstance(kind, dict):
        return kind(found)
    if str in kind:
        return {str(name): _read(kind[str], item) for name, item in found.items()}
    empty = {name: type(k)() for name, k in kind.items() if isinstance(k, list | dict)}
    given = empty | _ABSENT | found
    return {name: _read(k, given[name]) for name, k in kind.items()}


def _or_none(kind: Any) -> Callable[[Any], Any]:
    return lambda found: None if found is None else _read(kind, found)


def _all(names: str, kind: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


def _number(n: Any) -> float:
    """Return a float; null stands for infinity, unknown to JSON."""
    return float("inf") if n is None else float(n)


# Values of absent fields, besides empty lists and dicts.
_ABSENT: Final = {"changed": True, "target": "any", "pieces": None, "fault": WRONG} | _all(
    "pass_text rule message value scope", ""
)
_RULE: Final = {"hits": int, "nodes": int, "declined": {str: {"example": str, "count": int}}}
_PASS: Final = {"name": str, "changed": bool, "seconds": float, "rules": {str: _RULE}} | _all("runs nodes bytes", int)
_PIECES: Final = (
    _all("cuts shared same noisy blank largest", int)
    | _all("worst note", str)
    | {"worst_rel": _number, "branches": [str]}
)
_SIDE: Final = _all("node op", str) | _all("inputs outputs", [str])
_PLACE: Final = (
    _all("case value scope", str)
    | _all("entries rewrites", [str])
    | _all("a b", [_SIDE])
    | {"record": {"note": str}, "noise": _or_none(float)}
)
_CASE: Final = {"name": str, "dims": dict}
_VERIFICATION: Final = _all("status message hint", str) | {
    "cases": [_CASE],
    "pieces": _or_none(_PIECES),
    "places": [_PLACE],
    "noise": {str: _number},
}
_PIPELINE: Final = _all("rounds nodes_before nodes_after", int) | {
    "seconds": float,
    "passes": [_PASS],
    "skipped": {str: str},
    "warnings": [str],
    "tolerances": {str: float},
}
_REPORT: Final = (
    _all("source destination target", str)
    | _all("bytes_before bytes_after", int)
    | {"seconds": float, "phases": {str: float}, "fixed_dims": {str: int}, "choices": [_all("what why", str)]}
    | {"rolled_back": [_all("pass_text rule message value scope fault", str)]}
    | {"verification": _or_none(_VERIFICATION), "pipeline": _PIPELINE}
)
_RUN: Final = {"name": str, "start": float, "seconds": float, "nodes": int}
_ENTRY: Final = {"number": int} | _all("pass_name rule scope", str) | _all("removed made", [str])
