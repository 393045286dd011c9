"""Each analysis is one walk over nodes in any order, with bodies and functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.sizes import Side, Sizes, other_rows, other_sizes
from onnxopt.verification.inputs.uses import INDEX, UNKNOWN, Uses
from onnxopt.verification.model.skeleton import Skeleton

OPSETS = '<ir_version: 9, opset_import: ["" : 17, "lab" : 1]>'
CONSTANTS = """<int64 one = {1}, int64 seven = {7}, int64 twenty = {20}, int64[1] first = {0}, int64[1] some = {30},
    int64[1] three = {3}, int64 zero = {0}, float high = {9}, float[4] table = {1, 2, 3, 4}, float[64] long = {0}>"""
FUNCTION = '<domain: "lab", opset_import: ["" : 17]> pick (w, i) => (y) { j = Add (i, i) y = Gather (w, j) }'


def model(given: str, body: str, functions: str = "") -> onnx.ModelProto:
    return parser.parse_model(f"{OPSETS} g ({given}) => (y) {CONSTANTS} {{ {body} }} {functions}")


def test_the_role_of_an_input_is_found_inside_functions() -> None:
    made = model("int64[n] x", "y = lab.pick (table, x)", FUNCTION)
    assert Uses(made.graph, made.functions).found["x"].role == INDEX
    assert Uses(made.graph).found["x"].role == UNKNOWN, "an operator that nothing is known of"


def test_compared_numbers_behind_an_offset() -> None:
    added, taken = (f"t = {op} (x, one) y = Equal (t, seven)" for op in ("Add", "Sub"))
    assert Uses(model("int64 x", added).graph).found["x"].decisive == (6, 5)
    assert Uses(model("int64 x", taken).graph).found["x"].decisive == (8, 7)
    assert Uses(model("int64 x", "t = Sub (one, x) y = Equal (t, seven)").graph).found["x"].decisive == ()
    guessed = model("int64 x, int64 z", "t = Add (x, z) y = Equal (t, seven)")
    assert Uses(guessed.graph).found["x"].decisive == (), "another number is added, which may be any"


def test_the_role_of_an_input_is_found_in_both_branches() -> None:
    """Inputs read in either branch get the role of the If's output. Only the last branch was read."""
    text = """i = If (c) <then_branch = t () => (p) { p = Add (x, one) }, else_branch = e () => (q) { q = Abs (k) }>
        y = Gather (table, i)"""
    found = Uses(model("int64[n] x, int64[n] k, bool c", text).graph).found
    assert (found["x"].role, found["k"].role) == (INDEX, INDEX)


def test_a_branch_that_may_not_run_demands_no_size() -> None:
    text = """y = If (c) <then_branch = t () => (p) { p = Reshape (x, three) },
        else_branch = e () => (q) { q = Neg (x) }>"""
    assert Sizes(model("float[n] x, bool c", text).graph, given={"x": ("n",)}).required == {}
    assert Sizes(model("float[n] x", "y = Reshape (x, three)").graph, given={"x": ("n",)}).required == {"n": 3}


def test_decisions_are_found_in_nodes_of_any_order() -> None:
    """A decision on a value made by a later node is found."""
    made = model("float[n] x", "y = Greater (m, high) m = ReduceMax <keepdims = 0> (x)")
    assert make_plan(made).decides


MEASURED = "s = Shape (x) b = Gather (s, zero) t = Gather (s, one) c = Greater (t, twenty) "


def test_one_number_in_two_dims_of_a_target() -> None:
    one = model("float[n, t] x", MEASURED + "y = Identity (c)")
    both = model("float[n, t] x", MEASURED + "d = Greater (b, twenty) y = And (c, d)")
    assert other_sizes(Sizes(one.graph), Sizes(both.graph)).keys() == {21}
    assert other_sizes(Sizes(both.graph), Sizes(both.graph)) == {}
    twice = model("float[n, t] x", MEASURED + "e = Greater (t, twenty) y = And (c, e)")
    assert other_sizes(Sizes(one.graph), Sizes(twice.graph)).keys() == {21}, (
        "in more places: of what is not known either"
    )
    assert other_sizes(Sizes(twice.graph), Sizes(one.graph)) == {}, "in fewer: what is computed twice became one"


def test_slices_of_weights_are_no_sizes() -> None:
    cut = model("float[n] x", "w = Slice (long, first, some) y = Add (x, w)")
    assert not Sizes(cut.graph).limits
    assert [n for n, _ in Sizes(model("float[n] x", "y = Slice (x, first, some)").graph).limits] == [30]


def test_changed_table_rows_behind_an_offset(tmp_path: Path) -> None:
    """A changed row of a table is reached through an offset index, like position embeddings that begin at two."""
    saved = []
    for name, factor in (("a", 1), ("b", 2)):
        made = model("int64[n] x", "i = Add (x, seven) y = Gather (words, i)")
        rows = np.arange(80, dtype=np.float32).reshape(20, 4) + 1
        rows[12] *= factor
        made.graph.initializer.append(numpy_helper.from_array(rows, "words"))
        onnx.save(made, tmp_path / name)
        saved.append(Side(Skeleton(tmp_path / name)))
    assert other_rows(*saved) == {"x": (5,)}
