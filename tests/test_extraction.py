"""`extract`: a part of a model computes the same at its boundary, and keeps everything that belongs to it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper, parser

from onnxopt import OnnxOptError, extract
from onnxopt.analysis.submodel import reads
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph import read_model
from onnxopt.verification.inputs.cases import Recipe
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import InputMaker
from tests.runtime import plain_session
from tests.samples import ROOT, build, sample
from tests.test_lossless import everything

SAMPLES = sorted((ROOT / "models").glob("*.onnxtxt"))
X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
HEADER = '<ir_version: 8, opset_import: ["" : 17]> g'


def model(body: str, signature: str = "(float[N, 4] x) => (float[N, 4] y)", weights: str = "") -> ModelProto:
    return parser.parse_model(f"{HEADER} {signature} {weights} {{ {body} }}")


def run(proto: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """The outputs by name, onnxruntime's optimizations off; fed with what it asks for."""
    session = plain_session(proto)
    given = {i.name: feeds[i.name] for i in session.get_inputs()}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))


def values(proto: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """What every value of the main graph is: the model with all of them as outputs."""
    full = ModelProto()
    full.CopyFrom(proto)
    known = {o.name for o in full.graph.output}
    full.graph.output.extend(ValueInfoProto(name=n) for node in full.graph.node for n in node.output if n not in known)
    return feeds | run(full, feeds)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_equal(a, b)
    elif expected.dtype == np.float16:  # the runtime computes a part in float32
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-3)
    else:
        np.testing.assert_array_equal(found, expected)


def names(infos: Any) -> list[str]:
    return [i.name for i in infos]


def types(infos: Any) -> dict[str, str]:
    from onnxopt.proto.messages import type_proto_text

    return {i.name: type_proto_text(i.type) for i in infos}


def some_ends(proto: ModelProto, seed: int) -> tuple[list[str], list[str]]:
    """Inputs and outputs of a part: a few nodes behind one or two values, however they hang together."""
    rng = random.Random(seed)
    graph = read_model(onnx.ModelProto.FromString(proto.SerializeToString())).graph
    made = {v.name: n for n in graph for v in n.outputs if v is not None and not v.constant}
    ends = rng.sample(sorted(made), min(len(made), rng.randint(1, 2)))
    begins, seen, waiting, room = [], set(ends), list(ends), rng.randint(1, 12)
    while waiting:
        name = waiting.pop(0)
        if name in ends or (name in made and room > 0):
            room -= 1
            fresh = [v.name for v in reads(made[name]) if v.name not in seen and not v.constant]
            seen.update(fresh)
            waiting.extend(dict.fromkeys(fresh))
        else:
            begins.append(name)
    return begins, ends


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_parts_compute_what_the_model_does(path: Path) -> None:
    proto = build.build(path)
    before = proto.SerializeToString()
    plan = make_plan(proto)
    truth = values(proto, InputMaker(plan, {}, 0).fill(Recipe("case"), next(plan.size_choices(), {})).feeds)
    for seed in range(8):
        begins, ends = some_ends(proto, seed)
        if not begins:
            continue
        part = extract(proto, begins, ends)
        onnx.checker.check_model(part)
        assert set(names(part.graph.input)) == set(begins)
        for name, found in run(part, truth).items():
            assert_equal(found, truth[name])
        for info in (*part.graph.input, *part.graph.output):  # and the shapes it states are right
            if info.type.HasField("tensor_type") and info.name in truth:
                stated = [d.dim_value or None for d in info.type.tensor_type.shape.dim]
                assert all(s in (None, d) for s, d in zip(stated, truth[info.name].shape, strict=True))
    assert proto.SerializeToString() == before


def test_one_side_may_be_left_out() -> None:
    proto = model(
        "a = Relu(x) b = Mul(a, w) c = Neg(b) y = Add(c, z)",
        weights="<float[1] w = {2}, float[4] v = {1,2,3,4}>",
        signature="(float[N, 4] x, float[N, 4] z) => (float[N, 4] y, float[N, 4] b)",
    )
    truth = values(proto, {"x": X, "z": X + 1})
    head = extract(proto, outputs=["c"])
    assert (names(head.graph.input), names(head.graph.output)) == (["x"], ["c"])
    assert names(head.graph.initializer) == ["w"]
    assert_equal(run(head, truth)["c"], truth["c"])
    tail = extract(proto, ["b", "z"])
    assert (names(tail.graph.input), names(tail.graph.output)) == (["b", "z"], ["y"]), "b lies before itself"
    assert_equal(run(tail, truth)["y"], truth["y"])
    assert [n.op_type for n in tail.graph.node] == ["Neg", "Add"]
    assert names(extract(proto, ["x"]).graph.output) == ["b"], "y needs z"
    assert extract(proto, "x") == extract(proto, ["x"])
    whole = extract(proto, outputs=["y", "b"])
    assert [whole.graph.input, whole.graph.output, whole.graph.node] == [
        proto.graph.input,
        proto.graph.output,
        proto.graph.node,
    ]


def test_nothing_that_belongs_to_it_is_lost() -> None:
    proto = everything()
    relu = proto.graph.node[-1]
    relu.MergeFromString(b"\xc2\x0c\x03new")  # a field of a later version
    clutter = proto.graph.node[-2].SerializeToString()
    part = extract(proto, ["n"], ["y"])
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(part, field) == getattr(proto, field), field
    for field in ("opset_import", "metadata_props", "functions"):
        assert list(getattr(part, field)) == list(getattr(proto, field)), field
    a, b = part.graph, proto.graph
    for field in ("name", "doc_string", "metadata_props", "sparse_initializer", "quantization_annotation", "output"):
        assert getattr(a, field) == getattr(b, field), field
    assert [n.SerializeToString() for n in a.node] == [n.SerializeToString() for n in list(b.node)[2:]]
    assert a.node[-2].SerializeToString() == clutter
    assert a.value_info == b.value_info
    assert list(a.initializer) == [t for t in b.initializer if t.name == "q_scale"], "the annotation of y refers to it"
    assert not part.training_info
    before = extract(proto, outputs=["n"])
    assert not before.functions
    assert not before.graph.value_info
    assert before.graph.input == b.input
    assert types(before.graph.output) == {"n": "float[N, 2, 4, 4]"}


def test_dims_keep_the_names_the_file_gives_them() -> None:
    signature = '(float["n+m", 4] x, int64 i) => (float[K, 4] y, float[K, 4] c)'
    proto = model("a = Neg(x) b = SequenceConstruct(a) c = Relu(a) y = SequenceAt(b, i)", signature)
    assert types(extract(proto, inputs=["a"], outputs=["c"]).graph.input) == {"a": "float[n+m, 4]"}
    assert types(extract(proto, inputs=["b", "i"], outputs=["y"]).graph.input)["b"] == "sequence(float[n+m, 4])"


def test_functions_come_with_those_they_call() -> None:
    proto = sample("local_functions")
    assert [f.name for f in extract(proto, ["a"], ["b"]).functions] == ["ConvBnAct"]
    assert [f.name for f in extract(proto, ["b"], ["y"]).functions] == ["ConvBnAct", "Twice"]


def test_what_bodies_read_is_needed() -> None:
    proto = model(
        "a = Relu(x) b = Neg(x) s = ReduceMax(b) c = Greater(s, zero) "
        "y = If(c) <then_branch = t () => (u) { d = Not(c) u = If(d) <then_branch = tt () => (q) { q = Identity(a) }, "
        "else_branch = te () => (v) { v = Mul(a, w) }> }, else_branch = e () => (r) { r = Add(b, w) }>",
        weights="<float zero = {0}, float[1] w = {3}>",
    )
    truth = values(proto, {"x": X})
    part = extract(proto, ["a", "b", "c"])
    assert [n.op_type for n in part.graph.node] == ["If"]
    assert names(part.graph.initializer) == ["w"]
    for flag in (True, False):
        found = run(part, truth | {"c": np.full((1, 1), flag)})["y"]
        assert_equal(found, 3 * truth["a"] if flag else truth["b"] + 3)
    with pytest.raises(UsageError, match="`y` also needs the graph input `x`"):
        extract(proto, ["a", "c"], ["y"])
    for branch in proto.graph.node[-1].attribute:  # onnxruntime wants the Identity, the standard does not
        if branch.name == "then_branch":
            inner = next(a.g for a in branch.g.node[-1].attribute if a.name == "then_branch")
            del inner.node[:]
            inner.output[0].name = "a"
            branch.g.node[-1].attribute.remove(next(a for a in branch.g.node[-1].attribute if a.name == "else_branch"))
    assert names(extract(proto, ["a", "b", "c"], ["y"]).graph.input) == ["a", "b", "c"]


def test_a_node_that_makes_an_input_besides() -> None:
    """It stays as it is but for a name: the input has the other."""
    proto = model("a, b = Split <axis = 1> (x) c = Add(a, b) y = Concat <axis = 1> (c, a)")
    truth = values(proto, {"x": X})
    part = extract(proto, ["a", "x"], ["y"])
    assert part.graph.node[0].output[0] not in ("a", "b", "c", "y")
    onnx.checker.check_model(part, full_check=True)
    other = truth | {"a": truth["a"] + 1}
    assert_equal(run(part, other)["y"], np.concatenate([other["a"] + truth["b"], other["a"]], axis=1))


def test_weights_can_be_inputs_and_outputs() -> None:
    proto = model(
        "k = Constant <value_floats = [5.0, 6.0, 7.0, 8.0]> () a = Mul(x, w) y = Add(a, k)",
        weights="<float[4] w = {1, 2, 3, 4}>",
    )
    part = extract(proto, ["x", "w", "k"])
    assert types(part.graph.input) == {"x": "float[N, 4]", "w": "float[4]", "k": "float[4]"}
    assert not part.graph.initializer
    assert [n.op_type for n in part.graph.node] == ["Mul", "Add"]
    given = extract(proto, outputs=["w", "k"])
    found = run(given, {})
    assert_equal([found["w"], found["k"]], [np.float32([1, 2, 3, 4]), np.float32([5, 6, 7, 8])])
    assert not given.graph.input


def test_defaults_that_callers_may_override_stay_so() -> None:
    proto = model("a = Mul(x, w) y = Relu(a)", "(float[N, 4] x, float[1] w) => (float[N, 4] y)", "<float[1] w = {3}>")
    for part in (extract(proto, outputs=["a"]), extract(proto, ["x", "w"], ["a"])):
        assert names(part.graph.input) == ["x", "w"]
        assert names(part.graph.initializer) == ["w"]
    fixed = extract(proto, ["x"], ["a"])
    assert names(fixed.graph.input) == ["x"], "the inputs are those that were asked for"
    assert_equal(run(fixed, {"x": X})["a"], X * 3)
    proto.ir_version = 3  # every initializer has to be an input as well
    for part in (extract(proto, outputs=["a"]), extract(proto, ["x"], ["a"])):
        assert part.ir_version == 3
        assert names(part.graph.input) == ["x", "w"]
        onnx.checker.check_model(part)
    assert not extract(proto, ["x", "w"], ["a"]).graph.initializer, "no default: it was asked for as an input"


def test_sequences_and_optionals_at_the_border() -> None:
    proto = model(
        "s = SequenceConstruct(x, x) o = Optional(s) t = OptionalGetElement(o) y = ConcatFromSequence <axis = 0> (t)"
    )
    truth = values(proto, {"x": X})
    for begin, end, kind in (
        ("x", "s", "sequence(float[N, 4])"),
        ("x", "o", "optional(sequence(float[N, 4]))"),
        ("s", "y", "sequence(float[N, 4])"),
        ("s", "t", "sequence(float[N, 4])"),
        ("o", "y", "optional(sequence(float[N, 4]))"),
    ):
        part = extract(proto, [begin], [end])
        onnx.checker.check_model(part)
        assert kind in (types(part.graph.input) | types(part.graph.output)).values()
        assert_equal(run(part, truth)[end], truth[end])


def test_shapes_are_those_that_can_be_proven() -> None:
    """Also through index arithmetic; not what the file claims of values inside. Runs of one process are the same."""
    proto = model(
        "s = Shape(x) d = Gather(s, zero) e = Unsqueeze(d, zeros) t = Concat <axis = 0> (e, tail) a = Reshape(x, t) "
        "n = NonZero(a) f = Cast <to = 1> (n) g = Neg(f) y = Relu(a)",
        weights="<int64 zero = {0}, int64[1] zeros = {0}, int64[2] tail = {2, 2}>",
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("a", 1, [7, 2, 2]))
    proto.graph.value_info.append(helper.make_tensor_value_info("e", 7, [1]))
    part = extract(proto, ["a"])
    assert types(part.graph.input) == {"a": "float[N, 2, 2]"}
    many = [extract(proto, ["n"], ["f", "g"]) for _ in range(2)]
    assert types(many[0].graph.input) == {"n": "int64[3, dim]"}, "a size that nobody named"
    assert types(many[0].graph.output) == {"f": "float[3, dim]", "g": "float[3, dim]"}, "equal sizes"
    assert many[0] == many[1]
    assert names(extract(proto, outputs=["y"]).graph.value_info) == ["a", "e"]


def test_operators_that_only_the_file_knows() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "org.example" : 1]> g (float[N, 4] x) => (float[N, 4] y) '
        "{ a = org.example.Odd(x) b = org.example.Odd(a) y = Relu(b) }"
    )
    with pytest.raises(ModelError, match="the type of `a` is unknown"):
        extract(proto, ["a"])
    assert types(extract(proto, outputs=["a"]).graph.output) == {"a": "?"}
    proto.graph.value_info.append(helper.make_tensor_value_info("a", 1, ["M", 3]))
    assert types(extract(proto, ["a"]).graph.input) == {"a": "float[M, 3]"}


def test_nodes_that_stand_in_no_order() -> None:
    proto = model("a = Relu(x) b = Neg(a) y = Exp(b)")
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(NodeProto.FromString(n.SerializeToString()) for n in (nodes[2], nodes[0], nodes[1]))
    assert [n.op_type for n in extract(proto, outputs=["y"]).graph.node] == ["Relu", "Neg", "Exp"]


def test_what_cannot_be_done() -> None:
    proto = model(
        "[first] a = Relu(x) b = Add(a, m) c = Less(k, k) "
        "y = If(c) <then_branch = t () => (inside) { inside = Neg(b) }, else_branch = e () => (r) { r = Exp(b) }>",
        "(float[N, 4] x, float[4] m, int64 k) => (float[N, 4] y)",
    )

    def refused(inputs: list[str], outputs: list[str]) -> tuple[str, str]:
        with pytest.raises(OnnxOptError) as caught:
            extract(proto, inputs, outputs)
        assert (type(caught.value), caught.value.exit_code) == (UsageError, 2)
        return caught.value.message, caught.value.hint

    assert refused([], []) == (
        "neither inputs nor outputs are named",
        "name the values to cut at: one of both is enough",
    )
    assert refused(["a"], []) == (
        "g: `y` also needs the graph inputs `m`, `k`",
        "add them to the inputs, or values computed from them",
    )
    assert refused(["x"], ["a", "b", "c", "y"])[0] == "g: `b`, `c`, `y` also need the graph inputs `m`, `k`"
    assert refused(["y"], []) == ("g: no output lies behind these inputs", "name the outputs, or other inputs")
    assert refused([], ["m"])[0] == "g: `m` is an input, which nothing computes"
    assert refused(["a"], ["a"])[0] == "g: `a` is an input, which nothing computes"
    assert refused(["a"], ["m"])[0] == "g: `m` is an input, which nothing computes"
    assert refused([], ["zzz"]) == (
        "g: no value of the main graph or a body is called 'zzz'",
        "it has the inputs x, m, k, the outputs y",
    )
    proto.functions.append(
        parser.parse_function('<domain: "my", opset_import: ["" : 17]> f (x) => (z) { z = Neg (x) }')
    )
    assert refused([], ["z"])[1].startswith("it is in function my::f, where the model cannot be cut: `onnxopt optimize")
    assert refused([], ["first"])[1] == "it is a node, which computes `a`"


def test_external_data_stays_where_it_is(tmp_path: Path) -> None:
    proto = model("a = Mul(x, w) y = Add(a, v)", weights="<float[4] w = {0}, float[4] v = {0}>")
    fives = np.full((64, 4), 5, np.float32)  # smaller ones belong into the model
    for tensor, name in zip(proto.graph.initializer, "wv"):
        tensor.CopyFrom(numpy_helper.from_array(fives, name))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tensor,) = extract(tmp_path / "m.onnx", ["a"]).graph.initializer
    assert {e.key: e.value for e in tensor.external_data}["location"] == "w.bin"
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(tmp_path))
    assert_equal(numpy_helper.to_array(tensor), fives)
