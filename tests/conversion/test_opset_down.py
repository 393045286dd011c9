"""Models in an older opset: each form of the table against the original in onnxruntime, and refusals."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
import pytest
from onnx import ModelProto, defs

from onnxopt.conversion.call import TABLE
from onnxopt.conversion.opset import LOWEST, convert_opset
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph.schema import attribute_default
from tests.runtime import plain_session
from tests.samples import parsed

IMAGE, ROWS, INTS = "float[2, 4, 6, 6] x", "float[2, 3, 4] x", "int64[2, 4] x"
NUMBERS = ", ".join(map(str, range(48)))
# opset, input, nodes, constants
SAID: Final[list[tuple[int, str, str, str]]] = [
    (13, ROWS, "u = Unsqueeze (x, a) y = Squeeze (u, a)", "int64[1] a = {-1}"),
    (13, ROWS, "y, z = Split <axis = -1> (x, s)", "int64[2] s = {1, 3}"),
    (18, ROWS, "y, z, w = Split <axis = -1, num_outputs = 3> (x)", ""),
    (18, ROWS, "y, z, w = Split <axis = 1, num_outputs = 3> (x)", ""),
    (18, ROWS, "n = NonZero (x) z, w, y = Split <axis = -1, num_outputs = 3> (n)", ""),
    (13, ROWS, "c = Cast <to = 7> (a) z, p = Split <axis = -1> (x, c) y = Reshape (p, s)",
     "float[2] a = {1, 3}, int64[3] s = {3, 3, -1}"),
    (13, ROWS, "y = ReduceSum <keepdims = 0> (x, a)", "int64[1] a = {1}"),
    (18, ROWS, "y = ReduceMax (x)", ""),
    (18, ROWS, "y = ReduceMean <noop_with_empty_axes = 1> (x, a)", "int64[0] a = {}"),
    (18, ROWS, "c = Constant <value_ints = [1]> () y = ReduceMean (x, c)", ""),
    (18, ROWS, "c = Reshape (a, n) m = ReduceMean (x, c) y = Reshape (m, s)",
     "int64 a = {1}, int64[1] n = {-1}, int64[1] s = {8}"),
    (20, ROWS, "b = Greater (x, a) y = ReduceMax (b, n)", "float a = {0}, int64[1] n = {1}"),
    (18, ROWS, "y = Pad (x, p, c, a)", "int64[4] p = {1, 0, 2, 3}, float c = {7}, int64[2] a = {-1, 0}"),
    (13, ROWS, "b = Less (x, a) y = Pad (b, p)", "float a = {0}, int64[6] p = {0, 1, 0, 0, 0, 2}"),
    (18, IMAGE, "y = Resize <axes = [2, -1]> (x, , , s)", "int64[2] s = {3, 9}"),
    (18, IMAGE, "y = Resize <axes = [3, 2]> (x, , s)", "float[2] s = {2, 0.5}"),
    (19, IMAGE, 'y = Resize <mode = "linear"> (x, , s)', "float[4] s = {1, 1, 2, 0.5}"),
    (19, IMAGE, "y = AveragePool <kernel_shape = [2, 2], dilations = [1, 1]> (x)", ""),
    (13, ROWS, "y = Softmax <axis = 1> (x)", ""),
    (13, ROWS, "y = LogSoftmax (x)", ""),
    (13, ROWS, "y = Hardmax <axis = 0> (x)", ""),
    (12, INTS, "m = Max (x, a, b) n = Min (m, c) y = Clip (n, b, c)", "int64 a = {-3}, int64 b = {0}, int64 c = {2}"),
    (14, INTS, "i = Cast <to = 6> (x) y = Relu (i)", ""),
    (14, INTS, "i = Cast <to = 3> (x) y = Mul (i, i)", ""),
    (15, INTS, "y = Pow (x, a)", "float a = {2}"),
    (15, ROWS, "y = Pow (x, a)", "int64 a = {3}"),
    (19, ROWS, "c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () y = Add (x, c)", ""),
    (13, ROWS, "d, m = Dropout (x, r) y = Where (m, d, x)", "float r = {0.5}"),
    (12, IMAGE, 'y = Einsum <equation = "bhwc, hkc -> bhwk"> (x, w)', "float[4, 2, 6] w = {" + NUMBERS + "}"),
    (12, IMAGE, 'y = Einsum <equation = "...ac,kc->...k"> (x, w)', "float[2, 1] w = {2, 3}"),
    (12, ROWS, 'y = Einsum <equation = "bij,cj,i"> (x, w, v)', "float[1, 4] w = {1, 2, 3, 4}, float[3] v = {1, 2, 3}"),
    (12, ROWS, 'y = Einsum <equation = "bij->jb"> (x)', ""),
    (12, INTS, 'y = Einsum <equation = "ij,ji->"> (x, w)', "int64[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}"),
    (13, IMAGE, "q = QuantizeLinear <axis = 1> (x, s, z) y = DequantizeLinear <axis = 1> (q, s, z)",
     "float[4] s = {0.1, 0.2, 0.3, 0.05}, uint8[4] z = {1, 2, 3, 128}"),
    (21, ROWS, "q = QuantizeLinear <output_dtype = 3> (x, s) y = DequantizeLinear (q, s)", "float s = {0.1}"),
    (14, ROWS, "y = Reshape <allowzero = 1> (x, s)", "int64[2] s = {4, -1}"),
    (14, ROWS, "s = Concat <axis = 0> (a, b) y = Reshape <allowzero = 1> (x, s)", "int64[1] a = {4}, int64[1] b = {6}"),
    (14, "float[0, 3] x", "y = Reshape <allowzero = 1> (x, s)", "int64[3] s = {2, 0, 5}"),
    (15, ROWS, "s = Shape <start = -2> (x) f = Cast <to = 1> (s) y = Expand (f, t)", "int64[1] t = {2}"),
    (15, INTS, "f = CastLike (x, a) y = Mul (f, a)", "float a = {0.5}"),
    (17, ROWS, "n, m, d = LayerNormalization <axis = 1, epsilon = 0.1> (x, s, b) o = Mul (n, d) y = Add (o, m)",
     "float[4] s = {1, 2, 3, 4}, float b = {1}"),
    (17, ROWS, "h = Cast <to = 10> (x) s = Cast <to = 10> (f) n = LayerNormalization (h, s) y = Cast <to = 1> (n)",
     "float[4] f = {1, 2, 3, 4}"),
    (18, IMAGE, "y = GroupNormalization <num_groups = 2> (x, s, b)", "float[2] s = {2, 3}, float[2] b = {1, 0}"),
    (21, IMAGE, "y = GroupNormalization <num_groups = 2> (x, s, s)", "float[4] s = {2, 3, 1, 5}"),
    (23, ROWS, "y = RMSNormalization <axis = 1> (x, s)", "float[4] s = {2, 3, 1, 5}"),
    (20, ROWS, "y = Gelu (x)", ""),
    (20, ROWS, 'y = Gelu <approximate = "tanh"> (x)', ""),
    (22, ROWS, "h = HardSwish (x) m = Mish (h) y = Celu (m)", ""),
    (20, "float[1, 2, 3] x", "y = AffineGrid <align_corners = 1> (x, s)", "int64[4] s = {1, 1, 4, 3}"),
    (20, "float[2, 3, 4] x", "y = AffineGrid (x, s)", "int64[5] s = {2, 1, 4, 3, 2}"),
    (14, IMAGE, "u = Trilu (x, k) l = Trilu <upper = 0> (x) y = Add (u, l)", "int64 k = {1}"),
    (23, "float[2, 4, 2, 8] x", "y = RotaryEmbedding (x, c, c, p)", "float[2, 4] c = {1, 2, 3, 4, 5, 6, 7, 8}, "
     "int64[2, 2] p = {0, 1, 1, 1}"),
    (23, "float[2, 4, 6, 6] x", "y = Attention <is_causal = 1, softcap = 2.0> (x, x, x)", ""),
    (24, "float[2, 3, 8] x", "y = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x, b)",
     "bool[3, 3] b = {1, 0, 0, 1, 1, 0, 1, 1, 1}"),
    (28, ROWS, "y = Mod (x, a)", "float a = {-0.7}"),
]  # fmt: skip


# opset, target, input, nodes, constants, what is said
REFUSED: Final[list[tuple[int, int, str, str, str, str]]] = [
    (12, 11, "float[3, 3] x", 'y = Einsum <equation = "ii->i"> (x)', "", "the equation ii->i is not said by"),
    (16, 15, IMAGE, "y = GridSample (x, g)", "float[2, 1, 1, 2] g = {0, 0, 0, 0}",
     "GridSample `y`: there is no GridSample before opset 16"),
    (18, 13, ROWS, "c = Cast <to = 7> (x) m = ReduceMin (c) z = Reshape (m, n) y = ReduceMax (x, z)",
     "int64[1] n = {1}", "ReduceMax `y`: `axes` is computed, and"),
    (18, 17, ROWS, 'y = ScatterND <reduction = "max"> (x, i, u)', "int64[1, 3] i = {0, 0, 0}, float[1] u = {1}",
     "`reduction` cannot be max before opset 18"),
    (18, 13, IMAGE, "y = Resize <antialias = 1> (x, , s)", "float[4] s = {1, 1, 2, 2}",
     "it has no attribute `antialias`"),
    (13, 12, ROWS, "h = Cast <to = 16> (x) i = Relu (h) y = Cast <to = 1> (i)", "",
     "Relu `i`: it does not take BFLOAT16"),
    (19, 18, ROWS, "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)", "float s = {1}, float8e4m3fn z = {0}",
     "does not take FLOAT8E4M3FN"),
    (14, 13, ROWS, "s = SequenceConstruct (x) t = Identity (s) y = SequenceAt (t, i)", "int64 i = {0}",
     "Identity `t`: it does not take sequences such as `s`"),
    (18, 17, ROWS, "y = OptionalGetElement (x)", "", "it does not take tensors such as `x` before opset 18"),
    (12, 11, ROWS, "d, y = Dropout (x, r, t)", "float r = {0.5}, bool t = {1}", "it trains"),
]  # fmt: skip


def model(opset: int, given: str, text: str, constants: str = "") -> ModelProto:
    held = f"<{constants}>" if constants else ""
    untyped = parsed(f'<ir_version: 10, opset_import: ["" : {opset}]> g ({given}) => (y) {held} {{ {text} }}')
    typed = onnx.shape_inference.infer_shapes(untyped)
    if not typed.graph.output[0].type.WhichOneof("value"):
        typed.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [*"ABCD"]))
    return typed


def lowered(before: ModelProto, target: int) -> ModelProto:
    after = ModelProto()
    after.CopyFrom(before)
    assert convert_opset(after, target, Path("m.onnx"))
    onnx.checker.check_model(after, full_check=True)
    assert {o.version for o in after.opset_import} == {target}
    names = [node.name for node in after.graph.node if node.name]
    assert sorted(names) == sorted({node.name for node in before.graph.node} - {""})
    return after


@pytest.mark.parametrize(("opset", "given", "text", "constants"), SAID)
def test_older_forms_compute_the_same(opset: int, given: str, text: str, constants: str) -> None:
    before = model(opset, given, text, constants)
    for node in before.graph.node:
        node.name = f"named {node.output[0]}"
    tensor = before.graph.input[0].type.tensor_type
    feed: Any = np.random.default_rng(0).standard_normal([d.dim_value for d in tensor.shape.dim]) * 3
    feed = feed.astype(np.float32 if tensor.elem_type == 1 else np.int64)
    expected = plain_session(before).run(None, {"x": feed})[0]
    for target in {LOWEST, opset - 1}:
        found = plain_session(lowered(before, target)).run(None, {"x": feed})[0]
        assert found.dtype == expected.dtype
        near = (
            2e-3 if "to = 10" in text else 1e-5
        )  # of float16, which onnxruntime computes as float32 between two Casts
        np.testing.assert_allclose(found, expected, near, 1e-5, strict=True)


@pytest.mark.parametrize(("opset", "target", "given", "text", "constants", "why"), REFUSED)
def test_what_cannot_be_said_is_named(opset: int, target: int, given: str, text: str, constants: str, why: str) -> None:
    before = model(opset, given, text, constants)
    data = before.SerializeToString()
    with pytest.raises(ModelError, match=f"m.onnx cannot be converted to opset {target}: main: ") as raised:
        convert_opset(before, target, Path("m.onnx"))
    assert why in raised.value.message
    assert f"--target-opset {opset} is the lowest" in raised.value.hint
    assert before.SerializeToString() == data


@pytest.mark.parametrize(
    ("made", "filled", "batches"),
    [
        ("s = Concat <axis = 0> (b, four, n)", False, (2, 0)),  # x has n at the same place
        ("s = Concat <axis = 0> (b, less, four)", False, (2,)),  # beside -1 the standard allows no zero
        ("s = Concat <axis = 0> (b, n, four)", True, (2, 0)),
        ("s = Identity (t)", True, (2, 0)),
    ],
)
def test_a_reshape_gives_empty_tensors_their_shape(made: str, filled: bool, batches: tuple[int, ...]) -> None:
    before = parsed(f"""
        <ir_version: 10, opset_import: ["" : 21]> g (float[b, 2, n, 2] x, int64[3] t) => (float[A, B, C] y)
          <int64[1] four = {{4}}, int64[1] less = {{-1}}> {{
          b = Shape <end = 1> (x)  n = Shape <start = 2, end = 3> (x)  {made}
          y = Reshape <allowzero = 1> (x, s) }}
    """)
    session, older = plain_session(before), [plain_session(lowered(before, target)) for target in (13, LOWEST)]
    for b, n in product(batches, (3, 0)):
        x = np.arange(b * 2 * n * 2, dtype=np.float32).reshape(b, 2, n, 2)
        for t in ([b, n, 4], [-1, 2, 2]):
            feed = {"x": x, "t": np.array(t)}
            expected = session.run(None, feed)[0]
            for other in older:
                np.testing.assert_array_equal(other.run(None, feed)[0], expected, strict=True)
    assert filled == any(n.op_type == "ConstantOfShape" for n in lowered(before, 13).graph.node)


def test_in_a_body_equal_names_are_no_equal_sizes() -> None:
    before = parsed("""
        <ir_version: 10, opset_import: ["" : 21]> g (float[n, m] x, float[p, q] v) => (float[A, B] y)
          <int64 one = {1}, bool on = {1}> {
          s = Shape (x)
          y = Loop (one, on, v) <body = b (int64 i, bool c, float[n, m] a) => (bool d, float[n, m] r) {
            d = Identity (c)  t = Relu (a)  r = Reshape <allowzero = 1> (t, s) }> }
    """)
    x, v = np.zeros((0, 4), np.float32), np.zeros((5, 0), np.float32)
    for model in (before, lowered(before, 13)):
        assert plain_session(model).run(None, {"x": x, "v": v})[0].shape == (0, 4)


def test_a_name_that_bodies_give_to_a_constant_and_to_what_is_computed_is_no_constant() -> None:
    before = parsed("""
        <ir_version: 10, opset_import: ["" : 21]> g (float[2, 3] x, float[1] k, bool c) => (float[A] y) {
          y = If (c) < then_branch = t () => (r) { a = Constant <value = int64[1] {1}> ()
                                                   r = ReduceSum <keepdims = 0> (x, a) },
                       else_branch = e () => (s) { a = Cast <to = 7> (k)  s = ReduceSum <keepdims = 0> (x, a) } > }
    """)
    with pytest.raises(ModelError, match="else_branch: ReduceSum `s`: `axes` is computed"):
        convert_opset(before, 12, Path("m.onnx"))


def test_the_remainder_of_bfloat16_has_the_sign_of_the_divisor_too() -> None:
    before = model(28, ROWS, "h = Cast <to = 16> (x) m = Mod (h, h) y = Cast <to = 1> (m)")
    made = {n.op_type: n for n in lowered(before, 27).graph.node}
    assert made["Mod"].attribute[0].i == 1
    assert "Where" in made


def test_operators_that_no_node_calls_ask_for_no_newer_runtime() -> None:
    before = model(21, ROWS, "y = Relu (x)")
    before.opset_import.extend([onnx.helper.make_opsetid("ai.onnx.ml", 5), onnx.helper.make_opsetid("org.example", 2)])
    after = ModelProto()
    after.CopyFrom(before)
    convert_opset(after, 13, Path("m.onnx"))
    assert {o.domain: o.version for o in after.opset_import} == {"": 13, "org.example": 2}
    assert after.ir_version == 7
    before.graph.node.add(op_type="Binarizer", domain="ai.onnx.ml", input=["x"], output=["z"])
    convert_opset(before, 13, Path("m.onnx"))
    assert {o.domain for o in before.opset_import} == {"", "ai.onnx.ml", "org.example"}
    assert before.ir_version == 10


def test_nodes_of_bodies_and_of_one_reason_are_told_at_once() -> None:
    before = parsed("""
        <ir_version: 10, opset_import: ["" : 21]> g (float[2, 1, 4, 4] x, float[2, 4, 4, 2] p, bool c)
          => (float[A, B, C, D] y, int64 z) {
          [a] u = GridSample (x, p)  [b] v = GridSample (u, p)  n = Constant <value = int64 {1}> ()
          z = BitwiseNot (n)
          [branch] y = If (c) < then_branch = t () => (r) { [d] r = GridSample (v, p) },
                                else_branch = e () => (s) { s = Gelu (v) } > }
    """)
    with pytest.raises(ModelError) as raised:
        convert_opset(before, 13, Path("m.onnx"))
    for part in (
        'main: GridSample "a", "b": there',
        "main: BitwiseNot `z`",
        'main / If "branch" / then_branch: GridSample "d"',
    ):
        assert part in raised.value.message
    assert raised.value.hint == "--target-opset 18 is the lowest that has all of them"
    after = lowered(before, 18)
    assert [n.op_type for n in after.graph.node[-1].attribute[1].g.node][-1] == "Mul"


def test_what_lost_attributes_or_changed_their_defaults_is_in_the_table() -> None:
    """All else is decided by the schemas alone."""
    history: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, []).append(schema)
    missing = []
    for op, schemas in history.items():
        schemas.sort(key=lambda s: s.since_version)
        for old, new in pairwise(schemas):
            lost = old.attributes.keys() - new.attributes.keys()
            changed = [
                name
                for name in old.attributes.keys() & new.attributes.keys()
                if attribute_default(op, old.since_version, name) != attribute_default(op, new.since_version, name)
            ]
            if new.since_version > LOWEST and (lost or changed) and (op, new.since_version) not in TABLE:
                missing.append((op, new.since_version))
    assert not missing


@pytest.mark.parametrize("target", [10, 1])
def test_lower_ones_are_refused(target: int) -> None:
    with pytest.raises(UsageError, match=f"uses opset 13, which is not converted down to {target}") as raised:
        convert_opset(model(13, ROWS, "y = Relu (x)"), target, Path("m.onnx"))
    assert raised.value.hint == f"the lowest is {LOWEST}"
