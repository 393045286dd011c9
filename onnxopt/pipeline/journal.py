"""Instruments that record rewrites: the journal of a run, and the last rewrites of a Fixpoint without termination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxopt.errors import NoFixpointError
from onnxopt.graph.node import Node
from onnxopt.graph.text import node_text
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.records import Instrument, Site
from onnxopt.plaintext import counted

if TYPE_CHECKING:
    from onnxopt.graph import Model, Value
    from onnxopt.pipeline.base import Pass
    from onnxopt.rewriting import Match, Rule


class NodeSnapshot(NamedTuple):
    """Snapshot of a node: after removal the node has lost its scope and outputs. Text is made on demand."""

    node: Node
    scope: str
    made: tuple[str, ...]  # names of outputs, empty if absent

    @classmethod
    def of(cls, node: Node, scope: str) -> NodeSnapshot:
        return cls(node, scope, tuple(["" if v is None else v.name for v in node.outputs]))


# -- the journal --------------------------------------------------------------------------------------------------


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

    @property
    def name(self) -> str:
        """The pass, and the rule if known: `conv-bn-folding/fold_conv_bn`."""
        return f"{self.pass_name}/{self.rule}" if self.rule else self.pass_name

    def __str__(self) -> str:
        made = f" by {', '.join(self.made)}" if self.made else ""
        what = (
            f"replaced {', '.join(self.removed)}{made}"
            if self.removed
            else f"changed {self.value or 'something'}{made}"
        )
        return f"{self.number} {self.name}: {self.scope}: {what}"


class _Begun(NamedTuple):
    """A rewrite in progress. `covered`: the nodes of a rule's match. `spent`: whether fuel was taken."""

    scope: str = ""
    value: str = ""
    fuel: int = 0
    match: tuple[str, ...] = ()
    covered: tuple[Node, ...] = ()
    spent: bool = False


class Journal(Instrument):
    """Records `entries` in order. `made_by(value)` is the rewrite that made a value's producer, `history(value)` all
    rewrites leading there, `of(name)` all rewrites of a pass or rule. `matches`: keep the text of each match."""

    def __init__(self, *, matches: bool = False) -> None:
        self.entries: list[Entry] = []
        self._matches = matches
        self._pass: Pass | None = None
        self._begun = _Begun()
        self._nodes: dict[Node, NodeSnapshot] = {}  # as they were at the last entry
        self._touched: list[Node] = []  # since then

    # -- writing -----------------------------------------------------------------------------------------

    def begin(self, model: Model) -> None:
        self.entries, self._begun = [], _Begun()
        self._nodes = {n: NodeSnapshot.of(n, path) for scope in model.scopes() for path in (scope.path,) for n in scope}
        self._touched = []
        model.watchers.append(self._touched.append)

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self._end_step()
            self._pass = p

    def after(self, model: Model, p: Pass) -> None:
        if not p.children:
            self._end_step()

    def end(self, model: Model) -> None:
        model.watchers.remove(self._touched.append)
        self._nodes = {}

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if done:
            self._begun = self._begun._replace(fuel=PassContext.current().fuel.taken, spent=True)
            self._end_step(rule.name)
        else:
            self._begin(m.anchor, tuple(node for node, _ in m.bindings.covered))

    def spending(self, what: str, at: Value | Node | None) -> None:
        self._begin(at, spent=True)

    def _begin(self, at: Value | Node | None, covered: tuple[Node, ...] = (), *, spent: bool = False) -> None:
        self._end_step()
        node = at if at is None or isinstance(at, Node) else at.producer
        self._refresh(covered)
        nodes = (covered or ([node] if node is not None else [])) if self._matches else []
        site = Site.of("", at)
        scope, value = (site.scope, site.value) if site is not None else ("", "")
        match = tuple(node_text(n) for n in nodes)
        self._begun = _Begun(scope, value, PassContext.current().fuel.taken, match, covered, spent)

    def _refresh(self, nodes: Iterable[Node]) -> None:
        self._nodes.update((n, NodeSnapshot.of(n, n.scope.path)) for n in nodes)

    def _end_step(self, rule: str = "") -> None:
        """Add an entry for each scope changed since the last; the scope of the rewrite (or the first) gets the fuel."""
        begun, self._begun = self._begun, _Begun()
        touched = dict.fromkeys((*begun.covered, *self._touched))
        self._touched.clear()
        left = [n for n in touched if n.graph is not None]
        removed = [self._nodes.pop(n) for n in touched if n.graph is None and n in self._nodes]
        made = [n for n in left if n not in self._nodes]
        self._refresh(left)
        scopes: dict[str, tuple[list[NodeSnapshot], list[Node]]] = {}
        if begun.spent and begun.scope:
            scopes[begun.scope] = ([], [])
        for k in removed:
            scopes.setdefault(k.scope, ([], []))[0].append(k)
        for node in made:
            scopes.setdefault(node.scope.path, ([], []))[1].append(node)
        if begun.spent and not scopes:
            scopes[""] = ([], [])
        for scope, (gone, new) in scopes.items():
            self._add(begun if begun.spent else _Begun(), scope, gone, new, rule)
            begun = _Begun()

    def _add(self, begun: _Begun, scope: str, removed: list[NodeSnapshot], made: list[Node], rule: str) -> None:
        assert self._pass is not None
        self.entries.append(
            Entry(
                len(self.entries) + 1,
                self._pass.name,
                rule,
                scope,
                tuple(k.node.described(k.made) for k in removed),
                tuple(repr(n) for n in made),
                tuple(v.name for n in made for v in n.results),
                tuple(name for k in removed for name in k.made if name),
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


# -- non-termination ----------------------------------------------------------------------------------------------


class Restless(Instrument):
    """Watches the last two permitted rounds of a Fixpoint: passes that undo each other may alternate."""

    def __init__(self, ctx: PassContext) -> None:
        self._ctx = ctx
        self._did: dict[str, tuple[Counter[str], str]] = {}  # by pass: counts, and the last position
        self._before: tuple[int, Counter[str]] = (0, Counter())
        self._place = ""
        ctx.watch(self)

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self._before, self._place = (model.version, self._hits(p)), ""

    def after(self, model: Model, p: Pass) -> None:
        version, hits = self._before
        if not p.children and model.version != version:
            self._did[p.name] = self._hits(p) - hits, self._place

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if not done:
            self._place = repr(m.anchor)

    def spending(self, what: str, at: Value | Node | None) -> None:
        self._place = "" if at is None else repr(at)

    def _hits(self, p: Pass) -> Counter[str]:
        assert self._ctx.report is not None
        return Counter({what: rule.hits for what, rule in self._ctx.report.of(p.name).rules.items()})

    def error(self, model: Model, rounds: int) -> NoFixpointError:
        """Return the error after `rounds` rounds."""
        told = "; ".join(_brief(name, *did) for name, did in self._did.items()) or "only what is known of types changed"
        names = ",".join(self._did)
        hint = "they undo each other's work: disable one of them with --disable"
        if len(self._did) == 1:
            hint = f"a pass that runs again has to leave the model as it is; go on without it by --disable {names}"
        return NoFixpointError(f"{model.name}: still changing after {rounds} rounds; in the last ones, {told}", hint)


def _brief(name: str, hits: Counter[str], place: str) -> str:
    counts = ", ".join(f"{what} {counted(n, 'time')}" for what, n in hits.items())
    return f"pass {name}" + (f": {counts}" if counts else " changed it") + (f", the last at {place}" if place else "")
