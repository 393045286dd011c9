"""Parts of a model run in no case are compared on suitable inputs, or named in the verdict."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification
from onnxopt.verification.model.facts import can_change
from tests.verification.pairs import gaps, verdict

HEAD = '<ir_version: 9, opset_import: ["" : 17, "my" : 1]> g '
CONSTANTS = (
    "float two = {2}, float seven = {7}, float high = {30000}, int64 three = {3}, int64 zero = {0}, bool yes = {1}"
)
RARE = """m = ReduceMax <keepdims = 0> (x) c = Greater (m, high)
    OUT = If (c) <then_branch = t () => (z) { CHANGED }, else_branch = e () => (w) { w = Neg (x) }>"""


def rare(out: str) -> str:
    return RARE.replace("OUT", out)


IN_IF = f"""{{ s = ReduceSum <keepdims = 0> (x) n = Cast <to = 1> (zero) d = Greater (s, n)
    y = If (d) <then_branch = a () => (q) {{ {rare("q")} }}, else_branch = b () => (r) {{ r = Abs (x) }}> }}"""
IN_LOOP = f"""{{ y = Loop (three, yes, v) <body = l (int64 i, bool go, float[N, 4] x) => (on, q)
    {{ on = Identity (go) {rare("q")} }}> }}"""
IN_SCAN = f"""{{ y = Scan <num_scan_inputs = 1, body = l (float[4] x) => (q) {{ {rare("q")} }}> (v) }}"""
LOOP = """
    y = Loop (n, yes, v) <body = l (int64 i, bool go, float[N, 4] x) => (on, z) { on = Identity (go) CHANGED }> }"""
NO_TURN = (
    """{ h = Shape (v) k = Constant <value_int = 1> () l = Gather (h, zero) f = Constant <value_int = 40> ()
    d = Sub (l, f) n = Max (d, zero)"""
    + LOOP
)
ON_INPUT = """{ y = If (p) <then_branch = t () => (z) { CHANGED }, else_branch = e () => (w) { w = Neg (x) }> }"""
X, V = "(float[N, 4] x) => (float[N, 4] y)", "(float[N, 4] v) => (float[N, 4] y)"
NAN = "d = Sub (x, high) l = Log (d) z = Mul (l, TIMES)"
EMPTY = """b = Constant <value_ints = [600]> () e = Constant <value_ints = [900]> () k = Constant <value_ints = [0]> ()
    l = Slice (x, b, e, k) u = Mul (l, TIMES) z = ReduceSum <keepdims = 0> (u)"""


def function(body: str) -> tuple[str, str, str]:
    inside = '<domain: "my", opset_import: ["" : 17]> f (x, high, two, seven) => (y) { ' + body + " }"
    return "(float[N, 4] x) => (float[N, 4] o)", "{ o = my.f (x, high, two, seven) }", inside


PLACES = {
    "if in an if": (X, IN_IF, ""),
    "if in a loop": (V, IN_LOOP, ""),
    "if in a scan": (V, IN_SCAN, ""),
    "if in a function": function(rare("y")),
    "no turn": (V, NO_TURN, ""),
    "an output": ("(float[N, 4] x) => (float[N, 4] y, bool c)", "{ " + rare("y") + " }", ""),
    "drawn": (
        X,
        "{ " + rare("y").replace("(x) c", "(t) c").replace("m =", "t = RandomUniform <shape = [2]> () m =") + " }",
        "",
    ),
}


def judge(tmp_path: Path, place: tuple[str, str, str], a: str, b: str, *, turned: bool = False) -> Verification:
    signature, graph, functions = place
    text = f"{HEAD} {signature} <{CONSTANTS}> {graph} {functions}"
    both = [parser.parse_model(text.replace("CHANGED", changed)) for changed in (a, b)]
    for model in both if turned else ():
        nodes = list(reversed(model.graph.node))
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return verdict(tmp_path, *both)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_fault_in_a_coverage_gap_is_found(place: tuple[str, str, str], tmp_path: Path) -> None:
    v = judge(tmp_path, place, "z = Mul (x, two)", "z = Mul (x, seven)")
    assert (v.status, [p.value for p in v.places]) == ("different", ["z"]), v.message


@pytest.mark.parametrize("other", ["z = Add (x, x)", "o = Identity (x) z = Mul (o, two)"], ids=["changed", "names"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_an_equivalent_form_in_a_coverage_gap_is_verified(
    place: tuple[str, str, str], other: str, tmp_path: Path
) -> None:
    v = judge(tmp_path, place, "z = Mul (x, two)", other)
    assert v.status in ("equal", "verified in pieces"), v.message


@pytest.mark.parametrize(
    ("place", "says"),
    [("if in an if", "then branch on `c` was never taken"), ("if in a loop", "then branch on `c`"),
     ("if in a function", "then branch on `c`"), ("an output", "then branch on `c`"), ("no turn", "was never run")],
)  # fmt: skip
def test_a_coverage_gap_of_nan_is_inconclusive(place: str, says: str, tmp_path: Path) -> None:
    one, other = (NAN.replace("TIMES", times) for times in ("two", "seven"))
    v = judge(tmp_path, PLACES[place], one, other)
    assert v.status == "inconclusive"
    assert any(says in gap for gap in gaps(v)), v.message
    v = judge(tmp_path, PLACES[place], one, NAN.replace("Mul (l, TIMES)", "Add (l, l)"))
    assert v.status in ("equal", "verified in pieces"), "drawn numbers tell"


def test_a_branch_of_empty_values_is_inconclusive(tmp_path: Path) -> None:
    graph = (
        "{ m = ReduceMax <keepdims = 0> (x) c = Greater (m, high) y = If (c) <then_branch = t () => (z) { CHANGED },"
    )
    graph += "else_branch = e () => (w) { w = ReduceMean <keepdims = 0> (x) }> }"
    place = ("(float[N, 4] x) => (float y)", graph, "")
    one, other = (EMPTY.replace("TIMES", times) for times in ("two", "seven"))
    assert judge(tmp_path, place, one, other).status == "inconclusive"
    assert judge(tmp_path, place, one, one.replace("Mul (l, two)", "Add (l, l)")).status == "verified in pieces"


def test_coverage_gaps_are_found_in_nodes_of_any_order(tmp_path: Path) -> None:
    place = (X, "{ " + rare("y") + " }", "")
    assert judge(tmp_path, place, "z = Mul (x, two)", "z = Mul (x, seven)", turned=True).status == "different"
    assert judge(tmp_path, place, "z = Mul (x, two)", "z = Add (x, x)", turned=True).status == "verified in pieces"


def test_both_branches_on_a_boolean_input_are_compared(tmp_path: Path) -> None:
    """Both branches on a boolean input are compared, whichever case feeds true or false."""
    place = ("(bool p, float[N, 4] x) => (float[N, 4] y)", ON_INPUT, "")
    assert judge(tmp_path, place, "z = Mul (x, two)", "z = Mul (x, seven)").status == "different"
    assert judge(tmp_path, place, "z = Mul (x, two)", "z = Add (x, x)").agrees


def test_values_read_by_a_coverage_gap_only_belong_to_it(tmp_path: Path) -> None:
    graph = "{ CHANGED " + RARE.replace("OUT", "y").replace("CHANGED", "z = Neg (k)") + " }"
    v = judge(tmp_path, (X, graph, ""), "k = Mul (x, two)", "k = Mul (x, seven)")
    assert (v.status, gaps(v)) == ("inconclusive", ["the then branch on `c` was never taken"]), v.message
    assert judge(tmp_path, (X, graph, ""), "k = Mul (x, two)", "k = Add (x, x)").agrees


def test_a_loop_carried_value_read_in_a_coverage_gap_is_inconclusive(tmp_path: Path) -> None:
    graph = """{ one = Constant <value_int = 1> ()
      y, last = Loop (three, yes, v, zero) <body = l (int64 i, bool go, float[N, 4] x, int64 k) => (on, q, z) {
        on = Identity (go) CHANGED m = ReduceMax <keepdims = 0> (x) c = Greater (m, high)
        q = If (c) <then_branch = t () => (r) { f = Cast <to = 1> (z) r = Mul (x, f) },
                    else_branch = e () => (w) { w = Neg (x) }> }> }"""
    v = judge(tmp_path, (V, graph, ""), "z = Add (k, one)", "z = Sub (k, one)")
    assert v.status == "inconclusive", v.message
    assert judge(tmp_path, (V, graph, ""), "z = Add (k, one)", "z = Add (one, k)").agrees


@pytest.mark.parametrize(
    "turns", ["n = Constant <value_int = 0> ()", "h = Shape (v) f = Size (h) t = Sub (f, three) n = Max (t, zero)"]
)
def test_a_loop_without_iterations_for_any_input_needs_no_evidence(turns: str, tmp_path: Path) -> None:
    graph = "{ " + turns + LOOP
    assert judge(tmp_path, (V, graph, ""), "z = Mul (x, two)", "z = Mul (x, seven)").status == "equal"


@pytest.mark.parametrize("kind", ["loop", "function", "if"])
def test_branches_excluded_by_ranks_need_no_evidence(kind: str, tmp_path: Path) -> None:
    """A branch excluded by a known rank needs no evidence, at every depth. Exporters compare ranks that they know."""
    asks = """h = Shape (x) u = Size (h) c = Greater (u, three)
        OUT = If (c) <then_branch = t () => (z) { CHANGED }, else_branch = e () => (w) { w = Neg (x) }>"""
    place = {
        "loop": (V, IN_LOOP.replace(rare("q"), asks.replace("OUT", "q")), ""),
        "if": (X, IN_IF.replace(rare("q"), asks.replace("OUT", "q")), ""),
        "function": function("three = Constant <value_int = 3> () " + asks.replace("OUT", "y")),
    }[kind]
    v = judge(tmp_path, place, "z = Mul (x, two)", "z = Mul (x, seven)")
    assert v.status in ("equal", "verified in pieces"), v.message


def test_data_dependent_branches_are_open_at_every_depth(tmp_path: Path) -> None:
    for place, expected in (("if in an if", {"y", "q"}), ("if in a loop", {"q"}), ("no turn", {"y"}), ("drawn", {"y"})):
        signature, graph, functions = PLACES[place]
        text = f"{HEAD} {signature} <{CONSTANTS}> {graph} {functions}".replace("CHANGED", "z = Neg (x)")
        onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
        assert can_change(onnx.load(tmp_path / "m.onnx")).open == expected, place
