"""The worklist of anchors where rules may match, fed by the graph's mutation events."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from onnxopt.errors import EmissionError, MistypedError, NoFixpointError, OnnxOptError, PassError, is_no_fault, line_of
from onnxopt.graph.model import Left, Model, with_readers
from onnxopt.graph.node import Node
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.matcher import Bindings, Candidates, Path, change, match, rule_set
from onnxopt.rewriting.replace import commit
from onnxopt.rewriting.rule import Declined, Rule, failure


@dataclass(repr=False)
class Decline:
    """Number of anchors declined for a reason, with an example."""

    example: str
    count: int = 0


@dataclass(eq=False, repr=False)
class RuleReport:
    """Statistics of a rule. `nodes`: nodes removed by the hits. `declined`: anchors, with an example, by reason."""

    hits: int = 0
    nodes: int = 0
    declined: dict[str, Decline] = field(default_factory=dict)


class Fuel:
    """Number of rewrites left; None is unlimited. Shared by all passes of a run."""

    def __init__(self, left: int | None = None) -> None:
        self.left = left
        self.taken = 0

    def take(self) -> bool:
        if self.left is not None:
            if self.left <= 0:
                return False
            self.left -= 1
        self.taken += 1
        return True


class Driver:
    """Applies rules to a model until nothing matches, fuel is used up, or the budget shows non-termination.

    Each rewrite requeues only touched nodes and their readers up to the depth of the deepest pattern: cost is linear in
    nodes and rewrites. A later run starts from marked nodes only, since a pattern's structure depends on nothing else.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        fuel: Fuel | None = None,
        options: object = None,
        observer: Callable[[Rule, Match, bool], None] | None = None,
        leaves_out: Callable[[Node, str], str] | None = None,
    ) -> None:
        """`options`: the pass of the rules. `observer(rule, match, done)` is called before and after each rewrite; a
        rewrite declined at the last moment is reported only before. `leaves_out(anchor, rule)`: reason to skip a match,
        or empty.
        """
        self.rules = rule_set(tuple(rules))
        self.fuel = fuel or Fuel()
        self.options = options
        self.observer = observer
        self.leaves_out = leaves_out
        self.records: defaultdict[str, RuleReport] = defaultdict(RuleReport)  # of rules that fired or declined
        self.declined: dict[Node, list[str]] = {}  # rules whose pattern matched and whose guard failed
        self._again: dict[Node, Sequence[str]] = {}  # rules to try where nothing changed
        self._queue: list[Node] = []
        self._places: dict[Node, int] = {}  # last place in the queue, once nodes were queued anew
        self._touched: list[Node] = []
        self._reasons: defaultdict[tuple[str, str], set[Node]] = defaultdict(set)
        self._recent: deque[str] = deque(maxlen=200)

    def run(self, model: Model, left: Left | None = None) -> int:
        """Rewrite `model`; returns the number of rewrites. `left`: state of the model after the last run of the same
        rules.

        Raises NoFixpointError and PassError.
        """
        self._fill(model, left if left is not None and left.declined is not None else None)
        if not self._queue:
            return 0
        budget = 1000 + 20 * model.node_count()
        done = 0
        model.watchers.append(self._touched.append)
        again = self._again
        candidates, declined = self.rules.candidates, self.declined
        try:
            for place, node in enumerate(self._queue):  # rewrites append nodes to the queue
                if node.graph is None or node.graph.skipped:
                    continue
                only = again.pop(node, None) if again else None
                found = candidates(node)
                if not found:  # most nodes
                    if node in declined:
                        del declined[node]
                    continue
                if self._visit(node, found, only):
                    done += 1
                    if done > budget:
                        raise self._restless(f"{model.name}: {node.graph.path if node.graph else 'main'}", done)
                if self._touched:
                    self._requeue(place)
                if self.fuel.left == 0:
                    break
        finally:
            model.watchers.remove(self._touched.append)
            self._queue.clear()
            self._places.clear()
            self._touched.clear()
        return done

    def _restless(self, where: str, done: int) -> NoFixpointError:
        last = sorted(set(self._recent))
        hint = f"they undo each other's work: disable one of them with --disable, for example {last[0]}"
        if len(last) == 1:
            hint = f"what it makes matches its own pattern: it needs a guard; go on without it by --disable {last[0]}"
        told = f"{where}: no fixed point after {done} rewrites; the last ones were {', '.join(last)}"
        return NoFixpointError(told, hint)

    def _fill(self, model: Model, left: Left | None) -> None:
        """Queue all anchors; in later runs anchors with changes in reach, and declined ones, whose guards may read
        anything."""
        by_anchor = self.rules.by_anchor
        scopes = [scope for scope in model.open_scopes() if any(map(scope.by_op.get, by_anchor))]
        anchors = [nodes for scope in scopes for op in by_anchor if (nodes := scope.by_op.get(op))]
        if left is None or left.declined is None:
            for nodes in anchors:
                self._queue.extend(nodes)
        elif anchors:
            due = model.reached_since(left.clock, self.rules.depth - 1)
            declined = left.declined.items()
            self._again = again = {n: names for n, names in declined if n.graph is not None and n not in due}
            for nodes in anchors:
                self._queue.extend([n for n in nodes if n in again or n in due])

    def _requeue(self, place: int) -> None:
        """Queue the touched nodes and their readers, unless they wait behind the `place` reached."""
        places = self._places = self._places or {node: i for i, node in enumerate(self._queue)}
        touched: Iterable[Node] = [n for n in self._touched if n.graph is not None]
        self._touched.clear()
        for _ in range(self.rules.depth - 1):
            touched = with_readers(touched)
        for node in touched:
            if node._op in self.rules.by_anchor:
                self._again.pop(node, None)
                if places.get(node, -1) <= place:
                    places[node] = len(self._queue)
                    self._queue.append(node)

    def _visit(self, node: Node, candidates: Candidates, only: Sequence[str] | None) -> bool:
        """Try the candidate rules, limited to those named `only` if given. Returns whether a rule fired."""
        declined: list[str] = []
        path: Path = []
        for rule, roots in candidates:
            if only is not None and rule.name not in only:
                continue
            reason, stays = None, True
            for root, orders in roots:
                is_left = True
                while is_left:
                    found = match(root, node, path, orders)
                    if found is None:
                        pass  # most often
                    elif type(found) is Bindings:
                        outcome = self._apply(rule, Match(found, node, self.options))
                        if outcome is None:
                            self.declined.pop(node, None)
                            return True
                        reason, stays = outcome.args[0], stays and outcome.stays
                    else:
                        reason, stays = reason or found, False  # a guard's reason, of another order, is more specific
                    is_left = bool(path) and change(path)
            if reason is not None:
                if not stays:
                    declined.append(rule.name)
                if reason:
                    self._decline(rule, reason, node)
        if declined:
            self.declined[node] = declined
        elif node in self.declined:
            del self.declined[node]
        return False

    def _apply(self, rule: Rule, m: Match) -> Declined | None:
        """Fire the rule. Returns None on success, else the reason for declining."""
        node, model = m.anchor, m.graph.model
        version = model.version  # facts queried by guards do not change the version
        try:
            try:
                result = rule.apply(m, **m.arguments())
            except Declined:
                if model.version != version:
                    raise self._changed(rule, m) from None
                raise
            if model.version != version:
                raise self._changed(rule, m)
            if self.fuel.left == 0:
                raise Declined("out of fuel")
            if self.leaves_out is not None and (reason := self.leaves_out(node, rule.name)):
                raise Declined(reason)
            if self.observer is not None:
                self.observer(rule, m, False)
            size = m.graph.size
            commit(m, result)
        except Declined as e:
            e.__traceback__ = None  # its frames would hold the match, and through their callers `e` itself
            return e
        except OnnxOptError as e:
            if isinstance(e, MistypedError) and not model.debug:
                # types declared by a file may be wrong; outside debug mode this is no error of the rule
                return Declined(e.objection)
            if isinstance(e, EmissionError):
                e.message = f"rule {rule.name}: {e.message}" + ("" if line_of(e) else f" ({rule.line})")
            raise
        except BaseException as e:
            if is_no_fault(e):
                raise
            raise failure(rule, m, e) from e
        self.fuel.take()
        if self.observer is not None:
            self.observer(rule, m, True)
        record = self.records[rule.name]
        record.hits += 1
        record.nodes += size - m.graph.size
        self._recent.append(rule.name)
        return None

    def _changed(self, rule: Rule, m: Match) -> PassError:
        """Return the error for a rule that modified the graph: if declined, it would be retried endlessly."""
        where, node = f"{m.graph.model.name}: {m.graph.path}", self._touched[-1] if self._touched else m.anchor
        return PassError(
            f"{where}: rule {rule.name} changed the graph itself, at {node!r} ({rule.line})",
            "a rule changes nothing: it returns what takes the anchor's place, made with m.op; a graph pass may",
        )

    def _decline(self, rule: Rule, reason: str, node: Node) -> None:
        seen = self._reasons[rule.name, reason]
        if node not in seen:
            seen.add(node)
            declined = self.records[rule.name].declined
            if reason not in declined:
                declined[reason] = Decline(repr(node))
            declined[reason].count += 1
