"""Faults at numbers that a model clips, compares or computes with are found, beyond small numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import AGREES, DIFFERENT, EQUAL, VerifyOptions, verify
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.uses import INDEX, SIZE, UNKNOWN, Uses
from onnxopt.verification.inputs.values import InputMaker

# (name, interface, constants, body, change that makes a fault)
WRONG = [
    ("Abs of integers", "int64[n] x", "int64[n] y", "", "y = Abs (x)", ("Abs", "Identity")),
    ("Clip of integers", "int64[n] x", "int64[n] y", "int64 a = {-10}, int64 b = {10}", "y = Clip (x, a, b)",
     ("{10}", "{11}")),
    ("division", "int32[n] x", "int32[n] y", "int32 a = {7}", "y = Div (x, a)", ("{7}", "{8}")),
    ("shift", "uint32[n] x", "uint32[n] y", "uint32 a = {5}", 'y = BitShift <direction = "RIGHT"> (x, a)',
     ("{5}", "{6}")),
    ("comparison", "int64[n] x", "bool[n] y", "int64 a = {1000}, int64 c = {2}", "t = Mul (x, c) y = Less (t, a)",
     ("{1000}", "{1003}")),
    ("narrower integers", "int64[n] x", "int64[n] y", "", "t = Cast <to = 6> (x) y = Cast <to = 7> (t)",
     ("<to = 6>", "<to = 7>")),
    ("single number", "int64 x, int64[3] v", "int64[3] y", "int64 a = {37}", "t = Min (x, a) y = Mul (t, v)",
     ("{37}", "{38}")),
    ("sign of a single number", "int64 x, int64[3] v", "int64[3] y", "", "t = Abs (x) y = Mul (t, v)",
     ("Abs", "Identity")),
    ("index that is bounded", "int64[n] x", "float[n] y", "float[4] w = {1, 2, 3, 4}, int64 a = {0}, int64 b = {3}",
     "t = Clip (x, a, b) y = Gather (w, t)", ("{3}", "{2}")),
    ("last row behind an offset", "int64[n] x", "float[n] y", "float[4] w = {1, 2, 3, 4}, int64 a = {2}",
     "t = Add (x, a) y = Gather (w, t)", ("3, 4}", "3, 5}")),
    ("index from the end", "float[8] v, int64[1] x", "float[k] y", "int64[1] a = {0}, int64[1] b = {99}, int64 c = {0}",
     "t = Max (x, c) y = Slice (v, t, b, a)", ("Max (x, c)", "Identity (x)")),
    ("bounds", "float[n] x", "float[n] y", "float a = {-6}, float b = {6}", "y = Clip (x, a, b)", ("{6}", "{7}")),
    ("far bounds", "float[n] x", "float[n] y", "float a = {1000}", "y = Min (x, a)", ("{1000}", "{1300}")),
    ("scaled", "float[n] x", "float[n] y", "float a = {127.5}, float b = {58}, float c = {-2}, float d = {2}",
     "s = Sub (x, a) t = Div (s, b) y = Clip (t, c, d)", ("{2}", "{2.5}")),
    ("threshold that is met", "float[n] x", "bool[n] y", "float a = {40}", "y = Greater (x, a)",
     ("Greater ", "GreaterOrEqual ")),
    ("bound behind a convolution", "float[1, 1, 16, 16] x", "float[1, 1, 15, 15] y",
     "float[1, 1, 2, 2] w = {0.4, -0.5, 0.3, 0.6}, float a = {0}, float b = {6}",
     "t = Conv (x, w) y = Clip (t, a, b)", ("{6}", "{7}")),
    ("rounded before steps", "float[n] x", "float[n] y", "",
     "c = Cast <to = 1> (x) d = Cast <to = 1> (c) y = Round (d)", ("c = Cast <to = 1>", "c = Cast <to = 10>")),
    ("no number", "float[n] x", "float[n] y", "float a = {3}", "b = IsNaN (x) y = Where (b, a, x)", ("{3}", "{4}")),
    ("not equal to itself", "float[n] x", "float[n] y", "float a = {3}", "b = Equal (x, x) y = Where (b, x, a)",
     ("{3}", "{4}")),
    ("zero that is met", "float[n] x", "bool[n] y", "float a = {0}", "y = Greater (x, a)",
     ("Greater ", "GreaterOrEqual ")),
    ("guard of a division", "float[n] x", "float[n] y", "float a = {0}, float b = {1}",
     "e = Equal (x, a) d = Where (e, b, x) y = Div (b, d)", ("Div (b, d)", "Div (b, x)")),
    ("mask by its use", "float[n, 4] here, float[n, 4] x", "float[n, 4] y", "float a = {1}, float b = {-10000}",
     "t = Sub (a, here) s = Mul (t, b) z = Add (x, s) y = Softmax (z)", ("z = Add (x, s)", "z = Identity (s)")),
    ("a sound is no mask", "float[n, 4] x", "float[n, 4] y", "float a = {32768}", "t = Mul (x, a) y = Abs (t)",
     ("Abs (t)", "Identity (t)")),
    ("words", "string[n] x", "int64[n] y", "",
     'y = ai.onnx.ml.LabelEncoder <keys_strings = ["cat", "dog"], values_int64s = [3, 4], default_int64 = -1> (x)',
     ("[3, 4]", "[3, 5]")),
    ("trips", "int64 x, float[2] v", "float[2] y", "bool on = {1}",
     "y = Loop (x, on, v) <body = body (int64 i, bool c, float[2] s) => (bool d, float[2] r)"
     " <float two = {2}> { d = Identity (c) f = Cast <to = 1> (i) k = Min (f, two) r = Add (s, k) }>",
     ("Min (f, two)", "Identity (f)")),
]  # fmt: skip


def model(inputs: str, output: str, constants: str, body: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>'
    return parser.parse_model(f"{head} g ({inputs}) => ({output}) <{constants}> {{ {body} }}")


def saved(proto: onnx.ModelProto, path: Path) -> Path:
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    ("inputs", "output", "constants", "body", "change"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_faults_beyond_small_numbers_are_found(
    inputs: str, output: str, constants: str, body: str, change: tuple[str, str], tmp_path: Path
) -> None:
    a = saved(model(inputs, output, constants, body), tmp_path / "a.onnx")
    changed = (text.replace(*change) for text in (constants, body))
    b = saved(model(inputs, output, *changed), tmp_path / "b.onnx")
    assert verify(a, a).status in AGREES
    assert verify(a, b).status == DIFFERENT
    named = VerifyOptions(cases=("random", "extremes", "wide", "edges"))
    assert verify(a, b, named).status == DIFFERENT


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("y = Gather (v, x)", INDEX),
        ("t = Add (x, x) y = Gather (v, t)", INDEX),
        ("s = ConstantOfShape (x) y = Add (v, s)", SIZE),
        ("b = Equal (x, x) y = Where (b, v, v)", ""),
        ("f = Cast <to = 1> (x) y = Add (v, f)", ""),
        ("f = Cast <to = 1> (x) g = Sin (f) k = Cast <to = 7> (g) y = Expand (v, k)", SIZE),
        ("y = com.acme.Find (v, x)", UNKNOWN),
        ("t = If (c) <then_branch = a () => (int64[1] p) { p = Neg (x) },"
         " else_branch = b () => (int64[1] q) { q = Identity (x) }> y = Expand (v, t)", SIZE),
    ],
)  # fmt: skip
def test_roles_of_integer_inputs(body: str, role: str) -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>'
        f"g (float[4] v, int64[1] x, bool c) => (float[k] y) {{ {body} }}"
    )
    assert Uses(proto.graph).found["x"].role == role


def test_a_model_without_breakpoints_has_two_cases(tmp_path: Path) -> None:
    table = "float[2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8}"
    body = "e = Gather (w, ids) s = Add (e, x) y = Softmax (s)"
    path = saved(model("int64[n] ids, float[n, 4] x", "float[n, 4] y", table, body), tmp_path / "m.onnx")
    assert [c.name for c in verify(path, path).cases] == ["case 1", "case 2"]


def test_refused_wide_numbers_are_left_out(tmp_path: Path) -> None:
    """Numbers refused by the original make no case.

    The index is bounded by computed rows, which the plan does not know.
    """
    text = "t = Concat <axis = 0> (v, v) i = Sub (x, one) j = Abs (i) y = Gather (t, j)"
    path = saved(model("float[2] v, int64[n] x", "float[n] y", "int64 one = {1}", text), tmp_path / "m.onnx")
    verdict = verify(path, path)
    assert verdict.status == EQUAL, verdict.message


def test_overflowing_wide_numbers_are_left_out(tmp_path: Path) -> None:
    path = saved(
        model(
            "float[n] x", "float[n] y", "float a = {600}, float b = {0}", "t = Max (x, b) s = Min (t, a) y = Exp (s)"
        ),
        tmp_path / "m.onnx",
    )
    assert "wide" not in [c.name for c in verify(path, path).cases]


def test_wide_numbers_that_crash_the_original_are_left_out(tmp_path: Path) -> None:
    """Numbers that crash the original make no case.

    Division of the smallest integer by -1 ends a process on many machines, and gives a number on others.
    """
    consts = "int64 a = {4611686018427387904}, int64 b = {-1}"
    path = saved(model("int64[n] x", "int64[n] y", consts, "t = Mul (x, a) y = Div (t, b)"), tmp_path / "m.onnx")
    assert verify(path, path).status in AGREES
    assert verify(path, path, VerifyOptions(cases=("random", "wide"))).status in AGREES


def test_wide_values() -> None:
    proto = model("int32[n] x, uint16[n] z, float[n] f", "int32[n] y, float[n] g", "int32 a = {1000}, float b = {300}",
                  "y = Min (x, a) g = Min (f, b)")  # fmt: skip
    plan = make_plan(proto)
    wide = next(r for r in OWN if r.name == "wide")
    feeds = InputMaker(plan, {}, 0).fill(wide, {"n": 16}, "wide").feeds
    assert {999, 1000, 1001} <= {*feeds["x"].tolist()}
    assert feeds["x"].min() < -1000 and abs(feeds["x"].astype(np.int64)).max() <= 46340
    assert 300.0 not in feeds["f"] and {225.0, 375.0, 600.0} <= {*feeds["f"].tolist()}
    edges = next(r for r in OWN if r.name == "edges")
    assert 300.0 in InputMaker(plan, {}, 0).fill(edges, {"n": 16}, "wide").feeds["f"]


def test_few_numbers_have_both_signs() -> None:
    plan = make_plan(model("float[n] x", "float[n] y", "", "y = Abs (x)"))
    for seed in range(8):
        x = InputMaker(plan, seed=seed, given={}).fill(OWN[1], {"n": 2}).feeds["x"]
        assert x.min() < 0 < x.max()


def test_compared_tokens_in_range_need_no_wide_case() -> None:
    table = "float[4, 1] w = {1, 2, 3, 4}, int64 pad = {1}, float z = {0}"
    body = "e = Gather (w, x) p = Equal (x, pad) y = Where (p, z, e)"
    assert not make_plan(model("int64[n, 1] x", "float[n, 1, 1] y", table, body)).inputs[0].asks
    assert make_plan(model("int64[n, 1] x", "float[n, 1, 1] y", table.replace("{1}", "{-1}"), body)).inputs[0].asks
