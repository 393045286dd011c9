"""Branches are compared with their counterparts, whatever the name and position of the If in the other model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt import optimize_file
from onnxopt.verification import Verification, VerifyOptions, verify
from onnxopt.verification.two_files import compare_files
from tests.samples import parsed
from tests.verification.pairs import verdict

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x, bool c, bool d) => (float[N, 4] y) '
ALWAYS = "s = Shape (x) one = Constant <value_int = 1> () w = Gather (s, one) b = Cast <to = 9> (w)"
RARE = "m = ReduceMax <keepdims = 0> (x) high = Constant <value_float = 30000.0> () r = Greater (m, high)"
RIGHT = ("equal", "verified", "verified in pieces")


def branch(condition: str, out: str, then: str, other: str, name: str = "") -> str:
    """Return an If of two branches; each text makes `OUT`."""
    t, e = f"{out}t", f"{out}e"
    return f"""{name} {out} = If ({condition}) <
        then_branch = g{t} () => (float[N, 4] {t}) {{ {then.replace("OUT", t)} }},
        else_branch = g{e} () => (float[N, 4] {e}) {{ {other.replace("OUT", e)} }}>"""


def scaled(by: float) -> str:
    return f"kOUT = Constant <value_float = {by}> () OUT = Mul (x, kOUT)"


def nested(out: str, condition: str, inner: str, *, then: str, other: str, last: str, name: str = "") -> str:
    """Return an If inside the then branch of another."""
    return branch(condition, out, branch(inner, "OUT", then, other, name), last, name)


def inlined(
    *, then: float = 3.0, other: float = 5.0, last: float = 7.0, condition: str = "c", inner: str = "c", name: str = ""
) -> str:
    """Return `around` without its always-true condition b."""
    bodies = {"then": scaled(then), "other": scaled(other), "last": scaled(last)}
    return f"{RARE} {nested('y', condition, inner, **bodies, name=name)}"


def around(condition: str = "c", inner: str = "c", name: str = "") -> str:
    bodies = {"then": scaled(3.0), "other": scaled(5.0), "last": scaled(7.0)}
    text = nested("OUT", condition, inner, **bodies, name=name)
    return f"{RARE} {ALWAYS} {branch('b', 'y', text, 'OUT = Abs (x)', name)}"


def judged(tmp_path: Path, a: str, b: str) -> Verification:
    return verdict(tmp_path, f"{HEAD} {{ {a} }}", f"{HEAD} {{ {b} }}")


@pytest.mark.parametrize("name", ["", "[same]"], ids=["unnamed", "one name"])
@pytest.mark.parametrize("inner", ["c", "d", "r"])
def test_an_inlined_branch_is_right(inner: str, name: str, tmp_path: Path) -> None:
    """An If replaced by its branch is right.

    The outer Ifs of original and result make one value, on different conditions.
    """
    v = judged(tmp_path, around(inner=inner, name=name), inlined(inner=inner, name=name))
    assert v.status in RIGHT, v.message


@pytest.mark.parametrize("wrong", ["then", "last"])
def test_a_fault_in_a_taken_branch_is_different(wrong: str, tmp_path: Path) -> None:
    v = judged(tmp_path, around(), inlined(**{wrong: 3.5}))  # type: ignore[arg-type]
    assert v.status == "different", v.message
    assert len(v.places) == 1


def test_a_difference_in_a_branch_that_no_run_takes_is_right(tmp_path: Path) -> None:
    """A difference in the else branch on a condition, inside the then branch on the same condition, has no effect.

    If the result has another condition there, the difference counts.
    """
    v = judged(tmp_path, around(), inlined(other=5.5))
    assert v.status in RIGHT, v.message
    for inner, status in (("d", "different"), ("r", "different")):
        assert judged(tmp_path, around(), inlined(inner=inner)).status == status


def test_a_fault_in_an_untaken_branch_is_different(tmp_path: Path) -> None:
    """A fault in an untaken branch on a computed condition of both models is "different".

    The branch is compared on forced inputs.
    """
    v = judged(tmp_path, around("d", "r"), inlined(condition="d", inner="r", then=3.5))
    assert v.status == "different", v.message


def test_the_opposite_condition_has_the_branches_exchanged(tmp_path: Path) -> None:
    a = f"{RARE} n = Not (r) {branch('n', 'y', scaled(3.0), scaled(5.0))}"
    assert judged(tmp_path, a, f"{RARE} {branch('r', 'y', scaled(5.0), scaled(3.0))}").status in RIGHT
    v = judged(tmp_path, a, f"{RARE} {branch('r', 'y', scaled(5.5), scaled(3.0))}")
    assert v.status == "different", "the branch that no case takes was held against the other"


def test_two_equal_conditions_merged_into_one_are_no_contradiction(tmp_path: Path) -> None:
    """Two equal comparisons that are one value in the result are not "different".

    An untaken branch is forced by negating one of them.
    """
    twice = RARE + " q = Greater (m, high)"
    a, b = (nested("y", "r", i, then=scaled(3.0), other=scaled(5.0), last=scaled(7.0)) for i in ("q", "r"))
    v = judged(tmp_path, f"{twice} {a}", f"{RARE} {b}")
    assert v.status != "different", v.message


def test_an_unreachable_branch_may_be_removed(tmp_path: Path) -> None:
    a = nested("y", "c", "c", then=scaled(3.0), other=scaled(5.0), last=scaled(7.0))
    v = judged(tmp_path, a, branch("c", "y", scaled(3.0), scaled(7.0)))
    assert v.status in RIGHT, v.message
    assert judged(tmp_path, a, branch("c", "y", scaled(5.0), scaled(7.0))).status == "different"


def test_conditions_that_agree_by_chance_are_not_paired(tmp_path: Path) -> None:
    """Two conditions that are never true are not taken for one: a difference of their branches is inconclusive."""
    other = RARE + " k = Constant <value_float = 20000.0> () q = Greater (m, k)"
    a = f"{other} {branch('r', 'y', scaled(3.0), scaled(7.0))}"
    v = judged(tmp_path, a, f"{other} {branch('q', 'y', scaled(5.0), scaled(7.0))}")
    assert v.status == "inconclusive", v.message


def test_branches_inside_a_loop_are_compared(tmp_path: Path) -> None:
    def loop(body: str, before: str) -> str:
        return f"""{before} n = Constant <value_int = 1> () yes = Constant <value = bool {{1}}> ()
            y = Loop (n, yes, v) <body = l (int64 i, bool go, float[N, 4] x) => (bool on, float[N, 4] y)
                {{ on = Identity (go) {body} }}>"""

    head, before = HEAD.replace("4] x", "4] v"), ALWAYS.replace("(x)", "(v)")
    a = loop(around().replace(ALWAYS, ""), before)
    for other, statuses in ((inlined(), RIGHT), (inlined(last=7.5), ("different",))):
        v = verdict(tmp_path, f"{head} {{ {a} }}", f"{head} {{ {loop(other, '')} }}")
        assert v.status in statuses, v.message


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_optimizer_s_own_results_are_verified(level: int, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(f"{HEAD} {{ {around()} }}"), tmp_path / "a.onnx")
    report = optimize_file(tmp_path / "a.onnx", tmp_path / "b.onnx", level=level)
    assert report.verification is not None
    assert report.verification.status in RIGHT
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx").status in RIGHT


@pytest.mark.parametrize("inner", ["c", "d", "r"])
def test_no_single_case_makes_an_inlined_branch_different(inner: str, tmp_path: Path) -> None:
    """The cases of `onnxopt verify`, of which some take one branch throughout, agree on an inlined branch."""
    for name, text in (("a", around(inner=inner)), ("b", inlined(inner=inner))):
        onnx.save(parser.parse_model(f"{HEAD} {{ {text} }}"), tmp_path / f"{name}.onnx")
    v = compare_files(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions())
    assert v.status in RIGHT, v.message


def test_a_cast_condition_is_paired_with_its_boolean(tmp_path: Path) -> None:
    """A boolean cast to boolean is the same condition. Exporters write the Cast."""
    a = f"{RARE} q = Cast <to = 9> (r) {branch('q', 'y', scaled(3.0), scaled(7.0))}"
    b = f"{RARE} {branch('r', 'y', 'u = Neg (x) kk = Constant <value_float = -3.0> () OUT = Mul (u, kk)', scaled(7.0))}"
    v = judged(tmp_path, a, b)
    assert v.status in RIGHT, v.message
    assert judged(tmp_path, a, f"{RARE} {branch('r', 'y', scaled(3.5), scaled(7.0))}").status == "different"


@pytest.mark.parametrize("to", [6, 1, 2], ids=["int32", "float", "uint8"])
def test_a_condition_cast_through_a_number_is_paired_with_its_boolean(to: int, tmp_path: Path) -> None:
    """A boolean cast to a number and back is the same condition.

    Paddle passes conditions as integers. The untaken branch is compared.
    """
    a = f"{RARE} z = Cast <to = {to}> (r) q = Cast <to = 9> (z) {branch('q', 'y', scaled(3.0), scaled(7.0))}"
    then = "u = Neg (x) kk = Constant <value_float = -3.0> () OUT = Mul (u, kk)"
    v = judged(tmp_path, a, f"{RARE} {branch('r', 'y', then, scaled(7.0))}")
    assert v.status in RIGHT, v.message
    v = judged(tmp_path, a, f"{RARE} {branch('r', 'y', then.replace('-3.0', '-3.5'), scaled(7.0))}")
    assert v.status == "different", v.message


def test_a_number_cast_through_an_integer_is_another_condition(tmp_path: Path) -> None:
    """A float cast to an integer first is another condition: 0.5 is true, and 0 is not."""
    max_ = "m = ReduceMax <keepdims = 0> (x) k = Constant <value_float = 9.0> () s = Add (m, k)"
    branches = branch("q", "y", scaled(3.0), scaled(7.0))
    a = f"{max_} z = Cast <to = 6> (s) q = Cast <to = 9> (z) {branches}"
    v = judged(tmp_path, a, f"{max_} q = Cast <to = 9> (s) {branches}")
    assert v.status == "inconclusive", v.message


@pytest.mark.parametrize(("then", "expected"), [("OUT = Relu (x)", RIGHT), ("OUT = Abs (x)", ("different",))])
def test_one_untaken_if_may_replace_two_equal_ones(then: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    """One untaken If in place of two is compared with both.

    The two conditions have different nodes, and equal values.
    """
    never = "big = Constant <value_float = 1000000.0> () s = ReduceSum <keepdims = 0> (x) c1 = Greater (s, big)"
    again = "one = Constant <value_float = 1.0> () t = ReduceSum <keepdims = 0> (x) u = Mul (t, one) c2 = Less (big, u)"
    twice, other = "qOUT = Relu (x) OUT = Relu (qOUT)", "OUT = Neg (x)"
    a = f"{never} {branch('c1', 'v', twice, other)} {again} {branch('c2', 'w', twice, other)} y = Mul (v, w)"
    b = f"{never} {branch('c1', 'v', then, other)} y = Mul (v, v)"
    head = HEAD.replace(", bool c, bool d", "")
    found = verdict(tmp_path, f"{head} {{ {a} }}", f"{head} {{ {b} }}")
    assert found.status in expected


def test_inputs_of_a_branch_are_read_from_the_outer_scope(tmp_path: Path) -> None:
    """A declared input of a branch is the outer value of this name.

    The standard allows no inputs. onnxruntime refuses the model, the reference evaluator runs it.
    """
    text = """g (float[2] x, bool c) => (float[2] y) {{ v = Exp (x)
      y = If (c) <then_branch = t ({0}) => (float[2] p) {{ p = Neg (v) }},
                  else_branch = e ({0}) => (float[2] q) {{ q = Abs (v) }}> }}"""
    for name, inputs in (("a", "float[2] v"), ("b", "")):
        onnx.save(parsed(text.format(inputs)), tmp_path / f"{name}.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.status == "equal", found.message
    assert found.engine == "reference"
