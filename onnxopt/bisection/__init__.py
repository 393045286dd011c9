"""Search for the rewrite that makes a result wrong, by limiting fuel, and the smallest model with the fault.

If verification locates the fault, only rewrites at the place are searched; else first runs of passes, then rewrites.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from onnxopt.analysis.submodel import submodel
from onnxopt.bisection.trials import Outcome, Trials, explain, goes_wrong, made, narrowings, run, suspected
from onnxopt.errors import OnnxOptError, UsageError
from onnxopt.graph import Value
from onnxopt.graph.node import Node
from onnxopt.graph.text import node_text
from onnxopt.io import from_proto, save
from onnxopt.io.external import data_of, inline_data
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline import Instrument, PassContext, Sequential, execute, parse_pipeline
from onnxopt.pipeline.journal import Entry, Journal
from onnxopt.pipeline.records import Site
from onnxopt.plaintext import counted, line
from onnxopt.verification import Verification, Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.graph import Model
    from onnxopt.pipeline import Pass
    from onnxopt.rewriting import Match, Rule
    from onnxopt.verification.records import Place


__all__ = [
    "Finding",
    "Trials",
    "bisect",
    "describe",
    "explain",
    "goes_wrong",
    "guilty",
    "narrowings",
    "suspected",
]


Tell = Callable[[str], None]
_RINGS = 6  # steps by which a submodel grows around the match


@dataclass
class Finding:
    """The faulty rewrite found by `bisect`. `pass_run`: number of the pass run, from 1. `rewrite`: number of the
    rewrite in the pipeline.

    `rule`: empty for a pass without rules. `match`: a line for each node, before the rewrite. `site`: excludes exactly
    this rewrite. `match` and `site` are empty for a pass that does not record its places. `submodel`: the smallest part
    around the match (or the place found by verification) on which the pass alone fails; None if only the whole
    model fails. `runs`: number of verified results of the whole model.
    """

    message: str
    pass_text: str
    pass_run: int
    rewrite: int | None = None
    rule: str = ""
    equation: str = ""
    scope: str = ""
    match: list[str] = field(default_factory=list)
    submodel: ModelProto | None = None
    site: Site | None = None
    runs: int = 0

    def lines(self) -> list[str]:
        """Return the lines printed by the command: place, fault, replaced nodes."""
        place = f"pass {self.pass_text}" + (f", rule {self.rule}" if self.rule else "")
        number = f", rewrite {self.rewrite}" if self.rewrite is not None else ""
        found = [f"{place}: run {self.pass_run} of the pipeline's passes{number}: {self.message}"]
        found += [f"  {self.equation}"] if self.rule else []
        found += [f"  in {self.scope}, it replaced", *(f"    {line}" for line in self.match)] if self.match else []
        return found

    def __str__(self) -> str:
        return "\n".join(map(line, self.lines()))


def describe(
    source: str | Path,
    options: OptimizeOptions,
    verify_options: VerifyOptions | None,
    rewrite: int | None,
    message: str,
    tell: Tell | None = lambda line: None,
    *,
    pass_run: int | None = None,
    places: Sequence[Place] = (),
) -> Finding:
    """Return the description of a rewrite of the pipeline, or of a run of a pass without fuel.

    rewrite: number of the rewrite; pass_run: number of the run; message: the fault; places: its places; tell: receives
    progress of the search for the smallest model, None: no search.
    """
    wrong = [name for p in places for name in (p.value, *sorted(made(p.a)), *sorted(made(p.b)))]
    last = _Capture(Finding(message, "", 0, rewrite), pass_run, wrong if tell is not None else None)
    run(source, options, (last,), rewrite)
    if tell is not None:
        last.found.submodel = _smallest(last.parts, last.found.pass_text, options, verify_options, tell)
    return last.found


class _Capture(Instrument):
    """Completes `found`, a rewrite of a run, and makes `parts` of the model around it."""

    watches_rewrites: ClassVar[bool] = True

    def __init__(self, found: Finding, wanted: int | None, values: list[str] | None) -> None:
        """Create before the run.

        wanted: run of a pass without rewrites; values: wrong values, for a pass without places; None: no parts.
        """
        self.found, self.wanted, self.values = found, wanted, values
        self.model: Model | None = None
        self.text, self.count = "", 0  # the running pass, and the number of runs so far
        self.parts: list[ModelProto] = []

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.count += 1
            self.text, self.model = str(p), model
            if self.found.rewrite is None and self.count == self.wanted:
                self._complete(None, "", [])

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if not done and PassContext.current().fuel.taken + 1 == self.found.rewrite:
            self.found.rule, self.found.equation = rule.name, rule.equation
            nodes = dict.fromkeys(node for node, _ in m.bindings.covered)
            self._complete(Site.of(rule.name, m.anchor), m.graph.path, [*nodes])

    def spending(self, what: str, at: Value | Node | None) -> None:
        ctx = PassContext.current()
        if ctx.fuel.taken == self.found.rewrite:
            node, site = at.producer if isinstance(at, Value) else at, Site.of(ctx.running, at)
            self._complete(site, site.scope if site is not None else "", [node] if node is not None else [])

    def _complete(self, site: Site | None, scope: str, nodes: list[Node]) -> None:
        """Enter the running pass and the nodes before the rewrite; make parts around these.

        Without nodes, parts are around the producer of the first wrong value present.
        """
        found = self.found
        found.pass_text, found.pass_run = self.text, self.count
        found.site, found.scope, found.match = site, scope, [node_text(node) for node in nodes]
        if self.values is None:
            return
        if not nodes:
            assert self.model is not None
            makers = {v.name: n for graph in self.model.scopes() for n in graph for v in n.results}
            nodes = [makers[name] for name in self.values if name in makers][:1]
        self.parts = _around(nodes) if nodes else []


def _around(nodes: Sequence[Node]) -> list[ModelProto]:
    """Return submodels of the nodes alone, then with increasing neighbourhoods."""
    graph = nodes[0].scope
    inside, parts = set(nodes), []
    for _ in range(_RINGS):
        ordered = [n for n in graph if n in inside]
        with suppress(OnnxOptError):  # unknown type at the boundary: a larger part may succeed
            part = submodel(graph, ordered, "submodel")
            inline_data(part, data_of(graph.model))
            parts.append(part)
        ring = {v.producer for n in inside for v in n.operands if v.graph is graph}
        ring |= {u for n in inside for v in n.results for u in v.users if u.graph is graph}
        inside |= {n for n in ring if n is not None}
    return parts


def _smallest(
    parts: list[ModelProto], text: str, options: OptimizeOptions, verify_options: VerifyOptions | None, tell: Tell
) -> ModelProto | None:
    """Return the first part on which the pass alone makes a wrong result, else None."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        kept = ("rtol", "atol", "seed", "limit", "dtype", "custom_op_libraries")
        plain = VerifyOptions(**{n: getattr(verify_options, n) for n in kept}) if verify_options else None
        for part in parts:
            before.write_bytes(part.SerializeToString())
            model = from_proto(part)
            try:
                alone = dataclasses.replace(options, pipeline=text, max_rewrites=None).context()
                execute(Sequential((parse_pipeline(text).passes[0],)), model, alone)
                save(model, after)
            except OnnxOptError:
                continue
            with Verifier(before, plain) as verifier:
                verifier.submit(after, model.tolerances)
                different = verifier.finish().is_refused
            tell(f"  a part of {counted(len(part.graph.node), 'node')}: {'differs' if different else 'equal'}")
            if different:
                return part
    return None


# -- the search -------------------------------------------------------------------------------------------------------


def bisect(
    source: str | Path,
    options: OptimizeOptions | None = None,
    verify_options: VerifyOptions | None = None,
    tell: Tell = lambda line: None,
    *,
    known: Verification | None = None,
    smallest: bool = True,
) -> Finding:
    """Return the first rewrite with which the result is wrong at the first place named by verification.

    Without a helpful place: the first pass run with a wrong result, and in the run the first such rewrite, after about
    log2(runs) + log2(rewrites) verified optimizations. known: verdict on the whole result; smallest: search the
    smallest model that reproduces the fault. Raises UsageError if the whole result is right, and errors of a failing
    pass.
    """
    options = options or OptimizeOptions()
    with Trials(source, options, verify_options, known) as trials:
        trials.start()
        journal = Journal()
        whole = trials.run(watch=[journal])
        verdict = trials.known[None, whole.rewrites] = trials.verdict(outcome=whole)
        if not verdict.is_refused:
            raise UsageError(f"{source}: the result does not differ from the original", "there is nothing to find")
        spent = f"{counted(whole.runs, 'run')} of passes and {counted(whole.rewrites, 'rewrite')}"
        tell(f"the result {verdict.fault} after {spent}: {verdict.message}")
        runs: int | None = None
        rewrite = _at_places(trials, verdict.places, journal.entries, tell)
        if rewrite is None:
            runs, rewrite = _among_all(trials, whole, tell)
        wrong = trials.verdict(runs, rewrite)
    found = describe(
        source,
        options,
        verify_options,
        rewrite,
        wrong.message,
        tell if smallest else None,
        pass_run=runs,
        places=wrong.places,
    )
    found.runs = trials.verified
    return found


def guilty(trials: Trials, place: Place, entries: Sequence[Entry], tell: Tell) -> Entry | None:
    """Return the first rewrite with which the result is wrong at a place, among rewrites at the place.

    None without rewrites at the place.
    """
    numbered = {e.fuel: e for e in suspected(place, entries)}
    numbers = sorted(numbered)
    if not numbers:
        return None
    tell(f"{len(numbers)} of them happened at `{place.value}`")
    for (runs, n), verdict in trials.known.items():  # some were tried for a previous place
        if runs is None and n is not None:
            wrong = goes_wrong(verdict, place)
            numbers = [m for m in numbers if (m <= n) == wrong] or numbers
    return numbered[_first(numbers, lambda n: goes_wrong(trials.verdict(rewrites=n), place), tell, "rewrite")]


def _at_places(trials: Trials, places: Sequence[Place], entries: Sequence[Entry], tell: Tell) -> int | None:
    """Return the first rewrite with which the result is wrong at a place, if proven to be at the place; else None."""
    for place in places:
        entry = guilty(trials, place, entries, tell)
        if entry is None:
            continue
        after, before = (goes_wrong(trials.verdict(rewrites=n), place) for n in (entry.fuel, entry.fuel - 1))
        if after and not before:
            return entry.fuel
        tell("but it is none of them")
    return None


def _among_all(trials: Trials, whole: Outcome, tell: Tell) -> tuple[int, int | None]:
    """Return (first run of a pass with a wrong result, its first rewrite with a wrong result or None)."""

    def wrong(runs: int, rewrites: int | None = None) -> bool:
        return trials.verdict(runs, rewrites).is_refused

    runs = _first(range(1, whole.runs + 1), wrong, tell, "run")
    if runs == 1 and wrong(0):
        raise UsageError(f"{trials.source}: it differs before the first pass", "no pass is guilty")
    tell(f"the guilty pass is run {runs}: {whole.texts[runs - 1]}")
    before, after = whole.taken[runs - 1], whole.taken[runs] if runs < whole.runs else whole.rewrites
    if before == after:
        return runs, None  # a pass without fuel: no finer search
    return runs, _first(range(before + 1, after + 1), lambda n: wrong(runs, n), tell, "rewrite")


def _first(numbers: Sequence[int], wrong: Callable[[int], bool], tell: Tell, what: str) -> int:
    """Return the smallest of ascending numbers for which `wrong` holds, by binary search.

    `wrong` is assumed to hold for the last number, and not before the first.
    """
    while len(numbers) > 1:
        middle = (len(numbers) + 1) // 2
        n = numbers[middle] - 1
        found = wrong(n)
        tell(f"  {counted(n, what)}: {'differs' if found else 'equal'}")
        numbers = numbers[:middle] if found else numbers[middle:]
    return numbers[0]
