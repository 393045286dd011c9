"""What takes the place of a value that a scope gives out: names stay, nodes keep the results that they have to give, no
two outputs become one value. In every kind of scope, and run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto

from onnxopt import graph_pass, op, rewrite, var
from onnxopt.errors import InvariantError
from onnxopt.graph import Graph, Model, Value, check_model, read_model, write_model
from onnxopt.graph.node import Node
from onnxopt.optimizer import OptimizeOptions, optimize_model
from onnxopt.pipeline import PassContext, execute
from onnxopt.pipeline.instruments import CheckEach
from onnxopt.pipeline.manager import PassManager
from onnxopt.rewriting import Driver, Fuel, Rule
from tests.runtime import plain_session

HEAD = '<ir_version: 10, opset_import: ["" : 21, "l" : 1]>\n'
SCOPES = {
    "main": "g (float[4] x, bool c) => (TYPES) WEIGHTS { NODES }",
    "If": """g (float[4] x, bool c) => (float[2] o, float[2] q) WEIGHTS {
        o, q = If (c) <then_branch = t () => (TYPES) { NODES },
            else_branch = e () => (float[2] e1, float[2] e2) { e1, e2 = Split <axis = 0> (x, k) }>
    }""",
    "Loop": """g (float[4] x, bool c) => (float[3, 2] o, float[3, 2] q) WEIGHTS {
        o, q = Loop (n, "") <body = b (int64 i, bool d) => (bool d2, TYPES) { d2 = Identity (d) NODES }>
    }""",
    "Scan": """g (float[3, 4] x, bool c) => (float[3, 2] o, float[3, 2] q) WEIGHTS {
        o, q = Scan (x) <num_scan_inputs = 1, body = b (float[4] x) => (TYPES) { NODES }>
    }""",
    "function": """g (float[4] x, bool c) => (float[2] o, float[2] q) WEIGHTS { o, q = l.f (x, k) }
        <domain: "l", opset_import: ["" : 21]> f (x, k) => (y, z) { NODES }""",
}
SPLIT = "y, z = Split <axis = 0> (x, k)"


def parsed(kind: str, nodes: str = SPLIT, types: str = "float[2] y, float[2] z") -> ModelProto:
    text = SCOPES[kind].replace("NODES", nodes).replace("TYPES", types)
    return onnx.parser.parse_model(HEAD + text.replace("WEIGHTS", "<int64[2] k = {2, 2}, int64 n = {3}>"))


def scope_of(model: Model) -> Graph:
    """The scope that the nodes of interest are in."""
    if model.functions:
        return next(iter(model.functions.values()))
    owner = next(iter(model.graph.owners), None)
    return next(iter(owner.bodies.values())) if owner is not None else model.graph


def results(proto: ModelProto) -> list[np.ndarray[Any, Any]]:
    onnx.checker.check_model(proto, full_check=True)
    session = plain_session(proto)
    x = np.random.default_rng(0).normal(size=session.get_inputs()[0].shape).astype(np.float32)
    given = {"x": x, "c": np.array(True)}
    return list(session.run(None, {i.name: given[i.name] for i in session.get_inputs()}))


def written(model: Model) -> ModelProto:
    check_model(model)
    copy = ModelProto()
    copy.CopyFrom(write_model(model))
    return copy


def same(a: ModelProto, b: ModelProto) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(results(a), results(b), strict=True))


def slice_of(graph: Graph, x: Value, start: int, before: Node) -> Value:
    starts, ends, axes = (graph.constant(np.array([i]), before=before) for i in (start, start + 2, 0))
    return graph.make("Slice", [x, starts, ends, axes], before=before)


@pytest.mark.parametrize("kind", SCOPES)
def test_a_node_keeps_a_result_where_its_output_is_another_nodes(kind: str) -> None:
    model = read_model(parsed(kind))
    graph = scope_of(model)
    split = next(iter(graph.by_op["Split"]))
    y, x = split.output, split.inputs[0]
    assert x is not None
    made = slice_of(graph, x, 0, split)
    assert y.replace_all_uses_with(made) is y and y.producer is not None and y.producer.op == "Slice"
    left = split.outputs[0]
    assert left is not None and left.name == "y_unread" and not left.is_used
    assert same(parsed(kind), written(model))
    left.replace_all_uses_with(y)  # nothing reads it
    assert same(parsed(kind), written(model))


@pytest.mark.parametrize("kind", SCOPES)
def test_of_one_result_and_of_an_optional_one(kind: str) -> None:
    nodes = """h = Relu (x) a, b = Split <axis = 0> (h, k) y = Relu (a)
        w = Unsqueeze (b, k0) v = Unsqueeze (w, k0) m, indices = MaxPool <kernel_shape = [1]> (v) z = Squeeze (m, ks)"""
    constants = "k0 = Constant <value = int64[1] {0}> () ks = Constant <value = int64[2] {0, 1}> ()"
    proto = parsed(kind, constants + nodes)
    model = read_model(ModelProto.FromString(proto.SerializeToString()))
    graph = scope_of(model)
    relu, pool = list(graph.by_op["Relu"])[1], next(iter(graph.by_op["MaxPool"]))
    assert relu.inputs[0] is not None
    y = relu.output
    assert y.replace_all_uses_with(relu.inputs[0]) is y  # both are above zero
    assert [v is not None for v in relu.outputs] == [True]
    indices = pool.outputs[1]
    assert indices is not None
    graph.take_over(indices, graph.insert(pool.copy(list(pool.inputs), [None, None]), pool.next), 1)
    assert pool.outputs[1] is None and next(reversed(list(graph.by_op["MaxPool"]))).outputs[0] is None
    graph.remove(next(reversed(list(graph.by_op["MaxPool"]))))
    assert same(proto, written(model))


@pytest.mark.parametrize("kind", SCOPES)
def test_two_outputs_never_become_one_value(kind: str) -> None:
    proto = parsed(kind, "a, b = Split <axis = 0> (x, k) y = Neg (a) z = Neg (a)")
    model = read_model(ModelProto.FromString(proto.SerializeToString()))
    graph = scope_of(model)
    first, second = graph.by_op["Neg"]
    y, z = first.output, second.output
    assert z.replace_all_uses_with(y) is y
    graph.remove(second)
    assert [v.name for v in graph.outputs[-2:]] == ["y", "z"] and z.producer is not None and z.producer.op == "Identity"
    assert same(proto, written(model))


@pytest.mark.parametrize("kind", SCOPES)
def test_what_is_given_is_given_out_by_an_identity(kind: str) -> None:
    """No name of an output can be made by an input, a weight, or a scope around it."""
    proto = parsed(
        kind, "a, b = Split <axis = 0> (x, k) y = Identity (a) w = Identity (x) z, u = Split <axis = 0> (w, k)"
    )
    model = read_model(ModelProto.FromString(proto.SerializeToString()))
    graph = scope_of(model)
    w = next(n for n in graph.by_op["Identity"] if n.output.name == "w")
    x, k = w.inputs[0], next(iter(graph.by_op["Split"])).inputs[1]
    assert x is not None and k is not None
    assert w.output.replace_all_uses_with(x) is x
    graph.remove(w)
    assert same(proto, written(model))
    weight = graph.constant(np.array([1, 2], np.float32), before=graph.first)
    z = graph.outputs[-1]
    assert z.replace_all_uses_with(weight) is (z if kind == "function" else weight) and z.name == "z" and z.is_output
    (_, given) = (written(model), results(written(model)))
    assert np.array_equal(given[-1].reshape(-1, 2)[0], [1, 2])


def test_an_input_that_is_given_out_is_given_out() -> None:
    model = read_model(
        onnx.parser.parse_model(HEAD + "g (float[4] x, float[4] w) => (float[4] x, float[4] y) { y = Neg (x) }")
    )
    x, w = model.graph.inputs
    assert x.replace_all_uses_with(w) is w
    proto = written(model)
    assert [n.input[0] for n in proto.graph.node] == ["w"] and [o.name for o in proto.graph.output] == ["x", "y"]


@pytest.mark.parametrize("kind", ["If", "Loop", "Scan"])
def test_a_body_gives_no_value_twice_by_hand(kind: str) -> None:
    proto = parsed(kind, "a, b = Split <axis = 0> (x, k) y = Neg (a) z = Neg (a)")
    model = read_model(ModelProto.FromString(proto.SerializeToString()))
    body = scope_of(model)
    body.give(len(body.outputs) - 1, body.outputs[-2])
    made = body.outputs[-1].producer
    assert made is not None and made.op == "Identity" and made.inputs == [body.outputs[-2]]
    assert same(proto, written(model))
    body.give(len(body.outputs) - 1, model.graph.constant(np.array([7, 8], np.float32)))
    check_model(model)
    assert np.array_equal(results(written(model))[-1].reshape(-1, 2)[0], [7, 8])


def test_what_the_file_gives_out_twice_stays() -> None:
    text = """g (float[N] x, bool c) => (float[N] o, float[N] q) {
        o, q = If (c) <then_branch = t () => (float[N] y, float[N] y) { y0 = Neg (x) y1 = Neg (y0) y = Neg (y1) },
            else_branch = e () => (float[N] e1, float[N] e2) { e1 = Neg (x) e2 = Abs (x) }>
    }"""
    model = read_model(onnx.parser.parse_model(HEAD + text))
    optimize_model(model, OptimizeOptions(level=2), [CheckEach()])
    check_model(model)
    branch = next(iter(model.graph.owners)).bodies["then_branch"]
    assert len(branch) == 1 and [v.name for v in branch.outputs] == ["y", "y"]
    write_model(model)


def test_what_the_file_lacks_stays() -> None:
    text = """g (float[4] x) => (float[2] z) <int64[2] k = {2, 2}> {
        a = Neg (x) b = Neg (a) u, z = Split <axis = 0> (b, k)
    }"""
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.node[2].output[0] = ""
    model = read_model(proto)
    optimize_model(model, OptimizeOptions(level=1), [CheckEach()])
    check_model(model)
    assert [list(n.output) for n in write_model(model).graph.node if n.op_type == "Split"] in ([["", "z"]], [])
    topk = onnx.parser.parse_model(HEAD + "g (float[4] x, int64[1] k) => (float[M] v) { v, i = TopK (x, k) }")
    del topk.graph.node[0].output[1]
    model = read_model(topk)
    model.graph.touch(next(iter(model.graph)))
    check_model(model)
    assert list(write_model(model).graph.node[0].output) == ["v"]


def _as_one(graph: Graph) -> None:
    old, graph.outputs[-1] = graph.outputs[-1], graph.outputs[-2]
    old.output_count -= 1
    graph.outputs[-1].output_count += 1
    graph.model.version += 1


def _without_a_result(graph: Graph) -> None:
    split = next(iter(graph.by_op["Split"]))
    made = slice_of(graph, split.inputs[0], 0, split).producer  # type: ignore[arg-type]
    assert made is not None
    graph.take_over(split.output, made)
    split.outputs[0] = None
    split.stale = True


def _without_any(graph: Graph) -> None:
    split = next(iter(graph.by_op["Split"]))
    graph.insert(split.copy(list(split.inputs), []), split)


@pytest.mark.parametrize("kind", [k for k in SCOPES if k != "main"])
@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (_as_one, "`y` is given out twice"),
        (_without_a_result, "lacks its result 0"),
        (_without_any, "gives 0 results, and has to give 1"),
    ],
)
def test_a_pass_that_does_it_all_the_same_is_named(kind: str, breaks: Callable[[Graph], None], said: str) -> None:
    def run(graph: Graph, ctx: PassContext) -> None:
        """Breaks it."""
        if graph is scope_of(graph.model) and ctx.spend("broke"):
            breaks(graph)

    breaking = graph_pass(name="breaking")(run)()
    with pytest.raises(InvariantError, match=said) as e:
        execute(breaking, read_model(parsed(kind)), PassContext(instruments=[CheckEach()]))
    assert e.value.message.startswith("pass breaking: ") and scope_of(read_model(parsed(kind))).path in e.value.message
    model = read_model(parsed(kind))
    breaking(model)
    with pytest.raises(InvariantError, match=said):
        write_model(model)


def test_a_main_graph_without_a_result_is_not_written() -> None:
    model = read_model(parsed("main"))
    _without_a_result(model.graph)
    with pytest.raises(InvariantError, match="main: Split -> , z lacks its result 0"):
        write_model(model)


STALE: dict[str, tuple[Callable[[Graph], object], str]] = {}


def stale(said: str) -> Callable[[Callable[[Graph], object]], Callable[[Graph], object]]:
    def add(use: Callable[[Graph], object]) -> Callable[[Graph], object]:
        STALE[use.__name__] = use, said
        return use

    return add


@stale("Abs -> x_Abs was to read `x_Neg`, which is stale: `y` took its place")
def a_new_node_reads_what_gave_its_place(graph: Graph) -> object:
    made = graph.make("Neg", [graph.inputs[0]], before=graph.first)
    graph.outputs[0].replace_all_uses_with(made)
    return graph.make("Abs", [made])


@stale("Abs -> z was to read `x_Neg`, which is stale: `y` took its place")
def a_node_is_to_read_what_gave_its_place(graph: Graph) -> object:
    made = graph.make("Neg", [graph.inputs[0]], before=graph.first)
    graph.outputs[0].replace_all_uses_with(made)
    return graph.outputs[1].producer.set_input(0, made)  # type: ignore[union-attr]


@stale("what reads `y` was to read `x_Neg`, which is stale: Neg -> x_Neg was removed")
def readers_are_to_read_the_result_of_a_removed_node(graph: Graph) -> object:
    made = graph.make("Neg", [graph.inputs[0]], before=graph.first)
    graph.remove(made.producer)  # type: ignore[arg-type]
    return graph.outputs[0].replace_all_uses_with(made)


@stale("Abs -> z was to read `constant`, which is stale: it was removed from the initializers")
def a_removed_constant_is_read(graph: Graph) -> object:
    weight = graph.constant(np.ones(2, np.float32))
    graph.remove_initializer(weight)
    return graph.outputs[1].producer.set_input(0, weight)  # type: ignore[union-attr]


@stale("Abs -> z was to read `e1`, which is stale: it is of another scope, main / If / then_branch")
def a_value_of_a_body_is_read_outside(graph: Graph) -> object:
    inside = next(iter(graph.owners)).bodies["then_branch"].outputs[0]
    return graph.outputs[1].producer.set_input(0, inside)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", STALE)
def test_the_use_of_a_stale_value_names_pass_scope_and_value(name: str) -> None:
    use, said = STALE[name]
    text = """g (float[2] x, bool c) => (float[2] y, float[2] z) { y = Neg (x) z = Abs (x)
        o = If (c) <then_branch = t () => (float[2] e1) { e1 = Neg (x) },
            else_branch = e () => (float[2] e2) { e2 = Abs (x) }>
    }"""

    def run(graph: Graph, ctx: PassContext) -> None:
        """Reads what is no more."""
        if graph.owner is None:
            use(graph)

    stale_pass = graph_pass(name="stale")(run)()
    with pytest.raises(InvariantError) as e:
        execute(stale_pass, read_model(onnx.parser.parse_model(HEAD + text)), PassContext(instruments=[CheckEach()]))
    assert e.value.message.startswith(f"pass stale: g: main: {said}")


def test_who_does_not_ask_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "debug", False)
    model = read_model(parsed("main"))
    split = next(iter(model.graph))
    model.graph.remove(slice_of(model.graph, split.inputs[0], 0, split).producer)  # type: ignore[arg-type]
    assert not model.gone
    asked: list[bool] = []
    manager = PassManager([lambda m: asked.append(m.debug)], run_checks_after_each_pass=True)
    manager(model)
    assert (asked, model.debug) == ([True], False)


@rewrite(op.Split(var("x"), var("k")))
def one_new(m, x, k):  # type: ignore[no-untyped-def]
    """Split(x, k) = h, h, where h is made anew."""
    half = m.op.Slice(x, m.ints([0]), m.ints([2]), m.ints([0]))
    return half, half


@rewrite(op.Split(op.Concat(var("h"), var("h")), var("k")))
def one_that_there_is(m, h, k):  # type: ignore[no-untyped-def]
    """Split(Concat(h, h), k) = h, h."""
    return h, h


@pytest.mark.parametrize("kind", SCOPES)
@pytest.mark.parametrize("rule", [one_new, one_that_there_is])
@pytest.mark.parametrize("readers", ["y = Neg (a) z = Abs (b)", "y = Neg (a) z = Identity (b)", ""])
def test_a_rule_may_result_in_one_value_twice(kind: str, rule: Rule, readers: str) -> None:
    made = "a, b" if readers else "y, z"
    proto = parsed(
        kind, f"h, r = Split <axis = 0> (x, k) t = Concat <axis = 0> (h, h) {made} = Split <axis = 0> (t, k) {readers}"
    )
    model = read_model(ModelProto.FromString(proto.SerializeToString()))
    fuel = Fuel(1)
    if rule is one_new:  # of the second
        first = next(iter(scope_of(model).by_op["Split"]))
        assert Driver([rule], fuel, leaves_out=lambda n, _: "the first" if n is first else "").run(model) == 1
    else:
        assert Driver([rule], fuel).run(model) == 1
    assert same(proto, written(model))
