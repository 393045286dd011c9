"""Instruments of passes: time, text, files, checks, the journal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxopt.errors import InstrumentError, InvariantError, PassError, UsageError, VerificationError
from onnxopt.graph import Model
from onnxopt.graph.text import model_text
from onnxopt.io import load
from onnxopt.passes.levels import pipeline_for
from onnxopt.pipeline import (
    Instrument,
    PassContext,
    Sequential,
    execute,
    get_pass,
    graph_pass,
    model_pass,
    parse_pipeline,
)
from onnxopt.pipeline.instruments import CheckEach, DumpModels, PrintIR, Timing, VerifyEach
from onnxopt.pipeline.journal import Journal
from onnxopt.pipeline.registry import load_module
from tests.samples import ROOT, sample

BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")


@pytest.fixture
def residual(tmp_path: Path) -> Path:
    onnx.save(sample("residual_block"), tmp_path / "residual.onnx")
    return tmp_path / "residual.onnx"


def test_timing_is_a_tree(model: Any) -> None:
    @model_pass(name="outer")
    def outer(model: Model, ctx: PassContext) -> None:
        """Spend time in another pass."""
        get_pass("dead-code")()(model)

    timing = Timing()
    execute(
        parse_pipeline("canonicalize,fixpoint(elim-identity,dead-code)"), model(), PassContext(instruments=[timing])
    )
    tree = [(depth, span.name, span.runs) for depth, span in timing.root.walk()]
    assert tree[:5] == [
        (0, "total", 1),
        (1, "sequential", 1),
        (2, "canonicalize", 1),
        (2, "fixpoint", 1),
        (3, "elim-identity", 1),
    ]
    spans = {span.name: span for _, span in timing.root.walk()}
    inner = sum(s.seconds for s in spans["fixpoint"].children.values())
    assert spans["fixpoint"].self_seconds == pytest.approx(spans["fixpoint"].seconds - inner)
    assert sum(s.self_seconds for _, s in timing.root.walk()) == pytest.approx(timing.root.seconds)
    assert all(s.self_seconds >= 0 for _, s in timing.root.walk())
    assert [line.split()[-1] for line in timing.lines()] == ["pass", *(name for _, name, _ in tree)]
    timing = Timing()
    execute(outer(), model(), PassContext(instruments=[timing]))
    assert list(timing.root.children["outer"].children) == ["dead-code"], "a pass called by a pass is inside it"


def test_ir_is_readable(model: Any) -> None:
    m = model(
        'a = Add (x, k) c = Clip (a, , k) y = Pad <mode = "edge"> (c, p)',
        weights="<float k = {1.5}, int64[4] p = {0,0,0,0}>",
    )
    assert model_text(m) == (
        "main(x) -> (y):\n"
        "  a = Add(x, k: float = 1.5)\n"
        "  c = Clip(a, _, k: float = 1.5)\n"
        "  y = Pad(c, p: int64[4] = {0,0,0,0}) {mode='edge'}\n"
    )


def test_types_are_shown_once_known(residual: Path) -> None:
    m = load(residual)
    pipeline_for(2)(m)
    text = model_text(m)
    assert "float[" in text
    assert 'Conv "' in text or "= Conv(" in text
    assert len(text.splitlines()) == 1 + len(m.graph), "no weights are written out"


def test_bodies_and_functions_are_shown(model: Any) -> None:
    branch = (
        "then_branch = t () => (float[N, 4] r) { r = Relu (x) }, else_branch = e () => (float[N, 4] s) { s = l.f (x) }"
    )
    function = '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { y = Neg (x) }'
    text = model_text(model(f"c = Constant <value = bool {{1}}> () y = If <{branch}> (c)", function))
    assert "    then_branch() -> (r):\n      r = Relu(x)" in text
    assert "function l::f(x) -> (y):\n  y = Neg(x)" in text


@pytest.mark.parametrize(
    ("after", "before", "headings"),
    [
        ("changed", (), ["after elim-identity"]),
        ("all", (), ["after (unchanged) canonicalize", "after elim-identity", "after (unchanged) dead-code"]),
        (["dead-code"], ["elim-identity"], ["before elim-identity", "after (unchanged) dead-code"]),
    ],
)
def test_print_ir(model: Any, after: Any, before: Any, headings: list[str]) -> None:
    file = io.StringIO()
    ctx = PassContext(instruments=[PrintIR(after, before, file)])
    execute(parse_pipeline("canonicalize,elim-identity,dead-code"), model(), ctx)
    assert [line.strip("- ") for line in file.getvalue().splitlines() if line.startswith("--")] == headings
    if after == "changed":
        assert file.getvalue() == "-- after elim-identity --\nmain(x) -> (y):\n  b = Relu(x)\n  y = Neg(b)\n\n"


def test_dumped_models_are_numbered_and_load(model: Any, tmp_path: Path) -> None:
    dump = DumpModels(tmp_path / "dump", before=["elim-identity"])
    execute(parse_pipeline("canonicalize,elim-identity,dead-code"), model(), PassContext(instruments=[dump]))
    files = sorted((tmp_path / "dump").iterdir())
    assert [f.name for f in files] == ["002-elim-identity-before.onnx", "002-elim-identity.onnx"]
    assert [len(onnx.load(f).graph.node) for f in files] == [3, 2]
    onnx.checker.check_model(onnx.load(files[1]), full_check=True)


def test_check_each_names_the_pass_that_broke_the_graph(model: Any) -> None:
    @graph_pass(name="wreck")
    def wreck(graph: Any, ctx: PassContext) -> None:
        """Break a link."""
        graph.last.output.index = 5

    passes = Sequential((get_pass("canonicalize")(), wreck(), get_pass("dead-code")()))
    with pytest.raises(InvariantError, match=r"pass wreck: .*does not know its producer.*\(after canonicalize\)"):
        execute(passes, model(), PassContext(instruments=[CheckEach()]))


def test_checks_end_with_the_run_that_asked_for_them(model: Any) -> None:
    checked = model()
    checked.debug = False
    execute(parse_pipeline("dead-code"), checked, PassContext(instruments=[CheckEach()]))
    assert not checked.debug


def test_verify_each_names_the_pass_that_changed_the_result(model: Any, tmp_path: Path) -> None:
    from onnxopt.graph import write_model

    load_module(BROKEN)
    onnx.save(write_model(model("a = Identity (x) b = Tanh (a) y = Neg (b)")), tmp_path / "m.onnx")
    passes = parse_pipeline("elim-identity,wrong-pass,dead-code")
    with pytest.raises(VerificationError, match=r"pass wrong-pass: .*output `y`.*\(after elim-identity\)"):
        execute(passes, load(tmp_path / "m.onnx"), PassContext(instruments=[VerifyEach(tmp_path / "m.onnx")]))
    good = parse_pipeline("elim-identity,dead-code")
    execute(good, load(tmp_path / "m.onnx"), PassContext(instruments=[VerifyEach(tmp_path / "m.onnx")]))


def test_the_journal_says_which_rule_made_which_node(residual: Path) -> None:
    journal = Journal()
    m = load(residual)
    execute(pipeline_for(2), m, PassContext(instruments=[journal]))
    folds = journal.of("fold_conv_bn")
    assert len(folds) == 3
    assert journal.of("conv-bn-folding") == folds
    convs = {v.name for n in m.graph.by_op["Conv"] for v in n.outputs if v is not None}
    for e in folds:
        assert (e.pass_name, e.rule, e.scope) == ("conv-bn-folding", "fold_conv_bn", "main")
        assert len(e.removed) == 2
        assert e.removed[0].startswith("BatchNormalization")
        assert e.outputs[0] in convs
        made = journal.made_by(e.outputs[0])
        assert made == e
    assert journal.made_by("x") is None
    assert [e["number"] for e in journal.to_list()] == list(range(1, len(journal.entries) + 1))


def test_the_journal_sees_passes_without_rules(model: Any) -> None:
    journal = Journal()
    m = model("a = Relu (x) b = Relu (x) y = Add (a, b)")
    execute(get_pass("common-subexpressions")(), m, PassContext(instruments=[journal]))
    (entry,) = journal.entries
    assert (entry.pass_name, entry.rule, entry.removed, entry.made) == ("common-subexpressions", "", ("Relu -> b",), ())
    assert str(entry) == "1 common-subexpressions: main: replaced Relu -> b"


def test_the_journal_tells_the_rewrites_of_such_passes_apart(model: Any) -> None:
    journal = Journal(matches=True)
    m = model("a = Relu (x) b = Relu (x) c = Neg (a) d = Neg (b) y = Add (c, d)")
    execute(parse_pipeline("elim-identity,common-subexpressions"), m, PassContext(instruments=[journal]))
    first, second = journal.entries
    assert (first.removed, first.value, first.fuel) == (("Relu -> b",), "b", 1)
    assert (second.removed, second.value, second.fuel) == (("Neg -> d",), "d", 2)
    assert second.match == ("d = Neg(a)",)
    assert str(second.site) == "common-subexpressions@d"
    assert not m.watchers


def test_the_journal_knows_what_a_rule_took(model: Any) -> None:
    journal = Journal(matches=True)
    for _ in range(2):
        m = model("a = Relu (x) b = Relu (a) y = Neg (b)")
        execute(parse_pipeline("elim-identity"), m, PassContext(instruments=[journal]))
        (entry,) = journal.entries  # of the last run
        assert (entry.value, entry.fuel, entry.taken) == ("b", 1, ("b",)), "a stays"
        assert entry.match == ("b = Relu(a)", "a = Relu(x)")


def test_an_instrument_may_veto(model: Any) -> None:
    class Only(Instrument):
        def should_run(self, model: Model, p: Any) -> bool:
            return bool(p.name == "canonicalize")

    report = execute(parse_pipeline("canonicalize,dead-code"), model(), PassContext(instruments=[Only()]))
    assert report.skipped == {"dead-code": "Only says no"}


def test_without_instruments_rewrites_are_not_watched() -> None:
    assert PassContext().observer is None
    assert PassContext(instruments=[Timing(), CheckEach()]).observer is None
    assert PassContext(instruments=[Journal()]).observer is not None


def test_bytes_and_nodes_are_counted_by_pass_and_rule(residual: Path) -> None:
    from onnxopt.analysis.stats import model_stats

    m = load(residual)
    before = sum(model_stats(m).bytes_by_type.values())
    report = execute(pipeline_for(2), m, PassContext())
    after = sum(model_stats(m).bytes_by_type.values())
    assert sum(p.bytes for p in report.passes) == before - after > 0
    assert report.of("conv-bn-folding").bytes < 0, "new weights, while the old ones are still there"
    rule = report.of("conv-bn-folding").rules["fold_conv_bn"]
    assert (rule.hits, rule.nodes) == (3, 3)


HOOKS = ("begin", "should_run", "before", "rewriting", "spending", "after", "end")


@pytest.mark.parametrize("hook", HOOKS)
def test_an_instrument_that_fails_is_named_and_no_pass(model: Any, hook: str) -> None:
    def fail(*given: Any) -> None:
        raise ValueError("three is a crowd")

    class Watcher(Instrument):
        """Fails in one hook."""

    ended: list[str] = []

    class Other(Instrument):
        """Is told of the end."""

        def end(self, model: Model) -> None:
            ended.append(model.name)

    @graph_pass
    def spender(graph: Any, ctx: PassContext) -> None:
        """Spends."""
        ctx.spend("something", at=graph.first)

    watcher = Watcher()
    setattr(watcher, hook, fail)
    passes = Sequential([get_pass("elim-identity")(), spender])
    with pytest.raises(InstrumentError) as e:
        execute(passes, model(), PassContext(instruments=[Other(), watcher]))
    line = f"the instrument Watcher failed in its hook {hook}: ValueError: three is a crowd (test_instruments.py:"
    assert e.value.message.startswith(line)
    assert e.value.hint == "this is a bug there, and not in a pass; ONNXOPT_DEBUG=1 shows the traceback"
    assert (e.value.exit_code, e.value.failed) == (4, None)
    assert not any(name in e.value.message for name in ("elim-identity", "spender", "identity", "pass"))
    assert ended == ["g"], "who began is told of the end"


def test_a_trace_that_fails_is_named(model: Any) -> None:
    def print_ir(model: Model, info: Any) -> None:
        """Takes too little."""

    with pytest.raises(InstrumentError, match="the trace function print_ir failed: TypeError: "):
        execute(get_pass("dead-code")(), model(), PassContext(trace=print_ir))  # type: ignore[arg-type]


def test_the_end_does_not_hide_what_failed(model: Any) -> None:
    class Watcher(Instrument):
        """Fails at the end."""

        def end(self, model: Model) -> None:
            raise ValueError("too late")

    @graph_pass
    def failing(graph: Any, ctx: PassContext) -> None:
        """Fails."""
        raise KeyError("first")

    with pytest.raises(PassError, match="pass failing failed on g: main: KeyError: 'first'"):
        execute(failing, model(), PassContext(instruments=[Watcher()]))


def test_an_instrument_may_judge_a_pass(model: Any) -> None:
    class Judge(Instrument):
        """Allows one node less at most."""

        def after(self, model: Model, p: Any) -> None:
            if not p.children and model.node_count() < 3:
                raise InvariantError("too few nodes")

    with pytest.raises(InvariantError, match="pass elim-identity: too few nodes"):
        execute(get_pass("elim-identity")(), model(), PassContext(instruments=[Judge()]))


def test_what_is_printed_after_a_pass_that_there_is_not(model: Any, tmp_path: Path) -> None:
    for make in (PrintIR, lambda **names: DumpModels(tmp_path, **names)):
        for when in ("after", "before"):
            with pytest.raises(UsageError, match="no pass is called 'elim-identiti'") as e:
                make(**{when: "elim_identiti"})
            assert e.value.hint == "did you mean elim-identity?"
    shown = io.StringIO()
    execute(get_pass("elim-identity")(), model(), PassContext(instruments=[PrintIR("elim_identity", file=shown)]))
    assert shown.getvalue().startswith("-- after elim-identity --")
