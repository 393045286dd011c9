"""The judge of drawn instances: each kind of fault is found, right instances have none."""

from __future__ import annotations

import pytest
from onnx import ModelProto

from tests.rules.apart import Apart
from tests.rules.comparing import Comparison
from tests.rules.feeding import draws
from tests.rules.judging import examine
from tests.samples import build_text, parsed


def compared(before: str, after: str, exact: bool = False) -> tuple[str, set[str]]:
    """The kind of fault, and of limits, of one body of a model in the place of another."""
    a, b = (parsed(f"g (float[N, 4] x, float[N, 4] z) => (float[N, 4] y) {{ {body} }}") for body in (before, after))
    comparison = Comparison(a, draws(a, 0))
    kind, _ = comparison.fault(b, exact) or ("", "")
    return kind, set(comparison.limits)


@pytest.mark.parametrize(
    ("before", "after", "exact", "kind"),
    [
        ("y = Add (x, z)", "y = Add (z, x)", True, ""),
        ("y = Add (x, z)", "y = Sub (x, z)", False, "wrong"),
        ("y = Identity (x)", "a = Add (x, z) y = Sub (a, z)", True, "wrong"),
        # A constant that is nearly right, where nothing is rounded; rounding alone is none.
        ("y = Add (x, x)", "c = Constant <value_float = 2.00001> () y = Mul (x, c)", False, "inexact"),
        ("y = Add (x, x)", "c = Constant <value_float = 7.0> () a = Div (x, c) b = Mul (a, c) y = Add (b, b)", 0, ""),
        ("a = Exp (x) y = Mul (a, z)", "b = Neg (x) a = Exp (b) y = Div (z, a)", False, ""),
        # A sign of zero counts at -O1 only.
        ("y = Sub (x, z)", "a = Sub (z, x) y = Neg (a)", False, ""),
        ("y = Sub (x, z)", "a = Sub (z, x) y = Neg (a)", True, "wrong"),
    ],
)  # fmt: skip
def test_what_is_said(before: str, after: str, exact: int, kind: str) -> None:
    assert compared(before, after, bool(exact))[0] == kind


def test_limits_of_a_type_are_no_fault() -> None:
    assert compared("y = Identity (x)", "a = Mul (x, x) b = Sqrt (a) c = Sign (x) y = Mul (b, c)") == ("", {"overflow"})
    zeros = "c = Constant <value_float = 0.0> ()"
    assert compared(f"{zeros} y = Mul (x, c)", f"{zeros} a = Shape (x) y = Expand (c, a)") == ("", {"special"})


FILL: str = """g (float[1, 4, 2, 2] x) => (float[1, 4, 2, 2] y)
<float[1, 4, 1, 1] c = {1, 2, 3, 4}, int64[4] s = {1, 4, 2, 2}> { e = Expand (c, s) y = Add (x, e) }"""


def test_a_rule_runs_alone() -> None:
    model: ModelProto = build_text(FILL)
    assert examine(model, "implicit-broadcast", "expand_of_operand").fired == 1
    assert examine(model, "implicit-broadcast", "choice_of_expanded").fired == 0
    with Apart() as apart:
        assert apart.examine(model, "implicit-broadcast", "expand_of_operand").fired == 1
