"""Search for the rewrite that makes a result wrong, by limiting fuel, and the smallest model with the fault.

If verification locates the fault, only rewrites at the place are searched; else first runs of passes, then rewrites.
"""

from __future__ import annotations

import dataclasses
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxopt.analysis.submodel import submodel
from onnxopt.bisection.trials import TrialRun, Trials, explain, goes_wrong, made, narrowings, suspected
from onnxopt.errors import OnnxOptError, UsageError
from onnxopt.graph.node import Node
from onnxopt.io import from_proto, save
from onnxopt.io.external import data_of, inline_data
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline import Sequential, execute, get_pass, parse_pipeline
from onnxopt.pipeline.journal import Entry, Journal
from onnxopt.pipeline.records import Site
from onnxopt.plaintext import counted, line
from onnxopt.verification import Verification, Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.verification.records import Place


__all__ = ["Finding", "Trials", "bisect", "describe", "explain", "goes_wrong", "guilty", "narrowings", "suspected"]


Tell = Callable[[str], None]
_RINGS = 6  # steps by which a submodel grows around the match


@dataclass
class Finding:
    """The faulty rewrite found by `bisect`. `pass_run`, `rewrite`: numbers of pass run and rewrite, from 1.

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
    trials: Trials,
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
    journal = Journal(matches=True)
    done = trials.run(pass_run, rewrite, [journal])
    run = pass_run or len(done.texts) if rewrite is None else bisect_right(done.taken, rewrite - 1)
    found = Finding(message, done.texts[run - 1], run, rewrite)
    entry = next((e for e in journal.entries if e.fuel == rewrite), None)
    if entry is not None:
        found.rule, found.scope, found.match, found.site = entry.rule, entry.scope, [*entry.match], entry.site
        rules = get_pass(entry.pass_name).rules if entry.rule else ()
        found.equation = next((rule.equation for rule in rules if rule.name == entry.rule), "")
    if tell is not None:
        model = trials.run(run, rewrite - 1).model if rewrite is not None else trials.run(run - 1).model
        nodes = _makers(model, {entry.value, *entry.taken}, entry.scope) if entry is not None and entry.match else []
        found.submodel = _smallest(_around(nodes or _at(model, places)), found.pass_text, trials, tell)
    return found


def _at(model: Model, places: Sequence[Place]) -> list[Node]:
    """Return the maker of the first wrong value that the model has, if any."""
    wrong = (name for p in places for name in (p.value, *sorted(made(p.a)), *sorted(made(p.b))))
    return next(filter(None, (_makers(model, {name})[:1] for name in wrong)), [])


def _makers(model: Model, names: Set[str], scope: str = "") -> list[Node]:
    """Return the nodes that make values with these names, in the graph with path `scope` or in all."""
    graphs = [graph for graph in model.scopes() if scope in ("", graph.path)]
    return [n for graph in graphs for n in graph if any(v.name in names for v in n.results)]


def _around(nodes: Sequence[Node]) -> list[ModelProto]:
    """Return submodels of the nodes alone, then with increasing neighbourhoods; none without nodes."""
    inside, parts = set(nodes), list[ModelProto]()
    for _ in range(_RINGS if nodes else 0):
        graph = nodes[0].scope
        ordered = [n for n in graph if n in inside]
        with suppress(OnnxOptError):  # unknown type at the boundary: a larger part may succeed
            part = submodel(graph, ordered, "submodel")
            inline_data(part, data_of(graph.model))
            parts.append(part)
        ring = {v.producer for n in inside for v in n.operands if v.graph is graph}
        ring |= {u for n in inside for v in n.results for u in v.users if u.graph is graph}
        inside |= {n for n in ring if n is not None}
    return parts


def _smallest(parts: list[ModelProto], text: str, trials: Trials, tell: Tell) -> ModelProto | None:
    """Return the first part on which the pass alone makes a wrong result, else None."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        given, kept = trials.verify_options, ("rtol", "atol", "seed", "limit", "dtype", "custom_op_libraries")
        plain = VerifyOptions(**{n: getattr(given, n) for n in kept}) if given else None
        for part in parts:
            before.write_bytes(part.SerializeToString())
            model = from_proto(part)
            try:
                alone = dataclasses.replace(trials.options, pipeline=text, max_rewrites=None).context()
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
        verdict = trials.known[None, whole.rewrites] = trials.verdict(done=whole)
        if not verdict.is_refused:
            raise UsageError(f"{source}: the result does not differ from the original", "there is nothing to find")
        spent = f"{counted(len(whole.texts), 'run')} of passes and {counted(whole.rewrites, 'rewrite')}"
        tell(f"the result {verdict.fault} after {spent}: {verdict.message}")
        runs: int | None = None
        rewrite = _at_places(trials, verdict.places, journal.entries, tell)
        if rewrite is None:
            runs, rewrite = _among_all(trials, whole, tell)
        wrong = trials.verdict(runs, rewrite)
        found = describe(trials, rewrite, wrong.message, tell if smallest else None, pass_run=runs, places=wrong.places)
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


def _among_all(trials: Trials, whole: TrialRun, tell: Tell) -> tuple[int, int | None]:
    """Return (first run of a pass with a wrong result, its first rewrite with a wrong result or None)."""

    def wrong(runs: int, rewrites: int | None = None) -> bool:
        return trials.verdict(runs, rewrites).is_refused

    runs = _first(range(1, len(whole.texts) + 1), wrong, tell, "run")
    if runs == 1 and wrong(0):
        raise UsageError(f"{trials.source}: it differs before the first pass", "no pass is guilty")
    tell(f"the guilty pass is run {runs}: {whole.texts[runs - 1]}")
    before, after = whole.taken[runs - 1], whole.taken[runs] if runs < len(whole.texts) else whole.rewrites
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
