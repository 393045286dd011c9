"""Wrong claims about a value, by onnx's inference or by a file, are no facts."""

from __future__ import annotations

import pytest
from onnx import parser

import onnxopt
from onnxopt.analysis import types
from onnxopt.graph import read_model
from onnxopt.graph.value import Shape
from tests.samples import value


@pytest.mark.parametrize("opset", [10, 11, 17])
def test_what_a_slice_cuts_is_not_as_long_as_the_whole(opset: int) -> None:
    """onnx's inference says so of opset 10, and of what is computed from it."""
    model = read_model(
        parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : {opset}]>
            g (float[n, 3] x) => (float[a, b] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}>
            {{ s = Slice (x, zero, one, zero)  y = Neg (s) }}"""
        )
    )
    for node in model.graph:
        dims = types.shape(node.output)
        assert dims is not None and dims[0] != "n" and dims[1] == 3


def test_nor_where_a_function_cuts_it() -> None:
    model = read_model(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
            g (float[n, 3] x) => (float[a, b] y) { s = own.first (x)  y = Neg (s) }
            <domain: "own", opset_import: ["" : 10]>
            first (x) => (y)
            { zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()
              y = Slice (x, zero, one, zero) }"""
        )
    )
    y = types.shape(value(model, "y"))
    assert y is not None and y[0] != "n" and y[1] == 3


NO_AXES = """
<ir_version: 8, opset_import: ["" : %d, "own" : 1]>
g (float[2, 4] x) => (int64[A] y, float[B] z)
<int64[3] s = {1, -1, 2}, int64[0] none = {}>
{
  r = Reshape (x, s)
  q = %s
  y = Shape (q)
  z = Neg (q)
}
"""
FUNCTION = """
<domain: "own", opset_import: ["" : 17]>
drop (v) => (w) { none = Constant <value_ints: ints = []> ()  w = Squeeze (v, none) }
"""


@pytest.mark.parametrize(
    ("opset", "squeeze", "function"),
    [
        (17, "Squeeze (r, none)", ""),
        (11, "Squeeze <axes: ints = []> (r)", ""),
        (17, "own.drop (r)", FUNCTION),
    ],
)
def test_a_squeeze_of_no_axes_has_no_shape(opset: int, squeeze: str, function: str) -> None:
    """onnx's inference leaves the axes that are one, onnxruntime removes them."""
    model = read_model(parser.parse_model(NO_AXES % (opset, squeeze) + function))
    assert types.shape(value(model, "r")) == (1, 4, 2)
    assert types.rank(value(model, "q")) is None
    assert types.rank(value(model, "z")) is None
    assert not isinstance(types.shape(value(model, "y"))[0], int)  # type: ignore[index]


CLAIMS = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1, "lab" : 1]>
g (float[N] x, bool c) => (float[...] y)
<int64 two = {2}, bool yes = {1}, int64[1] first = {0}, float[1] a>
{ %s }
<domain: "own", opset_import: ["" : 17]>
hand (v) => (w) { w = Identity (v) }
""".replace("[...]", "")
CLAIMED = {
    "what is read": "a = %s (x)  y = Relu (a)",
    "what a branch makes": """y = If (c) <
        then_branch = t () => (float[K] r) <float[1] a> { a = %s (x)  r = Relu (a) },
        else_branch = f () => (float[L] s) { s = Neg (x) }>""",
    "what a Loop collects": """y = Loop (two, yes) <body = b (int64 i, bool d) => (bool e, float[1] a) {
        e = Identity (d)  a = %s (x) }>""",
}
SCANNED = """u = Unsqueeze (x, first)
    y = Scan <num_scan_inputs = 1, body = b (float[1] a) => (float[K] r) { r = Relu (a) }> (u)"""
HELD = """y = If (c) <
    then_branch = t () => (float[K] r) <%s> { s = %s (x)  z = Constant <value_int = 0> ()  a = %s  r = Relu (a) },
    else_branch = f () => (float[L] q) { q = Neg (x) }>"""
LISTED = HELD % ("seq(float[1]) s", "SequenceConstruct", "SequenceAt (s, z)")
WRAPPED = HELD % ("optional(float[1]) s", "Optional", "OptionalGetElement (s)")


def dims_called_a(nodes: str) -> Shape | None:
    model = read_model(parser.parse_model(CLAIMS % nodes))
    types.infer(model)
    scopes = list(model.scopes())
    made = (v for scope in scopes for v in (*scope.inputs, *(v for n in scope for v in n.outputs)))
    return next(v.shape for v in made if v is not None and v.name == "a")


@pytest.mark.parametrize(
    "nodes", [SCANNED, LISTED, WRAPPED, *(nodes % op for nodes in CLAIMED.values() for op in ("Neg", "own.hand"))]
)
def test_of_what_can_be_found_out_a_file_is_not_believed(nodes: str) -> None:
    """No runtime checks what it says of values on the way."""
    assert dims_called_a(nodes) != (1,)


@pytest.mark.parametrize("nodes", CLAIMED.values(), ids=CLAIMED)
def test_but_it_is_of_operators_that_only_it_knows(nodes: str) -> None:
    assert dims_called_a(nodes % "lab.Keep") == (1,)


def test_and_of_what_a_scan_collects() -> None:
    """onnxruntime refuses another size."""
    collected = SCANNED.replace("float[1] a", "float[K] b").replace("float[K] r", "float[1] a")
    assert dims_called_a(collected.replace("r = Relu (a)", "a = Relu (b)")) == (1,)


CARRIED = """s = SequenceConstruct (five)
    l = Loop (two, yes, s) <body = b (int64 i, bool d, seq(float[K]) p) => (bool e, seq(float[L]) q) {
      e = Identity (d)  z = Constant <value_int = 0> ()  m = SequenceAt (p, z)  q = SequenceConstruct (x) }>
    y = SequenceAt (l, i)"""

CARRYING = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[N] x, float[5] five, int64 two, bool yes, int64 i) => (float[M] r) { %s  r = Neg (y) }
<domain: "own", opset_import: ["" : 17]>
loop (x, five, two, yes, i) => (y) { %s }
"""


@pytest.mark.parametrize("nodes", [CARRIED, "y = own.loop (x, five, two, yes, i)"])
def test_a_loop_may_carry_sequences_of_other_shapes_than_at_first(nodes: str) -> None:
    """onnx's inference says what they are at first."""
    y = value(read_model(parser.parse_model(CARRYING % (nodes, CARRIED))), "y")
    assert types.dtype(y) == (0 if "own" in nodes else 1)
    assert types.shape(y) is None


def test_elements_of_a_sequence_have_sizes_of_their_own() -> None:
    """onnx's inference gives a size without a number one name, in all of them."""
    model = read_model(
        parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            g (float[n, m] x, int64[2] s, float[n, k] z) => (float[a, b] y, float[c, d] v)
            <int64[2] sizes = {16, 32}, int64 zero = {0}, int64 one = {1}>
            {
              r = Reshape (x, s)
              t = SplitToSequence <axis = 1> (r, sizes)
              p = SequenceAt (t, zero)
              q = SequenceAt (t, one)
              y = Neg (p)
              v = Neg (q)
              w = SequenceConstruct (z, z)
              u = SequenceAt (w, one)
            }"""
        )
    )
    y, v = types.shape(value(model, "y")), types.shape(value(model, "v"))
    assert y is not None and v is not None and len(y) == len(v) == 2 and (y[1] is None or y[1] not in v)
    assert types.shape(value(model, "u")) == ("n", "k")


def test_a_node_that_is_misread_stays_what_it_is_where_its_body_changes() -> None:
    """It is hidden while inference is asked, and the body of the outer If is written anew meanwhile."""
    source = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 1, n] x, bool c) => (float[1, 1, a] y) <bool no = {0}> {
      y = If (c) <
        then_branch: graph = outer () => (float[1, 1, b] z) {
          z = If (no) <
            then_branch: graph = p () => (float[1, 1, d] u) { u = Neg (x) },
            else_branch: graph = q () => (float[1, 1, e] v) {
              w = MaxPool <kernel_shape = [2], strides = [3], ceil_mode = 1> (x)  v = Neg (w)
            }> },
        else_branch: graph = other () => (float[1, 1, f] r) { r = Abs (x) }> }"""
    result = onnxopt.optimize(parser.parse_model(source), level=1, verify=False).model
    branches = {a.name: [n.op_type for n in a.g.node] for a in result.graph.node[0].attribute}
    assert branches == {"then_branch": ["MaxPool", "Neg"], "else_branch": ["Abs"]}


EITHER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 12] x, float[m, 12] w) => (float[a, b] y)
{ e = Einsum <equation = "ij,ij->ij"> (x, w)  p = PRelu (e, w)  y = Relu (p) }"""


def test_what_is_misread_has_the_type_of_what_it_is_made_of() -> None:
    """A size of it is unknown, and so was its type, and the type of all that comes of it."""
    model = read_model(parser.parse_model(EITHER))
    assert [types.dtype(value(model, name)) for name in "epy"] == [1, 1, 1]
    size, columns = types.shape(value(model, "e"))  # type: ignore[misc]
    assert size not in ("n", "m") and columns == 12
