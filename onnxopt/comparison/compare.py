"""Records for the report: of a single model, and of two compared models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from onnx import ModelProto

from onnxopt.analysis.stats import ModelStats, model_stats
from onnxopt.analysis.types import infer
from onnxopt.comparison.blocks import SharedBlocks, own_blocks, share_blocks
from onnxopt.comparison.counterparts import Counterparts, Fate, Marks, match
from onnxopt.comparison.drawing import Side, drawing
from onnxopt.comparison.history import History
from onnxopt.comparison.records import LARGE, GraphRecord, elements, graph_record, is_elsewhere, same_constant
from onnxopt.errors import refused, told
from onnxopt.graph.text import type_text
from onnxopt.graph.value import Value
from onnxopt.io import load
from onnxopt.proto.messages import tensor_bytes

Made = TypeVar("Made")
Other = TypeVar("Other")


class Failures(dict[str, str]):
    """{section: reason}. All further sections of the page are made."""

    def attempt(self, section: str, make: Callable[[], Made], otherwise: Other) -> Made | Other:
        """Return the result of `make`; if it raises, record the reason and return `otherwise`.

        Refusals by the system (memory, space) are raised, and with ONNXOPT_DEBUG all errors.
        """
        try:
            return make()
        except Exception as e:
            if refused(e) or os.environ.get("ONNXOPT_DEBUG"):
                raise
            self.setdefault(section, told(e))
            return otherwise

    def lines(self) -> list[str]:
        """Return a line for each failed section, for the page and the command."""
        return [f"section {section} could not be made: {reason}" for section, reason in self.items()]


# -- constants ------------------------------------------------------------------------------------------------------

_LISTED: Final = 300


def weights(graphs: Sequence[GraphRecord]) -> dict[str, Any]:
    """Return the constants, largest first: all of a single model, or the differing constants of two.

    rows: scope, name, and for each model (type, bytes, elements if few) or None; left: number not listed; same: number
    of equal constants; unread: equal constants in data files, not compared.
    """
    held = [{(v.graph.path, v.name): v for v in g.values if v.constant} for g in graphs]
    same = unread = 0
    found: list[tuple[int, tuple[str, str], list[Value | None]]] = []  # (bytes, scope and name, by model)
    for key in dict.fromkeys(key for side in held for key in side):
        values = [side.get(key) for side in held]
        present = [v for v in values if v is not None]
        if len(present) == 2 and same_constant(*present):
            same += 1
            unread += any(map(is_elsewhere, present))
        else:
            found.append((max(map(_bytes, present)), key, values))
    found.sort(key=lambda row: -row[0])
    rows = [[*key, [None if v is None else _told(v) for v in values]] for _, key, values in found[:_LISTED]]
    return {"rows": rows, "left": len(found) - len(rows), "same": same, "unread": unread}


def _told(value: Value) -> list[Any]:
    return [type_text(value), _bytes(value), elements(value)]


def _bytes(value: Value) -> int:
    return tensor_bytes(*value.constant_type())


def _data(failures: Failures, stats: Sequence[ModelStats]) -> dict[str, Any]:
    """Return the data of a page, still without run and graphs."""
    empty: dict[str, Any] = {
        "history": None,
        "notes": [],
        "examples": {},
        "verification": None,
        "places": [],
        "left_out": [],
    }
    return {"failures": failures, "stats": [s.to_dict() for s in stats], **empty}


# -- two models -----------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """Two models, the fate of each node, and the run that made the second, if known."""

    before: GraphRecord
    after: GraphRecord
    stats: tuple[ModelStats, ModelStats]
    counterparts: Counterparts
    history: History | None
    doubts: list[str]  # reasons to doubt that the run belongs to both files

    def to_dict(self, verdict: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the page's data: nodes by index, everything else by value.

        verdict: shown on the page. Contains the run's history, or without a run the differing weights.
        """
        history, failures = self.history, Failures()
        data = _data(failures, self.stats) | {
            "counts": self.counterparts.counts(),
            "notes": self.doubts,
            "verification": verdict,
        }
        if history is None:
            data["weights"] = failures.attempt("Weights", lambda: weights([self.before, self.after]), None)
        else:
            marks, nowhere = Marks(self.before, self.after, history), [None] * len(history.report["rolled_back"])
            data |= {
                "history": {"report": history.report, "timeline": history.timeline, "repeated": history.repeated},
                "notes": self.doubts + self._gaps(history),
                "examples": failures.attempt("Declined", lambda: self._examples(history), {}),
                "places": failures.attempt("Places", lambda: marks.places(verdict), []),
                "left_out": failures.attempt("Summary", marks.left_out, nowhere),
            }
        return failures.attempt("Graphs", lambda: self._drawn(data), data)

    def _drawn(self, data: dict[str, Any]) -> dict[str, Any]:
        found = self.counterparts
        shared = share_blocks(self.before, self.after, found)
        sides = (
            Side(self.before, found.before, shared.inside[0], found.rewrites_before),
            Side(self.after, found.after, shared.inside[1], found.rewrites_after),
        )
        return drawing(data, shared, sides, found)

    def _gaps(self, history: History) -> list[str]:
        changed = self.stats[0].nodes != self.stats[1].nodes
        unknown = changed and not history.journal and not history.repeated
        return ["The report has no journal: what merged is known by names only."] if unknown else []

    def _examples(self, history: History) -> dict[str, tuple[int, int]]:
        """Return {text of a node in a decline reason: (graph, index of the node)}."""
        wanted = {
            declined["example"]
            for p in history.report["pipeline"]["passes"]
            for rule in p["rules"].values()
            for declined in rule["declined"].values()
        }
        found: dict[str, tuple[int, int]] = {}
        # A node in both is shown in the result.
        for side, graph in enumerate((self.after, self.before)) if wanted else ():
            for i, node in enumerate(graph.nodes):
                if (text := node.text) in wanted:
                    found.setdefault(text, (1 - side, i))
        return found


def compare_files(before: str | Path, after: str | Path, history: History | None = None) -> Comparison:
    """Compare two files, with or without a run. Raises ModelError for an unreadable file."""
    original, result = load(before, stored=True), load(after, stored=True)
    stats = model_stats(original), model_stats(result)
    if max(s.nodes for s in stats) <= LARGE:
        infer(original)
        infer(result)
    a, b = graph_record(original), graph_record(result)
    doubts = _doubts(history, b, stats, Path(before), Path(after)) if history is not None else []
    return Comparison(a, b, stats, match(a, b, history.journal if history is not None else None), history, doubts)


def _doubts(
    history: History, after: GraphRecord, stats: tuple[ModelStats, ModelStats], source: Path, result: Path
) -> list[str]:
    """Return reasons to doubt that the run belongs to both files."""
    if history.repeated:
        assert history.result is not None
        if history.result == after.signature():
            return []
        made = history.result[0]
        return [
            f"{result.name} is not what this run makes: {stats[1].nodes:,} nodes there, {made:,} made here. Passes, "
            "timeline and declined reasons are of the run. Give the options it was made with, or --from its report."
        ]
    report, doubts = history.report, []
    for path, key, nodes, counted in (
        (source, "before", "nodes_before", stats[0].nodes),
        (result, "after", "nodes_after", stats[1].nodes),
    ):
        size, recorded = path.stat().st_size, report[f"bytes_{key}"]
        if (recorded, report["pipeline"][nodes]) != (size, counted):
            doubts.append(
                f"The report is of another file than {path.name}: {report['pipeline'][nodes]:,} nodes and "
                f"{recorded:,} bytes in the report, {counted:,} nodes and {size:,} bytes in the file."
            )
    return doubts


# -- a single model -------------------------------------------------------------------------------------------------

_PROPERTIES: Final = 40
_LENGTH: Final = 300  # characters of a property


@dataclass
class View:
    """A model's graph, counts and properties."""

    graph: GraphRecord
    stats: ModelStats
    properties: list[tuple[str, str]]  # producer, description, metadata

    def to_dict(self) -> dict[str, Any]:
        """Return the page's data, as `Comparison.to_dict()` for a single model without a run."""
        failures = Failures()
        data = _data(failures, [self.stats]) | {
            "properties": self.properties,
            "weights": failures.attempt("Weights", lambda: weights([self.graph]), None),
        }
        return failures.attempt("Graphs", lambda: self._drawn(data), data)

    def _drawn(self, data: dict[str, Any]) -> dict[str, Any]:
        known, inside = own_blocks(self.graph)
        side = Side(self.graph, [Fate.KEPT] * len(self.graph.nodes), inside, {})
        return drawing(data, SharedBlocks(known, (inside, [])), [side], None)


def view_file(path: str | Path) -> View:
    """Return the view of a file. Raises ModelError for an unreadable file."""
    model = load(path, stored=True)
    stats = model_stats(model)
    if stats.nodes <= LARGE:
        infer(model)
    return View(graph_record(model), stats, _properties(model.proto))


def _properties(proto: ModelProto) -> list[tuple[str, str]]:
    said = [
        ("producer", f"{proto.producer_name} {proto.producer_version}".strip()),
        ("graph", proto.graph.name),
        ("domain", proto.domain),
        ("version", str(proto.model_version or "")),
        ("description", proto.doc_string or proto.graph.doc_string),
        *((p.key, p.value) for p in proto.metadata_props[:_PROPERTIES]),
    ]
    return [(key, text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…") for key, text in said if text]
