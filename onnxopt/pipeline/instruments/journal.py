"""Which rule made which node: one entry for each rewrite, to be asked afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onnxopt.pipeline.instrument import Instrument

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.graph.node import Node
    from onnxopt.pipeline.base import Pass
    from onnxopt.rewriting import Match, Rule


@dataclass(frozen=True)
class Entry:
    """One rewrite. `removed` and `made` describe nodes, `outputs` name the values that the made nodes produce.

    `rule` is empty for passes without rules: such an entry holds all that one run of the pass did.
    """

    number: int
    pass_name: str
    rule: str
    scope: str
    removed: tuple[str, ...]
    made: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        rule = f"/{self.rule}" if self.rule else ""
        made = f" by {', '.join(self.made)}" if self.made else ""
        return f"{self.number} {self.pass_name}{rule}: {self.scope}: replaced {', '.join(self.removed)}{made}"


class Journal(Instrument):
    """`entries` in order; `made_by(value)` is the rewrite that made what produces a value now, `history(value)` all
    that led there, `of(name)` what a pass or rule did."""

    watches_rewrites: ClassVar[bool] = True

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._pass: Pass | None = None
        self._pending: tuple[str, dict[Node, str]] | None = None  # scope, and the nodes a match covers
        self._before: dict[Node, tuple[str, str]] | None = None
        self._nodes: dict[Node, tuple[str, str]] = {}  # of the model at `_version`: text and scope
        self._version = -1

    # -- writing -----------------------------------------------------------------------------------------

    def begin(self, model: Model) -> None:
        self.entries = []
        self._version = -1

    def before(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        self._pass = p
        # Rules tell; what other passes do is the difference.
        self._before = None if p.kind == "rewrite" else self._listed(model)

    def _listed(self, model: Model) -> dict[Node, tuple[str, str]]:
        if model.version != self._version:
            self._version, self._nodes = model.version, {n: (repr(n), _path(n)) for n in model.nodes()}
        return self._nodes

    def after(self, model: Model, p: Pass) -> None:
        if p.children or self._before is None or model.version == self._version:
            return
        now = dict.fromkeys(model.nodes())
        scopes: dict[str, tuple[list[str], list[Node]]] = {}
        for node, (text, path) in self._before.items():
            if node not in now:
                scopes.setdefault(path, ([], []))[0].append(text)
        for node in now:
            if node not in self._before:
                scopes.setdefault(_path(node), ([], []))[1].append(node)
        for path, (removed, made) in scopes.items():
            self._add("", path, removed, made)
        self._before = None

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if not done:
            self._pending = (m.graph.path, {node: repr(node) for node, _ in m.bindings.covered})
            return
        assert self._pending is not None
        path, covered = self._pending
        removed = [text for node, text in covered.items() if node.graph is None]
        self._add(rule.name, path, removed, [n for n in m.new_nodes if n.graph is not None])

    def _add(self, rule: str, path: str, removed: list[str], made: list[Node]) -> None:
        assert self._pass is not None
        outputs = tuple(v.name for n in made for v in n.outputs if v is not None)
        texts = tuple(repr(n) for n in made)
        self.entries.append(Entry(len(self.entries) + 1, self._pass.name, rule, path, tuple(removed), texts, outputs))

    # -- reading -----------------------------------------------------------------------------------------

    def of(self, name: str) -> list[Entry]:
        """What the pass or rule called `name` did."""
        return [e for e in self.entries if name in (e.pass_name, e.rule)]

    def history(self, value: str) -> list[Entry]:
        """Every rewrite that made a node producing the value called `value`, first to last."""
        return [e for e in self.entries if value in e.outputs]

    def made_by(self, value: str) -> Entry | None:
        """The last of them; None if what produces the value was in the original."""
        found = self.history(value)
        return found[-1] if found else None

    def to_list(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [asdict(e) for e in self.entries]

    def lines(self) -> Iterator[str]:
        return (str(e) for e in self.entries)


def _path(node: Node) -> str:
    return node.graph.path if node.graph is not None else ""
