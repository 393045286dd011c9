"""Verification in pieces: each verdict, each kind of cutpoint, each place, and models without pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.cli.conftest import Run

HEADER = '<ir_version: 8, opset_import: ["" : 17]> g '
BATCH = "(float[N, 4] x) => (float[N, 4] y)"
# Sin(2^k x) doubles a difference at each step: pieces that are right give far different outputs.
AMPLIFIES = "{ a0 = Sin (x) " + " ".join(f"b{i} = Mul (a{i}, k) a{i + 1} = Sin (b{i})" for i in range(12)) + " %s }"

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def call(name: str, signature: str, body: str, weights: dict[str, Any] | None = None) -> None:
        model = parser.parse_model(HEADER + signature + body)
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items())
        onnx.save(model, tmp_path / name)

    return call


@pytest.fixture
def compare(run: Run) -> Callable[..., dict[str, Any]]:
    def call(*options: str, cases: str = "random") -> dict[str, Any]:
        r = run("verify", "a.onnx", "b.onnx", *(["--cases", cases] if cases else []), "--format", "json", *options)
        assert r.stdout, r.stderr
        found: dict[str, Any] = json.loads(r.stdout)
        found["code"] = r.returncode
        return found

    return call


Compare = Callable[..., dict[str, Any]]


def places(found: dict[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """Return (value, operators of A, operators of B) of each place."""
    return [(p["value"], [n["op"] for n in p["a"]], [n["op"] for n in p["b"]]) for p in found["places"]]


# -- verdicts --------------------------------------------------------------------------------------------


def test_equal_models_need_no_pieces(write: Write, compare: Compare) -> None:
    write("a.onnx", BATCH, "{ y = Sin (x) }")
    write("b.onnx", BATCH, "{ i = Identity (x) y = Sin (i) }")
    found = compare()
    assert (found["status"], found["code"], found["pieces"]) == ("equal", 0, None)


def test_a_difference_within_rounding_needs_no_pieces(write: Write, compare: Compare) -> None:
    """A difference within rounding, from a merged factor, is verified without pieces."""
    write("a.onnx", BATCH, "<float j = {0.3}, float k = {0.7}> { p = Mul (x, j) y = Mul (p, k) }")
    write("b.onnx", BATCH, "<float k = {0.21}> { y = Mul (x, k) }")
    found = compare()
    assert (found["status"], found["code"], found["pieces"]) == ("verified", 0, None)


def amplifying(write: Write, factor: float = 1.0) -> None:
    write("a.onnx", BATCH, "<float k = {9.0}>" + AMPLIFIES % "y = Identity (a12)")
    start = "s = Sin (x) t = Mul (s, h) n = Neg (t) a0 = Neg (n)"
    body = AMPLIFIES.replace("a0 = Sin (x)", start) % "y = Identity (a12)"
    write("b.onnx", BATCH, f"<float k = {{9.0}}, float h = {{{factor}}}>" + body)


def test_a_network_that_amplifies_is_verified_in_pieces(write: Write, compare: Compare, run: Run) -> None:
    amplifying(write, 1.0000001)
    found = compare()
    assert (found["status"], found["code"]) == ("verified in pieces", 0)
    assert found["worst_rel"] > 1e-3 > 1e-6 > found["pieces"]["worst_rel"]
    assert found["noise"]["y"] > 1e-3
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random")
    assert "✓ verified in pieces: all 26 pieces agree, within " in r.stdout
    assert "of the range of `y`, rounding alone to" in r.stdout


def test_a_fault_in_a_network_that_amplifies_is_found(write: Write, compare: Compare) -> None:
    amplifying(write, 1.0001)
    found = compare()
    assert (found["status"], found["code"]) == ("different", 1)
    assert places(found) == [("a0", ["Sin"], ["Sin", "Mul", "Neg", "Neg"])]


def test_noise_is_measured_at_the_largest_difference(write: Write, compare: Compare, tmp_path: Path) -> None:
    """Noise is measured in the case of the largest difference. More cases differ than are kept in memory."""
    amplifying(write, 1.0000001)
    scales = [1e-7] * 20
    scales[3] = 1
    rng = np.random.default_rng(1)
    for i, scale in enumerate(scales):
        np.savez(tmp_path / f"{i}.npz", x=(scale * rng.standard_normal((3, 4))).astype(np.float32))
    found = compare(*(word for i in range(len(scales)) for word in ("--inputs", f"{i}.npz")), cases="")
    assert found["status"] == "verified in pieces"
    differ = {c["name"]: c["outputs"][0]["max_rel"] for c in found["cases"]}
    assert differ.pop("3.npz") > 1 > 10 * max(differ.values())
    assert found["noise"]["y"] > 1


def test_within_rounding_noise_where_no_value_is_shared(write: Write, compare: Compare, run: Run) -> None:
    amplifying(write, 1.0000001)
    text = AMPLIFIES.replace("a0 = Sin (x)", "s = Sin (x) a0 = Mul (s, h)") % "y = Identity (a12)"
    for i in range(13):
        text = text.replace(f"a{i} ", f"other{i} ").replace(f"(a{i}", f"(other{i}").replace(f"b{i} ", f"more{i} ")
        text = text.replace(f"(b{i})", f"(more{i})")
    write("b.onnx", BATCH, "<float k = {9.0}, float h = {1.0000001}>" + text)
    found = compare()
    assert (found["status"], found["code"]) == ("within rounding noise", 0)
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random", "--strict")
    assert r.returncode == 1
    assert "? within rounding noise: it differs by" in r.stdout


def test_a_model_that_does_not_run_is_not_verified(write: Write, compare: Compare) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, BATCH, "{ y = NoSuchOperator (x) }")
    assert (compare()["status"], compare()["code"]) == ("not verified", 1)


# -- kinds of cutpoints ----------------------------------------------------------------------------------


def test_a_value_with_a_moved_scale_is_no_cutpoint(write: Write, compare: Compare) -> None:
    """`q` is scaled and `w` makes up for the scale: both are inside one larger piece."""
    rng = np.random.default_rng(0)
    v, w = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    body = "{ q = MatMul (x, v) r = Relu (q) p = MatMul (r, w) y = Sin (p) }"
    write("a.onnx", BATCH, body, {"v": v, "w": w})
    write("b.onnx", BATCH, body, {"v": v / np.float32(3), "w": w * np.float32(3)})
    found = compare("--pieces")
    assert found["status"] == "verified in pieces"
    assert (found["pieces"]["cuts"], found["pieces"]["shared"], found["pieces"]["largest"]) == (2, 4, 3)
    write("b.onnx", BATCH, body, {"v": v / np.float32(3), "w": w * np.float32(3.01)})
    assert places(compare()) == [("p", ["MatMul", "Relu", "MatMul"], ["MatMul", "Relu", "MatMul"])]


@pytest.mark.parametrize(
    ("keys", "shared", "largest"),
    [
        ("c{i} = MatMul (h{i}, v{i})", 6, 4),
        (
            "k{i} = MatMul (h{i}, v{i}) c{i} = Add (k{i}, b{i})",
            7,
            5,
        ),  # the second run shows that the bias is scaled
    ],
)
def test_pieces_are_small_behind_a_moved_scale(
    keys: str, shared: int, largest: int, write: Write, compare: Compare
) -> None:
    """Pieces stay small behind a scale that moves through a Transpose and a MatMul. Scaled values are no cutpoints."""
    rng = np.random.default_rng(0)
    layers = range(3)
    weights = {f"{w}{i}": rng.standard_normal((4, 4)).astype(np.float32) for i in layers for w in "vb"}
    attention = keys + (
        " t{i} = Transpose <perm = [1, 0]> (c{i}) s{i} = MatMul (h{i}, t{i}) %s"
        " m{i} = MatMul (p{i}, h{i}) h{j} = Tanh (m{i}) "
    )

    def model(scores: str) -> str:
        body = "".join((attention % scores).format(i=i, j=i + 1) for i in layers)
        return f"<float half = {{0.5}}> {{ {body} }}".replace("h0", "x").replace("h3", "y")

    write("a.onnx", BATCH, model("d{i} = Mul (s{i}, half) p{i} = Softmax (d{i})"), weights)
    write("b.onnx", BATCH, model("p{i} = Softmax (s{i})"), {name: array / 2 for name, array in weights.items()})
    found = compare("--pieces")["pieces"]
    assert (found["cuts"], found["shared"], found["largest"]) == (3 * 3, shared * 3, largest)


def test_rows_and_turned_values_are_cuts(write: Write, compare: Compare) -> None:
    rng = np.random.default_rng(0)
    w = {f"w{i}": rng.standard_normal((4, 4)).astype(np.float32) for i in range(2)}
    signature = "(float[2, 3, 4] x) => (float[2, 3, 4] y)"
    write("a.onnx", signature, "{ a = MatMul (x, w0) s = Sin (a) b = MatMul (s, w1) t = Exp (b) y = Neg (t) }", w)
    rows = """<int64[2] flat = {-1, 4}, int64[3] back = {2, 3, 4}> {
        r = Reshape (x, flat) a_rows = MatMul (r, w0) s_rows = Sin (a_rows) b_rows = MatMul (s_rows, w1)
        b = Reshape (b_rows, back) b_turned = Transpose <perm = [2, 0, 1]> (b) t_turned = Exp (b_turned)
        t = Transpose <perm = [1, 2, 0]> (t_turned) y = Neg (t) }"""
    write("b.onnx", signature, rows, w)
    found = compare("--pieces")
    assert found["status"] == "verified in pieces"
    assert found["pieces"]["cuts"] == found["pieces"]["shared"] == 5
    write("b.onnx", signature, rows.replace("Sin (a_rows)", "Cos (a_rows)"), w)
    assert places(compare()) == [("s_rows", ["Sin"], ["Cos"])]


def test_near_ties_are_ranked_on_equal_scores(write: Write, compare: Compare) -> None:
    """TopK of near ties is compared on equal scores. Half of the scores equal the other half up to the last bit."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((4, 32)).astype(np.float32)
    w = np.concatenate([half, half], 1)
    signature = "(float[16, 4] x) => (float[16, 8] best, int64[16, 8] which)"
    body = "<float j = {0.3}, int64[1] n = {8}> { m = MatMul (x, w) s = Mul (m, j) best, which = TopK (s, n) }"
    write("a.onnx", signature, body, {"w": w})
    body = "<int64[1] n = {8}> { s = MatMul (x, w) best, which = TopK (s, n) }"
    folded = (w.astype(np.float64) * 0.3).astype(np.float32)
    folded[:, 32:] = np.nextafter(folded[:, 32:], np.float32(9))
    write("b.onnx", signature, body, {"w": folded})
    found = compare()
    assert (found["status"], found["code"]) == ("verified in pieces", 0)
    assert any("values differ, and no piece does" in o["note"] for o in found["cases"][0]["outputs"])
    write("b.onnx", signature, body.replace("TopK", "TopK <largest = 0>"), {"w": folded})
    assert [p[0] for p in places(compare())] == ["best", "which"]


def test_a_quantizer_is_fed(write: Write, compare: Compare) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 4)).astype(np.float32)
    tail = "q = QuantizeLinear (m, scale, zero) d = DequantizeLinear (q, scale, zero) e = Sin (d) y = Exp (e) }"
    given = "<float scale = {0.25}, uint8 zero = {128}, float j = {0.3}> {"
    write("a.onnx", BATCH, given + "l = MatMul (x, w) m = Mul (l, j)" + tail, {"w": w})
    write("b.onnx", BATCH, given + "m = MatMul (x, w)" + tail, {"w": (w.astype(np.float64) * 0.3).astype(np.float32)})
    assert compare()["code"] == 0
    folded = {"w": (w.astype(np.float64) * 0.3).astype(np.float32)}
    other = tail.replace("QuantizeLinear (m, scale, zero)", "QuantizeLinear (m, scale, less)")
    write("b.onnx", BATCH, "<uint8 less = {127}, " + given[1:] + "m = MatMul (x, w)" + other, folded)
    assert [p[0] for p in places(compare())][:1] == ["q"]


def test_random_draws_are_fed_to_both(write: Write, compare: Compare) -> None:
    write("a.onnx", BATCH, "{ r = RandomNormalLike (x) s = Add (x, r) y = Sin (s) }")
    write("b.onnx", BATCH, "{ r = RandomNormalLike (x) i = Identity (r) s = Add (x, i) y = Sin (s) }")
    assert compare()["status"] == "verified in pieces"
    write("b.onnx", BATCH, "{ r = RandomNormalLike (x) i = Identity (r) s = Sub (x, i) y = Sin (s) }")
    assert places(compare()) == [("s", ["Add"], ["Identity", "Sub"])]


@pytest.mark.parametrize(("kind", "to", "opset"), [("float16", 10, 17), ("bfloat16", 16, 17), ("double", 11, 17)])
def test_other_floats(kind: str, to: int, opset: int, write: Write, compare: Compare) -> None:
    cast = f"c = Cast <to = {to}> (x) %s y = Cast <to = 1> (d) }}"
    write("a.onnx", BATCH, "{" + cast % "d = Identity (c)")
    write("b.onnx", BATCH, "{" + cast % "e = Identity (c) d = Identity (e)")
    found = compare("--pieces")
    assert found["status"] == "verified in pieces", found["message"]
    assert found["pieces"]["cuts"] == 3


def test_sequences_are_cuts(write: Write, compare: Compare) -> None:
    body = "<int64 one = {1}> { s = SplitToSequence <axis = 1> (x) e = SequenceAt (s, one) f = %s (e) y = Add (x, f) }"
    write("a.onnx", BATCH, body % "Sin")
    write("b.onnx", BATCH, (body % "Sin").replace("Add (x, f)", "Add (f, x)"))
    found = compare("--pieces")
    assert (found["status"], found["pieces"]["cuts"]) == ("verified in pieces", 4)
    write("b.onnx", BATCH, (body % "Cos").replace("Add (x, f)", "Add (f, x)"))
    assert places(compare()) == [("f", ["Sin"], ["Cos"])]


def test_optional_values_are_no_entries(write: Write, compare: Compare) -> None:
    body = "{ o = Optional (x) %s e = OptionalGetElement (%s) y = %s (e) }"
    write("a.onnx", BATCH, body % ("", "o", "Sin"))
    write("b.onnx", BATCH, body % ("p = Identity (o)", "p", "Sin"))
    found = compare("--pieces")
    assert (found["status"], found["pieces"]["cuts"]) == ("verified in pieces", 3)
    write("b.onnx", BATCH, body % ("p = Identity (o)", "p", "Cos"))
    assert places(compare()) == [("y", ["Sin"], ["Cos"])]


def test_training_statistics_are_reset_for_each_run(write: Write, compare: Compare) -> None:
    """A training BatchNormalization starts with its stored statistics in each run, whatever onnxruntime wrote."""
    signature = "(float[N, 2, 3] x) => (float[N, 2, 3] y)"
    body = """<float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0.1, 0.2}, float[2] v = {1, 2}> {
        %s r, mean, var = BatchNormalization <training_mode = 1> (%s, s, b, m, v) y = Sin (r) }"""
    write("a.onnx", signature, body % ("", "x"))
    write("b.onnx", signature, body % ("i = Identity (x)", "i"))
    found = compare("--pieces")
    assert (found["status"], found["pieces"]["cuts"]) == ("verified in pieces", 4)
    write("b.onnx", signature, body % ("i = Neg (x)", "i"))
    assert places(compare())[0][1:] == (["BatchNormalization"], ["Neg", "BatchNormalization"])


BRANCH = """<float limit = {1e9}> { s = ReduceSum <keepdims = 0> (x) c = Greater (s, limit) z = If (c) <
    then_branch = t () => (float[N, 4] p) { o = Neg (x) p = Sin (o) },
    else_branch = e () => (float[N, 4] q) { q = Relu (x) }> y = Exp (z) }"""


def test_both_branches_are_compared_whichever_is_taken(write: Write, compare: Compare) -> None:
    write("a.onnx", BATCH, BRANCH)
    write("b.onnx", BATCH, BRANCH.replace("o = Neg (x) p = Sin (o)", "i = Identity (x) o = Neg (i) p = Sin (o)"))
    found = compare()
    assert (found["status"], found["pieces"]["branches"]) == ("verified in pieces", ["c"])
    write("b.onnx", BATCH, BRANCH.replace("p = Sin (o)", "p = Cos (o)"))
    found = compare()
    assert (found["status"], found["code"]) == ("different", 1), "the branch that no case takes is another"
    assert places(found) == [("p", ["Sin"], ["Cos"])]
    assert found["places"][0]["scope"] == "main / If / then_branch"


def test_a_place_inside_a_branch(write: Write, compare: Compare) -> None:
    taken = BRANCH.replace("Greater", "Less")
    write("a.onnx", BATCH, taken)
    write("b.onnx", BATCH, taken.replace("p = Sin (o)", "i = Identity (o) p = Cos (i)"))
    found = compare()
    assert places(found) == [("p", ["Sin"], ["Identity", "Cos"])]
    assert found["places"][0]["scope"] == "main / If / then_branch"


def test_swapped_branches_are_a_place(write: Write, compare: Compare) -> None:
    write("a.onnx", BATCH, BRANCH)
    swapped = BRANCH.replace("then_branch", "was").replace("else_branch", "then_branch").replace("was", "else_branch")
    write("b.onnx", BATCH, swapped)
    found = compare()
    assert places(found) == [("z", ["If"], ["If"])]
    assert found["places"][0]["scope"] == "main"


def test_a_place_inside_a_loop(write: Write, compare: Compare) -> None:
    body = """<int64 n = {3}, bool go = {1}> { z = Loop (n, go, x) <body = b (int64 i, bool c, float[N, 4] u)
        => (bool d, float[N, 4] v) { d = Identity (c) s = Sin (u) v = Mul (s, u) }> y = Exp (z) }"""
    write("a.onnx", BATCH, body)
    write("b.onnx", BATCH, body.replace("s = Sin (u)", "w = Identity (u) s = Cos (w)"))
    found = compare()
    assert places(found) == [("s", ["Sin"], ["Identity", "Cos"])]
    assert found["places"][0]["scope"] == "main / Loop / body"


def test_functions_come_along(compare: Compare, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[N, 4] x) => (float[N, 4] y)
        { p = f.twice (x) q = %s (p) y = f.twice (q) }
        <domain: "f", opset_import: ["" : 17]> twice (u) => (w) { w = Add (u, u) }"""
    for name, op in (("a", "Sin"), ("b", "Cos")):
        onnx.save(parser.parse_model(text % op), tmp_path / f"{name}.onnx")
    assert places(compare()) == [("q", ["Sin"], ["Cos"])]


def test_pieces_of_an_opset_of_the_reference_evaluator_only(write: Write, compare: Compare, tmp_path: Path) -> None:
    for name, op in (("a", "Sin"), ("b", "Cos")):
        write(f"{name}.onnx", BATCH, f"{{ p = Neg (x) q = {op} (p) y = Neg (q) }}")
        model = onnx.load(tmp_path / f"{name}.onnx")
        model.opset_import[0].version = onnx.defs.onnx_opset_version()
        onnx.save(model, tmp_path / f"{name}.onnx")
    assert places(compare()) == [("q", ["Sin"], ["Cos"])]


# -- places of differences -------------------------------------------------------------------------------


def test_where_b_fails_is_a_place(write: Write, compare: Compare) -> None:
    signature = "(float[N, 4] x) => (float[M, K] y)"
    write("a.onnx", signature, "<int64[2] s = {-1, 2}> { n = Neg (x) r = Reshape (n, s) y = Sin (r) }")
    write("b.onnx", signature, "<int64[2] s = {-1, 3}> { n = Neg (x) r = Reshape (n, s) y = Sin (r) }")
    found = compare()
    assert (found["status"], found["code"]) == ("different", 1)
    assert places(found) == [("r", ["Reshape"], ["Reshape"])]


def test_two_faults_are_two_places(write: Write, compare: Compare) -> None:
    body = "{ a = %s (x) b = Exp (a) c = Tanh (b) d = %s (c) e = Exp (d) y = Tanh (e) }"
    write("a.onnx", BATCH, body % ("Sin", "Neg"))
    moved = "{ a = %s (x) i = Identity (a) b = Exp (i) c = Tanh (b) d = %s (c) e = Exp (d) y = Tanh (e) }"
    write("b.onnx", BATCH, moved % ("Cos", "Abs"))
    assert [p[0] for p in places(compare())] == ["a", "d"]


# -- large models ----------------------------------------------------------------------------------------


def deep(factor: float, layers: int = 24) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    graph, x = onnx.GraphProto(name="g"), "x"
    for i in range(layers):
        w = (rng.standard_normal((64, 64)) / 6).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(w * (factor if i == 15 else 1), f"w{i}"))
        graph.node.add(op_type="MatMul", input=[x, f"w{i}"], output=[f"m{i}"])
        x = "y" if i == layers - 1 else f"t{i}"
        graph.node.add(op_type="Tanh", input=[f"m{i}"], output=[x])
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64]))
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("external", [False, True])
def test_models_beyond_the_memory_limit_run_in_segments(external: bool, compare: Compare, tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.01)):
        how = {"save_as_external_data": True, "location": f"{name}.bin"} if external else {}
        onnx.save(deep(factor), tmp_path / f"{name}.onnx", **how)
    found = compare("--verify-memory", "64K")
    assert places(found) == [("m15", ["MatMul"], ["MatMul"])]
    onnx.save(deep(1.0), tmp_path / "b.onnx")
    assert compare("--verify-memory", "64K", "--pieces")["status"] == "verified in pieces"


def test_a_size_is_a_size(run: Run, write: Write) -> None:
    write("a.onnx", BATCH, "{ y = Sin (x) }")
    r = run("verify", "a.onnx", "a.onnx", "--verify-memory", "much")
    assert (r.returncode, "'much' is not a size; for example 500M or 2G" in r.stderr) == (2, True)
