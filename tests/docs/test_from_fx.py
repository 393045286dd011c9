"""docs/from-fx.md: each term of torch.fx has the described counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxopt import (
    CapabilityPartitioner,
    CheckEach,
    GraphInterpreter,
    GraphPass,
    OperatorSupport,
    PassContext,
    PassInfo,
    Sequential,
    dtype,
    get_pass,
    graph_pass,
    load,
    op,
    read_model,
    replace_pattern,
    save,
    shape,
    split,
    write_model,
)
from onnxopt.errors import InvariantError, PassError, PreconditionError
from tests.cli.conftest import Run, small  # noqa: F401  a fixture
from tests.docs.rows import Rows, operators
from tests.docs.rows import model as a_model

row = Rows("from-fx.md")


def test_every_row_is_tested_with_its_names() -> None:
    assert not row.untested()
    assert not row.unused()


@row(
    "`gm.graph`",
    "`for node in gm.graph.nodes`",
    "`for node in reversed(graph.nodes)`",
    '`node.op == "call_function" and node.target == torch.add`',
    "`placeholder`, `get_attr` and `output` nodes",
    "`node.args`, `node.kwargs`",
    "`node.users`, `node.all_input_nodes`",
    '`node.meta["val"]`',
)
def test_reading() -> None:
    model = a_model("k = Constant <value = float[4] {1, 2, 3, 4}> () a = Add (x, k) b = Softmax (a) y = Relu (b)")
    graph = model.graph
    assert list(model.scopes()) == [graph]
    assert [node.op for node in model.graph] == ["Constant", "Add", "Softmax", "Relu"]
    assert [node.op for node in reversed(graph)] == ["Relu", "Softmax", "Add", "Constant"]
    (node,) = [node for node in graph if node.op == "Add"]
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.outputs] == ["y"]
    value = node.inputs[1]
    assert value.constant and value.producer.op == "Constant"
    (softmax,) = node.output.users
    assert softmax.attr("axis") == -1
    assert (shape(node.output), dtype(value)) == (("N", 4), onnx.TensorProto.FLOAT)


def checked(model: Any) -> Any:
    """What is written of it."""
    proto = write_model(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@row("`node.target = torch.mul`", "`node.args = …`, `node.replace_input_with(a, b)`", "`node.kwargs = …`")
def test_changing_a_node() -> None:
    model = a_model("a = Relu (x) b = Add (a, x) y = Softmax (b)")
    relu, node, softmax = model.graph
    node.op = "Mul"
    node.set_input(1, relu.output)
    softmax.set_attr("axis", 1)
    proto = checked(model)
    assert (proto.graph.node[1].op_type, list(proto.graph.node[1].input)) == ("Mul", ["a", "a"])
    assert proto.graph.node[2].attribute[0].i == 1


@row(
    "`with graph.inserting_before(node): graph.call_function(torch.abs, (x,))`",
    "`with graph.inserting_after(node)`",
    '`graph.create_node("get_attr", …)`, `register_buffer`',
    "`node.replace_all_uses_with(other)`",
    "`graph.erase_node(node)`",
)
def test_inserting_and_removing() -> None:
    model = a_model("a = Relu (x) y = Neg (a)")
    graph = model.graph
    node, x, array = graph.first, graph.inputs[0], np.float32(0)
    before = graph.make("Abs", [x], before=node)
    assert graph.first is before.producer
    after = graph.make("Abs", [node.output], before=node.next)
    assert node.next is after.producer
    value = graph.make("Max", [x, graph.constant(array)], before=node)
    node.output.replace_all_uses_with(value)
    graph.remove(node)
    assert operators(model) == ["Abs", "Max", "Abs", "Neg"]
    checked(model)


@row(
    "`graph.eliminate_dead_code()`",
    "`graph.lint()`",
    "`gm.recompile()`",
    "`print(graph)`, `gm.print_readable()`",
)
def test_cleaning_checking_and_printing(run: Run, small: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    model, path = a_model("a = Relu (x) y = Neg (x)"), small / "model.onnx"
    get_pass("dead-code")()(model)
    with PassContext(instruments=[CheckEach()]):
        Sequential([get_pass("canonicalize")()])(model)
    save(model, path)
    graph = load(path).graph
    print(graph)
    print(model)
    assert capsys.readouterr().out.endswith("  y = Neg(x)\n")
    done = run("optimize", "m.onnx", "out.onnx", "--check-each", "--print-ir-after=all", "--pipeline", "canonicalize")
    assert "-- after canonicalize --" in done.stderr or "-- after (unchanged) canonicalize --" in done.stderr


@row("`Interpreter`, `Transformer`")
def test_interpreting() -> None:
    class Transform(GraphInterpreter):
        """Puts Softplus in place of Relu."""

        info = PassInfo("transform")

        def call_operator(self, node: Any, args: Any) -> Any:
            return self.op.Softplus(args[0]) if node.op == "Relu" else super().call_operator(node, args)

    model = a_model()
    Transform()(model)
    assert operators(model) == ["Identity", "Softplus", "Neg"]


@row("`symbolic_trace(pattern)`", "`subgraph_rewriter.replace_pattern(gm, pattern, replacement)`")
def test_patterns() -> None:
    def pattern(x: Any) -> Any:
        return op.Neg(op.Relu(x))

    model, replacement = a_model(), "(x) => (y) { a = Neg (x) b = Exp (a) y = Abs (b) }"  # text
    (found,) = replace_pattern(model, pattern, replacement)
    assert sorted(found.nodes) == ["Neg_1", "Relu_1"]
    assert operators(model) == ["Identity", "Neg", "Exp", "Abs"]


@row("`split_module`")
def test_splitting() -> None:
    model = a_model()
    partitions = CapabilityPartitioner(model.graph, OperatorSupport(["Relu"])).propose()
    assert [part.supported for part in split(model, partitions)] == [False, True, False]


@row(
    "`split_const_subgraphs`, `const_fold`",
    "`fuse_conv_bn_eval`, folding of an Add into a bias",
    "removal of identities, of `getattr` and `getitem`",
)
def test_passes_that_there_are() -> None:
    folded = a_model("k = Constant <value = float {2}> () n = Neg (k) y = Mul (x, n)")
    get_pass("constant-folding")()(folded)
    assert operators(folded)[-1] == "Mul" and "Neg" not in operators(folded)
    weights = "<float[1, 1, 1, 1] w = {2}, float[1] s = {3}, float[1] b = {1}, float[1, 1, 1] c = {5}>"
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y)'
    nodes = "{ p = Conv (x, w) q = BatchNormalization (p, s, b, b, s) y = Add (q, c) }"
    model = onnx.parser.parse_model(f"{header} {weights} {nodes}")
    m = read_model(model)
    Sequential([get_pass(name)() for name in ("conv-bn-folding", "conv-add-folding")])(m)
    assert operators(m) == ["Conv"]
    model = a_model()
    Sequential([get_pass(name)() for name in ("elim-identity", "canonicalize")])(model)
    assert operators(model) == ["Relu", "Neg"]


@row("a pass class with `run(graph)`", "a runner that compares node counts")
def test_a_pass_and_its_figures() -> None:
    class Clean(GraphPass):
        """Identities go."""

        info = PassInfo("clean")

        def run_graph(self, graph: Any, ctx: Any) -> None:
            for node in graph:
                if node.op == "Identity":
                    node.output.replace_all_uses_with(node.inputs[0])
                    graph.remove(node)

    name, report = "clean", Clean()(a_model())
    assert (report.nodes_before, report.nodes_after, report.of(name).nodes) == (3, 2, 1)


@row("exceptions of a pass")
def test_errors() -> None:
    class Picky(GraphPass):
        """Wants another model."""

        info = PassInfo("picky")

        def requires(self, model: Any) -> None:
            raise ValueError("unsupported")

    @graph_pass
    def broken(graph: Any, ctx: Any) -> None:
        """Has a bug."""
        raise KeyError("x")

    with pytest.raises(PreconditionError, match="pass picky cannot work on g: unsupported"):
        Picky()(a_model())
    with pytest.raises(PassError, match="pass broken failed on g: main: KeyError"):
        broken(a_model())


def test_what_is_put_behind_a_node() -> None:
    @graph_pass
    def as_in_fx(graph: Any, ctx: Any) -> None:
        """Would have a node read itself."""
        for node in list(graph.by_op["Relu"]):
            made = graph.make("Abs", [node.output], before=node.next)
            node.output.replace_all_uses_with(made)

    with pytest.raises(
        InvariantError, match=r"pass as-in-fx: .*`b` was to be replaced by `b_Abs`, which is made of it"
    ):
        as_in_fx(a_model())

    class Behind(GraphInterpreter):
        """As it is done here."""

        info = PassInfo("behind")

        def call_operator(self, node: Any, args: Any) -> Any:
            again = super().call_operator(node, args)
            return self.op.Abs(again) if node.op == "Relu" else again

    model = a_model()
    Behind()(model)
    assert operators(model) == ["Identity", "Relu", "Abs", "Neg"]
    checked(model)
