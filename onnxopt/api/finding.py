"""`onnxopt.find`: the command `onnxopt find MODEL PATTERN` as a function."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from onnxopt.analysis.types import infer
from onnxopt.api.files import model_file
from onnxopt.graph.text import node_text
from onnxopt.io import blaming, load
from onnxopt.rewriting import SubgraphMatcher
from onnxopt.rewriting.diagnose import refuse_unknown
from onnxopt.startup.record import plain, record

if TYPE_CHECKING:
    from onnxopt.api.files import AnyModel
    from onnxopt.rewriting import SubgraphMatch

_MAX_INFERRED_NODES: Final = (
    20_000  # nodes of a model, of which nothing is inferred to show shapes: that takes longer than to find
)


@record
class FoundNode:
    """A node of a match."""

    op: str
    name: str
    outputs: list[str]


@record
class Found:
    """A match. `scope`: the graph. `results`: the values of the pattern's results. `nodes` and `values`: matched nodes
    and values by names of the pattern. `text`: the nodes in ONNX text, in order."""

    scope: str
    results: list[str]
    nodes: dict[str, FoundNode] = field(default_factory=dict)
    values: dict[str, str | None] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the data of `onnxopt find --format json`."""
        return {name: value for name, value in plain(self).items() if name != "text"}

    def __str__(self) -> str:
        return "\n".join([f"{self.scope}: {', '.join(self.results)}", *(f"  {line}" for line in self.text)])


def find(
    model: AnyModel,
    pattern: str,
    *,
    match_outputs: bool = False,
    overlapping: bool = False,
    match_placeholder: bool = False,
    ignore_literals: bool = False,
    tolerance: float = 0.0,
    exact: bool = False,
    single_use: bool = False,
) -> list[Found]:
    """Find the nodes of a model that match `pattern`, an expression or the body of a function in ONNX text.

    Raises UsageError for an invalid pattern, and for an unknown operator.
    """
    matcher = SubgraphMatcher(
        pattern,
        match_outputs=match_outputs,
        match_placeholder=match_placeholder,
        overlapping=overlapping,
        ignore_literals=ignore_literals,
        tolerance=tolerance,
        exact=exact,
        shared=not single_use,
    )
    with model_file(model) as source, blaming(source):
        loaded = load(source, stored=True)
        found = matcher.match(loaded)
        if not found:
            refuse_unknown(matcher.example.results, loaded)
        elif loaded.node_count() <= _MAX_INFERRED_NODES:
            infer(loaded)  # for the shapes that are shown
        return [_found(m) for m in found]


def _found(m: SubgraphMatch) -> Found:
    nodes = dict.fromkeys(reversed([n for n, _ in m.bindings.covered]))
    return Found(
        m.anchor.graph.path if m.anchor.graph is not None else "",
        [v.name for v in m.results],
        {
            name: FoundNode(n.op, n.name, [v.name if v is not None else "" for v in n.outputs])
            for name, n in m.nodes.items()
        },
        {name: v.name if v is not None else None for name, v in m.values.items()},
        [node_text(node) for node in nodes],
    )
