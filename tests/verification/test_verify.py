"""The verifier on real files in a real onnxruntime: equal, different, inconclusive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.errors import ModelError, UsageError
from onnxopt.verification import Verification, Verifier, VerifyOptions, verify
from tests.verification.pairs import gaps, verdict


def model(
    body: str, signature: str = "(float[N, 4] x) => (float[N, 4] y)", header: str = 'opset_import: ["" : 17]'
) -> str:
    return f"<ir_version: 8, {header}> g {signature} {body}"


def judge(tmp_path: Path, a: str, b: str, **options: object) -> Verification:
    return verdict(tmp_path, a, b, VerifyOptions(**options))  # type: ignore[arg-type]


RELU = model("{ y = Relu (x) }")


def test_the_same_computation_is_equal(tmp_path: Path) -> None:
    v = judge(tmp_path, RELU, model("{ a = Relu (x) y = Relu (a) }"))
    assert (v.status, v.exact) == ("equal", True)
    assert [c.dims for c in v.cases[:2]] == [{"N": 2}, {"N": 3}], "dynamic dims are tried at two sizes"


def test_a_difference_within_rounding_is_verified(tmp_path: Path) -> None:
    near = model("<float k = {1.0000001}> { r = Relu (x) y = Mul (r, k) }")
    v = judge(tmp_path, RELU, near)
    assert (v.status, v.exact) == ("verified", False)
    assert 0 < v.worst_rel < 1e-6
    assert judge(tmp_path, RELU, near, rtol=1e-9, atol=0.0).status == "different"


def test_an_output_of_tiny_numbers_is_compared_by_its_own_range(tmp_path: Path) -> None:
    tiny = model("<float k = {1e-14}> { y = Mul (x, k) }")
    assert judge(tmp_path, tiny, model("<float k = {-1e-14}> { y = Mul (x, k) }")).status == "different"
    assert judge(tmp_path, tiny, model("<float k = {0.0}> { y = Mul (x, k) }")).status == "different"


def test_differences_of_subnormal_numbers_are_verified(tmp_path: Path) -> None:
    twice = model("<float j = {1e-20}, float k = {1e-23}> { p = Mul (x, j) y = Mul (p, k) }")
    v = judge(tmp_path, twice, model("<float k = {1e-43}> { y = Mul (x, k) }"))
    assert (v.status, v.worst_rel > 1e-3) == ("verified", True)


def test_integers_are_equal_unless_a_tolerance_is_given(tmp_path: Path) -> None:
    a, b = (
        model(
            f"<float s = {{0.05}}, uint8 z = {{{z}}}> {{ y = QuantizeLinear (x, s, z) }}",
            "(float[N, 4] x) => (uint8[N, 4] y)",
        )
        for z in (100, 101)
    )
    assert judge(tmp_path, a, b).status == "different"
    assert judge(tmp_path, a, b, atol=0.5).status == "different"
    assert judge(tmp_path, a, b, rtol=0.5, atol=0.0).status == "verified"
    v = judge(tmp_path, a, b, atol=1.0)
    assert (v.status, v.exact) == ("verified", False)


def test_sequences_are_compared_by_their_element_type(tmp_path: Path) -> None:
    def text(body: str, kind: str) -> str:
        return model(body, f"({kind}[N, 4] x) => (seq({kind}[N, 4]) y)")

    near = "<double k = {%s}> { m = Mul (x, k) y = SequenceConstruct (m, x) }"
    assert judge(tmp_path, text(near % 0.3, "double"), text(near % 0.300000003, "double")).status == "different"
    half = "<float k = {%s}> { f = Cast <to = 1> (x) g = Mul (f, k) m = Cast <to = 10> (g) y = SequenceConstruct (m) }"
    assert judge(tmp_path, text(half % 0.3, "float16"), text(half % 0.3001, "float16")).status == "verified"


def test_the_worst_output_is_named(tmp_path: Path) -> None:
    outputs = "(float[4] x) => (float[4] fine, float[4] off)"
    a = model("{ fine = Neg (x) off = Relu (x) }", outputs)
    b = model("<float k = {1.5}> { fine = Neg (x) r = Relu (x) off = Mul (r, k) }", outputs)
    v = judge(tmp_path, a, b)
    assert v.status == "different"
    assert v.worst == "off"
    assert [(o.name, o.ok) for o in v.cases[0].outputs] == [("fine", True), ("off", False)]


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("{ y = Relu (x) }", "{ z = Relu (x) y = Cast <to = 11> (z) }", "type float32 became float64"),
        ("{ y = Relu (x) }", "{ z = Relu (x) y = Flatten <axis = 0> (z) }", "shape"),
        ("{ y = Sqrt (x) }", "{ a = Abs (x) y = Sqrt (a) }", "NaN in other places"),
        (
            "<float o = {0.0}> { s = Mul (x, o) t = Abs (s) y = Div (x, t) }",
            "{ y = Neg (x) }",
            "in other places",
        ),
        ("{ y = Relu (x) }", "{ y = NoSuchOperator (x) }", "cannot be loaded"),
        ("{ y = Relu (x) }", "{ z = Relu (x) }", "cannot be loaded"),
    ],
    ids=["type", "shape", "nan", "inf", "operator", "invalid"],
)
def test_kinds_of_differences(a: str, b: str, says: str, tmp_path: Path) -> None:
    signature = "(float[N, 4] x) => (y)"
    v = judge(tmp_path, model(a, signature), model(b, signature))
    assert (v.status, v.is_unloaded) == ("different", says == "cannot be loaded")
    notes = [o.note for c in v.cases for o in c.outputs if not o.ok]
    assert all(says in text for text in notes or [v.message])


def test_an_operator_of_another_version_differs_under_either_domain_name(tmp_path: Path) -> None:
    """Softmax of opsets 11 and 13 differ, also in domain "ai.onnx".

    Until opset 13, Softmax normalized over `axis` and all later axes.
    """
    signature = "(float[2, 3, 4] x) => (float[2, 3, 4] y, int64[2, 1, 4] i)"
    a, b = (
        model("{ y = Softmax <axis = 1> (x) i = ArgMax <axis = 1> (y) }", signature, f'opset_import: ["ai.onnx" : {n}]')
        for n in (11, 13)
    )
    assert judge(tmp_path, a, b).status == "different"


def test_outputs_keep_their_order(tmp_path: Path) -> None:
    a = model("{ p = Relu (x) q = Neg (x) }", "(float[4] x) => (float[4] p, float[4] q)")
    b = model("{ p = Relu (x) q = Neg (x) }", "(float[4] x) => (float[4] q, float[4] p)")
    assert "outputs of the result are ['q', 'p']" in judge(tmp_path, a, b).message


def test_index_inputs_stay_inside_the_indexed_table(tmp_path: Path) -> None:
    text = model(
        "<float[3, 2] table = {1, 2, 3, 4, 5, 6}> { e = Gather (table, ids) y = Relu (e) }",
        "(int64[N, S] ids) => (float[N, S, 2] y)",
    )
    v = judge(tmp_path, text, text)
    assert v.status == "equal"
    assert len(v.cases) == 2


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_8_bit_inputs_have_their_full_range(kind: str, tmp_path: Path) -> None:
    """8-bit inputs take all values, like pictures and quantized data."""
    signature = f"({kind}[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y)"
    other = "int8" if kind == "uint8" else "uint8"
    through = f"{{ z = Cast <to = {2 if other == 'uint8' else 3}> (x) y = Cast <to = 1> (z) }}"
    v = judge(tmp_path, model("{ y = Cast <to = 1> (x) }", signature), model(through, signature))
    assert v.status == "different"


def test_8_bit_inputs_are_small_if_the_model_needs_it(tmp_path: Path) -> None:
    text = model("{ i = Cast <to = 7> (n) e = Gather (x, i) y = Tanh (e) }", "(float[4] x, uint8[N] n) => (float[N] y)")
    v = judge(tmp_path, text, text)
    assert (v.status, len(v.cases)) == ("equal", 2), v.message


def test_given_inputs_are_used(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 4), -1, np.float32))
    negative_only = model("{ y = Neg (x) }")
    absolute = model("{ y = Abs (x) }")
    assert judge(tmp_path, negative_only, absolute).status == "different"
    v = judge(tmp_path, negative_only, absolute, inputs={"x": str(tmp_path / "x.npy")})
    assert v.agrees, v.message
    with pytest.raises(UsageError, match="has no input `no`"):
        judge(tmp_path, RELU, RELU, inputs={"no": str(tmp_path / "x.npy")})


def test_overridable_initializers_are_fed_with_other_values(tmp_path: Path) -> None:
    a = parser.parse_model(model("{ y = Mul (x, w) }", "(float[2] x, float[2] w) => (float[2] y)"))
    a.graph.initializer.append(numpy_helper.from_array(np.array([2, 3], np.float32), "w"))
    b = parser.parse_model(
        model("<float[2] k = {2, 3}> { y = Mul (x, k) }", "(float[2] x, float[2] w) => (float[2] y)")
    )
    b.graph.initializer.append(numpy_helper.from_array(np.array([2, 3], np.float32), "w"))
    for name, proto in (("a", a), ("b", b)):
        (tmp_path / f"{name}.onnx").write_bytes(proto.SerializeToString())
    v = verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert v.status == "different", "right for the default of w only"
    assert v.hint == "", "nothing was optimized: there is no pass to find"
    assert v.cases[-1].name == "other values for overridable initializers"


def test_an_overridable_initializer_of_zeros_is_overridden(tmp_path: Path) -> None:
    signature = "(float[N, 4] x, float[1] bias) => (float[N, 4] y)"
    a, b = (model(f"<float[1] bias = {{0}}> {{ y = {op} }}", signature) for op in ("Add (x, bias)", "Identity (x)"))
    assert judge(tmp_path, a, b).status == "different", "right for the default only"


@pytest.mark.parametrize(
    ("body", "says"),
    [("<float k = {0.0}> { y = Mul (x, k) }", "is all zero"), ("{ z = Sub (x, x) y = Div (z, z) }", "is all NaN")],
)
def test_outputs_without_evidence_are_inconclusive(body: str, says: str, tmp_path: Path) -> None:
    signature = "(float[4] x) => (float[4] y)"
    otherwise = body.replace("{ y = Mul (x", "{ i = Identity (x) y = Mul (i").replace(
        "y = Div (z", "i = Identity (z) y = Div (i"
    )
    v = judge(tmp_path, model(body, signature), model(otherwise, signature))
    assert v.status == "inconclusive"
    assert says in v.message


def test_inner_values_are_evidence_for_a_constant_output(tmp_path: Path) -> None:
    """A constant output is verified in pieces, by inner values that vary."""
    signature = "(float[4] x) => (float[4] y)"
    a = model("{ s = Sin (x) z = Sub (s, s) y = Exp (z) }", signature)
    b = model("{ i = Identity (x) s = Sin (i) z = Sub (s, s) y = Exp (z) }", signature)
    assert judge(tmp_path, a, b).status == "verified in pieces"
    assert judge(tmp_path, a, a).status == "verified in pieces", "the same nodes need no evidence"


def test_an_untaken_branch_is_compared(tmp_path: Path) -> None:
    text = model(
        """<float limit = {1e9}> { s = ReduceSum <keepdims = 0> (x) c = Greater (s, limit)
        y = If (c) <then_branch = t () => (float[4] p) { p = Neg (x) },
                    else_branch = e () => (float[4] q) { q = Relu (x) }> }""",
        "(float[4] x) => (float[4] y)",
    )
    assert judge(tmp_path, text, text).status == "verified in pieces", "it is the same in both"
    v = judge(tmp_path, text, text.replace("Neg (x)", "Abs (x)"))
    assert v.status == "different"
    assert [p.scope for p in v.places] == ["main / If / then_branch"]


def test_an_untaken_branch_that_fails_is_inconclusive(tmp_path: Path) -> None:
    """An untaken branch that fails on forced inputs is inconclusive."""
    text = model(
        """<float limit = {1e9}, int64[1] three = {3}> { s = ReduceSum <keepdims = 0> (x) c = Greater (s, limit)
        y = If (c) <then_branch = t () => (float[M] p) { r = Reshape (x, three) %s p = Neg (%s) },
                    else_branch = e () => (float[M] q) { q = Relu (x) }> }""",
        "(float[4] x) => (float[M] y)",
    )
    v = judge(tmp_path, text % ("", "r"), text % ("n = Neg (r) i = Neg (n)", "i"))
    assert (v.status, gaps(v)) == ("inconclusive", ["the then branch on `c` was never taken"]), v.message


BOUNDED = """<int64 limit = {5000}, int64[1] three = {3}, int64[1] zero = {0}, int64[1] four = {4}>
    { DECIDES c = Greater (s, limit)
    y = If (c) <then_branch = t () => (float[M] p) { r = Reshape (x, three) MORE p = Neg (READ) },
                else_branch = e () => (float[M] q) { q = Relu (x) }> }"""


@pytest.mark.parametrize(
    ("size", "decides", "status"),
    [
        ("4", "n = Shape (x) s = Squeeze (n, zero)", "equal"),
        ("N", "n = Shape (x) m = Concat <axis = 0> (n, four) s = Size (m)", "equal"),
        ("N", "n = Shape (x) s = Squeeze (n, zero)", "inconclusive"),
        ("4", "n = NonZero (x) m = Shape (n) s = ReduceSum <keepdims = 0> (m)", "inconclusive"),
        (
            "4",
            "a = Abs (x) b = ReduceMax (a) k = Cast <to = 7> (b) t = Slice (x, zero, k) "
            "m = Shape (t) s = Squeeze (m, zero)",
            "inconclusive",
        ),
    ],
)
def test_a_branch_excluded_by_fixed_sizes_needs_no_evidence(
    tmp_path: Path, size: str, decides: str, status: str
) -> None:
    """A branch excluded by fixed sizes or the rank needs no evidence; one excluded by data or free sizes does."""
    text = model(BOUNDED.replace("DECIDES", decides), f"(float[{size}] x) => (float[M] y)")
    one, other = (
        text.replace("MORE", more).replace("READ", read) for more, read in (("", "r"), ("o = Neg (r) i = Neg (o)", "i"))
    )
    assert judge(tmp_path, one, other).status == status


def test_a_random_model_is_verified_in_pieces(tmp_path: Path) -> None:
    text = model("{ r = RandomNormalLike (x) y = Add (x, r) }")
    assert judge(tmp_path, text, text).status == "verified in pieces", "what it draws is fed"
    stray = model("{ r = RandomNormalLike <seed = 1.0> (x) y = Add (x, r) }")
    assert judge(tmp_path, text, stray).status == "different"


def test_an_unknown_operator_is_not_verified(tmp_path: Path) -> None:
    text = model("{ y = my.Op (x) }", header='opset_import: ["" : 17, "my" : 1]')
    v = judge(tmp_path, text, text)
    assert v.status == "not verified"
    assert "my" in v.message


def test_an_opset_the_runtime_does_not_know_is_run_by_the_reference(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    a = parser.parse_model(RELU)
    a.opset_import[0].version, a.ir_version = newest, onnx.IR_VERSION
    path = tmp_path / "a.onnx"
    path.write_bytes(a.SerializeToString())
    v = verify(path, path)
    assert v.status == "equal"
    a.ir_version = onnx.IR_VERSION + 1  # newer than any runtime
    path.write_bytes(a.SerializeToString())
    v = verify(path, path)
    assert v.status in ("equal", "not verified")
    assert v.engine == "reference" or "cannot load" in v.message


def test_external_data_is_found(tmp_path: Path) -> None:
    proto = parser.parse_model(RELU)
    proto.graph.node.add(op_type="Add", input=["y", "w"], output=["z"])
    proto.graph.output[0].name = "z"
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    path = tmp_path / "a.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert verify(path, path).status == "equal"


def test_results_are_judged_one_after_the_other(tmp_path: Path) -> None:
    """Each result gets its own verdict, whatever the verdicts before."""
    texts = {"a": RELU, "b": model("{ y = Abs (x) }"), "c": "no model"}
    for name, text in texts.items():
        data = parser.parse_model(text).SerializeToString() if name != "c" else text.encode()
        (tmp_path / name).write_bytes(data)
    with Verifier(tmp_path / "a") as verifier:
        for name, status in (("a", "equal"), ("c", "different"), ("b", "different"), ("a", "equal")):
            verifier.submit(tmp_path / name)
            assert verifier.finish().status == status
    with Verifier(tmp_path / "c") as verifier:
        for _ in range(2):
            with pytest.raises(ModelError, match="is not an ONNX model"):
                verifier.submit(tmp_path / "a")
    refused = model("{ y = NoSuchOperator (x) }")
    (tmp_path / "d").write_bytes(parser.parse_model(refused).SerializeToString())
    with Verifier(tmp_path / "d") as verifier:
        for _ in range(2):
            verifier.submit(tmp_path / "a")
            assert "cannot load the original" in verifier.finish().message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(parser.parse_model(RELU).SerializeToString())
    for original, result in (("no", "a"), ("a", "no")):
        verifier = Verifier(tmp_path / original)
        with pytest.raises(ModelError, match="no: no such file"):
            verifier.submit(tmp_path / result)
    with pytest.raises(ModelError, match="is a directory"):
        Verifier(tmp_path).submit(tmp_path / "a")
    with pytest.raises(UsageError, match="the path of a model is expected, not ModelProto"):
        Verifier(onnx.load(tmp_path / "a"))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_started", [False, True])
def test_finishing_before_submitting_is_an_error(tmp_path: Path, *, is_started: bool) -> None:
    (tmp_path / "a").write_bytes(parser.parse_model(RELU).SerializeToString())
    verifier = Verifier(tmp_path / "a")
    if is_started:
        verifier.start()
    with pytest.raises(UsageError, match="nothing was submitted"):
        verifier.finish()
    verifier.close()


FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[N, 4] x) => (float[N, 4] y)
    { p = Neg (x) q = f.twice (p) y = Sin (q) }
    <domain: "f", opset_import: ["" : 17]> twice (u) => (w) { w = %s (u, u) }"""


def test_calls_of_different_functions_of_one_name_are_compared(tmp_path: Path) -> None:
    v = judge(tmp_path, FUNCTION % "Add", FUNCTION % "Mul")
    assert (v.status, [p.value for p in v.places]) == ("different", ["q"])


def test_equal_nodes_of_different_opsets_are_compared(tmp_path: Path) -> None:
    """Softmax nodes of opsets 12 and 13 look alike, and differ."""
    texts = [
        f'<ir_version: 8, opset_import: ["" : {n}]> g (float[N, 3, 4] x) => (float[N, 3, 4] y)'
        "{ p = Neg (x) q = Softmax (p) y = Sin (q) }"
        for n in (12, 13)
    ]
    v = judge(tmp_path, *texts)
    assert (v.status, [p.value for p in v.places]) == ("different", ["q"])


@pytest.mark.parametrize("ir", [3, 8])
def test_a_changed_default_is_not_overridden_in_both(ir: int, tmp_path: Path) -> None:
    for name, k in (("a", 1.0), ("b", 1.5)):
        text = f'<ir_version: {ir}, opset_import: ["" : 17]> g (float[N, 4] x, float[4] w) => (float[N, 4] y)'
        proto = parser.parse_model(text + "{ p = Mul (x, w) q = Neg (p) y = Sin (q) }")
        proto.graph.initializer.append(numpy_helper.from_array(np.full(4, k, np.float32), "w"))
        (tmp_path / f"{name}.onnx").write_bytes(proto.SerializeToString())
    v = verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert (v.status, [p.value for p in v.places]) == ("different", ["p"])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("data", "says"), [(None, "no such file"), (b"no model", "cannot be parsed"), (b"", "is empty")]
)
def test_a_file_without_model_is_an_error(data: bytes | None, says: str, first: bool, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(RELU), tmp_path / "good.onnx")
    if data is not None:
        (tmp_path / "bad.onnx").write_bytes(data)
    pair = [tmp_path / "bad.onnx", tmp_path / "good.onnx"]
    with pytest.raises(ModelError, match=rf"bad\.onnx.*{says}"):
        verify(*(pair if first else pair[::-1]))
