"""Numbers near zero are told from zero, however they are given."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxopt.graph import read_model
from onnxopt.rewriting.near_zero import told_from_zero

HEADER = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[N, 4] p, float[N, 4] q, bool c, float[4, 4] computed) => (y)
<float zero = {0}, float tiny = {1e-8}, float some = {0.5}, float large = {10000}, float minus = {-1}, float two = {2},
 int64[2] s = {4, -1}, int64[1] one = {1}, int64[1] none = {0}, int64 trips = {2}, bool yes = {1}>
{ %s }
"""
FUNCTION = """
<domain: "own", opset_import: ["" : 17]>
f (u) => (v) { n = Neg (u) v = Abs (n) }
"""


def told(body: str) -> bool:
    text = HEADER % body + (FUNCTION if "own." in body else "")
    model = read_model(parser.parse_model(text))
    return told_from_zero(model.graph.inputs[0])


DIRECT = (
    *("Log (p)", "Reciprocal (p)", "Div (q, p)", "Sign (p)", "Ceil (p)", "Floor (p)", "Round (p)"),
    *("Pow (p, minus)", "Pow (p, q)", "Greater (p, zero)", "Less (tiny, p)", "Equal (p, q)"),
    *("Cast <to = 9> (p)", "Cast <to = 6> (p)", "Mul (p, large)", "Div (p, tiny)", "ArgMax (p)", "NonZero (p)"),
    *("ReduceLogSum (p)", "LpNormalization (p)", "own.f (p)"),
)


@pytest.mark.parametrize("call", DIRECT)
def test_what_tells(call: str) -> None:
    assert told(f"y = {call}")


HANDED_ON = (
    *("Reshape (p, s)", "Transpose (p)", "Slice (p, none, one, one)", "Gather (p, one)", "Unsqueeze (p, one)"),
    *("Concat <axis = 0> (q, p)", "Expand (p, s)", "Flatten (p)", "Identity (p)", "Where (c, q, p)", "Max (p, tiny)"),
    *("Max (q, p)", "Min (p, some)", "Clip (p, zero)", "Clip (p, , some)", "Abs (p)", "Neg (p)", "Sqrt (p)"),
    *("Cast <to = 11> (p)", "Mul (p, some)", "Mul (p, q)", "Div (p, two)", "Div (p, q)", "Add (p, tiny)"),
    *("Sub (p, zero)", "Tanh (p)", "Add (p, p)", "Pow (p, two)", "ReduceSum (p)", "ReduceMax (p)"),
)


@pytest.mark.parametrize("call", HANDED_ON)
def test_what_hands_on(call: str) -> None:
    assert told(f"a = {call} b = Identity (a) y = Log (b)")
    assert not told(f"a = {call} b = Identity (a) y = Exp (b)")


ENDS = (
    *("MatMul (p, computed)", "Add (p, q)", "Add (p, some)", "Sub (some, p)", "Max (p, some)", "Clip (p, some)"),
    *("Exp (p)", "Softmax (p)", "Pow (two, p)", "Cos (p)"),
)


@pytest.mark.parametrize("call", ENDS)
def test_where_it_ends(call: str) -> None:
    assert not told(f"a = {call} y = Log (a)")


def test_numbers_far_from_zero_are_compared_alike() -> None:
    assert not told("y = Greater (p, some)")


def test_both_parts_of_a_split() -> None:
    assert told("a, b = Split <axis = 1> (p) l = Log (b) e = Exp (a) y = Add (l, e)")


def test_places_of_the_largest() -> None:
    pool = "MaxPool <kernel_shape = [2]> (u)"
    assert told(f"u = Unsqueeze (p, one) m, i = {pool} e = Exp (m) k = Cast <to = 1> (i) y = Add (e, k)")
    assert not told(f"u = Unsqueeze (p, one) m = {pool} y = Exp (m)")


BRANCHES = "y = If (c) <then_branch = t () => (float[N, 4] a) {{ {} }}, else_branch = e () => (float[N, 4] b) {{ {} }}>"


def test_what_bodies_capture_and_give_out() -> None:
    assert told(BRANCHES.format("a = Log (p)", "b = Neg (q)"))
    assert not told(BRANCHES.format("a = Exp (p)", "b = Neg (p)"))
    assert told(BRANCHES.replace("y =", "z =").format("a = Neg (p)", "b = Neg (q)") + " y = Log (z)")
    assert not told(BRANCHES.replace("y =", "z =").format("a = Neg (p)", "b = Neg (q)") + " y = Exp (z)")


def test_what_loops_carry() -> None:
    loop = """y, z = Loop (trips, , {}) <body = t (int64 i, bool g, float[N, 4] u, float[N, 4] v)
      => (bool h, float[N, 4] a, float[N, 4] b) {{ h = Identity (yes) a = {} b = {} }}>"""
    assert told(loop.format("p, q", "Log (u)", "Exp (v)"))
    assert not told(loop.format("p, q", "Exp (u)", "Exp (v)"))
    assert told(loop.format("q, q", "Neg (p)", "Log (u)"))  # of the next trip
    assert told(loop.format("q, p", "Exp (u)", "Identity (v)") + " l = Log (z)")


def test_the_walk_is_bounded() -> None:
    def chain(length: int) -> str:
        steps = "".join(f"a{i + 1} = Neg (a{i}) " for i in range(length))
        return f"a0 = Neg (p) {steps} y = Exp (a{length})"

    assert not told(chain(90))
    assert told(chain(110))
    assert told(" ".join(f"a{i} = Exp (p)" for i in range(110)) + " y = Neg (p)")


def test_a_result_of_a_function_goes_wherever_it_is_called() -> None:
    model = read_model(parser.parse_model(HEADER % "y = own.f (p)" + FUNCTION))
    function = model.functions["function own::f"]
    assert told_from_zero(function.inputs[0])
    assert not told_from_zero(model.graph.outputs[0])
