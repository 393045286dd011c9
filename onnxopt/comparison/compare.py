"""The data of a page: a single model, or two compared models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from onnx import ModelProto

from onnxopt.analysis.stats import ModelStats, model_stats
from onnxopt.analysis.types import infer
from onnxopt.comparison.counterparts import Counterparts, Fate, Marks, match
from onnxopt.comparison.drawing import drawing
from onnxopt.comparison.records import LARGE, GraphRecord, History, elements, graph_record, is_elsewhere, same_constant
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


# -- the page -------------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """A model, or two models with the fate of each node and the run that made the second, if known."""

    graphs: list[GraphRecord]
    stats: list[ModelStats]
    counterparts: Counterparts  # of a single model: each node is kept
    properties: list[tuple[str, str]]  # of a single model: producer, description, metadata
    history: History | None = None
    doubts: list[str] = field(default_factory=list)  # reasons to doubt that the run belongs to both files

    def to_dict(self, verdict: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the page's data: nodes by index, everything else by value.

        verdict: shown on the page. Contains the run's history, or without a run the (differing) weights.
        """
        history, failures = self.history, Failures()
        data: dict[str, Any] = {
            "failures": failures,
            "stats": [s.to_dict() for s in self.stats],
            "properties": self.properties,
            "counts": self.counterparts.counts() if len(self.graphs) > 1 else {},
            "verification": verdict,
            "notes": self.doubts,
            "history": None,
            "examples": {},
            "places": [],
            "left_out": [],
        }
        if history is None:
            data["weights"] = failures.attempt("Weights", lambda: weights(self.graphs), None)
        else:
            marks, nowhere = Marks(self.graphs, history), [None] * len(history.report["rolled_back"])
            data |= {
                "history": {"report": history.report, "timeline": history.timeline, "repeated": history.repeated},
                "notes": self.doubts + self._gaps(history),
                "examples": failures.attempt("Declined", lambda: self._examples(history), {}),
                "places": failures.attempt("Places", lambda: marks.places(verdict), []),
                "left_out": failures.attempt("Summary", marks.left_out, nowhere),
            }
        return failures.attempt("Graphs", lambda: drawing(data, self.graphs, self.counterparts), data)

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
        for side, graph in reversed([*enumerate(self.graphs)]) if wanted else ():
            for i, node in enumerate(graph.nodes):
                if (text := node.text) in wanted:
                    found.setdefault(text, (side, i))
        return found


def compare_files(before: str | Path, after: str | Path | None = None, history: History | None = None) -> Comparison:
    """Compare two files, with or without a run, or view a single file. Raises ModelError for an unreadable file."""
    paths = [Path(path) for path in (before, after) if path is not None]
    models = [load(path, stored=True) for path in paths]
    stats = [model_stats(model) for model in models]
    if max(s.nodes for s in stats) <= LARGE:
        for model in models:
            infer(model)
    graphs = [graph_record(model) for model in models]
    if after is None:
        unchanged = Counterparts([Fate.KEPT] * len(graphs[0].nodes))
        return Comparison(graphs, stats, unchanged, _properties(models[0].proto))
    doubts = _doubts(history, graphs[1], stats, paths) if history is not None else []
    found = match(graphs[0], graphs[1], history.journal if history is not None else None)
    return Comparison(graphs, stats, found, [], history, doubts)


def _doubts(history: History, after: GraphRecord, stats: Sequence[ModelStats], paths: Sequence[Path]) -> list[str]:
    """Return reasons to doubt that the run belongs to both files."""
    if history.repeated:
        assert history.result is not None
        if history.result == after.signature():
            return []
        made = history.result[0]
        return [
            f"{paths[1].name} is not what this run makes: {stats[1].nodes:,} nodes there, {made:,} made here. Passes, "
            "timeline and declined reasons are of the run. Give the options it was made with, or --from its report."
        ]
    report, doubts = history.report, []
    for path, key, counted in zip(paths, ("before", "after"), stats):
        nodes, recorded, size = report["pipeline"][f"nodes_{key}"], report[f"bytes_{key}"], path.stat().st_size
        if (recorded, nodes) != (size, counted.nodes):
            doubts.append(
                f"The report is of another file than {path.name}: {nodes:,} nodes and "
                f"{recorded:,} bytes in the report, {counted.nodes:,} nodes and {size:,} bytes in the file."
            )
    return doubts


_PROPERTIES: Final = 40
_LENGTH: Final = 300  # characters of a property


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
