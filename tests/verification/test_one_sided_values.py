"""Values all on one side of a breakpoint: equal behind a Relu, or a maximum always at the first or last position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt.verification import AGREES, DIFFERENT, EQUAL, INCONCLUSIVE, VerifyOptions
from onnxopt.verification.inputs.cases import OWN, missing
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import InputMaker
from tests.samples import parsed
from tests.verification.pairs import gaps, own_check, verdict, with_constants

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '
ROWS, CHOSEN, IMAGE = "float[n, 8] x) => (float[m, 1] y", "float[n, 8] x) => (int64[n, 1] y", "float[n, 2, h, w] x"
# (name, interface, original, result that is wrong if all values are on one side, right result)
CASES = [
    ("largest below", CHOSEN, "r = Relu (x) y = ArgMax <axis = 1> (r)", "y = ArgMax <axis = 1> (x)",
     "s = Mul (x, two) r = Relu (s) y = ArgMax <axis = 1> (r)"),
    ("smallest above", CHOSEN, "r = Min (x, two) y = ArgMin <axis = 1> (r)", "y = ArgMin <axis = 1> (x)",
     "r = Clip (x, , two) y = ArgMin <axis = 1> (r)"),
    ("largest of all", ROWS, "r = Relu (x) y = ReduceMax (r)", "y = ReduceMax (x)", "r = ReduceMax (x) y = Relu (r)"),
    ("bound of a sum", ROWS, "s = Add (x, two) r = Relu (s) y = ReduceMax (r)", "s = Add (x, two) y = ReduceMax (s)",
     "s = ReduceMax (x) r = Add (s, two) y = Relu (r)"),
    ("window", f"{IMAGE}) => (float[n, 2, i, j] y", "r = Relu (x) y = MaxPool <kernel_shape = [3, 3]> (r)",
     "y = MaxPool <kernel_shape = [3, 3]> (x)", "r = MaxPool <kernel_shape = [3, 3]> (x) y = Relu (r)"),
    ("is any above", ROWS, "c = Greater (x, two) f = Cast <to = 1> (c) y = ReduceMax (f)",
     "s = ReduceMax (x) c = LessOrEqual (s, s) y = Cast <to = 1> (c)",
     "s = ReduceMax (x) c = Greater (s, two) y = Cast <to = 1> (c)"),
]  # fmt: skip


def model(interface: str, body: str) -> onnx.ModelProto:
    return with_constants(f"{HEAD}({interface}) {{ {body} }}", {"two": np.float32(2)})


@pytest.mark.parametrize(("interface", "body", "wrong", "right"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_faults_at_one_sided_values_are_found(
    interface: str, body: str, wrong: str, right: str, tmp_path: Path
) -> None:
    a = model(interface, body)
    for found, status in ((model(interface, wrong), (DIFFERENT,)), (model(interface, right), AGREES)):
        assert own_check(tmp_path, a, found).status in status
        assert verdict(tmp_path, a, found, VerifyOptions(cases=("all",))).status in status


def test_a_fault_at_a_breakpoint_of_the_result_only(tmp_path: Path) -> None:
    interface, body, wrong, _ = CASES[0][1:]
    models = model(interface, wrong), model(interface, body)
    assert verdict(tmp_path, *models, VerifyOptions(cases=("all",))).status == DIFFERENT


@pytest.mark.parametrize(
    ("interface", "body", "asks"),
    [
        ("float[n] x) => (float[n] y", "s = Add (x, two) y = Relu (s)", True),
        ("float[n] x) => (bool[n] y", "y = Less (x, two)", True),
        ("float[n] x) => (float[n] y", "y = LeakyRelu (x)", False),  # no two numbers give the same
        ("float[n] x) => (float[n] y", "s = Tanh (x) y = Relu (s)", False),  # the position of the breakpoint is unknown
        ("float[n, t] mask) => (float[n, t] y", "y = Relu (mask)", False),  # zeros and ones
        ("int64[n] x) => (int64[n] y", "y = Abs (x)", False),
    ],
)
def test_models_that_need_one_sided_cases(interface: str, body: str, asks: bool) -> None:
    plan = make_plan(model(interface, body))
    assert [r.name for r in OWN if r.on_one_side and not missing(r, plan)] == (["below", "above"] if asks else [])
    assert all(missing(r, plan, ("x",)) for r in OWN if r.on_one_side)


def test_one_sided_inputs_are_beyond_all_breakpoints() -> None:
    """Inputs with breakpoints are fed beyond all of them; other inputs as in other cases."""
    text = (
        "(float[n, 8] x, float[n, 8] z) => (float[n, 8] y) { s = Add (x, two) r = Clip (s, two, nine) y = Add (r, z) }"
    )
    plan = make_plan(with_constants(f"{HEAD} {text}", {"two": np.float32(2), "nine": np.float32(9)}))
    below, above = (InputMaker(plan, {}, 0).fill(r, {"n": 4}, "near").feeds for r in OWN if r.on_one_side)
    assert (below["x"] < 0).all()
    assert (above["x"] > 7).all()
    assert len(np.unique(below["x"])) == 32
    for feeds in (below, above):
        assert (feeds["z"] < 0).any()
        assert (feeds["z"] > 0).any()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("y = ArgMax <axis = 1> (h)", "s = Mul (h, two) r = Relu (s) y = ArgMax <axis = 1> (r)"),
        ("y = ArgMax <axis = 1> (h)", "r = Max (h, zero) y = ArgMax <axis = 1> (r)"),
    ],
)
def test_a_fault_at_one_sided_inner_values_is_inconclusive(wrong: str, right: str, tmp_path: Path) -> None:
    """A fault at inner values on one side of zero is inconclusive.

    One of sixteen channels is positive in each position of every case.
    """
    weight = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    constants = {"w": weight, "two": np.float32(2), "zero": np.float32(0)}
    interface = "(float[n, 3, 16, 16] x) => (int64[n, 1, 14, 14] y)"
    a, b, c = (
        with_constants(f"{HEAD}{interface} {{ h = Conv (x, w) {body} }}", constants)
        for body in ("r = Relu (h) y = ArgMax <axis = 1> (r)", wrong, right)
    )
    found = verdict(tmp_path, a, b)
    assert (found.status, gaps(found)) == (INCONCLUSIVE, ["`y` ranks differently"]), found.message
    assert verdict(tmp_path, a, c).status == EQUAL


def test_no_further_case_without_breakpoints(tmp_path: Path) -> None:
    text = f"{HEAD}(float[n, 8] x) => (float[n, 8] y) {{ y = Softmax (x) }}"
    assert [c.name for c in verdict(tmp_path, parsed(text), parsed(text)).cases] == ["case 1", "case 2"]


BEHIND = [
    ("largest", "r = Relu (h) y = ArgMax <axis = 1> (r)", "y = ArgMax <axis = 1> (h)", INCONCLUSIVE),
    ("smallest", "r = Min (h, two) y = ArgMin <axis = 1> (r)", "y = ArgMin <axis = 1> (h)", INCONCLUSIVE),
    ("another bound", "r = Relu (h) y = ArgMax <axis = 1> (r)", "r = Max (h, two) y = ArgMax <axis = 1> (r)",
     DIFFERENT),
    ("scaled", "r = Relu (h) y = ArgMax <axis = 1> (r)",
     "s = Mul (h, two) r = Relu (s) y = ArgMax <axis = 1> (r)", EQUAL),
    ("of what is not negative", "e = Exp (h) r = Relu (e) y = ArgMax <axis = 1> (r)",
     "e = Exp (h) y = ArgMax <axis = 1> (e)", EQUAL),
    ("of what has bounds", "e = Sigmoid (h) r = Relu (e) y = ArgMax <axis = 1> (r)",
     "e = Sigmoid (h) y = ArgMax <axis = 1> (e)", EQUAL),
]  # fmt: skip


@pytest.mark.parametrize(("body", "other", "status"), [c[1:] for c in BEHIND], ids=[c[0] for c in BEHIND])
def test_a_fault_at_rows_of_no_case_behind_a_matmul_is_no_accusation(
    body: str, other: str, status: str, tmp_path: Path
) -> None:
    """A fault at rows that are negative throughout is not "different" behind a MatMul.

    Hardly any row of 32 channels is negative throughout.
    """
    w = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    found = [
        with_constants(
            f"{HEAD}(float[n, 8] x) => (int64[n, 1] y) {{ h = MatMul (x, w) {text} }}", {"w": w, "two": np.float32(2)}
        )
        for text in (body, other)
    ]
    v = own_check(tmp_path, *found)
    assert v.status == status, v.message
