"""docs/from-executorch.md: each term of ExecuTorch has the described counterpart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
import pytest

from onnxopt import (
    CapabilityPartitioner,
    GraphInterpreter,
    GraphPass,
    ModelPass,
    OperatorSupport,
    PassInfo,
    PassManager,
    SubgraphMatcher,
    any_chain,
    chain,
    create_pattern_support,
    fuse_partition,
    generate_pattern_op_partitions,
    get_pass,
    op,
    option,
    read_model,
    replace_pattern,
    write_model,
)
from onnxopt.errors import InvariantError, PassError, PreconditionError
from tests.docs.rows import Rows, model, operators

row = Rows("from-executorch.md")


def test_every_row_is_tested_with_its_names() -> None:
    assert not row.untested()
    assert not row.unused()


@row(
    "`ExportPass`",
    "`call_operator(self, op, args, kwargs, meta)`",
    "`super().call_operator(op, args, kwargs, meta)`",
    "`return args[0]`",
    "scalars that become tensors",
)
def test_an_interpreter() -> None:
    class Replace(GraphInterpreter):
        """One to one, to many, to none."""

        info = PassInfo("replace")

        def call_operator(self, node: Any, args: Any) -> Any:
            if node.op == "LeakyRelu":
                assert node.attr("alpha") == 0.5
                a, b = args[0], self.match.const(0.5, like=args[0])
                return self.op.Max(args[0], self.op.Mul(a, b))
            if node.op == "Identity":
                return args[0]
            return super().call_operator(node, args)

    m = model("a = Identity (x) b = LeakyRelu <alpha = 0.5> (a) y = Neg (b)")
    Replace()(m)
    assert operators(m) == ["Mul", "Max", "Neg"]


BRANCH = (
    "then_branch = t () => (float[N, 4] r) {{ r = Relu (x) }}, else_branch = e () => (float[N, 4] s) {{ s = {} (x) }}"
)


@row("`placeholder(self, name, arg, meta)`", "`output(self, results, meta)`", "`call_cond`, `call_map`, submodules")
def test_inputs_outputs_and_bodies() -> None:
    asked = []

    class Edges(GraphInterpreter):
        """Asks at all places."""

        info = PassInfo("edges")

        def placeholder(self, value: Any) -> Any:
            asked.append(value.name)
            return self.op.Abs(value)

        def call_operator(self, node: Any, args: Any) -> Any:
            asked.append(node.op)  # those of If, Loop and Scan come after their bodies
            return super().call_operator(node, args)

        def output(self, values: Any) -> Any:
            asked.append(tuple(v.name for v in values))
            return tuple(self.op.Abs(value) for value in values)

    m = model(f"c = Constant <value = bool {{1}}> () y = If <{BRANCH.format('Neg')}> (c)")
    Edges()(m)
    assert asked == ["Relu", ("r",), "Neg", ("s",), "x", "Constant", "If", ("y",)]
    assert operators(m) == ["Abs", "Constant", "If", "Abs"]
    onnx.checker.check_model(write_model(m), full_check=True)


@row("`op._schema.arguments`")
def test_schemas() -> None:
    graph = model("y = Gemm (x, x)").graph
    node = graph.first
    assert [i.name for i in onnx.defs.get_schema(node.op, graph.opset()).inputs] == ["A", "B", "C"]


@row("`meta`: `stack_trace`, `nn_module_stack`", '`meta["val"]`')
def test_metadata_and_types() -> None:
    proto = write_model(model())
    proto.graph.node[1].doc_string = "stack trace"
    proto.graph.node[1].metadata_props.add(key="layer", value="7")
    m, known = read_model(proto), []

    class Again(GraphInterpreter):
        """Emits another."""

        info = PassInfo("again")

        def call_operator(self, node: Any, args: Any) -> Any:
            x = args[0]
            known.append((self.match.shape(x), self.match.dtype(x)))
            return self.op.Max(x, x, like=node) if node.op == "Relu" else super().call_operator(node, args)

    Again()(m)
    assert known == 3 * [(("N", 4), onnx.TensorProto.FLOAT)]
    made = write_model(m).graph.node[1]
    assert (made.op_type, made.doc_string, made.metadata_props[0].value) == ("Max", "stack trace", "7")


@row(
    "`PassBase.call`",
    "`requires`, `ensures`",
    "`__init__(self, replace_op)` with `self.replace_op = replace_op`",
    "`p(graph_module).graph_module`, `PassResult.modified`",
)
def test_a_pass_with_state() -> None:
    @dataclass(frozen=True)
    class Replace(ModelPass):
        """The documents' example."""

        info = PassInfo("replace")
        replace_op: str = option("Div", "what comes")

        def run(self, model: Any, ctx: Any) -> None:
            for node in model.nodes():
                if node.op == "Add":
                    node.op = self.replace_op

        def requires(self, model: Any) -> None:
            if not any(node.op == "Add" for node in model.nodes()):
                raise ValueError("No Add!")

        def ensures(self, model: Any) -> None:
            assert self.replace_op != "Sub", "no Sub, please"

    m, p, name = model("y = Add (x, x)"), Replace("Mul"), "replace"
    report = p(m)
    assert (operators(m), report.of(name).changed) == (["Mul"], True)
    with pytest.raises(PreconditionError, match="No Add!"):
        p(m)
    with pytest.raises(PassError, match="no Sub, please"):
        Replace("Sub")(model("y = Add (x, x)"))
    Replace()(model("y = Add (x, x)"))

    class Picky(GraphInterpreter):
        """Requires as well."""

        info = PassInfo("picky")

        def requires(self, model: Any) -> None:
            raise ValueError("never")

    with pytest.raises(PreconditionError, match="never"):
        Picky()(model())


@row(
    "`PassManager(passes=…, run_checks_after_each_pass=…, suppress_check_failures=…)`",
    "`set_checks`, `add_checks`",
    "`this_before_that_pass_constraint`",
)
def test_the_manager() -> None:
    class First(GraphPass):
        """Comes first."""

        info = PassInfo("first", before=("elim-identity",), after=("canonicalize",))

        def run_graph(self, graph: Any, ctx: Any) -> None:
            ctx.count("nodes", len(graph))

    def check(model: Any) -> None:
        if any(node.op == "Identity" for node in model.nodes()):
            raise ValueError("Identity is left")

    passes = [get_pass("elim-identity")(), First(), get_pass("canonicalize")()]
    manager = PassManager(passes=passes, run_checks_after_each_pass=False, suppress_check_failures=False)
    assert [p.name for p in manager.passes] == ["canonicalize", "first", "elim-identity"]
    manager.add_checks(check)
    with pytest.raises(InvariantError, match="Identity is left"):
        manager(model())
    manager = PassManager(passes=passes, suppress_check_failures=True)
    manager.add_checks(check)
    assert len(manager(model()).warnings) == 2


@row(
    "`subgraph_rewriter.replace_pattern_with_filters(…, match_filters=[…])`",
    "`ReplacedPatterns.anchor`, `nodes_map`, `replacements`",
)
def test_replacing() -> None:
    m = model("a = Add (x, x) b = Mul (a, x) y = Relu (b)")
    pattern, replacement = (lambda x, y: op.Mul(op.Add(x, y), y)), (lambda x, y: op.Sub(x, y))
    assert not replace_pattern(m, pattern, replacement, filters=[lambda match: False])
    (Replaced,) = replace_pattern(m, pattern, replacement, filters=[lambda match: True])
    assert Replaced.anchor.op == "Mul"
    assert sorted(Replaced.nodes) == ["Add_1", "Mul_1"]
    assert [node.op for node in Replaced.new_nodes] == ["Sub"]


@row(
    "`SubgraphMatcher(pattern, match_output, match_placeholder, remove_overlapping_matches, ignore_literals)`",
    "a pattern with parameters of its own",
    "`InternalMatch.anchors`, `nodes_map`, `placeholder_nodes`, `returning_nodes`",
)
def test_matching() -> None:
    m = model("a = Relu (x) b = Relu (a) y = Relu (b)")
    pattern = "Relu(Relu(x))"
    assert len(SubgraphMatcher(pattern).match(m)) == 1
    assert len(SubgraphMatcher(pattern, overlapping=True).match(m)) == 2
    (match,) = SubgraphMatcher(pattern, overlapping=True, match_outputs=True).match(m)
    (SubgraphMatch,) = SubgraphMatcher(pattern, overlapping=True, match_placeholder=True).match(m)
    assert match.anchor is m.graph.last
    assert SubgraphMatch.anchor.inputs[0].producer is SubgraphMatch.nodes["Relu_2"] is m.graph.first
    assert SubgraphMatch.values == {"x": m.graph.inputs[0]}
    assert [v.name for v in SubgraphMatch.results] == ["b"]
    large, small = (
        model(f"w = Constant <value = float[{n}] {{{','.join('1' * n)}}}> () y = Mul (x, w)") for n in (4, 1)
    )
    assert not SubgraphMatcher(write_model(small)).match(large)
    assert len(SubgraphMatcher(write_model(small), ignore_literals=True).match(large)) == 1


@row(
    "`CapabilityBasedPartitioner(gm, support, allows_single_node_partition, non_compute_ops, "
    "allowed_single_node_partition_ops)`",
    "`propose_partitions()`",
    "`OperatorSupportBase.is_node_supported(submodules, node)`",
    "`create_op_support`, `chain`, `any_chain`",
    "`create_pattern_support(patterns)`",
    "`generate_pattern_op_partitions(gm, patterns, op_support)`",
    "`fuse_partitions(partitions)`",
)
def test_partitions() -> None:
    class Mine(OperatorSupport):
        """Relu alone."""

        def is_node_supported(self, node: Any) -> bool:
            return bool(node.op == "Relu")

    assert OperatorSupport.is_node_supported is not Mine.is_node_supported
    m = model("a = Relu (x) b = Exp (a) c = Relu (b) d = Neg (c) y = Exp (d)")
    graph, support = m.graph, any_chain(Mine(), OperatorSupport(["Neg"]))
    whole = OperatorSupport(["Conv", "Relu"])

    def ops(partitions: Any) -> list[list[str]]:
        return [[node.op for node in p.nodes] for p in partitions]

    assert ops(CapabilityPartitioner(graph, support).propose()) == [["Relu"], ["Relu", "Neg"]]
    assert ops(CapabilityPartitioner(graph, chain(whole, lambda node: node.op == "Relu")).propose()) == 2 * [["Relu"]]
    assert ops(CapabilityPartitioner(graph, support, allow_single_node=False).propose()) == [["Relu", "Neg"]]
    no_single = CapabilityPartitioner(
        graph,
        support,
        allow_single_node=False,
        non_compute_ops=["Neg"],
        allowed_single_node_partition_ops=["Exp"],
    )
    assert no_single.propose() == []
    patterns = ["Neg(Relu(x))"]
    assert ops(CapabilityPartitioner(graph, create_pattern_support(patterns)).propose()) == [["Relu", "Neg"]]
    partitions = generate_pattern_op_partitions(graph, patterns, Mine())
    assert ops(partitions) == [["Relu"], ["Relu", "Neg"]]
    name = "part"
    for partition in partitions:
        fuse_partition(partition, name)
    assert operators(m) == ["onnxopt.partition::part", "Exp", "onnxopt.partition::part_1", "Exp"]
    onnx.checker.check_model(write_model(m), full_check=True)
