"""Chosen inputs: their values, and the faults that random inputs miss."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxopt.verification import DIFFERENT, EQUAL, Verification, Verifier, VerifyOptions
from onnxopt.verification.inputs.cases import OWN, RECIPES
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import InputMaker
from tests.verification.pairs import verdict, with_constants

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def model(text: str, **constants: Any) -> onnx.ModelProto:
    return with_constants(f"{HEAD} g {text}", constants)


def judge(a: onnx.ModelProto, b: onnx.ModelProto, folder: Path, *cases: str) -> Verification:
    """Return the verdict of the optimizer's own check, or on the named cases."""
    return verdict(folder, a, b, VerifyOptions(cases=cases or None))


# -- booleans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["", "[1]", "[4]"], ids=["scalar", "one", "row"])
def test_booleans_of_the_case_ones_are_true(shape: str) -> None:
    plan = make_plan(model(f"(float[N, 4] x, bool{shape} b) => (y) {{ y = Where (b, x, x) }}"))
    ones, zeros = (InputMaker(plan, {}, 0).fill(RECIPES[name], {"N": 2}).feeds["b"] for name in ("ones", "zeros"))
    assert ones.all() and not zeros.any()


def test_a_single_boolean_is_true_then_false() -> None:
    plan = make_plan(model("(float[N, 4] x, bool[1] b) => (y) { y = Where (b, x, x) }"))
    found = [InputMaker(plan, {}, seed).fill(recipe, {"N": 2}).feeds["b"] for seed in range(4) for recipe in OWN[:2]]
    assert [bool(b.all()) for b in found] == [True, False] * 4


def test_a_fault_at_all_true_booleans_is_found(tmp_path: Path) -> None:
    text = "(float[N, 4] x, bool[4] b) => (y) {{ f = Cast <to = 1> (b) m = ReduceMin (f) s = {} y = Mul (x, s) }}"
    a, b = (model(text.format(body)) for body in ("Identity (m)", "Sub (m, m)"))
    assert judge(a, b, tmp_path, "random", "ones").status == DIFFERENT


# -- sizes that are not multiples of strides ---------------------------------------------------------------

WEIGHTS = {"w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)}
POOL = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]{}>"
FLOOR = POOL.format("")
PICTURE = "(float[N, 3, H, W] x) => (float[N, C, P, Q] y)"
# Floor or ceil division, or padding that depends on the size.
ODD = {
    "behind two strides": f"{{{{ p = {FLOOR} (x) q = {FLOOR} (p) y = {POOL} (q) }}}}",
    "at once": f"{{{{ p = {POOL} (x) y = Relu (p) }}}}",
    "same": "{{ y = Conv <strides = [2, 2]{}> (x, w) }}",
}
CEIL = (", ceil_mode = 1", "")


@pytest.mark.parametrize("cases", [(), ("random", "extremes")], ids=["own", "named"])
@pytest.mark.parametrize(
    ("body", "variants"),
    [
        (ODD["behind two strides"], CEIL),
        (ODD["at once"], CEIL),
        (ODD["same"], (', auto_pad = "SAME_UPPER"', ", pads = [0, 0, 1, 1]")),
    ],
    ids=list(ODD),
)
def test_a_remainder_behind_strides_is_compared(
    body: str, variants: tuple[str, str], cases: tuple[str, ...], tmp_path: Path
) -> None:
    a, b = (model(PICTURE + body.format(v), **WEIGHTS) for v in variants)
    assert judge(a, b, tmp_path, *cases).status == DIFFERENT


def test_a_sequence_leaves_something_over(tmp_path: Path) -> None:
    text = "(float[N, 2, T] x) => (float[N, 2, P] y) {{ y = MaxPool <kernel_shape = [4], strides = [4]{}> (x) }}"
    a, b = (model(text.format(v)) for v in CEIL)
    assert judge(a, b, tmp_path).status == DIFFERENT


def test_ragged_sizes_are_no_larger_and_no_squares() -> None:
    plan = make_plan(model(PICTURE + ODD["behind two strides"].format(""), **WEIGHTS))
    second = plan.windows[1]
    sizes = second | plan.ragged
    assert sizes["H"] * sizes["W"] <= second["H"] * second["W"] and sizes["H"] != sizes["W"]
    assert {n % 2 for n in sizes.values()} != {0} and not any(n % 8 == 0 for n in sizes.values())


def test_a_scalar_multiplied_like_a_mask_is_no_row(tmp_path: Path) -> None:
    """A scalar input times a masking number is verified. The question for its last dim was an IndexError."""
    head, k = "(float x) => (float y)", np.float32(-65504)
    made = model(f"{head} {{ y = Mul (x, k) }}", k=k)
    assert judge(made, made, tmp_path).status == EQUAL
    other = model(f"{head} {{ z = Relu (x) y = Mul (z, k) }}", k=k)
    assert judge(made, other, tmp_path).status == DIFFERENT


def test_a_batch_of_one_is_compared(tmp_path: Path) -> None:
    text = f"(float[N, 1, H, W] x) => (y) {{{{ p = {FLOOR} (x) y = {{}} }}}}"
    a, b = (model(text.format(body), k=[1]) for body in ("Squeeze (p, k)", "Squeeze (p)"))
    assert judge(a, b, tmp_path).status == DIFFERENT


# A model that needs multiples: the two operands of the skip connection differ in shape otherwise.
SKIP = (
    f"{PICTURE} {{ c = {FLOOR} (x) u = Resize (c, , s) y = Add (x, u) }}",
    {"s": np.array([1, 1, 2, 2], np.float32)},
)
# Padding as long as the sound, with a dim name of its own.
MASKED = """(float[N, 1, T] x, float[N, 1, S] m) => (float[N, 1, P] y)
{ s = Mul (x, m) y = MaxPool <kernel_shape = [4], strides = [4]> (s) }"""


def test_a_model_that_needs_multiples_gets_multiples(tmp_path: Path) -> None:
    made = model(SKIP[0], **SKIP[1])
    assert make_plan(made).ragged
    verdict = judge(made, made, tmp_path)
    assert verdict.status == EQUAL and len(verdict.cases) == 2
    assert all(n % 2 == 0 for case in verdict.cases for n in (case.dims["H"], case.dims["W"]))
    verdict = judge(made, made, tmp_path, "all")
    assert verdict.status == EQUAL, verdict.message
    assert {c.name for c in verdict.cases} >= {"extremes", "dynamic-2"}


def test_dims_of_equal_length_stay_equal(tmp_path: Path) -> None:
    made = model(MASKED)
    verdict = judge(made, made, tmp_path)
    assert verdict.status == EQUAL
    assert [c.dims["T"] - c.dims["S"] for c in verdict.cases] == [0, 0]
    assert verdict.cases[1].dims["T"] % 4


def test_sizes_with_empty_outputs_are_not_chosen(tmp_path: Path) -> None:
    """No case has an empty output. The output has elements only behind the first row of a window."""
    made = model(f"{PICTURE} {{ p = {FLOOR} (x) y = Slice (p, one, end, two) }}", one=[1], end=[99], two=[2])
    verdict = judge(made, made, tmp_path, "dynamic")
    assert [0 in o.shape for c in verdict.cases for o in c.outputs] == [False] * 3
    assert [c.dims["N"] for c in verdict.cases] == [1, 2, 3]


@pytest.mark.parametrize("stepwise", [False, True], ids=["own", "named"])
def test_sizes_that_crash_the_original_are_replaced(stepwise: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(model(PICTURE + ODD["at once"].format("")), path)
    start = (
        "import os, signal\nfrom onnxopt.verification import judge, run\nmethod = run.OnnxRuntime.run\n"
        "def die(self, feeds):\n    if any(n % 2 for n in feeds['x'].shape[2:]): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return method(self, feeds)\nrun.OnnxRuntime.run = die\njudge.main()"
    )
    with Verifier(path, stepwise=stepwise, start=start) as verifier:
        if stepwise:
            plan = make_plan(onnx.load(path))
            recipes = [RECIPES[name] for name in ("random", "extremes")]
            verifier.prepare(plan, [(recipe, partial(Data, {})) for recipe in recipes])
        verifier.submit(path)
        found = verifier.finish()
    assert found.status == EQUAL, found.message
    assert len(found.cases) == 2 and not any(c.dims[s] % 2 for c in found.cases for s in "HW")


# -- sequences and initializers --------------------------------------------------------------------------

SEQUENCE = "(seq(float[N, 8]) s) => (float[M, 8] y)"
PARTS = "p = SequenceAt (s, zero) q = SequenceAt (s, one)"
NUMBERS = {"zero": np.array(0), "one": np.array(1), "last": np.array(-1)}


@pytest.mark.parametrize("cases", [(), ("random", "extremes")], ids=["own", "named"])
@pytest.mark.parametrize(
    "bodies",
    [
        ("y = SequenceAt (s, last)", "y = SequenceAt (s, one)"),
        ("y = ConcatFromSequence <axis = 0> (s)", f"{PARTS} y = Concat <axis = 0> (p, q)"),
    ],
    ids=["last", "joined"],
)
def test_sequences_have_two_lengths(bodies: tuple[str, str], cases: tuple[str, ...], tmp_path: Path) -> None:
    a, b = (model(f"{SEQUENCE} {{ {body} }}", **NUMBERS) for body in bodies)
    assert judge(a, b, tmp_path, *cases).status == DIFFERENT


def test_a_model_that_needs_two_sequence_elements_gets_two(tmp_path: Path) -> None:
    body = "t = ConcatFromSequence <axis = 0, new_axis = 1> (s) y = Mul (t, w)"
    made = model(f"(seq(float[N, 8]) s) => (y) {{ {body} }}", w=np.ones((2, 1, 8), np.float32))
    verdict = judge(made, made, tmp_path)
    assert verdict.status == EQUAL and len(verdict.cases) == 2


PICKED = "(float[N, 8] x, int64[2] at) => (float[N, 2] y) {{ y = Gather <axis = 1> (x, {}) }}"


def test_overridable_integers_are_overridden(tmp_path: Path) -> None:
    numbers = np.array([1, 2])
    a, b = (model(PICKED.format(name), at=numbers, fixed=numbers) for name in ("at", "fixed"))
    assert judge(a, b, tmp_path).status == DIFFERENT
    assert judge(a, b, tmp_path, "overrides").status == DIFFERENT


def test_overridable_integers_keep_their_values_if_others_are_refused(tmp_path: Path) -> None:
    made = model(PICKED.format("at"), at=np.array([6, 7]))
    verdict = judge(made, made, tmp_path)
    assert verdict.status == EQUAL and len(verdict.cases) == 3


# -- numbers ---------------------------------------------------------------------------------------------


def test_tiny_numbers_of_float64_are_numbers(tmp_path: Path) -> None:
    a, b = (model("(double[N, 4] x) => (y) { y = Mul (x, k) }", k=np.float64(k)) for k in (1e-40, 3e-40))
    assert judge(a, b, tmp_path).status == DIFFERENT


MOMENT = "d = Cast <to = {0}> (t) o = Cast <to = {0}> (origin) s = Sub (d, o) y = Cast <to = 1> (s)"
LARGE = [
    ("f = Cast <to = 1> (t) y = Mul (f, k)", "i = Cast <to = 6> (t) f = Cast <to = 1> (i) y = Mul (f, k)"),
    (MOMENT.format(11), MOMENT.format(1)),
]


@pytest.mark.parametrize("bodies", LARGE, ids=["narrower", "moments"])
def test_integers_cast_to_float_are_large(bodies: tuple[str, str], tmp_path: Path) -> None:
    numbers = {"k": np.float32(1e-3), "origin": np.float32(1.6e9)}
    a, b = (model(f"(int64[N, 4] t) => (float[N, 4] y) {{ {body} }}", **numbers) for body in bodies)
    assert judge(a, b, tmp_path).status == DIFFERENT


@pytest.mark.parametrize(("body", "largest"), [("y = Mul (f, k)", 1e9), ("p = Mul (f, k) y = Sin (p)", 1000)])
def test_integers_under_a_sine_are_small(body: str, largest: float) -> None:
    plan = make_plan(model(f"(int64[N] t) => (y) {{ f = Cast <to = 1> (t) {body} }}", k=np.float32(0.5)))
    found = InputMaker(plan, {}, 0).fill(OWN[2], {"N": 64}, "wide").feeds["t"]
    assert (abs(found).max() > 1000) == (largest > 1000)


def test_all_rows_of_a_turned_table_are_picked() -> None:
    plan = make_plan(
        model("(int64[N, 64] ids) => (y) { t = Transpose (w) y = Gather (t, ids) }", w=np.zeros((8, 5000), np.float32))
    )
    assert InputMaker(plan, {}, 0).fill(OWN[0], {"N": 2}).feeds["ids"].max() > 1000


def test_scores_of_few_rows_beside_boxes(tmp_path: Path) -> None:
    text = """(float[N, 6] x) => (float[N, 6] y)
    { a = MatMul (x, w) s = Sigmoid (a) b = Mul (s, k) q = MatMul (x, v) p = Sigmoid (q) BODY
      y = Concat <axis = 1> (b, r) }"""
    rng = np.random.default_rng(0)
    numbers = {"w": rng.standard_normal((6, 4)), "v": rng.standard_normal((6, 2)), "k": np.array(4000)}
    bodies = ("r = Identity (p)", "h = Cast <to = 10> (p) r = Cast <to = 1> (h)")
    weights = {name: array.astype(np.float32) for name, array in numbers.items()}
    a, b = (model(text.replace("BODY", body), **weights) for body in bodies)
    assert judge(a, b, tmp_path).status == DIFFERENT


@pytest.mark.parametrize(
    ("shapes", "batches"),
    [
        (["batch_size, N", "batch_size"], ["batch_size"]),  # N counts samples
        (["N, 4"], ["N"]),
        (["T, N, 4"], ["N"]),
        (["N, T, 4", "N"], ["N"]),
        (["batch, b, n"], ["batch"]),
    ],
)
def test_a_later_dim_named_n_is_no_batch(shapes: list[str], batches: list[str]) -> None:
    """A dim named N behind a batch dim is not a batch.

    A batch has at most three rows, and three samples fill no window.
    """
    inputs = ", ".join(f"float[{s}] x{i}" for i, s in enumerate(shapes))
    plan = make_plan(model(f"({inputs}) => (y) {{ y = Relu (x0) }}"))
    assert [s for s in plan.symbols if plan.is_batch(s)] == batches
