"""A journal of all rewrites, to look up the rule that made a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from onnxopt.graph.node import Node
from onnxopt.graph.text import node_text
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.instrument import Instrument
from onnxopt.pipeline.instruments.changes import Changes, Known, all_known, known, path
from onnxopt.pipeline.site import Site

if TYPE_CHECKING:
    from onnxopt.graph import Model, Value
    from onnxopt.pipeline.base import Pass
    from onnxopt.rewriting import Match, Rule


@dataclass(frozen=True)
class Entry:
    """A rewrite. `removed` and `made` describe nodes, `taken` and `outputs` name the values produced by them.

    `rule` is empty for passes without rules. `value` is the anchor's output, empty if the pass does not report it.
    `fuel` counts the rewrites of the run; changes without fuel form an entry for each scope and run of a pass, with 0.
    `match`: the nodes before, a line each, if the journal keeps them.
    """

    number: int
    pass_name: str
    rule: str
    scope: str
    removed: tuple[str, ...]
    made: tuple[str, ...]
    outputs: tuple[str, ...]
    taken: tuple[str, ...] = ()
    value: str = ""
    fuel: int = 0
    match: tuple[str, ...] = ()

    @property
    def site(self) -> Site | None:
        """The site to exclude from a run; None if only the whole pass can be excluded."""
        return Site(self.rule or self.pass_name, self.value, self.scope) if self.value else None

    def __str__(self) -> str:
        rule = f"/{self.rule}" if self.rule else ""
        made = f" by {', '.join(self.made)}" if self.made else ""
        what = (
            f"replaced {', '.join(self.removed)}{made}"
            if self.removed
            else f"changed {self.value or 'something'}{made}"
        )
        return f"{self.number} {self.pass_name}{rule}: {self.scope}: {what}"


class _Begun(NamedTuple):
    """A rewrite in progress. `covered`: the nodes of a rule's match."""

    scope: str
    value: str
    fuel: int
    match: tuple[str, ...]
    covered: dict[Node, Known]


class Journal(Instrument):
    """Records `entries` in order. `made_by(value)` is the rewrite that made a value's producer, `history(value)` all
    rewrites leading there, `of(name)` all rewrites of a pass or rule. `matches`: keep the text of each match."""

    watches_rewrites: ClassVar[bool] = True

    def __init__(self, *, matches: bool = False) -> None:
        self.entries: list[Entry] = []
        self._matches = matches
        self._pass: Pass | None = None
        self._begun: _Begun | None = None
        self._changes: Changes | None = None  # while a pass without rules runs
        self._nodes: dict[Node, Known] = {}  # of the model at `_version`
        self._version = -1

    # -- writing -----------------------------------------------------------------------------------------

    def begin(self, model: Model) -> None:
        self.entries = []
        self._version = -1

    def before(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        self._forget()
        self._pass = p
        # Rules report their changes; for other passes changes are found by comparison, from rewrite to rewrite if
        # reported.
        self._changes = None if p.kind == "rewrite" else Changes(model, self._listed(model))

    def _listed(self, model: Model) -> dict[Node, Known]:
        if model.version != self._version:
            self._version, self._nodes = model.version, all_known(model)
        return self._nodes

    def after(self, model: Model, p: Pass) -> None:
        if p.children or self._changes is None or model.version == self._version:
            return
        self._end_step()
        self._add_by_scope(*self._changes.rest())
        self._forget()

    def end(self, model: Model) -> None:
        self._forget()
        self._version, self._nodes = -1, {}

    def _forget(self) -> None:
        if self._changes is not None:
            self._changes.close()
        self._changes = self._begun = None

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if not done:
            self._begun = self._begin(m.anchor, {node: known(node) for node, _ in m.bindings.covered})
            return
        assert self._begun is not None
        begun = self._begun._replace(fuel=PassContext.current().fuel.taken)
        removed = [k for node, k in begun.covered.items() if node.graph is None]
        self._add(begun, removed, [n for n in m.new_nodes if n.graph is not None], rule.name)
        self._begun = None

    def spending(self, what: str, at: Value | Node | None) -> None:
        self._end_step()
        if self._changes is not None:
            self._changes.watch()
        self._begun = self._begin(at, {})

    def _begin(self, at: Value | Node | None, covered: dict[Node, Known]) -> _Begun:
        node = at if at is None or isinstance(at, Node) else at.producer
        nodes = (covered or ([node] if node is not None else [])) if self._matches else []
        site = Site.of("", at)
        scope, value = (site.scope, site.value) if site is not None else ("", "")
        match = tuple(node_text(n) for n in nodes)
        return _Begun(scope, value, PassContext.current().fuel.taken, match, covered)

    def _end_step(self) -> None:
        """Record the changes of a pass without rules since its last report."""
        begun, self._begun = self._begun, None
        if begun is not None and self._changes is not None:
            self._add_by_scope(*self._changes.step(), begun)

    def _add_by_scope(self, removed: list[Known], made: list[Node], begun: _Begun | None = None) -> None:
        """Add an entry for each scope; the scope of `begun` (or the first) gets the fuel."""
        scopes: dict[str, tuple[list[Known], list[Node]]] = {}
        if begun is not None and begun.scope:
            scopes[begun.scope] = ([], [])
        for k in removed:
            scopes.setdefault(k.scope, ([], []))[0].append(k)
        for node in made:
            scopes.setdefault(path(node), ([], []))[1].append(node)
        if begun is not None and not scopes:
            scopes[""] = ([], [])
        for scope, (gone, new) in scopes.items():
            self._add(begun._replace(scope=scope) if begun is not None else _Begun(scope, "", 0, (), {}), gone, new)
            begun = None

    def _add(self, begun: _Begun, removed: list[Known], made: list[Node], rule: str = "") -> None:
        assert self._pass is not None
        self.entries.append(
            Entry(
                len(self.entries) + 1,
                self._pass.name,
                rule,
                begun.scope,
                tuple(k.text for k in removed),
                tuple(repr(n) for n in made),
                tuple(v.name for n in made for v in n.outputs if v is not None),
                tuple(name for k in removed for name in k.outputs),
                begun.value,
                begun.fuel,
                begun.match,
            )
        )

    # -- reading -----------------------------------------------------------------------------------------

    def of(self, name: str) -> list[Entry]:
        """Return the rewrites of the pass or rule `name`."""
        return [e for e in self.entries if name in (e.pass_name, e.rule)]

    def history(self, value: str) -> list[Entry]:
        """Return every rewrite that made a producer of `value`, first to last."""
        return [e for e in self.entries if value in e.outputs]

    def made_by(self, value: str) -> Entry | None:
        """Return the last rewrite that made a producer of `value`; None if it was in the original."""
        found = self.history(value)
        return found[-1] if found else None

    def to_list(self) -> list[dict[str, Any]]:
        """Return the entries for JSON."""
        return [dict(vars(e)) for e in self.entries]

    def lines(self) -> Iterator[str]:
        return (str(e) for e in self.entries)
