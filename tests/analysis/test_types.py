"""Facts only grow; a query that came too early is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxopt
from onnxopt import Fixpoint, get_pass
from onnxopt.analysis import types
from onnxopt.analysis.calls import Functions
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.graph import read_model
from onnxopt.graph.schema import signature
from onnxopt.graph.value import Shape
from onnxopt.operators import LIKE_FIRST, of_form
from tests.samples import build_text, parsed, value

SAME = """
<ir_version: 8, opset_import: ["" : 17, "lab" : 1]>
g (float[N, 3] x) => (float[N, 3] a, float[N, 3] b, float[K] c) { a = Relu (x) b = Neg (x) c = lab.Keep (x) }
"""

# The branch runs only where `x` has five elements, if it runs.
BRANCH = """
<ir_version: 8, opset_import: ["" : 17, "lab" : 1]>
g (float[N] x, bool c) => (float[K] y)
<float[5] five = {1, 2, 3, 4, 5}>
{
  u = lab.Keep (x)
  y = If (c) <
    then_branch = t () => (float[J] a) { a = Identity (five) },
    else_branch = e () => (float[L] b) { b = Neg (five) }
  >
}
"""

# How long `flat` is comes of arithmetic that only constant folding does.
LATE = """
g (float[N, 4] x, float[24] w) => (int64[2] y)
<float[2] factors = {1.5, 4.0}>
{
  twice = Add (factors, factors)
  target = Cast <to = 7> (twice)
  rows = Reshape (w, target)
  y = Shape (rows)
}
"""

# Nothing here reads a size, and the input has no dim without a number.
FIXED = """
g (float[1, 4, 2, 2] x) => (float[1, 4, 2, 2] y) <float[4, 1, 1, 1] w = {1, 2, 3, 4}>
{ c = Conv <group = 4> (x, w) i = Identity (c) y = Relu (i) }
"""

# Nobody knows how many dims there will be.
UNKNOWN = """
g (float[24] w, int64[K] target) => (float[M, N] z) { y = Reshape (w, target) z = Reshape (y, target) }
"""


def test_two_symbols_of_one_size_become_one() -> None:
    model = read_model(build_text(SAME))
    a, b, c = (value(model, name) for name in "abc")
    a.shape, b.shape, c.shape = ("s@0", 3), ("t@0", 3), ("t@0",)
    types.infer(model)
    assert (a.shape, b.shape, c.shape) == (("N", 3), ("N", 3), ("N",))
    assert (model.version, model.learnt) == (0, 3)


def test_what_a_branch_says_of_a_size_is_true_in_the_branch() -> None:
    model = read_model(build_text(BRANCH))
    outside = value(model, "u")
    (owner,) = model.graph.by_op["If"]
    inside = owner.bodies["then_branch"].outputs[0]
    outside.shape = inside.shape = ("s@0",)
    types.infer(model)
    assert (inside.shape, outside.shape) == ((5,), ("s@0",))


def test_what_is_known_no_better_is_no_news() -> None:
    model = read_model(build_text(SAME))
    types.infer(model)
    before = model.state
    types.infer(model)
    assert model.state == before


def test_a_pass_that_asked_too_early_is_asked_again() -> None:
    model = read_model(build_text(LATE))
    types.infer(model)
    Fixpoint(tuple(get_pass(name)() for name in ("canonicalize", "constant-folding")))(model)
    (node,) = model.nodes()  # an output is made by a node
    assert node.op == "Identity"
    constant = node.inputs[0]
    assert constant is not None
    assert constant.array.tolist() == [3, 8]


# How many elements are not zero, nobody can know before.
BODY = """
g (float[N, 3] x, bool c) => (float[A, B] y)
{
  r = Relu (x)
  y = If (c) <
    then_branch = t () => (float[N, 3] u) { u = Neg (r) },
    else_branch = e () => (float[N, 3] w) { w = Abs (r) }
  >
}
"""
OPEN_END = """
g (float[N, 3] x) => (float[A, B] y, float[N, 3] z)
{
  a = Relu (x)
  found = NonZero (a)
  turned = Transpose (found)
  y = Cast <to = 1> (turned)
  b = Exp (a)
  z = Abs (b)
}
"""


def test_who_asked_for_a_rank_too_early_is_asked_again() -> None:
    model = read_model(build_text(UNKNOWN))
    y = value(model, "y")
    assert types.shape(y) is None
    y.producer.set_input(1, model.graph.constant(np.array([4, 6])))  # type: ignore[union-attr]
    before = model.state
    types.settle(model)
    assert y.shape == (4, 6)
    assert model.state != before


# What `flat` is, shapes tell, as nothing is folded; what becomes of it, inference alone.
TOLD = """
<ir_version: 7, opset_import: ["" : 13]>
g (float[1, 5, 2, 2] x, int64[1] lengths) => (float[A, B, C] y)
<int64[1] start = {0}, int64[1] end = {2}, int64[1] rest = {-1}>
{
  sizes = Shape (x)
  first = Slice (sizes, start, end, start)
  target = Concat <axis = 0> (first, rest)
  flat = Reshape (x, target)
  m = ReverseSequence <batch_axis = 0, time_axis = 1> (flat, lengths)
  y = Relu (m)
  listed = Shape (flat)
  axes = Size (listed)
}
"""


def test_what_shapes_tell_is_told_to_inference() -> None:
    model = read_model(build_text(TOLD))
    types.infer(model)
    assert value(model, "flat").shape == (1, 5, 4)
    assert value(model, "listed").shape == (3,)
    assert value(model, "m").shape == (1, 5, 4)


def test_there_are_as_many_axes_as_sizes_are_listed() -> None:
    model = read_model(build_text(TOLD))
    data = ShapeData()
    list(data.sweep(model.graph))
    assert data.contents[value(model, "axes")].tolist() == 3


def test_inference_goes_on_from_what_is_known() -> None:
    model = read_model(build_text(OPEN_END))
    types.infer(model)
    assert value(model, "z").shape == ("N", 3)
    open_ones = [n.op for n in model.graph if types.is_open(n.output)]
    assert open_ones == ["NonZero", "Transpose", "Cast"]
    types.learn(value(model, "found"), (2, "N"))
    types.infer(model)
    assert value(model, "y").shape == ("N", 2)
    assert not model.is_vague


def test_what_is_computed_is_called_so_behind_what_only_inference_follows() -> None:
    model = read_model(build_text(OPEN_END))
    types.infer(model)
    types.learn(value(model, "found"), (2, "{3*N}"))
    types.infer(model)
    assert value(model, "y").shape == ("{3*N}", 2)


ALIKE = """
<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
g (float[N, 3, H] x) => (float[A, B, C] y, float[A, B, C] z) <float[3] one = {1, 1, 1}>
{
  a = Relu (x)
  b = BatchNormalization (a, one, one, one, one)
  c = Sigmoid (b)
  y = Transpose <perm = [1, 0, 2]> (c)
  d = Gelu (c)
  z = Neg (y)
}
"""


def test_an_operator_unknown_to_the_opset_has_no_type() -> None:
    model = read_model(build_text(ALIKE))
    types.infer(model)
    shapes = {n: value(model, n).shape for n in "abcydz"}  # of opset 18 there is no Gelu
    assert shapes == {**dict.fromkeys("abc", ("N", 3, "H")), **dict.fromkeys("yz", (3, "N", "H")), "d": None}
    assert {value(model, n).dtype for n in "abcyz"} == {1}


def test_weights_that_training_changes_tell_the_types_of_what_reads_them() -> None:
    """They are neither constants nor inputs: only inference says what they are."""
    proto = build_text(ALIKE)
    proto.graph.node.add(op_type="Relu", input=["one"], output=["r"])
    proto.training_info.add().update_binding.add(key="one", value="one")
    model = read_model(proto)
    assert not model.graph.initializers["one"].constant
    types.infer(model)
    assert (value(model, "r").dtype, value(model, "r").shape) == (1, (3,))


def test_a_body_reads_what_is_around_it_by_name() -> None:
    model = read_model(build_text(BODY))
    types.infer(model)
    assert value(model, "r").shape == ("N", 3)


@pytest.mark.parametrize("op", sorted(LIKE_FIRST - of_form("update", "code") - {"ReverseSequence"}))
def test_operators_that_are_alike_are_so_in_each_opset(op: str) -> None:
    kind = {"BitwiseNot": TensorProto.INT8, "Not": TensorProto.BOOL}.get(op, TensorProto.FLOAT)
    x = helper.make_tensor_type_proto(kind, ["N", 3, "H", 5])
    channels, last = (helper.make_tensor_type_proto(TensorProto.FLOAT, [size]) for size in (3, 5))
    axis = helper.make_tensor_type_proto(TensorProto.INT64, [])
    for opset in {s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, "")}:
        defined = signature(op, opset)
        assert defined is not None
        if defined.operands[0].symbol != defined.results[0].symbol:
            continue
        schema = onnx.defs.get_schema(op, opset, "")
        if schema.deprecated:
            continue
        names = ["x", *(f"i{i}" for i in range(1, schema.min_input))]
        given = {"x": x} | dict.fromkeys(
            names[1:],
            last if op in ("LayerNormalization", "RMSNormalization") else axis if op.startswith("Cum") else channels,
        )
        required: dict[str, Any] = {name: [0] * len(names) for name, a in schema.attributes.items() if a.required}
        required.update((name, 1) for name in ("num_groups", "size") if name in required)
        node = helper.make_node(op, names, ["y"], **required)
        imported = [helper.make_opsetid("", opset)]
        found = onnx.shape_inference.infer_node_outputs(schema, node, given, opset_imports=imported).get("y", x)
        assert found == x or not found.tensor_type.HasField("shape"), opset


def test_what_inference_fails_on_has_the_types_of_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*call: object) -> None:
        raise ValueError("no")

    model = read_model(build_text(OPEN_END))
    monkeypatch.setattr("onnxopt.proto.inference.infer_call", fail)
    types.infer(model)
    assert (model.graph.inputs[0].dtype, model.graph.inputs[0].shape) == (1, ("N", 3))
    assert types.shape(value(model, "found")) is None


OPEN = """
g (float[N] x, int64[2] t) => (int64[A, B] d, int64[C, D] e) {
  found = NonZero (x)
  d = Reshape (found, t)
  e = Neg (found)
}
"""


def test_a_size_that_is_known_at_last_is_known_wherever_it_is() -> None:
    """Inference looks again only at what lies behind the change; what is equal is called the same everywhere."""
    model = read_model(build_text(OPEN))
    types.infer(model)
    found, d, e = (value(model, name) for name in ("found", "d", "e"))
    assert found.shape == e.shape and not isinstance(e.shape[1], int)  # type: ignore[index]
    d.shape = e.shape
    d.producer.set_input(1, model.graph.constant(np.array([1, 5])))  # type: ignore[union-attr]
    types.settle(model)
    assert found.shape == d.shape == e.shape == (1, 5)


CHAIN = """
g (float[N] x, int64[2] t) => (float[A, B] y) {
  whole = Reshape (x, t)
  a = Neg (whole)
  b = Transpose <perm = [1, 0]> (a)
  c = Concat <axis = 0> (b, b)
  y = Transpose <perm = [1, 0]> (c)
}
"""


COMPUTED = """
g (float[2, 6] x, int64[2] t) => (float[A, B] y) <int64[1] all = {-1}>
{ s = Shape (x) flat = Reshape (x, all) w = Reshape (flat, s) y = Reshape (w, t) }
"""


def test_a_target_whose_type_inference_does_not_say_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxopt.analysis.shapes.sweep.type_outputs", lambda node: None)
    monkeypatch.setattr("onnxopt.analysis.facts.believed_types", lambda node: {})
    model = read_model(parsed(COMPUTED))
    Fixpoint((get_pass("shape-arithmetic")(),))(model)
    assert model.version == 0


def test_inference_does_not_run_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "infer", lambda model: pytest.fail("inference ran"))
    result = onnxopt.optimize(build_text(FIXED), verify=False)
    assert [n.op_type for n in result.model.graph.node] == ["Conv", "Relu"]


@pytest.mark.parametrize(("dims", "known"), [("0, 3", (1, (0, 3))), ("N, 3", (0, None))])
def test_inputs_tell_their_sizes_at_once_where_these_are_numbers(dims: str, known: tuple[int, Shape | None]) -> None:
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu (x) }}"
    given = read_model(build_text(text)).graph.inputs[0]
    assert (given.dtype, given.shape) == known


OVERLOADED = """
<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
g (float[N, 3] x) => (float[A, B] y) { t = own.f:first (x)  y = own.f:second (t) }
<domain: "own", overload: "first", opset_import: ["" : 21]>
f (x) => (y) { y = Neg (x) }
<domain: "own", overload: "second", opset_import: ["" : 21]>
f (x) => (y) { y = Transpose <perm = [1, 0]> (x) }
"""


def test_an_overload_of_a_function_gives_types() -> None:
    model = read_model(build_text(OVERLOADED))
    assert [types.shape(value(model, name)) for name in "ty"] == [("N", 3), (3, "N")]


def test_a_call_copies_no_weights_of_its_function() -> None:
    proto = build_text(OVERLOADED)
    weight = helper.make_node("Constant", [], ["w"], value=helper.make_tensor("", 1, [5000], [1] * 5000))
    proto.functions[0].node.insert(0, weight)
    model = read_model(proto)
    assert sum(function.ByteSize() for function in Functions(model).values()) < 500
    assert types.shape(value(model, "t")) == ("N", 3)


def test_a_sequence_map_gives_its_body_elements_and_its_results_are_sequences() -> None:
    model = read_model(
        build_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (seq(float[N]) s, int64[1] k, int64 i) => (int64[A] y) {
          q = SequenceMap <body = b (float[N] e, int64[1] j) => (int64[M] f) {
            c = Cast <to = 7> (e)
            f = Add (c, j)
          }> (s, k)
          y = SequenceAt (q, i)
        }""")
    )
    body = value(model, "q").producer.bodies["body"]  # type: ignore[union-attr]
    assert [types.dtype(v) for v in (*body.inputs, value(model, "q"), value(model, "y"))] == [1, 7, 0, 7]
    assert types.shape(body.inputs[1]) == (1,)


FLEXIBLE = """
<ir_version: 12, opset_import: ["" : 26, "ai.onnx.preview" : 1]>
g (float16[1, 2, S, 4] q, float16[1, 2, T, 4] k, float16[1, 2, T, 6] v) => (float[A, B, C, D] y) {
  a = ai.onnx.preview.FlexAttention <
    score_mod = b (float[E, F, G, H] s) => (float[E, F, G, H] t) { t = Neg (s) }
  > (q, k, v)
  y = Cast <to = 1> (a)
}
"""


@pytest.mark.skipif(not onnx.defs.has("FlexAttention", "ai.onnx.preview"), reason="an older onnx")
def test_an_operator_of_the_standard_has_its_type_whatever_its_bodies_give() -> None:
    a = value(read_model(build_text(FLEXIBLE)), "a")
    assert (types.dtype(a), types.shape(a)) == (TensorProto.FLOAT16, (1, 2, "S", 6))
