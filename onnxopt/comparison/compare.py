"""Everything a report of two models shows, as one plain record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from onnxopt.analysis.facts import infer
from onnxopt.analysis.measures.cost import ModelStats, model_stats
from onnxopt.comparison.coarse import Side, coarse
from onnxopt.comparison.counterparts import Counterparts, match
from onnxopt.comparison.history import History
from onnxopt.comparison.marks import Marks
from onnxopt.comparison.records import LARGE, GraphRecord, elements, graph_record
from onnxopt.comparison.shared_blocks import share_blocks
from onnxopt.graph.text import type_text
from onnxopt.io import load

_NAMES: Final = 2_000_000  # characters of all names, up to which each node is shown


@dataclass
class Comparison:
    """Two models, what became of each node, and the run that led from one to the other."""

    before: GraphRecord
    after: GraphRecord
    stats: tuple[ModelStats, ModelStats]
    counterparts: Counterparts
    history: History
    doubts: list[str]  # reasons to think that the run did not lead from one to the other

    def to_dict(self, verdict: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """For the page: nodes by index, everything else by value. `verdict`: that of the page, as a record. Of large
        models blocks are shown, no nodes."""
        found = self.counterparts
        shared = share_blocks(self.before, self.after, found)
        marks = Marks(self.before, self.after, self.history)
        data = {
            "stats": [s.to_dict() for s in self.stats],
            "counts": found.counts(),
            "history": {
                "report": self.history.report,
                "timeline": self.history.timeline,
                "repeated": self.history.repeated,
            },
            "notes": self.doubts + self._gaps(),
            "examples": self._examples(),
            "blocks": [{"label": b.label, "kind": b.kind, "parent": parent} for b, parent in shared.blocks],
            "verification": verdict,
            "places": marks.places(verdict),
            "left_out": marks.left_out(),
        }
        sides = (
            Side(self.before, found.before, shared.inside[0], found.rewrites_before),
            Side(self.after, found.after, shared.inside[1], found.rewrites_after),
        )
        if self._is_large():
            return coarse(data, sides, found)
        return data | {
            "graphs": [_graph(side) for side in sides],
            "pairs": sorted(found.pair.items()),
            "merged": [(i, targets) for i, targets in found.merged.items()],
        }

    def _is_large(self) -> bool:
        """Would a page that shows every node be one that opens slowly?"""
        graphs = self.before, self.after
        names = sum(sum(len(n.name) for n in g.nodes) + sum(len(v.name) for v in g.values) for g in graphs)
        return max(len(g.nodes) for g in graphs) > LARGE or names > _NAMES

    def _gaps(self) -> list[str]:
        changed = self.stats[0].nodes != self.stats[1].nodes
        unknown = changed and not self.history.journal and not self.history.repeated
        return ["The report has no journal: what merged is known by names only."] if unknown else []

    def _examples(self) -> dict[str, tuple[int, int]]:
        """Where the nodes are that reasons for declining name: in which graph, and its index there."""
        wanted = {
            declined["example"]
            for p in self.history.report["pipeline"]["passes"]
            for rule in p["rules"].values()
            for declined in rule["declined"].values()
        }
        found: dict[str, tuple[int, int]] = {}
        for side, graph in enumerate((self.after, self.before)) if wanted else ():  # where it is in both: in the result
            for i, node in enumerate(graph.nodes):
                if (text := node.text) in wanted:
                    found.setdefault(text, (1 - side, i))
        return found


def compare_files(before: str | Path, after: str | Path, history: History) -> Comparison:
    """Compare two files. Raises ModelError for what cannot be read."""
    original, result = load(before, stored=True), load(after, stored=True)
    stats = model_stats(original), model_stats(result)
    if max(s.nodes for s in stats) <= LARGE:
        infer(original)
        infer(result)
    a, b = graph_record(original), graph_record(result)
    doubts = _doubts(history, b, stats, Path(before), Path(after))
    return Comparison(a, b, stats, match(a, b, history.journal), history, doubts)


def _doubts(
    history: History, after: GraphRecord, stats: tuple[ModelStats, ModelStats], source: Path, result: Path
) -> list[str]:
    """Reasons to doubt that the run led from one file to the other."""
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


def _graph(side: Side) -> dict[str, Any]:
    """Lists rather than objects: there may be many thousands."""
    graph = side.graph
    constants = [(v, elements(v)) for v in graph.values]
    return {
        "values": [[v.name, type_text(v)] + ([held] if held is not None else []) for v, held in constants],
        "scopes": [asdict(s) for s in graph.scopes],
        "nodes": [
            [n.op, n.name, n.scope, n.inputs, n.outputs, n.attributes, fate.value, place, str(side.rewrites.get(i, ""))]
            for i, (n, fate, place) in enumerate(zip(graph.nodes, side.fates, side.inside, strict=True))
        ],
    }
