"""docs/from-tvm.md: each term of TVM has the described counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import onnxopt
from onnxopt import (
    CapabilityPartitioner,
    DebugPass,
    Fixpoint,
    GraphInterpreter,
    GraphPass,
    Instrument,
    OperatorSupport,
    PassContext,
    PassInfo,
    PrintIR,
    RewritePass,
    Sequential,
    Timing,
    all_passes,
    all_targets,
    config_keys,
    const,
    declare_config,
    dtype,
    fuse_partition,
    get_pass,
    graph_pass,
    load,
    model_pass,
    op,
    pattern_partitions,
    read_model,
    register,
    rewrite,
    save,
    shape,
    var,
    write_model,
)
from tests.docs.rows import Rows, model, operators

row = Rows("from-tvm.md")


def test_every_row_is_tested_with_its_names() -> None:
    assert not row.untested()
    assert not row.unused()


@row("`IRModule`")
def test_a_model_is_read_and_written(tmp_path: Path) -> None:
    proto = write_model(model())
    assert isinstance(read_model(proto), onnxopt.Model)
    path = tmp_path / "model.onnx"
    save(read_model(proto), path)
    assert isinstance(load(path), onnxopt.Model)


IF = """c = Constant <value = bool {1}> () y = If <then_branch = t () => (float[N, 4] r) { r = Relu (x) },
    else_branch = e () => (float[N, 4] s) { s = Neg (x) }> (c)"""
FUNCTION = '<domain: "l", opset_import: ["" : 17]> f (u) => (w) { w = Relu (u) }'


@row("a function of the module", "`IfNode`: `cond`, `true_branch`, `false_branch`")
def test_scopes_and_bodies() -> None:
    m = model(IF.replace("Neg (x)", "l.f (x)"), FUNCTION)
    assert all(isinstance(scope, onnxopt.Graph) for scope in m.scopes())
    assert [scope.path for scope in m.scopes()] == [
        "function l::f",
        "main / If / then_branch",
        "main / If / else_branch",
        "main",
    ]
    node = m.graph.last
    assert node.inputs[0].producer.op == "Constant"
    assert [n.op for n in node.bodies["then_branch"]] == ["Relu"]
    assert [n.op for n in node.bodies["else_branch"]] == ["l::f"]


@row("`print(mod)`", "`mod = opt(mod)`")
def test_a_pass_changes_the_model_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    model_, opt = model(), get_pass("elim-identity")()
    report = opt(model_)
    assert report.of("elim-identity").hits == 1
    graph = model_.graph
    print(model_)
    print(graph)
    assert capsys.readouterr().out == 2 * "main(x) -> (y):\n  b = Relu(x)\n  y = Neg(b)\n"


@row("`PassInfo(opt_level, name, required)`")
def test_info() -> None:
    info = PassInfo("mine", opt_level=2, required=("canonicalize",))
    assert (info.name, info.opt_level, info.required) == ("mine", 2, ("canonicalize",))


@row(
    "`@module_pass(opt_level=2)`",
    "`@function_pass(opt_level=1)` on a function",
    "`CreateFunctionPass(f, opt_level, name, required)`",
)
def test_decorators() -> None:
    @model_pass(opt_level=2)
    def transform(model: Any, ctx: Any) -> None:
        """Sees the model."""
        ctx.count("models")

    @graph_pass(opt_level=1)
    def transform_graph(graph: Any, ctx: Any) -> None:
        """Sees a graph."""
        ctx.count("graphs")

    def f(graph: Any, ctx: Any) -> None:
        """Is a function yet."""
        ctx.count("graphs")

    made = graph_pass(opt_level=2, name="made", required=("canonicalize",))(f)
    report = Sequential([transform, transform_graph, made])(model("y = l.f (x)", FUNCTION))
    assert [p.name for p in report.passes] == ["transform", "transform-graph", "canonicalize", "made"]
    assert [report.of(n).hits for n in ("transform", "transform-graph", "made")] == [1, 2, 2]


@row("`@function_pass` on a class with `transform_function`")
def test_a_class_is_derived() -> None:
    class Mine(GraphPass):
        """Counts nodes."""

        info = PassInfo("mine", opt_level=1)

        def run_graph(self, graph: Any, ctx: Any) -> None:
            ctx.count("nodes", len(graph))

    assert Mine()(model()).of("mine").hits == 3


@row("`mod[gv] = func`, `new_mod.update(mod)` in a module pass")
def test_a_model_pass_adds_and_removes_functions() -> None:
    proto = parser.parse_function('<domain: "domain", opset_import: ["" : 17]> name (u) => (w) { w = Abs (u) }')

    @model_pass
    def transform(model: Any, ctx: Any) -> None:
        """Adds a function, or removes it."""
        if model.functions:
            model.remove_function("domain::name")
        else:
            model.add_function(proto)

    m = model()
    transform(m)
    called = m.graph.make("domain::name", [m.graph.inputs[0]])
    onnx.checker.check_model(write_model(m), full_check=True)
    m.graph.remove(called.producer)
    transform(m)
    assert not write_model(m).functions


@row("`Sequential(passes, opt_level=…, name=…, required=…)`")
def test_sequential() -> None:
    passes = [get_pass("elim-identity")(), get_pass("dead-code")()]
    both = Sequential(passes, opt_level=3, name="both", required=["canonicalize"])
    with PassContext(opt_level=2):
        assert Sequential([both])(model()).skipped == {"both": "runs from -O3 on"}
    assert [p.name for p in Fixpoint([both])(model()).passes] == []
    assert [p.name for p in both(model()).passes] == ["canonicalize", "elim-identity", "dead-code"]


@row(
    "`PassContext(opt_level=…, required_pass=…, disabled_pass=…, config=…, instruments=…)`",
    "`PassContext.current()`",
    "`trace=f`, called `f(mod, info, is_before)`",
)
def test_a_context() -> None:
    told: list[Any] = []

    def f(mod: Any, info: Any, is_before: bool) -> None:
        told.append((info.name, is_before))

    @model_pass(opt_level=3)
    def third(model: Any, ctx: Any) -> None:
        """Runs if it is required."""
        assert PassContext.current() is ctx

    ctx = PassContext(
        opt_level=1,
        required_pass=["third"],
        disabled_pass=["dead-code"],
        config={"constant-folding.max-bytes": 1},
        instruments=[Timing()],
        trace=f,
    )
    with ctx:
        assert PassContext.current() is ctx
        report = Sequential([get_pass("dead-code")(), third])(model())
    assert report.skipped == {"dead-code": "disabled"}
    assert told == [("sequential", True), ("third", True), ("third", False), ("sequential", False)]


class UnrollLoop:
    """What TVM's key holds."""


@row("`TVM_REGISTER_PASS_CONFIG_OPTION`", "`PassContext.list_configs()`", '`ctx.config["tir.UnrollLoop"]`')
def test_config_keys() -> None:
    name, type, default, help = "tir.UnrollLoop", UnrollLoop, UnrollLoop(), "how loops are unrolled"
    KEY = declare_config(name, type, default, help)
    given = UnrollLoop()
    ctx = PassContext(config={"tir.UnrollLoop": given})
    assert ctx["tir.UnrollLoop"] is ctx[KEY] is given
    assert PassContext()[KEY] is default
    assert {"tir.UnrollLoop", "constant-folding.max-bytes"} <= config_keys().keys()


@row("`ErrorReporter`, `DiagnosticContext`")
def test_reasons_are_reported() -> None:
    @rewrite(op.Relu(var("x")))
    def never(m: Any, x: Any) -> Any:
        """Relu(x) = Relu(x)."""
        condition, reason = False, "there is no need"
        m.require(condition, reason)
        return m.op.Relu(x)

    class Never(RewritePass):
        """Declines."""

        info = PassInfo("never")
        rules = (never,)

    @model_pass
    def says(model: Any, ctx: Any) -> None:
        """Says why not."""
        what, reason, example = "nodes", "too few", "Relu"
        ctx.decline(what, reason, example)

    report = Sequential([Never(), says])(model())
    declined = report.of("never").rules["never"].declined["there is no need"]
    assert (declined.count, declined.example) == (1, "Relu -> b")
    told = report.of("says").rules["nodes"].declined["too few"]
    assert (told.count, told.example) == (1, "Relu")  # `onnxopt optimize -v` and `onnxopt why` show both


@row('`TVM_REGISTER_GLOBAL("relay._transform.…")`, `GetPass(name)`')
def test_passes_by_name() -> None:
    @register
    @model_pass(name="mine")
    def mine(model: Any, ctx: Any) -> None:
        """Is found by its name."""

    name = "mine"
    assert get_pass(name)() == mine
    assert "mine" in all_passes()


@row("`PassInstrument`: `enter_pass_ctx`, `exit_pass_ctx`", "`should_run`, `run_before_pass`, `run_after_pass`")
def test_instruments() -> None:
    told = []

    class Mine(Instrument):
        """Notes what it is told."""

        def begin(self, model: Any) -> None:
            told.append("begin")

        def end(self, model: Any) -> None:
            told.append("end")

        def should_run(self, model: Any, p: Any) -> bool:
            return bool(p.info.name != "dead-code")

        def before(self, model: Any, p: Any) -> None:
            told.append(f"before {p.info.name}")

        def after(self, model: Any, p: Any) -> None:
            told.append(f"after {p.info.name}")

    with PassContext(instruments=[Mine()]):
        Sequential([get_pass("canonicalize")(), get_pass("dead-code")()])(model())
        assert told[-1] == "end", "of the run, not of the block"
    inner = ["before canonicalize", "after canonicalize"]
    assert told == ["begin", "before sequential", *inner, "after sequential", "end"]


@row("`PassTimingInstrument`, `PrintBeforeAll`, `PrintAfterAll`")
def test_timing_and_printing(capsys: pytest.CaptureFixture[str]) -> None:
    timing = Timing()
    with PassContext(instruments=[timing, PrintIR(before="all", after="all")]):
        get_pass("elim-identity")()(model())
    assert timing.lines()
    shown = capsys.readouterr().err
    assert "-- before elim-identity --" in shown and "-- after elim-identity --" in shown


@row("`SkipOptimization` on a function")
def test_marked_functions_are_left_alone() -> None:
    proto = write_model(model("y = l.f (x)", FUNCTION.replace("w = Relu (u)", "v = Identity (u) w = Relu (v)")))
    proto.functions[0].metadata_props.add(key="onnxopt.skip", value="true")
    m = read_model(proto)
    get_pass("elim-identity")()(m)
    assert m.version == 0


@row("`ExprVisitor`")
def test_looking() -> None:
    class Look(DebugPass):
        """Counts what is in bodies, too."""

        info = PassInfo("look")

        def inspect(self, model: Any, ctx: Any) -> None:
            for node in model.nodes():
                ctx.count(node.op)

    assert [*Look()(model(IF)).of("look").rules] == ["Relu", "Neg", "Constant", "If"]


@row("`ExprMutator`, `MixedModeMutator` with `Rewrite_`")
def test_mutating() -> None:
    class Mutate(GraphInterpreter):
        """Negates what it is given."""

        info = PassInfo("mutate")

        def call_operator(self, node: Any, args: Any) -> Any:
            return self.op.Neg(args[0]) if node.op == "Relu" else super().call_operator(node, args)

    m = model()
    Mutate()(m)
    assert operators(m) == ["Identity", "Neg", "Neg"]


@row('`is_op("add")(wildcard(), is_constant())`, `DFPatternCallback`, `rewrite`')
def test_patterns() -> None:
    @rewrite(op.Add(var("x"), const("c")))
    def add_of_zero(m: Any, x: Any, c: Any) -> Any:
        """x + 0 = x."""
        m.require(not c.any(), "not zero")
        return x

    class Zeros(RewritePass):
        """Zeros go."""

        info = PassInfo("zeros")
        rules = (add_of_zero,)

    m = model("k = Constant <value = float {0}> () a = Add (k, x) y = Relu (a)")
    Zeros()(m)
    assert operators(m) == ["Relu"]


@row(
    "`FoldConstant`, `EliminateCommonSubexpr`, `DeadCodeElimination`, `SimplifyInference`",
    "`FoldScaleAxis`",
    "`InferType` between passes",
)
def test_passes_that_there_are() -> None:
    for name in ("constant-folding", "common-subexpressions", "dead-code", "conv-bn-folding"):
        assert get_pass(name)().name in all_passes()  # `onnxopt passes` lists all
    assert {"scale-propagation", "conv-add-folding"} <= all_passes().keys()
    m = model()
    assert (shape(m.graph.last.output), dtype(m.graph.last.output)) == (("N", 4), onnx.TensorProto.FLOAT)


@row("`MergeComposite`, `AnnotateTarget`, `PartitionGraph`")
def test_parts() -> None:
    m = model()
    (part,) = pattern_partitions(m.graph, ["Neg(Relu(x))"])
    assert CapabilityPartitioner(m.graph, OperatorSupport(["Relu", "Neg"])).propose() == [part]
    assert fuse_partition(part, "both").op == "onnxopt.partition::both"


@row("`fallback_device`, `Target`")
def test_targets() -> None:
    @graph_pass(targets=("npu",))
    def for_npu(graph: Any, ctx: Any) -> None:
        """Runs for one target."""

    assert for_npu.info == PassInfo("for-npu", targets=("npu",))
    with PassContext(target="npu"):
        assert not Sequential([for_npu])(model()).skipped
    with PassContext(target=["cpu", "npu"]):
        assert not Sequential([for_npu])(model()).skipped
    assert Sequential([for_npu])(model()).skipped == {"for-npu": "is for npu, the target is any"}
    assert "npu" in all_targets()
