"""What a run did: read from the JSON that `optimize --report` writes, or found out by running again."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onnxopt.api import OptimizeOptions, Report, optimize_model
from onnxopt.bisect import explain
from onnxopt.comparison.records import LARGE, graph_record
from onnxopt.errors import UsageError
from onnxopt.graph import specialise
from onnxopt.io import blaming, load
from onnxopt.pipeline.instruments import Entry, Journal, Sizes, Timeline
from onnxopt.pipeline.site import WRONG
from onnxopt.verification import Verification, Verifier, VerifyOptions

_HINT: Final = "`onnxopt optimize IN OUT --report FILE` writes one"


@dataclass
class History:
    """`report` is `api.Report.to_dict()`, `timeline` and `journal` are lists of runs and rewrites, empty if unknown.

    `repeated`: found by running again, not recorded. `result`: the signature of the graph that the repetition made.
    """

    report: dict[str, Any]
    timeline: list[dict[str, Any]] = field(default_factory=list)
    journal: list[Entry] = field(default_factory=list)
    repeated: bool = False
    result: tuple[int, bytes] | None = None


def repeat(
    source: str | Path, options: OptimizeOptions | None = None, progress: Callable[[str], None] = lambda name: None
) -> History:
    """Optimize `source` in memory. Raises what `optimize_file` raises, except WriteError and VerificationError."""
    options = options or OptimizeOptions()
    progress("optimizing again")
    start = time.perf_counter()
    timeline, journal = Timeline(), Journal()
    with blaming(source):
        model = options.load(source, stored=True)
        loaded = time.perf_counter()
        pipeline = optimize_model(model, options, (Sizes(), timeline, journal))
    ended = time.perf_counter()
    report = Report(str(source), "", pipeline, seconds=ended - start, fixed_dims=dict(options.dims))
    report.changed = model.version > 0
    report.phases = {"load": loaded - start, "passes": ended - loaded}
    made = graph_record(model).signature()
    if made[0] > LARGE:
        del model
        gc.collect()  # a graph is one big cycle, and two more are about to be read
    return History(report.to_dict(), timeline.to_list(), journal.entries, True, made)


def judge(
    source: str | Path,
    result: str | Path,
    options: OptimizeOptions | None = None,
    entries: Sequence[Entry] = (),
    tolerances: Mapping[str, float] | None = None,
) -> Verification:
    """The verdict on a result that was made with `options`: at the sizes they fix, and with what they freeze.
    `entries`: what the run that made it did, to say which rewrites happened at its places; `tolerances`: by how much
    passes said that they change outputs."""
    options = options or OptimizeOptions()
    with Verifier(source, VerifyOptions(limit=options.limits.memory, dtype=options.dtype)) as verifier:
        verifier.start()
        model = load(source, stored=True)
        specialise(model, options.dims, options.shapes)
        verifier.describe(model.proto, model.data_of, override=not options.freeze_initializers)
        verifier.submit(result, tolerances)
        found = verifier.finish()
    found.hint = ""  # what it says is for those who optimize
    explain(found.places, entries)
    return found


def read_history(path: str | Path) -> History:
    """Read a report. Raises UsageError for a file that cannot be read, or is none."""
    path = Path(path)
    try:
        data = json.loads(path.read_bytes())
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}", _HINT) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON", _HINT) from None
    try:
        return _history(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError(f"{path} is not the report of an optimization", _HINT) from None


def _history(data: Mapping[str, Any]) -> History:
    """Every field that is shown, each with its type; others are left out."""
    pipeline = data["pipeline"]
    report: dict[str, Any] = {
        "source": str(data["source"]),
        "destination": str(data["destination"]),
        "bytes_before": int(data["bytes_before"]),
        "bytes_after": int(data["bytes_after"]),
        "seconds": float(data["seconds"]),
        "phases": {str(k): float(v) for k, v in data["phases"].items()},
        "fixed_dims": {str(k): int(v) for k, v in data.get("fixed_dims", {}).items()},
        "rolled_back": [
            {key: str(r.get(key, "")) for key in ("pass_text", "rule", "message", "value", "scope")}
            | {"fault": str(r.get("fault", WRONG))}
            for r in data.get("rolled_back", [])
        ],
        "verification": _verification(data["verification"]),
        "pipeline": {
            "rounds": int(pipeline["rounds"]),
            "nodes_before": int(pipeline["nodes_before"]),
            "nodes_after": int(pipeline["nodes_after"]),
            "seconds": float(pipeline["seconds"]),
            "passes": [_pass(p) for p in pipeline["passes"]],
            "skipped": {str(k): str(v) for k, v in pipeline["skipped"].items()},
            "warnings": [str(w) for w in pipeline["warnings"]],
            "tolerances": {str(k): float(v) for k, v in pipeline.get("tolerances", {}).items()},
        },
    }
    timeline = [
        {"name": str(r["name"]), "start": float(r["start"]), "seconds": float(r["seconds"]), "nodes": int(r["nodes"])}
        for r in data.get("timeline", [])
    ]
    journal = [
        Entry(
            number=int(e["number"]),
            pass_name=str(e["pass_name"]),
            rule=str(e["rule"]),
            scope=str(e["scope"]),
            removed=tuple(map(str, e["removed"])),
            made=tuple(map(str, e["made"])),
            outputs=(),
        )
        for e in data.get("journal", [])
    ]
    return History(report, timeline, journal)


def _pass(p: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(p["name"]),
        "changed": bool(p.get("changed", True)),
        "seconds": float(p["seconds"]),
        **{key: int(p[key]) for key in ("runs", "nodes", "bytes")},
        "rules": {
            str(name): {
                "hits": int(rule["hits"]),
                "nodes": int(rule["nodes"]),
                "declined": {str(why): (int(n), str(example)) for why, (n, example) in rule["declined"].items()},
            }
            for name, rule in p["rules"].items()
        },
    }


def _verification(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    pieces = found.get("pieces")
    return {
        **{key: str(found[key]) for key in ("status", "message", "hint")},
        "cases": [{"name": str(c["name"]), "dims": dict(c["dims"])} for c in found["cases"]],
        "pieces": _pieces(pieces) if pieces is not None else None,
        "places": [_place(place) for place in found.get("places", [])],
        "noise": {str(name): _number(noise) for name, noise in found.get("noise", {}).items()},
    }


def _pieces(pieces: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: int(pieces[key]) for key in ("cuts", "shared", "same", "noisy", "blank", "largest")},
        **{key: str(pieces[key]) for key in ("worst", "note")},
        "worst_rel": _number(pieces["worst_rel"]),
        "branches": [str(name) for name in pieces["branches"]],
    }


def _place(place: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: str(place[key]) for key in ("case", "value", "scope")},
        **{key: [str(text) for text in place[key]] for key in ("entries", "rewrites")},
        **{key: [_side(side) for side in place[key]] for key in "ab"},
        "record": {"note": str(place["record"]["note"])},
        "noise": _number(place["noise"]) if place["noise"] is not None else None,
    }


def _side(side: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: [str(name) for name in side[key]] for key in ("inputs", "outputs")}
    return {"node": str(side["node"]), "op": str(side["op"]), **values}


def _number(n: Any) -> float:
    """JSON has no infinity."""
    return float("inf") if n is None else float(n)
