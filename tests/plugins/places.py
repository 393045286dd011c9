"""Names the place of a difference, for as long as verification itself does not: a plugin that adds no pass.

The first value of the main graph that differs, as `onnxopt verify --layers` finds it, and what makes it in either model
from values before it, which agree. To be removed once `Verification.places` is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path

import onnx

from onnxopt.verification import Verification, Verifier, VerifyOptions
from onnxopt.verification.comparison import compare_files
from onnxopt.verification.interface import common_values
from onnxopt.verification.records import Place, Side


def place_of(a: Path, b: Path) -> Place | None:
    found = compare_files(a, b, VerifyOptions(cases=("random",), layers=True)).layers
    if found is None or not found.value or found.record is None:
        return None
    models = [onnx.load(path, load_external_data=False) for path in (a, b)]
    names, _ = common_values(*models)
    agreeing = set(names[: names.index(found.value)]) | {i.name for i in models[0].graph.input}
    pieces = [list(_piece(model.graph, found.value, agreeing)) for model in models]
    entries = dict.fromkeys(n for nodes in pieces for node in nodes for n in _reads(node) if n in agreeing)
    sides = [[_side(node) for node in nodes] for nodes in pieces]
    return Place(found.case, found.value, found.record, list(entries), *sides)


def _piece(graph: onnx.GraphProto, value: str, agreeing: Set[str]) -> Iterator[onnx.NodeProto]:
    makers = {name: node for node in graph.node for name in node.output}
    inside, stack = set(), [value]
    while stack:
        name = stack.pop()
        if name in makers and name not in inside and (name == value or name not in agreeing):
            inside.update(makers[name].output)
            stack += _reads(makers[name])
    return (node for node in graph.node if inside.intersection(node.output))


def _reads(node: onnx.NodeProto) -> list[str]:
    """What bodies read from around them too."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    return [name for name in node.input if name] + [name for g in bodies for n in g.node for name in _reads(n)]


def _side(node: onnx.NodeProto) -> Side:
    op = f"{node.domain}.{node.op_type}".removeprefix(".")
    return Side(node.name, op, [n for n in node.input if n], [n for n in node.output if n])


_submit, _finish = Verifier.submit, Verifier.finish


def submit(self: Verifier, result: str | Path) -> None:
    self.result = Path(result)  # type: ignore[attr-defined]
    _submit(self, result)


def finish(self: Verifier) -> Verification:
    verdict = _finish(self)
    if verdict.status == "different":
        place = place_of(self.original, self.result)  # type: ignore[attr-defined]
        verdict.places = [place] if place is not None else []
    return verdict


if __name__ != "tests.plugins.places":  # loaded by --plugin
    Verifier.submit, Verifier.finish = submit, finish  # type: ignore[method-assign]
