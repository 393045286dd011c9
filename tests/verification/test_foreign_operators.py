"""Operators without kernel or reference: the parts before and behind are verified, and the verdict counts the nodes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt import optimize_file
from onnxopt.verification import (
    DIFFERENT,
    IN_PIECES,
    INCONCLUSIVE,
    UNVERIFIED,
    Verification,
    Verifier,
    VerifyOptions,
    verify,
)
from tests.verification.pairs import verdict

MODEL = """
<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[n, 4] x) => (float[n, 4] y, float[n, 2] z)
<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}, float half = {0.5}>
{
  before = MatMul (x, w)
  read = Mul (before, half)
  found = com.acme.Find <threshold = 0.5> (read)
  behind = Add (found, half)
  y = Relu (behind)
  z = com.acme.Last (found, x)
}
"""


def judge(tmp_path: Path, b: str, a: str = MODEL) -> Verification:
    return verdict(tmp_path, a, b)


def test_parts_before_and_behind_foreign_nodes_agree(tmp_path: Path) -> None:
    other = MODEL.replace(
        "read = Mul (before, half)", "two = Add (half, half) r = Mul (half, before) read = Mul (r, two)"
    )
    found = judge(tmp_path, other.replace("z = com", "behind2 = Identity (behind) z = com"))
    assert found.status == IN_PIECES
    assert found.message.endswith(
        "2 cases (n=2; n=64), before and behind 2 nodes that no runtime here can run (com.acme.Find, com.acme.Last)"
    )


@pytest.mark.parametrize(
    "wrong", [("(before, half)", "(before, before)"), ("y = Relu", "y = Neg"), ("(x, w)", "(x, v)")]
)
def test_a_fault_before_or_behind_foreign_nodes_is_found(wrong: tuple[str, str], tmp_path: Path) -> None:
    other = MODEL.replace(*wrong).replace("before = ", "v = Transpose (w) before = ")
    assert judge(tmp_path, other).status == DIFFERENT


def test_foreign_nodes_must_be_the_same(tmp_path: Path) -> None:
    assert judge(tmp_path, MODEL.replace("0.5>", "0.6>")).status == UNVERIFIED
    assert judge(tmp_path, MODEL.replace("(found, x)", "(found, half)")).status == DIFFERENT
    assert judge(tmp_path, MODEL.replace("(read)", "(before)")).status == DIFFERENT


BEHIND = """<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]> g (float[n, 4] x) => (float[n, 4] y)
    <float one = {{1}}, float half = {{0.5}}> {{ a = Relu (x) {made} }}"""
FIRST = "q = com.acme.Find (x) s = Add (q, a) "
TWO = "p = com.acme.Find (a) y = Mul (p, one)"


@pytest.mark.parametrize(
    ("a", "b", "status"),
    [
        (TWO, "y = com.acme.Find (a)", IN_PIECES),
        (TWO, "q = com.acme.Find (a) p = Identity (q) y = Mul (p, one)", UNVERIFIED),  # q is the output
        (TWO.replace("one", "half"), "y = com.acme.Find (a)", DIFFERENT),
        (TWO, "y = com.acme.Find (x)", DIFFERENT),
        (TWO, "y = com.acme.Find <k = 2> (a)", UNVERIFIED),
        (FIRST + TWO.replace("(a)", "(s)"), FIRST + "y = com.acme.Find (s)", IN_PIECES),
    ],
)  # fmt: skip
def test_the_output_of_a_foreign_node_may_be_renamed(a: str, b: str, status: str, tmp_path: Path) -> None:
    """A removed factor of one renames the output of the foreign node: the verdict pairs the nodes."""
    found = judge(tmp_path, BEHIND.format(made=b), BEHIND.format(made=a))
    assert found.status == status, found.message


RENAMED = """
<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>
g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z, float[n, 4] u)
{
  found = com.acme.Find (x)
  again = Identity (found)
  z = Identity (again)
  y = Identity (found)
  other = com.acme.Find (found)
  u = Mul (other, found)
}
"""
RESULT = (
    RENAMED.partition("{")[0]
    + """{
  y = com.acme.Find (x)
  z = Identity (y)
  other = com.acme.Find (y)
  u = Mul (other, y)
}"""
)


@pytest.mark.parametrize("made", ["y", "z"])
def test_an_identity_behind_foreign_nodes_may_be_removed(made: str, tmp_path: Path) -> None:
    """An Identity behind a foreign node may be removed.

    Without the Identity, the node makes the graph output, under another name.
    """
    result = RESULT
    if made == "z":
        result = result.replace("y = com", "z = com").replace("z = Identity (y)", "y = Identity (z)")
    found = judge(tmp_path, result, RENAMED)
    assert (found.status, "before and behind 2 nodes" in found.message) == (IN_PIECES, True)
    assert in_segments(tmp_path, result, RENAMED).status == IN_PIECES
    for wrong in (("z = Identity (y)", "z = Neg (y)"), ("Mul (other, y)", "Mul (other, x)"), ("Find (y)", "Find (x)")):
        if wrong[0] in result:
            assert judge(tmp_path, result.replace(*wrong), RENAMED).status == DIFFERENT
    assert judge(tmp_path, result.replace("u = Mul", "v = Neg (y) u = Div"), RENAMED).status == DIFFERENT


def test_an_identity_removed_behind_outputs_of_unknown_shape_is_no_difference(tmp_path: Path) -> None:
    text = RENAMED.replace("u = Mul (other, found)", "v = Expand (found, seven) w = Add (found, v) u = Mul (w, other)")
    text = text.replace("{", "<int64[1] seven = {7}> {").replace("float[n, 4] y, float[n, 4] z", "y, z")
    result = text.replace("found", "y").replace("y = Identity (y)", "").replace("again = Identity (y)", "")
    result = result.replace("Identity (again)", "Identity (y)")
    found = judge(tmp_path, result, text)
    assert (found.status, "before 2 nodes" in found.message) == (INCONCLUSIVE, True)
    assert (
        judge(tmp_path, result.replace("Find (x)", "Find (y0)").replace("y = com", "y0 = Neg (x) y = com"), text).status
        == DIFFERENT
    )


SEGMENTS = "from onnxopt.verification import judge, original; original._NODES = {}; judge.main()"


def in_segments(tmp_path: Path, b: str, a: str = MODEL, nodes: int = 3) -> Verification:
    """Return the verdict with segments from `nodes` nodes on."""
    for name, text in (("a", a), ("b", b)):
        onnx.save(parser.parse_model(text), tmp_path / name)
    with Verifier(tmp_path / "a", start=SEGMENTS.format(nodes)) as verifier:
        verifier.submit(tmp_path / "b")
        return verifier.finish()


def test_a_model_with_foreign_nodes_is_run_in_segments(tmp_path: Path) -> None:
    found = in_segments(tmp_path, MODEL.replace("(before, half)", "(half, before)"))
    assert found.status == IN_PIECES
    assert found.message.endswith("behind 2 nodes that no runtime here can run (com.acme.Find, com.acme.Last)")
    assert in_segments(tmp_path, MODEL.replace("y = Relu", "y = Neg")).status == DIFFERENT
    assert in_segments(tmp_path, MODEL.replace("0.5>", "0.6>")).status == UNVERIFIED


def test_a_model_with_many_foreign_nodes_is_verified_in_pieces(tmp_path: Path) -> None:
    """A model of 400 foreign nodes in a chain is verified in pieces. Outputs of the nodes are declared nowhere."""
    head, count = MODEL[: MODEL.index("g (")], 400
    steps = (f"a{i} = Abs (b{i}) c{i} = com.acme.Find (a{i}) b{i + 1} = Tanh (c{i})" for i in range(count))
    text = f"{head} g (float[n, 4] b0) => (float[n, 4] y) {{ {' '.join(steps)} y = Neg (b{count}) }}"
    found = in_segments(tmp_path, text, text, nodes=1000)
    assert found.status == IN_PIECES, found.message


@pytest.mark.parametrize("nodes", [3, 1000])
def test_unread_foreign_nodes_need_no_evidence(nodes: int, tmp_path: Path) -> None:
    text = MODEL.replace("z = com.acme.Last (found, x)", "z = Identity (x)").replace("[n, 2]", "[n, 4]")
    text = text.replace("(found, half)", "(read, half)")
    found = in_segments(tmp_path, text, text, nodes)
    assert found.agrees and "can run" not in found.message, found.message
    called = text.replace("found = com.acme.Find <threshold = 0.5> (read)", "")
    called += """<domain: "own", opset_import: ["" : 17, "com.acme" : 1]> F (p) => (q) { q = com.acme.Find (p) }"""
    found = in_segments(tmp_path, called, called, nodes)
    assert found.status == "equal", found.message


def test_foreign_nodes_in_bodies_and_functions(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "com.acme" : 1, "own" : 1]>
    g (bool c, float[3] x) => (float[3] y)
    {
      e = Exp (x)
      f = If (c) <then_branch = t () => (float[3] a) { a = com.acme.Find (e) },
                  else_branch = u () => (float[3] b) { b = Neg (e) }>
      h = own.Twice (f)
      y = Sigmoid (h)
    }
    <domain: "own", opset_import: ["" : 17, "com.acme" : 1]> Twice (p) => (q) { s = com.acme.Find (p) q = Add (s, s) }
    """
    found = judge(tmp_path, text, text)
    assert found.status == IN_PIECES, found.message
    assert "2 nodes that no runtime here can run (If, own.Twice)" in found.message
    assert judge(tmp_path, text.replace("e = Exp", "e = Sin"), text).status == DIFFERENT


def test_parts_behind_outputs_of_unknown_shape_are_inconclusive(tmp_path: Path) -> None:
    """Parts behind a foreign node of unknown output shape are not run: the verdict is inconclusive.

    The assumed shape, that of the node's input, does not fit.
    """
    text = MODEL.replace("behind = Add (found, half)", "v = Expand (half, seven) behind = Add (found, v)")
    text = text.replace("float half", "int64[1] seven = {7}, float half")
    found = judge(tmp_path, text, text)
    assert found.status == INCONCLUSIVE
    assert "before 2 nodes that no runtime here can run" in found.message
    assert found.reasons == ["nodes behind could not run, as their shapes are unknown"]
    assert judge(tmp_path, text.replace("(before, half)", "(before, before)"), text).status == DIFFERENT
    looked = verify(tmp_path / "a.onnx", tmp_path / "a.onnx", VerifyOptions(pieces=True))
    assert looked.pieces is not None
    assert (looked.status, looked.pieces.cuts, looked.pieces.note) == (INCONCLUSIVE, 3, "")


def test_strings_are_generated_if_a_locale_is_missing(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (string[n] x) => (string[n, m] y)
    {
      small = StringNormalizer <case_change_action = "LOWER", locale = "no_SUCH.UTF-8"> (x)
      same = Identity (small)
      y = com.microsoft.Tokenizer <mark = 0, mincharnum = 1, pad_value = "#", tokenexp = "[a-z0-9]+"> (same)
    }
    """
    found = judge(tmp_path, text.replace("Identity (small)", "Identity (small) again = Identity (same)"), text)
    assert found.status == IN_PIECES
    assert found.message.endswith("1 node that no runtime here can run (StringNormalizer)")
    assert judge(tmp_path, text.replace("[a-z0-9]+", "[a-z]"), text).status == DIFFERENT


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("float", "com.microsoft.GroupNorm <groups = 2, epsilon = 0.1, activation = 0> (a, g, g)"),  # GPU kernels only
        ("double", "LpPool <kernel_shape = [1, 1]> (a)"),  # float kernels only
    ],
)
def test_operators_without_a_kernel_for_their_types(kind: str, missing: str, tmp_path: Path) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    h ({kind}[N, 5, 6, 4] x, {kind}[4] g) => (y)
    {{ a = Sin (x) b = {missing} c = Exp (b) d = Cast <to = 1> (c) y = com.microsoft.QuickGelu (d) }}
    """
    found = judge(tmp_path, text.replace("c = Exp (b)", "i = Identity (b) c = Exp (i)"), text)
    assert found.status == IN_PIECES, found.message
    assert f"1 node that no runtime here can run ({missing.split()[0]})" in found.message
    assert judge(tmp_path, text.replace("Exp", "Neg"), text).status == DIFFERENT
    assert judge(tmp_path, text.replace("Sin", "Cos"), text).status == DIFFERENT


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parts_around_foreign_nodes_are_verified_in_a_narrower_type(dtype: str, tmp_path: Path) -> None:
    """Parts around foreign nodes are verified after `--dtype`. onnxruntime has few kernels for bfloat16."""
    onnx.save(parser.parse_model(MODEL), tmp_path / "a")
    report = optimize_file(tmp_path / "a", tmp_path / "b", dtype=dtype)
    assert report.verification is not None
    assert report.verification.status == IN_PIECES
    result = onnx.load(tmp_path / "b")
    weight = next(t for t in result.graph.initializer if list(t.dims) == [4, 4])
    assert weight.data_type == (onnx.TensorProto.FLOAT16 if dtype == "float16" else onnx.TensorProto.BFLOAT16)
    weight.raw_data = weight.raw_data[8:] + weight.raw_data[:8]
    onnx.save(result, tmp_path / "c")
    assert verify(tmp_path / "a", tmp_path / "c", VerifyOptions(dtype=dtype)).status == DIFFERENT
