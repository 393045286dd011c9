"""Instruments that record rewrites: the journal of a run, and the last rewrites of a Fixpoint without termination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

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


# -- changes of a pass --------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """Snapshot of a node: after removal the node has lost its scope and outputs. Text is made on demand."""

    node: Node
    scope: str
    made: tuple[str, ...]  # names of outputs, empty if absent

    @property
    def text(self) -> str:
        return self.node.described(self.made)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.made if name)


def known(node: Node, scope: str | None = None) -> Known:
    """Return the snapshot of a node. `scope`: its path, if already known."""
    made = tuple(["" if v is None else v.name for v in node.outputs])
    return Known(node, path(node) if scope is None else scope, made)


def all_known(model: Model) -> dict[Node, Known]:
    return {node: known(node, where) for scope in model.scopes() for where in (scope.path,) for node in scope}


def path(node: Node) -> str:
    return node.graph.path if node.graph is not None else ""


class Changes:
    """Changes of a model since construction; `before`: its nodes."""

    def __init__(self, model: Model, before: dict[Node, Known]) -> None:
        self._model = model
        self._before = before
        self._touched: list[Node] | None = None

    def watch(self) -> None:
        """Start a step for `step`. Requires that nothing else watches the model."""
        if self._touched is None and self._model.watch is None:
            self._before = dict(self._before)
            self._touched = []
            self._model.watch = self._touched.append

    def step(self) -> tuple[list[Known], list[Node]]:
        """Return (removed, made) since `watch`, or since the last step."""
        if self._touched is None:
            return [], []
        touched = list(dict.fromkeys(self._touched))
        self._touched.clear()
        gone = _with_bodies(n for n in touched if n.graph is None)
        removed = [self._before.pop(n) for n in gone if n in self._before]
        made = [n for n in touched if n.graph is not None and n not in self._before]
        self._before.update((n, known(n)) for n in made)
        return removed, made

    def rest(self) -> tuple[list[Known], list[Node]]:
        """Return (removed, made) not reported by any step."""
        now = dict.fromkeys(self._model.nodes())
        return [k for n, k in self._before.items() if n not in now], [n for n in now if n not in self._before]

    def close(self) -> None:
        if self._touched is not None:
            self._model.watch = None


def _with_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield removed nodes, and removed nodes of their bodies."""
    for node in nodes:
        yield node
        for body in node.bodies.values():
            yield from (inner for inner in body.walk() if inner.graph is None)


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
                tuple(v.name for n in made for v in n.results),
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


# -- non-termination ----------------------------------------------------------------------------------------------


class Restless(Instrument):
    """Watches the last two permitted rounds of a Fixpoint in the run of `ctx`, as passes undoing each other may
    alternate."""

    watches_rewrites = True

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
        told = "; ".join(_told(name, *did) for name, did in self._did.items()) or "only what is known of types changed"
        names = ",".join(self._did)
        hint = "they undo each other's work: disable one of them with --disable"
        if len(self._did) == 1:
            hint = f"a pass that runs again has to leave the model as it is; go on without it by --disable {names}"
        return NoFixpointError(f"{model.name}: still changing after {rounds} rounds; in the last ones, {told}", hint)


def _told(name: str, hits: Counter[str], place: str) -> str:
    counts = ", ".join(f"{what} {counted(n, 'time')}" for what, n in hits.items())
    return f"pass {name}" + (f": {counts}" if counts else " changed it") + (f", the last at {place}" if place else "")
