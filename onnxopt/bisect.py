"""Find the rewrite that makes a result wrong: first the run of a pass, then the single rewrite, by fuel.

Passes are deterministic, so the first n rewrites of a run are the same however far it goes on after them.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from onnxopt.analysis.submodel import submodel
from onnxopt.api import OptimizeOptions
from onnxopt.errors import ModelError, OnnxOptError, UsageError
from onnxopt.graph import specialise
from onnxopt.graph.text import node_text
from onnxopt.io import from_proto, load, save
from onnxopt.io.external import data_of, inline_data
from onnxopt.pipeline import Instrument, PassContext, Sequential, execute, parse_pipeline
from onnxopt.verification import DIFFERENT, UNVERIFIED, Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.graph import Model
    from onnxopt.graph.node import Node
    from onnxopt.pipeline import Pass
    from onnxopt.rewriting import Match, Rule

Tell = Callable[[str], None]
_RINGS = 6  # how far around the match a submodel may grow


@dataclass
class Finding:
    """What `bisect` found. `pass_run` counts runs of passes from 1, `rewrite` those of the whole pipeline.

    `rule` and `match` (one line a node, before the rewrite) are empty for passes without rules. `submodel` is the
    smallest part around the match on which the pass alone goes wrong, None if only the whole model shows it.
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


def bisect(
    source: str | Path,
    options: OptimizeOptions | None = None,
    verify_options: VerifyOptions | None = None,
    tell: Tell = lambda line: None,
) -> Finding:
    """The first pass, and its first rewrite, after which the result differs from the original.

    Takes about log2(passes run) + log2(rewrites) optimizations, each verified. Raises UsageError if the result of the
    whole pipeline does not differ, and what a failing pass raises.
    """
    source, options = Path(source), options or OptimizeOptions()
    with Verifier(source, verify_options) as verifier, tempfile.TemporaryDirectory() as folder:
        if options.dims or options.shapes:
            sized = load(source)
            specialise(sized, options.dims, options.shapes)
            verifier.describe(sized.proto)
        trial = _Trial(source, options, verifier, Path(folder) / "trial.onnx")
        whole = trial.run()
        message = trial.difference(whole)
        if not message:
            raise UsageError(f"{source}: the result does not differ from the original", "there is nothing to find")
        tell(f"the result differs after {whole.runs} runs of passes and {whole.rewrites} rewrites: {message}")

        runs = _first(1, whole.runs, lambda n: bool(trial.difference(trial.run(runs=n))), tell, "runs of passes")
        before, guilty = trial.run(runs=runs - 1), trial.run(runs=runs)
        if runs <= 1 and trial.difference(before):
            raise UsageError(f"{source}: it differs before the first pass: {message}", "no pass is guilty")
        name = guilty.texts[-1]
        tell(f"the guilty pass is run {runs}: {name}")
        finding = Finding(trial.difference(guilty), name, runs)
        if guilty.rewrites == before.rewrites:
            return finding  # a pass that does not spend fuel: no finer than this
        finding.rewrite = _first(
            before.rewrites + 1,
            guilty.rewrites,
            lambda n: bool(trial.difference(trial.run(runs=runs, rewrites=n))),
            tell,
            "rewrites",
        )
        last = _Capture(finding.rewrite - before.rewrites, runs)
        finding.message = trial.difference(trial.run(runs=runs, rewrites=finding.rewrite, watch=last))
        finding.rule, finding.equation, finding.scope, finding.match = last.rule, last.equation, last.scope, last.match
    finding.submodel = _smallest(last.parts, name, options, verify_options, tell)
    return finding


def _first(low: int, high: int, wrong: Callable[[int], bool], tell: Tell, what: str) -> int:
    """The smallest n in low…high for which `wrong` holds; it does for `high`."""
    while low < high:
        middle = (low + high) // 2
        found = wrong(middle)
        tell(f"  {middle} {what}: {'differs' if found else 'equal'}")
        low, high = (low, middle) if found else (middle + 1, high)
    return low


class _Limit(Instrument):
    """Lets the first so many runs of passes happen, and no others."""

    def __init__(self, runs: int | None) -> None:
        self.runs = runs
        self.texts: list[str] = []

    def should_run(self, model: Model, p: Pass) -> bool:
        return bool(p.children) or self.runs is None or len(self.texts) < self.runs

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.texts.append(str(p))


@dataclass
class _Outcome:
    model: Model
    texts: list[str]  # the passes that ran
    rewrites: int

    @property
    def runs(self) -> int:
        return len(self.texts)


@dataclass
class _Trial:
    source: Path
    options: OptimizeOptions
    verifier: Verifier
    path: Path

    def run(self, runs: int | None = None, rewrites: int | None = None, watch: Instrument | None = None) -> _Outcome:
        """The pipeline up to so many runs of passes and so many rewrites."""
        given = self.options
        model = given.load(self.source)
        if given.dims or given.shapes:
            specialise(model, given.dims, given.shapes)
        limit, count = _Limit(runs), _Fuel()
        options = dataclasses.replace(self.options, max_rewrites=rewrites)
        instruments = [limit, count, *([watch] if watch is not None else [])]
        execute(options.passes(), model, options.context(instruments))
        return _Outcome(model, limit.texts, count.taken)

    def difference(self, outcome: _Outcome) -> str:
        """How the result differs from the original; empty if it does not."""
        save(outcome.model, self.path)
        self.verifier.submit(self.path)
        verdict = self.verifier.finish()
        if verdict.status == UNVERIFIED:
            raise ModelError(f"{self.source}: {verdict.message}", verdict.hint)
        return verdict.message if verdict.status == DIFFERENT else ""


class _Fuel(Instrument):
    """How many rewrites a run took."""

    taken = 0

    def end(self, model: Model) -> None:
        self.taken = PassContext.current().fuel.taken


class _Capture(Instrument):
    """Keeps the last rewrite of the last run: the match before it, and parts of the model around it."""

    watches_rewrites: ClassVar[bool] = True

    def __init__(self, nth: int, run: int) -> None:
        self.nth, self.run = nth, run
        self.count = 0
        self.rule = self.equation = self.scope = ""
        self.match: list[str] = []
        self.parts: list[ModelProto] = []

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.count = 0

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        self.count += done
        if done or self.count + 1 != self.nth or len(PassContext.current().history) + 1 != self.run:
            return
        self.rule, self.equation, self.scope = rule.name, rule.equation, m.graph.path
        nodes = dict.fromkeys(node for node, _ in m.bindings.covered)
        self.parts = _around(nodes)
        self.match = [node_text(node) for node in nodes]


def _around(nodes: dict[Node, Any]) -> list[ModelProto]:
    """The nodes alone, then with more and more of what feeds and reads them."""
    graph = next(iter(nodes)).graph
    assert graph is not None
    inside, parts = set(nodes), []
    for _ in range(_RINGS):
        ordered = [n for n in graph if n in inside]
        with suppress(OnnxOptError):  # a type on the boundary is unknown: a larger part may do
            part = submodel(graph, ordered, "submodel")
            inline_data(part, data_of(graph.model))
            parts.append(part)
        ring = {v.producer for n in inside for v in n.inputs if v is not None and v.graph is graph}
        ring |= {u for n in inside for v in n.outputs if v is not None for u in v.users if u.graph is graph}
        inside |= {n for n in ring if n is not None}
    return parts


def _smallest(
    parts: list[ModelProto], text: str, options: OptimizeOptions, verify_options: VerifyOptions | None, tell: Tell
) -> ModelProto | None:
    """The first part on which the pass alone makes a result that differs."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        plain = (
            VerifyOptions(*(getattr(verify_options, n) for n in ("rtol", "atol", "seed"))) if verify_options else None
        )
        for part in parts:
            before.write_bytes(part.SerializeToString())
            model = from_proto(part)
            try:
                execute(Sequential((parse_pipeline(text).passes[0],)), model, _alone(text, options))
                save(model, after)
            except OnnxOptError:
                continue
            with Verifier(before, plain) as verifier:
                verifier.submit(after)
                different = verifier.finish().status == DIFFERENT
            tell(f"  a part of {len(part.graph.node)} nodes: {'differs' if different else 'equal'}")
            if different:
                return part
    return None


def _alone(text: str, options: OptimizeOptions) -> PassContext:
    return dataclasses.replace(options, pipeline=text, max_rewrites=None).context()
