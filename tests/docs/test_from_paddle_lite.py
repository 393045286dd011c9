"""docs/from-paddle-lite.md: each term of Paddle Lite has the described counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from onnxopt import (
    CapabilityPartitioner,
    DebugPass,
    DumpModels,
    Graph,
    GraphPass,
    Model,
    ModelPass,
    OperatorSupport,
    PassContext,
    PassInfo,
    PrintIR,
    RewritePass,
    Sequential,
    StmtPass,
    all_passes,
    const,
    get_pass,
    graph_pass,
    op,
    optimize_file,
    parse_pipeline,
    read_model,
    register,
    rewrite,
    var,
)
from onnxopt.errors import PassError
from tests.cli.conftest import Run, small  # noqa: F401  a fixture
from tests.docs.rows import Rows, model, operators

row = Rows("from-paddle-lite.md")
DENSE = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {5, 6}> { p = MatMul (x, w)  y = Add (p, b) }"""
NONE = {  # rows that say what there is none of
    "`memory_optimize_pass`",
    "`static_kernel_pick_pass`, `type_target_cast_pass`",
}


def test_every_row_is_tested_with_its_names() -> None:
    assert {*row.untested()} == NONE
    assert all(row.here[cell].startswith("none: ") for cell in NONE)
    assert not row.unused()


@row(
    "`SSAGraph`",
    "`ProgramPass`, `Apply(graph)`",
    "`StmtPass`",
    "`DebugPass`",
    "`Kind`, `is_program_pass()`, `is_stmt_pass()`",
)
def test_kinds() -> None:
    class Program(ModelPass):
        """Sees the model."""

        info = PassInfo("program")

        def run(self, model: Any, ctx: Any) -> None:
            assert isinstance(model, Model)

    class Whole(GraphPass):
        """Sees a graph."""

        info = PassInfo("whole")

        def run_graph(self, graph: Any, ctx: Any) -> None:
            assert isinstance(graph, Graph)

    class Stmt(StmtPass):
        """Changes what a node says, or too much."""

        info = PassInfo("stmt")

        def run_node(self, node: Any, ctx: Any) -> None:
            if node.op == "Relu":
                node.op = "Abs"
            elif node.op == "Abs":
                node.set_input(0, node.graph.inputs[0])

    class Look(DebugPass):
        """Looks, or changes something."""

        info = PassInfo("look")

        def inspect(self, model: Any, ctx: Any) -> None:
            if model.graph.by_op.get("Abs"):
                model.graph.first.proto.doc_string = "seen"

    class Rules(RewritePass):
        """Has rules."""

        info = PassInfo("rules")

    passes = [Program(), Whole(), Rules(), Stmt(), Look()]
    assert [p.kind for p in passes] == ["model", "graph", "rewrite", "stmt", "debug"]
    m = model()
    Sequential(passes[:4])(m)
    assert operators(m) == ["Identity", "Abs", "Neg"]
    for p in passes[3:]:
        with pytest.raises(PassError, match="change"):
            p(m)


PLUGIN = '''
from onnxopt import graph_pass, register


@register
@graph_pass(targets=("arm",))
def mine(graph, ctx):
    """Counts."""
    ctx.count("graphs")
'''


@row(
    "`REGISTER_MIR_PASS(name, class)`, `USE_MIR_PASS`",
    "`BindTargets({TARGET(kARM)})`, `TARGET(kAny)`",
    "`set_valid_places({Place{TARGET(kARM)}, Place{TARGET(kX86)}})`",
    "a pass that no valid place matches",
)
def test_registration_and_targets(run: Run, small: Path) -> None:  # noqa: F811
    @register
    @graph_pass(name="bound", targets=("arm",))
    def bound(graph: Any, ctx: Any) -> None:
        """Is for one target."""

    assert (PassInfo("a").targets, PassInfo("a", targets=("arm",)).targets) == (("any",), ("arm",))
    with PassContext(target=["arm", "x86"]) as ctx:
        assert ctx.targets == ("arm", "x86")
        assert not Sequential([bound])(model()).skipped
    assert Sequential([bound])(model()).skipped == {"bound": "is for arm, the target is any"}
    file = "FILE.py"
    (small / file).write_text(PLUGIN)
    options = ("optimize", "m.onnx", "out.onnx", "--plugin", file)
    assert "counted 1 graphs" in run(*options, "--pipeline", "mine", "--target", "arm,x86").stdout
    assert run(*options, "--pipeline", "mine").returncode == 2
    assert "mine is for arm" in run(*options, "--with", "mine").stderr


@row('`BindKernel("fc")`', "`PassManager::Global()`, `AddNewPass`, `LookUp`")
def test_operators_and_names() -> None:
    @register
    @graph_pass(name="bound", ops=("Gemm",))
    def bound(graph: Any, ctx: Any) -> None:
        """Is for models with one."""

    name = "bound"
    assert "bound" in all_passes() and get_pass(name)() == bound
    assert bound.info == PassInfo("bound", ops=("Gemm",))
    assert Sequential([bound])(model()).skipped == {"bound": "the model has no Gemm"}


@row(
    "`Running MIR pass …` in the log",
    "`argument_type_display_pass`, `graph_visualize_pass`",
    "`Optimizer::Run`",
)
def test_watching(run: Run, small: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    told, folder = [], small / "dump"

    def f(model: Any, info: Any, is_before: bool) -> None:
        told.append(info.name)

    source, destination = small / "m.onnx", small / "out.onnx"
    assert optimize_file(source, destination).verification is not None
    with PassContext(trace=f, instruments=[PrintIR(), DumpModels(folder)]):
        get_pass("elim-identity")()(model())
    assert told == ["elim-identity", "elim-identity"]
    assert "-- after elim-identity --" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1
    done = run("optimize", "m.onnx", "out.onnx", "--time-passes", "-v")
    assert "elim-identity" in done.stdout and "total ms" in done.stderr
    assert run("report", "m.onnx", "out.onnx", "-o", "page.html").returncode == 0, "onnxopt report"


@row(
    '`RunPasses({"lite_fc_fuse_pass", …})` in `optimizer.h`',
    "`FuseBase::BuildPattern`",
    '`VarNode("b")->assert_is_persistable_var()`',
    '`VarNode("x")->assert_is_op_input("mul", "X")`',
    "`GenOpDesc`, `InsertNewNode`, `IR_NODE_LINK_TO`",
    '`matched.at("mul")->stmt()->op_info()->GetAttr<int>("…")`',
)
def test_a_fuser(run: Run, small: Path) -> None:  # noqa: F811
    read = []

    @rewrite(op.Add(op.MatMul(var("x"), const("w"), name="mul"), const("b")))
    def fc(m: Any, x: Any, w: Any, b: Any) -> Any:
        """x W + b = Gemm(x, W, b)."""
        read.append((x.name, w.shape, b.shape, m.mul.op, m.mul.attr("x_num_col_dims", 1)))
        w, b = m.value("w"), m.value("b")
        return m.op.Gemm(x, w, b)

    assert op.Add(op.MatMul(var("x"), const("w")), const("b"))

    @register
    class Fuse(RewritePass):
        """A product and its bias."""

        info = PassInfo("lite-fc-fuse")
        rules = (fc,)

    m = read_model(parser.parse_model(DENSE))
    parse_pipeline("lite-fc-fuse,dead-code")(m)
    assert operators(m) == ["Gemm"]
    assert read == [("x", (2, 2), (2,), "MatMul", 1)]
    onnx.save(
        parser.parse_model(DENSE.replace("<float[2, 2] w", "<float[2, 2] v = {0, 0, 0, 0}, float[2, 2] w")),
        small / "m.onnx",
    )
    for asked in (["--pipeline", "dead-code"], ["-O0", "--with", "dead-code"]):
        assert run("optimize", "m.onnx", "out.onnx", *asked).returncode == 0


@row("`AsIntermediate()`")
def test_inner_results() -> None:
    @rewrite(op.Neg(op.Relu(var("x"))))
    def goes(m: Any, x: Any) -> Any:
        """Neg(Relu(x)) = Min(Neg(x), …), as an example."""
        return m.op.Exp(x)

    @rewrite(op.Neg(op.Relu(var("x"), shared=True)))
    def stays(m: Any, x: Any) -> Any:
        """The same where the inner result is read elsewhere."""
        return m.op.Exp(x)

    def after(rule: Any) -> list[str]:
        class Mine(RewritePass):
            """One rule."""

            info = PassInfo("mine")
            rules = (rule,)

        m = model("a = Relu (x) b = Neg (a) y = Add (a, b)")
        Mine()(m)
        return operators(m)

    assert after(goes) == ["Relu", "Neg", "Add"]
    assert after(stays) == ["Relu", "Exp", "Add"]


@row("subgraph passes of a device")
def test_parts() -> None:
    (part,) = CapabilityPartitioner(model().graph, OperatorSupport(["Relu", "Neg"])).propose()
    assert [node.op for node in part.nodes] == ["Relu", "Neg"]
