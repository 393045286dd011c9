"""Rounding and faults are told apart: right rewrites that cancel, sum or merge; wrong ones that look like noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification, VerifyOptions, verify
from onnxopt.verification.compare import compare
from onnxopt.verification.rounding import Difference, Draws, are_integers, difference, is_exact, last_bit
from tests.verification.pairs import verdict, with_constants

X8, X64 = "(float[N,8] x) => (float[N,8] y)", "(float[N,64] x) => (bool[N,64] y)"
MATRIX = "(float[N,8] x) => (float[N,1] y)"
LONG = "(float[1,262144] x) => (float[1] y)"
PICTURE = "(float[1,3,512,512] x) => (float[1,3,1,1] y)"
SMALL = "(float[N,2,8] x) => (float[N,2,6] y)"
EXTENT = "m = ReduceMin <axes=[1]> (u) n = ReduceMax <axes=[1]> (u) s = Sub (n, m)"
MOMENTS = "(float[N,3,16,16] x) => (float[N,3] y)"
INTEGERS, PIXELS = "(int64[N,8] p) => (float[N,8] y)", "(uint8[N,3,8,8] p) => (bool[N,3,8,8] y)"
SCORES, BITS = "(float[N,16,8] x) => (int64[N,16] y)", "(int64[N,8] p) => (int64[N] y)"
Side = tuple[str, Mapping[str, object]]


def judge(tmp_path: Path, io: str, *sides: Side) -> Verification:
    models = []
    for body, numbers in sides:
        kinds = {name: None if isinstance(number, np.integer) else np.float32 for name, number in numbers.items()}
        constants = {name: np.asarray(number, kinds[name]) for name, number in numbers.items()}
        models.append(with_constants(f'<ir_version: 8, opset_import: ["" : 17]> g {io} {{ {body} }}', constants))
    return verdict(tmp_path, *models)


def shifted(c: float, d: float) -> Side:
    return "t = Add (x, c) y = Sub (t, d)", {"c": c, "d": d}


def plus(c: float) -> Side:
    return "y = Add (x, c)", {"c": c}


def variance(kind: str, mean: float) -> Side:
    two = "m = ReduceMean <axes=[2,3]> (f) d = Sub (f, m) s = Mul (d, d) y = ReduceMean <axes=[2,3], keepdims=0> (s)"
    one = """n = ReduceMean <axes=[2,3], keepdims=0> (f) q = Mul (n, n) r = Mul (f, f)
             e = ReduceMean <axes=[2,3], keepdims=0> (r) y = Sub (e, q)"""
    return f"f = Add (x, mean) {two if kind == 'two' else one}", {"mean": mean}


EXACT_273 = float(np.float32(273.15)) - 273.0
WEIGHTS = np.linspace(-0.5, 0.7, 8).reshape(8, 1)
KERNEL = np.linspace(-0.5, 0.7, 256 * 256 * 9).reshape(256, 256, 3, 3)
BIASED = "t = MatMul (x, w) u = Add (t, c) y = Sub (u, d)", {"w": WEIGHTS, "c": [64.0], "d": [63.5]}
AXIS = "i = Constant <value = int64[1] {1}> ()"
TURNS = [f"t{k + 1} = MatMul (t{k}, q)" for k in range(10)]  # no turn changes the range
TURN = np.linalg.qr(np.cos(np.arange(64.0).reshape(8, 8) ** 2))[0]


def turned(*by: float) -> Side:
    """Return a chain of rotations, with parts of a last sum."""
    sums = [f"s{k + 1} = Add (s{k}, c{k})" for k in range(len(by))]
    ends = {f"c{k}": np.float32([c, *[0.0] * 7]) for k, c in enumerate(by)}
    return " ".join(["t0 = Identity (x)", *TURNS, "s0 = Identity (t10)", *sums, f"y = Identity (s{len(by)})"]), {
        "q": TURN, **ends}  # fmt: skip


TWO_MEANS = "v = Relu (x) u = ReduceMean <axes=[3]> (v) y = ReduceMean <axes=[2]> (u)"
ONE_MEAN = "v = Relu (x) y = ReduceMean <axes=[2,3]> (v)"

RIGHT = {
    "1000": (X8, shifted(1000, 999.5), plus(0.5)),
    "273": (X8, shifted(273.15, 273), plus(EXACT_273)),
    "nothing left": (X8, shifted(273.15, 273.15), ("y = Identity (x)", {})),
    "1e5": (X8, shifted(1e5, 99999), plus(1)),
    "exact by chance in one element": ("(float[1] x) => (float[1] y)", shifted(1000, 1000.5), shifted(1700, 1700.5)),
    "one channel": (MATRIX, BIASED, ("t = MatMul (x, w) y = Add (t, c)", {"w": WEIGHTS, "c": [0.5]})),
    "before a convolution that is too long for the reference evaluator": (
        "(float[1,256,16,16] x) => (float[1,256,14,14] y)",
        ("t = Add (x, c) u = Sub (t, d) y = Conv (u, w)", {"c": 1e4, "d": 9999.5, "w": KERNEL}),
        ("u2 = Add (x, c) y = Conv (u2, w)", {"c": 0.5, "w": KERNEL}),
    ),
    "before a pool": (
        SMALL,
        ("t = Add (x, c) u = Sub (t, d) y = AveragePool <kernel_shape = [3]> (u)", {"c": 1e4, "d": 9999.5}),
        ("v = Add (x, e) y = AveragePool <kernel_shape = [3]> (v)", {"e": 0.5}),
    ),
    "least and largest": (
        X8,
        (f"{shifted(100, 37)[0].replace('y =', 'u =')} {EXTENT} v = Sub (u, m) y = Div (v, s)", shifted(100, 37)[1]),
        (f"u = Add (x, e) {EXTENT} r = Reciprocal (s) k = Mul (u, r) l = Mul (m, r) y = Sub (k, l)", {"e": 63.0}),
    ),
    "two means": (PICTURE, (ONE_MEAN, {}), (TWO_MEANS, {})),
    "global mean": (PICTURE, (ONE_MEAN, {}), ("v = Relu (x) y = GlobalAveragePool (v)", {})),
    "l1": (
        LONG,
        (f"v = Abs (x) {AXIS} y = ReduceSum <keepdims=0> (v, i)", {}),
        ("y = ReduceL1 <axes=[1], keepdims=0> (x)", {}),
    ),
    "l2": (
        LONG,
        (f"v = Mul (x, x) {AXIS} s = ReduceSum <keepdims=0> (v, i) y = Sqrt (s)", {}),
        ("y = ReduceL2 <axes=[1], keepdims=0> (x)", {}),
    ),
    "merged": (
        INTEGERS,
        ("f = Cast <to=1> (p) t = Mul (f, c) u = Mul (t, d) y = Sin (u)", {"c": 0.37, "d": 19.1}),
        ("f = Cast <to=1> (p) v = Mul (f, e) y = Sin (v)", {"e": float(np.float32(0.37)) * float(np.float32(19.1))}),
    ),
    "merged threshold": (
        PIXELS,
        ("f = Cast <to=1> (p) t = Mul (f, c) y = Greater (t, h)", {"c": 1 / 255, "h": 0.2}),
        ("f = Cast <to=1> (p) y = Greater (f, e)", {"e": 51.0}),
    ),
    "variance": (MOMENTS, variance("two", 0), variance("one", 0)),
}

WRONG = {
    "offset": (X8, shifted(1000, 999.5), plus(0.5 * 1.0002)),
    "little offset": (X8, shifted(1000, 999.5), plus(0.5 + 3e-5)),
    "factor": (X8, shifted(1000, 999.5), ("s = Mul (x, k) y = Add (s, c)", {"k": 1.0001, "c": 0.5})),
    "offset 273": (X8, shifted(273.15, 273), plus(EXACT_273 + 5e-5)),
    "one channel": (MATRIX, BIASED, ("t = MatMul (x, w) y = Add (t, c)", {"w": WEIGHTS, "c": [0.5001]})),
    "overflow": (
        X8,
        ("t = Mul (x, c) y = Mul (t, d)", {"c": 1e-30, "d": 1e25}),
        ("u = Mul (x, c) y = Mul (u, d)", {"c": 9e38 / 3, "d": 1e-43}),
    ),
    "underflow": (
        X8,
        ("t = Mul (x, c) y = Mul (t, d)", {"c": 1e-30, "d": 1e25}),
        ("u = Mul (x, c) y = Mul (u, d)", {"c": 1e-43, "d": 9e37}),
    ),
    "variance": (MOMENTS, variance("two", 1000), variance("one", 1000)),
    "little of a variance": (MOMENTS, variance("two", 10), variance("one", 10)),
    "rounded on purpose": (X8, shifted(12582912, 12582912), ("y = Identity (x)", {})),
    "rounded on purpose in a large range": (
        X8,
        ("s = Mul (x, k) t = Add (s, m) y = Sub (t, m)", {"k": 1000.0, "m": 12582912.0}),
        ("y = Mul (x, k)", {"k": 1000.0}),
    ),
    "to float16 in many elements": (
        "(float[N,65536] x) => (float[N,65536] y)",
        ("t = Mul (x, a) y = Mul (t, b)", {"a": 0.3, "b": 0.7}),
        ("t = Mul (x, c) h = Cast <to=10> (t) y = Cast <to=1> (h)", {"c": 0.21}),
    ),
    "quantized on purpose": (
        X8,
        ("s = Mul (x, k) t = Add (s, m) u = Sub (t, m) y = Div (u, k)", {"k": 42.0, "m": 12582912.0}),
        ("y = Identity (x)", {}),
    ),
    "little of a deep chain": (X8, turned(0.0), turned(2e-6)),
    "through float16": (X8, ("h = Cast <to=10> (x) y = Cast <to=1> (h)", {}), ("y = Identity (x)", {})),
    "size": (
        "(float[1,1,32,48] x) => (float[A,B,C,D] y)",
        *(
            (
                f"""s = Shape (x) f = Cast <to=1> (s) {n} = Mul (f, k{n}) r{n} = Floor ({n}) z = Cast <to=7> (r{n})
                    y = Resize <mode="nearest"> (x, , , z)""",
                {f"k{n}": [1.0, 1.0, k, k]},
            )
            for n, k in (("t", 0.5), ("u", 0.25))
        ),
    ),
    "index": (
        INTEGERS,
        ("f = Cast <to=1> (p) t = Mul (f, k) y = Floor (t)", {"k": 1 / 16}),
        ("f = Cast <to=1> (p) a = Sub (f, h) u = Mul (a, k) y = Ceil (u)", {"k": 1 / 16, "h": 14.0}),
    ),
    "third": (
        INTEGERS,
        ("f = Cast <to=1> (p) t = Div (f, k) y = Floor (t)", {"k": 3.0}),
        ("f = Cast <to=1> (p) u = Mul (f, r) y = Floor (u)", {"r": 0.3333333}),
    ),
    "equal": (
        PIXELS,
        ("f = Cast <to=1> (p) t = Mul (f, k) y = Greater (t, h)", {"k": 1 / 128, "h": 0.5}),
        ("f = Cast <to=1> (p) y = GreaterOrEqual (f, e)", {"e": 64.0}),
    ),
    "threshold": (
        X64,
        ("t = Add (x, c) u = Sub (t, d) y = Greater (u, h)", {"c": 1000.0, "d": 999.5, "h": 0.3}),
        ("v = Add (x, e) y = Greater (v, h)", {"e": 0.6, "h": 0.3}),
    ),
    **{
        f"ties of {k}": (
            BITS,
            *(
                (f"q = Mod (p, m) f = Cast <to=1> (q) {n} = Mul (f, k{n}) y = ArgMax <axis=1, keepdims=0> ({n})",
                 {"m": np.int64(2), f"k{n}": [sign * k] * 8})
                for n, sign in (("t", 1), ("u", -1))
            ),
        )
        for k in (0.5, 0.3)
    },
    "axis": (
        SCORES,
        *(
            (f"s = Sigmoid (x) f = Round (s) {n} = Mul (f, k{n}) {last}", {f"k{n}": [sign * 0.3] * 8})
            for n, sign, last in (
                ("t", 1, "y = ArgMax <axis=2, keepdims=0> (t)"),
                ("u", -1, "y = ArgMax <axis=2, keepdims=0> (u)"),
            )
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_rewrites_within_rounding_agree(name: str, tmp_path: Path) -> None:
    io, a, b = RIGHT[name]
    v = judge(tmp_path, io, a, b)
    assert v.status in ("equal", "verified", "verified in pieces"), v.message


@pytest.mark.parametrize("name", WRONG)
def test_faults_that_look_like_rounding_are_different(name: str, tmp_path: Path) -> None:
    io, a, b = WRONG[name]
    v = judge(tmp_path, io, a, b)
    assert v.status == "different", v.message


def test_the_noise_of_a_cancelling_sum_is_recorded(tmp_path: Path) -> None:
    v = judge(tmp_path, X8, shifted(1e5, 99999), plus(1))
    assert v.noise["y"] > 1e-4, v.message


def test_missing_float64_kernels_are_run_by_the_reference_evaluator(tmp_path: Path) -> None:
    """A float64 Erf is run by the reference evaluator, the only engine with this kernel."""
    v = judge(tmp_path, X8, ("t = Add (x, c) u = Sub (t, d) y = Erf (u)", {"c": 1000.0, "d": 999.5}),
              ("u2 = Add (x, c) y = Erf (u2)", {"c": 0.5}))  # fmt: skip
    assert v.status == "verified in pieces", v.message


def test_bodies_and_functions_are_widened_to_float64(tmp_path: Path) -> None:
    for name, first, second in (("a", "1000.0", "999.5"), ("b", "0.25", "-0.25")):
        model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
            g (float[N,8] x, bool c) => (float[N,8] y) {{
              z = If (c) <then_branch = t () => (float[N,8] p) {{
                            k{name} = Constant <value_float = {first}> () q = Add (x, k{name})
                            l = Constant <value = float {{{second}}}> () p = Sub (q, l) }},
                          else_branch = e () => (float[N,8] r) {{ r = Neg (x) }}>
              y = local.f (z) }}
            <domain: "local", opset_import: ["" : 17]> f (v) => (w) {{
              k = Constant <value_floats = [1.0]> () i = Cast <to = 1> (v) w = Mul (i, k) }}""")
        onnx.save(model, tmp_path / f"{name}.onnx")
    v = verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert v.status == "verified in pieces", v.message


@pytest.mark.parametrize(
    ("numbers", "exact", "integers"),
    [
        ([3.0, 5.0], True, True),
        ([0.5], True, False),
        ([0.5, 0.25, 100.0], True, False),
        ([0.0, 0.0], True, True),
        ([1000.25], True, False),
        ([273.15], False, False),
        ([1 / 255], False, False),
        ([0.1, 1.0, 2.0], False, False),
        ([1e9 + 64] * 2, False, False),  # float32 has integers only at this magnitude
        ([63 + k * 2.0**-17 for k in range(1, 24)], False, False),  # remainders of x + 100 - 37
        ([np.inf, 1.0], True, False),
        ([np.nan], True, False),
    ],
)
def test_exact_numbers_and_integers_are_recognized(numbers: list[float], exact: bool, integers: bool) -> None:
    value = np.array(numbers, np.float32)
    assert is_exact(value) is exact
    assert are_integers(value) is integers
    assert np.array_equal(last_bit(value, Draws(0)), value, equal_nan=True) is exact


def test_a_number_of_jumps_explains_no_direction() -> None:
    differs = Difference(0.1, 1.0, discrete=True)
    assert differs.explained(Difference(0.0, 1.0, discrete=True, unseen=False))
    assert not differs.explained(Difference(1.0, 1.0, discrete=True, unseen=True))


@pytest.mark.parametrize("narrow", [1, 10, 16])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("f = Reshape (x, k) s = Shape (f) p = ReduceProd <keepdims = 1> (s) y = Reshape (f, p)",
         "y = Reshape (NARROW, l)"),
        ("m = Sin (x) s = Shape (m) f = Mul (s, s) g = Div (f, s) r = Reshape (x, g) y = Reshape (r, l)",
         "y = Reshape (NARROW, l)"),
        ("s = Sin (x) f = Reshape (s, l) p = Shape (f) y = Expand (f, p)", "s = Sin (NARROW) y = Reshape (s, l)"),
    ],
)  # fmt: skip
def test_values_computed_from_sizes_are_not_rounded(a: str, b: str, narrow: int, tmp_path: Path) -> None:
    """Arithmetic on sizes excuses no narrower type.

    A product of sizes counted as rounded to float32, so a float64 value behind it could lose half its digits.
    """
    head = '<ir_version: 8, opset_import: ["" : 17]> g (double[4, 8] x) => (double[M] y)'
    b = f"i = Cast <to = {narrow}> (x) j = Cast <to = 11> (i) {b.replace('NARROW', 'j')}"
    sizes = "<int64[3] k = {4, 2, 4}, int64[1] l = {-1}>"
    assert verdict(tmp_path, *(f"{head} {sizes} {{ {made} }}" for made in (a, b))).status == "different"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([0.0, 0.0], [0.0, -0.25], "differs by 2.5e-01 from zeros"),
        ([0.5, 2.0], [0.5, 1.0], "differs by 5.0e-01 of its range"),
    ],
)
def test_a_difference_from_zero_is_given_in_numbers(a: list[float], b: list[float], said: str) -> None:
    """A difference from an all-zero output is worded without its range.

    The range is zero, and the wording was "inf of its range".
    """
    arrays = np.array(a, np.float32), np.array(b, np.float32)
    assert difference(*arrays).words == said
    assert compare("y", *arrays, VerifyOptions()).note == said
