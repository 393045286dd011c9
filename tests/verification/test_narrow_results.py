"""Results in a narrower type: rounding, faults and overflow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxopt import optimize_file
from onnxopt.errors import ModelError
from onnxopt.optimizer import DifferentResult
from onnxopt.proto.inference import InferenceError, infer_shapes, inferable
from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.compare import forgiven, is_too_small, narrowed
from onnxopt.verification.programs.transforms import tensor_types
from tests.runtime import plain_session
from tests.samples import parsed


def products(scales: list[float]) -> ModelProto:
    """Return x w0, Relu, w1, …: MatMuls with weights of shape (16, 16) and these scales."""
    rng, nodes, value = np.random.default_rng(0), [], "x"
    weights = []
    for i, scale in enumerate(scales):
        array = (rng.standard_normal((16, 16)) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{i}"))
        last = i == len(scales) - 1
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], ["y" if last else f"p{i}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"p{i}"], [value := f"r{i}"]))
    infos = [helper.make_tensor_value_info(name, 1, ["n", 16]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "products", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("numbers", "small"),
    [([1e-5, 0, -2e-5], True), ([1e-5, 1e-4], False), ([0, 0], False), ([np.inf, 1e-5], True), ([], False)],
)
def test_numbers_too_small_for_float16_lose_digits(numbers: list[float], small: bool) -> None:
    value = np.array(numbers, np.float32)
    assert is_too_small(value, "float16") == small
    assert not is_too_small(value, "bfloat16")
    assert not is_too_small(value.astype(np.float64), "float16")


def test_narrowed_numbers_are_rounded_and_clamped() -> None:
    values = np.array([1 + 2**-12, 70000, -70000, np.inf, np.nan, 1e-9], np.float32)
    half = narrowed(values, "float16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, np.array([1, 65504, -65504, np.inf, np.nan, 0], np.float16))
    brain = narrowed(np.array([1 + 2**-9, 1 + 2**-7, 1e38, np.nan, -np.inf], np.float32), "bfloat16")
    np.testing.assert_array_equal(brain[[0, 1, 3, 4]], np.array([1, 1 + 2**-7, np.nan, -np.inf], np.float32))
    assert abs(brain[2] / np.float32(1e38) - 1) < 2**-8
    largest = np.array([(2 - 2**-7) * 2.0**127, -(2 - 2**-7) * 2.0**127], np.float32)
    np.testing.assert_array_equal(narrowed(np.array([3.4e38, -3.4028235e38], np.float32), "bfloat16"), largest)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("keep_io", [True, False])
def test_both_types_are_verified_in_pieces(dtype: str, keep_io: bool, tmp_path: Path) -> None:
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(products([0.3, 0.3]), source)
    report = optimize_file(source, result, dtype=dtype, keep_io=keep_io)
    assert report.verification is not None
    assert report.verification.status == "verified in pieces"
    made = onnx.load(result).graph
    code = helper.np_dtype_to_tensor_dtype(np.dtype(np.float16)) if dtype == "float16" else onnx.TensorProto.BFLOAT16
    assert {t.data_type for t in made.initializer} == {code}
    assert {v.type.tensor_type.elem_type for v in (*made.input, *made.output)} == {1 if keep_io else code}
    assert sum(n.op_type == "Cast" for n in made.node) == 2 * keep_io
    again = tmp_path / "c.onnx"
    optimize_file(result, again, dtype=dtype, keep_io=keep_io, verify=False)
    assert again.read_bytes() == result.read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("lowest", "more"), [(-3.4028235e38, 0.0), (-3.3895e38, -1e36)])
def test_a_mask_of_the_lowest_number_stays_finite(dtype: str, lowest: float, more: float, tmp_path: Path) -> None:
    """A mask of the lowest number is kept finite in the narrower type.

    The rounded number is infinite, and NaN times zero. In a sum, infinity masks too.
    """
    text = f"""
        g (float[N, 16] x, int64[N, 16] seen) => (float[N, 16] y)
        <float lowest = {{{lowest}}}, float one = {{1}}, float more = {{{more}}}> {{
          p = MatMul (x, w)
          m = Cast <to = 1> (seen)
          u = Sub (one, m)
          n = Mul (u, lowest)
          b = Add (n, more)
          s = Add (p, b)
          q = Softmax (s)
          y = MatMul (q, w)
        }}"""
    model = parsed(text)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(16, dtype=np.float32), "w"))
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(model, source)
    report = optimize_file(source, result, dtype=dtype)
    assert report.verification is not None
    assert report.verification.status == "verified in pieces"
    assert sum(n.op_type == "Cast" for n in onnx.load(result).graph.node) <= 3


def test_an_overflow_is_wrong_even_if_the_runtime_computes_wider(tmp_path: Path) -> None:
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(products([4.0, 1e4, 1e-4]), source)
    with pytest.raises(DifferentResult, match="it goes wrong at `p1`"):
        optimize_file(source, result, dtype="float16", strict=True)
    assert not result.exists()
    report = optimize_file(source, result, dtype="bfloat16")
    assert report.verification is not None
    assert report.verification.agrees


def test_a_wrong_weight_is_found_among_roundings(tmp_path: Path) -> None:
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(products([0.3, 0.3]), source)
    optimize_file(source, result, dtype="float16", verify=False)
    assert verify(source, result).status == "different"  # no narrower type was declared
    assert verify(source, result, VerifyOptions(dtype="float16")).agrees
    broken = onnx.load(result)
    tensor = next(t for t in broken.graph.initializer if t.name == "w0_float16")
    array = np.array(numpy_helper.to_array(tensor))
    tensor.CopyFrom(numpy_helper.from_array(np.roll(array, 1, axis=1), tensor.name))
    onnx.save(broken, result)
    found = verify(source, result, VerifyOptions(dtype="float16"))
    assert (found.status, [p.value for p in found.places]) == ("different", ["p0"])


def test_a_too_old_opset_is_reported_first(tmp_path: Path) -> None:
    model = products([0.3])
    model.opset_import[0].version = 12
    onnx.save(model, tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=r"bfloat16 takes opset 13, the model has 12\nhint: ") as refused:
        optimize_file(tmp_path / "a.onnx", tmp_path / "b.onnx", dtype="bfloat16")
    assert refused.value.hint == "--target-opset 13 converts it first"


@pytest.mark.parametrize("keep_io", [True, False])
def test_a_model_of_other_domains_alone_stays_as_it_is(keep_io: bool, tmp_path: Path) -> None:
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    infos = [helper.make_tensor_value_info(name, 1, ["n", 16]) for name in ("x", "y")]
    graph = helper.make_graph([node], "scaler", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)
    onnx.save(model, tmp_path / "a.onnx")
    optimize_file(tmp_path / "a.onnx", tmp_path / "b.onnx", dtype="float16", keep_io=keep_io)
    assert (tmp_path / "b.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()


def test_a_kernel_that_refuses_the_type_at_its_run(tmp_path: Path) -> None:
    """A node whose float16 kernel fails at its run stays in float32.

    onnxruntime loads a float16 ScatterND with `add`, and fails to run the node.
    """
    source, half = (
        parsed(
            f"""g (float[4] x, int64[2, 1] at, float[2] u) => (float[4] y)
            {{ a = Cast <to = {code}> (x)  b = Cast <to = {code}> (u)
               c = ScatterND <reduction = "add"> (a, at, b)  y = Cast <to = 1> (c) }}"""
        )
        for code in (1, 10)
    )
    onnx.save(source, tmp_path / "a.onnx")
    onnx.save(half, tmp_path / "b.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(dtype="float16"))
    assert found.status == "different"
    assert "fails where" in found.message
    report = optimize_file(tmp_path / "a.onnx", tmp_path / "b.onnx", dtype="float16")
    assert report.verification is not None and report.verification.agrees


def test_an_infinity_from_an_underflow_is_wrong(tmp_path: Path) -> None:
    """The logarithm of a probability rounded to zero is wrong. The original has no infinity for these inputs."""
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    model = parsed("""g (float[N, 16] x) => (float[N, 16] y) { h = MatMul (x, w)  p = Softmax (h)  y = Log (p) }""")
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) * 8
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, source)
    with pytest.raises(DifferentResult, match="infinities in other places"):
        optimize_file(source, result, dtype="float16", strict=True)


def test_an_overflow_is_no_mask() -> None:
    """Overflowed squares are not excused as mask. A mask has few huge numbers, squares one per element."""
    squares = np.square(np.linspace(4e4, 9e4, 64, dtype=np.float32))
    infinite = np.full(64, np.inf, np.float16)
    assert np.isinf(forgiven(infinite, squares, "float16")).all()
    scores = np.where(np.arange(64) % 2 == 0, np.linspace(-900, 900, 64), np.linspace(-1e9 - 900, -1e9, 64))
    masked = np.where(np.arange(64) % 2 == 0, scores, -np.inf).astype(np.float16)
    assert np.isfinite(forgiven(masked, scores.astype(np.float32), "float16")).all()


MASKED = """m = Where (keep, zero, low)  s = MatMul (x, w)  a = Add (s, m)  y = Softmax <axis = -1> (a)"""


def masked(kind: str, low: str, outputs: str) -> onnx.ModelProto:
    """Return a model with scores up to 60, to which a mask is added."""
    head = f"""g ({kind}[n, 64] x, bool[n, 64] keep) => ({outputs})"""
    model = parsed(f"{head} {{ {MASKED} }}")
    weight = np.random.default_rng(0).standard_normal((64, 64))
    constants = {"w": weight, "low": np.array(float(low)), "zero": np.zeros(())}
    numbers = {name: c.astype(np.float16 if kind == "float16" else np.float32) for name, c in constants.items()}
    model.graph.initializer.extend(numpy_helper.from_array(c, name) for name, c in numbers.items())
    return model


@pytest.mark.parametrize("outputs", ["y", "m, y", "a, y"])
def test_a_score_added_to_a_narrow_mask_may_be_infinite(outputs: str, tmp_path: Path) -> None:
    """Infinity in a masked sum of float16 agrees with the original's -3.4e38.

    The lowest number of float16 plus a score of -30 is infinite.
    """
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(masked("float", "-3.4028235e38", outputs), source)
    onnx.save(masked("float16", "-65504", outputs), result)
    found = verify(source, result, VerifyOptions(dtype="float16"))
    assert found.agrees and found.status != "inconclusive", found.message
    report = optimize_file(source, result, dtype="float16", keep_io=False)
    assert report.verification is not None and not report.rolled_back, report.verification
    assert {n.op_type for n in onnx.load(result).graph.node} <= {"Where", "MatMul", "Gemm", "Add", "Softmax"}


def test_an_infinity_in_place_of_a_finite_sum_is_different(tmp_path: Path) -> None:
    """An infinity is "different" if the original's number fits into float16.

    -65500 is a number of float16; -65504 plus a score is none.
    """
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(masked("float", "-65500", "a, y"), source)
    onnx.save(masked("float16", "-65504", "a, y"), result)
    found = verify(source, result, VerifyOptions(dtype="float16"))
    assert found.status == "different", found.message


def test_a_float32_mask_output_keeps_its_lowest_number(tmp_path: Path) -> None:
    """A mask that is a float32 output keeps its lowest number, which float16 does not have."""
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(masked("float", "-3.4028235e38", "m, y"), source)
    optimize_file(source, result, dtype="float16")
    feeds = {"x": np.ones((1, 64), np.float32), "keep": np.zeros((1, 64), bool)}
    assert plain_session(onnx.load(result)).run(["m"], feeds)[0].max() == np.finfo(np.float32).min


CALLS = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]> g (float16[n, 4] x) => (float16[n, 4] y, float[n, 4] z)
    <float16[4] b = {15360, 16384, 16896, 17408}, float[4] s = {0.1, 0.3, 0.7, 0.9}> {
    h = local.outer (x, b) i = Identity (h) y = local.twice (i) f = Cast <to = 1> (h) z = Mul (f, s) }
    <opset_import: ["" : 18], domain: "local"> twice (x) => (y) { y = Add (x, x) }
    <opset_import: ["" : 18, "local" : 1], domain: "local"> outer (x, b) => (y) { t = local.inner (x) y = Add (t, b) }
    <opset_import: ["" : 18], domain: "local"> inner (x) => (y)
    { c = Constant <value = float16[4] {14336, 15872, 16640, 17152}> () y = Mul (x, c) }"""


def test_functions_with_float16_constants_get_float16(tmp_path: Path) -> None:
    """A function with float16 constants is called with float16, and the result is verified.

    The readers got float32, so a right result did not load.
    """
    source = tmp_path / "a.onnx"
    onnx.save(parsed(CALLS), source)
    report = optimize_file(source, tmp_path / "b.onnx", level=1, dtype="float16")
    assert report.verification is not None
    assert report.verification.agrees, report.verification.message
    assert "outer" in {n.op_type for n in onnx.load(tmp_path / "b.onnx").graph.node}


NO_TURN = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4] x, float[4] v) => (float[n, 4] y, float[a, b] z)
    <int64 none = {0}, float two = {2}, float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {
    t = Mul (v, two) u, z = Loop (none, , t) <body = l (int64 i, bool c, float[4] s) => (d, r, k)
        { d = Identity (c) r = Neg (s) k = Tanh (t) }> m = MatMul (x, w) e = Identity (m) y = Add (e, u) }"""


def test_scan_outputs_without_iterations_may_differ_in_shape(tmp_path: Path) -> None:
    """A scan output of a loop without iterations may differ in shape.

    A runtime given a part of the model makes [0], and [0, 4] with all of it.
    """
    source = tmp_path / "a.onnx"
    onnx.save(parsed(NO_TURN), source)
    for dtype in ("float16", "bfloat16"):
        report = optimize_file(source, tmp_path / "b.onnx", level=2, dtype=dtype)
        assert report.verification is not None
        assert report.verification.agrees, report.verification.message


def test_types_are_known_despite_wrong_declared_shapes() -> None:
    """Types are inferred for a file with wrong declared shapes.

    Runtimes load such a file; onnx's inference raises, and a right result was said not to load.
    """
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y)
        <int8 zero = {4}, float scale = {0.5}, int8[1] held = {3}> {
        s = DequantizeLinear (held, scale, zero) y = Mul (x, s) }"""
    model = parsed(text)
    model.graph.value_info.append(helper.make_tensor_value_info("zero", onnx.TensorProto.INT8, [1]))
    with pytest.raises(InferenceError):
        infer_shapes(inferable(model))
    assert tensor_types(model) == {
        "x": "tensor(float)", "s": "tensor(float)", "y": "tensor(float)", "zero": "tensor(int8)",
    }  # fmt: skip
