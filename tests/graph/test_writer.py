"""Writing the index back: what a rewrite did not touch is the message that it was."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxopt.analysis import types
from onnxopt.graph import check_model, read_model, write_model
from onnxopt.graph.text import model_text
from onnxopt.graph.writer import write_deferred
from onnxopt.optimizer import OptimizeOptions, optimize_model
from onnxopt.proto.messages import tensor_type

COUNT = 200


def chain() -> ModelProto:
    nodes = [helper.make_node("Add", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(COUNT)]
    weights = [numpy_helper.from_array(np.full(2, i, np.float32), f"w{i}") for i in range(COUNT)]
    info = [helper.make_tensor_value_info(name, 1, [2]) for name in ("v0", f"v{COUNT}")]
    return helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], weights))


def test_what_stays_is_not_copied() -> None:
    model = read_model(chain())
    graph = model.graph
    nodes, tensors = list(graph.proto.node), list(graph.proto.initializer)
    for i, node in enumerate(list(graph)[:-1]):
        if i % 3 == 0:
            read, weight = node.inputs
            assert read is not None and weight is not None
            node.output.replace_all_uses_with(read)
            graph.remove(node)
            graph.remove_initializer(weight)
    made = graph.make("Mul", [graph.inputs[0], graph.constant(np.ones(2, np.float32), "one")], before=graph.first)
    assert graph.first is not None and graph.first.next is not None
    graph.first.next.set_input(0, made)

    proto = write_model(model)
    check_model(model)
    assert [n.op_type for n in proto.graph.node[:2]] == ["Mul", "Add"]
    stay = [n for i, n in enumerate(nodes) if i % 3 or i == COUNT - 1]
    assert all(a is b for a, b in zip(proto.graph.node[1:], stay, strict=True))
    kept = [t for i, t in enumerate(tensors) if i % 3 or i == COUNT - 1]
    assert all(a is b for a, b in zip(proto.graph.initializer[:-1], kept, strict=True))
    assert [t.name for t in proto.graph.initializer][-1] == "one"
    read_model(ModelProto.FromString(proto.SerializeToString()))


def test_optional_operands_that_are_left_out_at_the_end_have_no_names() -> None:
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
    infos = [helper.make_tensor_value_info(name, 1, []) for name in ("x", "low", "high", "y")]
    model = read_model(helper.make_model(helper.make_graph(nodes, "g", infos[:3], infos[3:])))
    clip = model.graph.last
    assert clip is not None
    clip.set_input(2, None)
    assert [*write_model(model).graph.node[0].input] == ["x", "low"]


def test_a_dim_is_called_as_the_file_calls_it() -> None:
    x, y = (helper.make_tensor_value_info(name, 1, ["n+m", "a@b", 2]) for name in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = read_model(helper.make_model(helper.make_graph(nodes, "g", [x], [y])))
    relu = model.graph.last
    assert relu is not None and relu.inputs[0] is not None
    dims = types.shape(relu.inputs[0])
    made = model.graph.make("com.microsoft::Gelu", [relu.inputs[0]], before=relu)
    made.dtype, made.shape = 1, dims
    relu.set_input(0, made)
    (info,) = write_model(model).graph.value_info
    assert tensor_type(info.type) == (1, ("n+m", "a@b", 2))
    assert "Neg(x)" in model_text(model)
    assert "float[n+m,a@b,2]" in model_text(model)


def test_nodes_of_one_name_are_told_apart_also_where_it_is_no_text() -> None:
    proto = ModelProto.FromString(chain().SerializeToString().replace(b"n198", b"\xff198").replace(b"n199", b"\xff198"))
    model = read_model(proto)
    graph = model.graph
    assert graph.first is not None and graph.first.next is not None
    graph.first.next.set_input(0, graph.make("Neg", [graph.inputs[0]], before=graph.first))

    names = [n.name for n in write_model(model).graph.node]
    assert names[-2:] == [b"\xff198", "b'\\xff198'_Add"]


def test_what_was_written_without_its_data_gets_them_when_it_is_written_again() -> None:
    """Also what has gone since, or was made since, is told apart."""
    model = read_model(chain())
    graph = model.graph
    first, gone = (graph.constant(np.arange(i, i + 2, dtype=np.float32), "made") for i in (1, 5))
    node = graph.first
    assert node is not None
    node.set_input(1, first)
    assert [a.tolist() for a in write_deferred(model, 4)[1].values() if isinstance(a, np.ndarray)] == [[1, 2], [5, 6]]
    graph.remove_initializer(gone)
    graph.remove_initializer(graph.initializers["w0"])
    node.set_input(0, graph.constant(np.ones(2, np.float32), "made"))
    proto = write_model(model)
    found = {t.name: numpy_helper.to_array(t).tolist() for t in proto.graph.initializer}
    assert {name: found.pop(name) for name in list(found) if not name.startswith("w")} == {
        "made": [1, 2],
        "made_2": [1, 1],
    }
    assert found == {f"w{i}": [i, i] for i in range(1, COUNT)}
    assert write_deferred(model, 4) == (proto, {})


def test_an_initializer_may_be_called_otherwise() -> None:
    model = read_model(chain())
    model.graph.initializers.pop("w0").rename("other")
    value = next(v for v in model.graph.first.inputs if v is not None and v.constant)  # type: ignore[union-attr]
    model.graph.initializers["other"], model.graph.initializers_changed = value, True
    proto = write_model(model)
    assert [t.name for t in proto.graph.initializer] == [f"w{i}" for i in range(1, COUNT)] + ["other"]
    assert numpy_helper.to_array(proto.graph.initializer[-1]).tolist() == [0, 0]
    check_model(model)


def test_before_ir_4_weights_are_listed_as_inputs() -> None:
    """Who has gone is not, who has come is; what never was a weight stays."""
    proto = chain()
    proto.ir_version = 3
    proto.graph.input.extend(helper.make_tensor_value_info(f"w{i}", 1, [2]) for i in range(COUNT))
    proto.graph.input.append(helper.make_tensor_value_info("unread", 1, [2]))
    model = read_model(proto)
    graph = model.graph
    old = graph.initializers["w7"]
    old.replace_all_uses_with(graph.constant(np.ones(2, np.float32), "new"))
    graph.remove_initializer(old)
    graph.inputs.remove(old)
    names = [i.name for i in write_model(model).graph.input]
    assert names == ["v0", *(f"w{i}" for i in range(COUNT) if i != 7), "unread", "new"]


BODIES = {
    "If": """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (made) { NODES }, else_branch = e () => (other) { other = Neg (x) }>
    }""",
    "Loop": """g (float[2] x, bool c) => (float[M, 2] y) <int64 n = {3}> {
        y = Loop (n, "") <body = b (int64 i, bool d) => (bool d2, made) { d2 = Identity (d) NODES }>
    }""",
    "Scan": """g (float[3, 2] x, bool c) => (float[3, 2] y) {
        y = Scan (x) <num_scan_inputs = 1, body = b (float[2] r) => (made) { NODES }>
    }""",
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("made", ["weight", "other domain"])
def test_an_output_of_a_body_that_says_no_type_says_one_where_it_is_not_inferred(kind: str, made: str) -> None:
    """A Constant's type is inferred, that of the initializer in its place is not."""
    given = "r" if kind == "Scan" else "x"
    nodes = "made = Constant <value = float[2] {1, 2}> ()" if made == "weight" else f"h = Exp ({given}) made = Neg (h)"
    head = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'
    proto = onnx.parser.parse_model(head + BODIES[kind].replace("NODES", nodes))
    for body in (a.g for a in proto.graph.node[-1].attribute if a.HasField("g")):
        for output in body.output:
            if output.name != "d2":
                output.ClearField("type")
    onnx.checker.check_model(proto, full_check=True)
    model = read_model(ModelProto.FromString(proto.SerializeToString()))
    assert write_model(model) == proto  # nothing changed
    body = next(iter(next(iter(model.graph.owners)).bodies.values()))
    if made == "weight":
        optimize_model(model, OptimizeOptions(level=1))
        assert [v.producer for v in body.outputs if v.name == "made"] == [None]
    else:
        neg = body.outputs[-1].producer
        assert neg is not None and neg.inputs[0] is not None
        gelu = body.make("com.microsoft::Gelu", [neg.inputs[0]], before=neg)
        gelu.dtype = 1
        body.outputs[-1].replace_all_uses_with(gelu)
        body.remove(neg)
    written = write_model(model)
    onnx.checker.check_model(written, full_check=True)
    said = next(o for a in written.graph.node[-1].attribute if a.HasField("g") for o in a.g.output if o.name == "made")
    assert tensor_type(said.type) == (1, (2,) if made == "weight" else None)
