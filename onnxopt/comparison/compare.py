"""Comparison of two models as a plain record for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxopt.analysis.facts import infer
from onnxopt.analysis.measures.cost import ModelStats, model_stats
from onnxopt.comparison.coarse import Side
from onnxopt.comparison.counterparts import Counterparts, match
from onnxopt.comparison.drawing import drawing
from onnxopt.comparison.failures import Failures
from onnxopt.comparison.history import History
from onnxopt.comparison.marks import Marks
from onnxopt.comparison.records import LARGE, GraphRecord, graph_record
from onnxopt.comparison.shared_blocks import share_blocks
from onnxopt.comparison.weights import weights
from onnxopt.io import load


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
        data: dict[str, Any] = {
            "failures": failures,
            "stats": [s.to_dict() for s in self.stats],
            "counts": self.counterparts.counts(),
            "history": None,
            "notes": self.doubts,
            "examples": {},
            "verification": verdict,
            "places": [],
            "left_out": [],
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
