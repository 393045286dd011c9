"""History of a run, read from the JSON of `optimize --report`, with every field's type checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onnxopt.errors import UsageError
from onnxopt.pipeline.journal import Entry
from onnxopt.pipeline.records import WRONG

_HINT: Final = "`onnxopt optimize IN OUT --report FILE` writes one"


@dataclass
class History:
    """History of a run."""

    report: dict[str, Any]  # `api.Report.to_dict()`
    timeline: list[dict[str, Any]] = field(default_factory=list)  # runs of passes, [] if unknown
    journal: list[Entry] = field(default_factory=list)  # rewrites, [] if unknown
    repeated: bool = False  # found by repeating the run (`repetition.py`)
    result: tuple[int, bytes] | None = None  # signature of the graph made by the repetition


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
        return _history(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError(f"{path} is not the report of an optimization", _HINT) from None


def _rolled_back(data: Mapping[str, Any]) -> dict[str, str]:
    texts = {key: str(data.get(key, "")) for key in ("pass_text", "rule", "message", "value", "scope")}
    return texts | {"fault": str(data.get("fault", WRONG))}


def _history(data: Mapping[str, Any]) -> History:
    """Return the history with all fields shown, type-checked; further fields are ignored."""
    pipeline = data["pipeline"]
    report: dict[str, Any] = {
        "source": str(data["source"]),
        "destination": str(data["destination"]),
        "bytes_before": int(data["bytes_before"]),
        "bytes_after": int(data["bytes_after"]),
        "seconds": float(data["seconds"]),
        "phases": {str(k): float(v) for k, v in data["phases"].items()},
        "fixed_dims": {str(k): int(v) for k, v in data.get("fixed_dims", {}).items()},
        "target": str(data.get("target", "any")),
        "choices": [{key: str(c[key]) for key in ("what", "why")} for c in data.get("choices", [])],
        "rolled_back": [_rolled_back(r) for r in data.get("rolled_back", [])],
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
                "declined": {
                    str(why): {"example": str(d["example"]), "count": int(d["count"])}
                    for why, d in rule["declined"].items()
                },
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
    """Return a float; null stands for infinity, unknown to JSON."""
    return float("inf") if n is None else float(n)
