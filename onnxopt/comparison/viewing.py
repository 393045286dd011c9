"""A single model as shown by the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto

from onnxopt.analysis.facts import infer
from onnxopt.analysis.measures.cost import ModelStats, model_stats
from onnxopt.comparison.coarse import Side
from onnxopt.comparison.counterparts import Fate
from onnxopt.comparison.drawing import drawing
from onnxopt.comparison.failures import Failures
from onnxopt.comparison.records import LARGE, GraphRecord, graph_record
from onnxopt.comparison.shared_blocks import SharedBlocks, own_blocks
from onnxopt.comparison.weights import weights
from onnxopt.io import load

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
        data: dict[str, Any] = {
            "failures": failures,
            "stats": [self.stats.to_dict()],
            "properties": self.properties,
            "weights": failures.attempt("Weights", lambda: weights([self.graph]), None),
            "history": None,
            "notes": [],
            "examples": {},
            "verification": None,
            "places": [],
            "left_out": [],
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
