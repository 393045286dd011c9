"""What a run did: read from the JSON that `optimize --report` writes, or found out by running again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onnxopt.api import OptimizeOptions, Report, optimize_model
from onnxopt.comparison.records import GraphRecord, graph_record
from onnxopt.errors import UsageError
from onnxopt.graph import specialise
from onnxopt.io import blaming, load
from onnxopt.pipeline.instruments import Journal, Sizes, Timeline
from onnxopt.verification import Verification, Verifier

_HINT: Final = "`onnxopt optimize IN OUT --report FILE` writes one"


@dataclass
class History:
    """`report` is `api.Report.to_dict()`, `timeline` and `journal` are lists of runs and rewrites, empty if unknown.

    `repeated`: found by running again, not recorded. `result`: the graph that the repetition made.
    """

    report: dict[str, Any]
    timeline: list[dict[str, Any]] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    repeated: bool = False
    result: GraphRecord | None = None


def repeat(
    source: str | Path, options: OptimizeOptions | None = None, progress: Callable[[str], None] = lambda name: None
) -> History:
    """Optimize `source` in memory. Raises what `optimize_file` raises, except WriteError and VerificationError."""
    options = options or OptimizeOptions()
    progress("optimizing again")
    start = time.perf_counter()
    timeline, journal = Timeline(), Journal()
    with blaming(source):
        model = options.load(source)
        loaded = time.perf_counter()
        pipeline = optimize_model(model, options, (Sizes(), timeline, journal))
    ended = time.perf_counter()
    report = Report(str(source), "", pipeline, seconds=ended - start, fixed_dims=dict(options.dims))
    report.changed = model.version > 0
    report.phases = {"load": loaded - start, "passes": ended - loaded}
    return History(report.to_dict(), timeline.to_list(), journal.to_list(), True, graph_record(model))


def judge(source: str | Path, result: str | Path, options: OptimizeOptions | None = None) -> Verification:
    """The verdict on a result that was made with `options`: at the sizes they fix, and with what they freeze."""
    options = options or OptimizeOptions()
    with Verifier(source) as verifier:
        verifier.start()
        model = load(source)
        if options.dims or options.shapes:
            specialise(model, options.dims, options.shapes)
        verifier.describe(model.proto, override=not options.freeze_initializers)
        verifier.submit(result)
        return verifier.finish()


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
            {key: str(r.get(key, "")) for key in ("pass_text", "rule", "message", "value")}
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
        },
    }
    timeline = [
        {"name": str(r["name"]), "start": float(r["start"]), "seconds": float(r["seconds"]), "nodes": int(r["nodes"])}
        for r in data.get("timeline", [])
    ]
    journal = [
        {key: int(e[key]) if key == "number" else str(e[key]) for key in ("number", "pass_name", "rule", "scope")}
        | {key: [str(text) for text in e[key]] for key in ("removed", "made")}
        for e in data.get("journal", [])
    ]
    return History(report, timeline, journal)


def _pass(p: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(p["name"]),
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
    return {
        **{key: str(found[key]) for key in ("status", "message", "hint")},
        "cases": [{"name": str(c["name"]), "dims": dict(c["dims"])} for c in found["cases"]],
    }
