"""Transfer functions give each dim of an output: equal to a dim of an operand, or unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from onnx import parser

from onnxopt.verification.model.shapes import SHAPES, UNKNOWN, Call, Known, Shape, shapes_of

PICTURE: Shape = ("n", "c", "h", "w")
NOTHING: Mapping[str, Sequence[int]] = {}
PICTURES = [PICTURE]


def of(node: str, shapes: Sequence[Shape | None], integers: Mapping[str, Sequence[int]] = NOTHING) -> Shape | None:
    made = parser.parse_graph(f"g (float x) => (float y) {{ y = {node} }}").node[0]
    return Call(made, [Known(shape) for shape in shapes], lambda name: integers.get(name, [])).computed(SHAPES)


@pytest.mark.parametrize(
    ("node", "shapes", "integers", "made"),
    [
        ("Relu (x)", PICTURES, {}, PICTURE),
        ("Relu (x)", [None], {}, None),
        ("Transpose <perm = [0, 2, 3, 1]> (x)", PICTURES, {}, ("n", "h", "w", "c")),
        ("Transpose <perm = [0, 2, 1]> (x)", PICTURES, {}, None),  # of another rank
        ("Transpose <perm = [0, 2, 2, 1]> (x)", PICTURES, {}, None),
        ("Transpose (x)", PICTURES, {}, None),
    ],
)
def test_sizes_kept_or_permuted(
    node: str, shapes: list[Shape | None], integers: dict[str, list[int]], made: Shape | None
) -> None:
    assert of(node, shapes, integers) == made


@pytest.mark.parametrize(
    ("node", "integers", "made"),
    [
        ("Pad (x, p)", {"p": [0, 0, 1, 0, 0, 0, 0, 2]}, ("n", "c", UNKNOWN, UNKNOWN)),
        ("Pad (x, p)", {"p": [0, -1, 0, 0, 0, 0, 0, 0]}, ("n", UNKNOWN, "h", "w")),
        ("Pad (x, p, , a)", {"p": [1, 0, 0, 0], "a": [1, -1]}, ("n", UNKNOWN, "h", "w")),
        ("Pad (x, p, , a)", {"p": [1, 1]}, None),  # the axes are unknown
        ("Pad (x, p, , a)", {"p": [1, 1], "a": [4]}, None),  # axis out of range
        ("Pad (x, p, , a)", {"p": [1, 1], "a": [-5]}, None),
        ("Pad (x, p, , a)", {"a": [0, 2]}, (UNKNOWN, "c", UNKNOWN, "w")),
        ("Pad (x, p)", {}, ("n", "c", UNKNOWN, UNKNOWN)),  # computed pads are on window axes
        ("Pad (x, p)", {"p": [0, 0]}, (UNKNOWN,) * 4),  # not two for each axis
        ("Pad <pads = [0, 0, 0, 0, 0, 0, 3, 0]> (x)", {}, ("n", "c", UNKNOWN, "w")),
        ("Slice (x, s, e, a)", {"s": [1], "a": [-2]}, ("n", "c", UNKNOWN, "w")),
        ("Slice (x, s, e, a)", {"s": [1]}, None),
        ("Slice (x, s, e)", {"s": [0, 3]}, (UNKNOWN, UNKNOWN, "h", "w")),
        ("Slice (x, s, e)", {}, None),
        ("Slice <axes = [3], starts = [1], ends = [2]> (x)", {}, ("n", "c", "h", UNKNOWN)),
        ("Slice <starts = [1], ends = [2]> (x)", {}, (UNKNOWN, "c", "h", "w")),
        ("Unsqueeze (x, a)", {"a": [0, -1]}, (1, "n", "c", "h", "w", 1)),
        ("Unsqueeze <axes = [2]> (x)", {}, ("n", "c", 1, "h", "w")),
        ("Unsqueeze (x, a)", {"a": [0, -6]}, None),  # the same axis twice
        ("Unsqueeze (x, a)", {"a": [5]}, None),
        ("Unsqueeze (x, a)", {}, None),
        ("Squeeze (x, a)", {"a": [1, -1]}, ("n", "h")),
        ("Squeeze (x)", {}, None),  # all dims of size one
    ],
)
def test_some_sizes_changed(node: str, integers: dict[str, list[int]], made: Shape | None) -> None:
    assert of(node, PICTURES, integers) == made


@pytest.mark.parametrize("node", ["Unsqueeze (x, a)", "Slice (x, a, e)", "Pad (x, p)", "Transpose <perm = [0]> (x)"])
def test_an_unknown_shape_stays_unknown(node: str) -> None:
    assert of(node, [None], {"a": [0]}) is None


@pytest.mark.parametrize("rank", [1, 2])
def test_computed_pads_of_a_tensor_without_window_may_be_on_any_axis(rank: int) -> None:
    assert of("Pad (x, p)", [PICTURE[:rank]]) == (UNKNOWN,) * rank


@pytest.mark.parametrize(
    ("node", "shapes", "made"),
    [
        ("Concat <axis = 1> (x, z)", [("n", "c", "t"), ("n", "d", "t")], ("n", UNKNOWN, "t")),
        ("Concat <axis = -1> (x, z)", [("n", "c"), ("n", "d")], ("n", UNKNOWN)),
        ("Concat <axis = 1> (x, z)", [("n", "c", "t"), (UNKNOWN, "c", 7)], ("n", UNKNOWN, 7)),
        ("Concat <axis = 1> (x, z)", [("n", "c", UNKNOWN), ("m", "c", UNKNOWN)], ("n", UNKNOWN, UNKNOWN)),
        ("Concat <axis = 1> (x, z)", [None, ("n", "c")], ("n", UNKNOWN)),  # the other operand has the same dims
        ("Concat <axis = 1> (x, z)", [None, None], None),
        ("Concat <axis = 1> (x, z)", [("n", "c"), ("n", "c", "t")], None),
        ("Concat <axis = 2> (x, z)", [("n", "c"), ("n", "c")], None),
        ("Concat <axis = -3> (x, z)", [("n", "c"), ("n", "c")], None),
        ("Concat (x, z)", [("n", "c"), ("n", "c")], None),
        ("Add (x, z)", [("n", "c"), ("n", "c")], ("n", "c")),
        ("Add (x, z)", [("n", "c"), ()], ("n", "c")),
        ("Add (x, z)", [("c",), ("n", 1)], ("n", "c")),
        ("Add (x, z)", [(1, "c"), (1, 8)], (1, 8)),  # the dim that is not one is 8
        ("Add (x, z)", [("n", "c"), ("m", "c")], (UNKNOWN, "c")),  # either may be one
        ("Add (x, z)", [("n", UNKNOWN), ("n", "c")], ("n", UNKNOWN)),
        ("Add (x, z)", [("n", UNKNOWN), ("n", 1)], ("n", UNKNOWN)),
        ("Add (x, z)", [("n",), None], None),
        ("Add (x, z)", [None, ("n",)], None),
    ],
)
def test_shapes_of_several_operands(node: str, shapes: list[Shape | None], made: Shape | None) -> None:
    assert of(node, shapes) == made


GRAPH = """g (float[n, 6, t] x, float[n] m) => (y) <int64[4] split = {0, 6, -1, 2}, int64[3] copied = {0, -1, 4},
    int64[1] minus = {-1}, int64[1] eight = {8}, int64[1] four = {4}, int64[1] two = {2}, int64[1] first = {0},
    int64 last = {-1}> {
    s = Shape (x) n = Gather (s, first) t = Gather (s, last) u = Unsqueeze (t, first) c = Cast <to = 7> (n)
    target = Concat <axis = 0> (c, minus, eight) k = Mul (n, two) wide = Concat <axis = 0> (k, eight)
    other = Slice (x, first, two, eight) v = Identity (u) BODY }"""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Reshape (x, split)", ("n", 6, UNKNOWN, 2)),
        ("y = Reshape (x, copied)", ("n", UNKNOWN, 4)),
        ("y = Reshape <allowzero = 1> (x, copied)", (UNKNOWN, UNKNOWN, 4)),
        ("z = Reshape (x, target) y = Reshape (z, copied)", ("n", UNKNOWN, 4)),
        ("y = Reshape (x, target)", ("n", UNKNOWN, 8)),
        ("y = Reshape (x, wide)", (UNKNOWN, 8)),  # only the number of elements is known
        ("p = Concat <axis = 0> (c, eight) z = Expand (eight, p) y = Reshape (z, wide)", (UNKNOWN, 8)),
        ("p = Concat <axis = 0> (c, eight) y = Expand (eight, p)", ("n", 8)),
        ("p = Concat <axis = 0> (c, minus, two) q = Concat <axis = 0> (c, eight) z = Expand (eight, q)"
         " y = Reshape (z, p)", ("n", 4, 2)),
        ("p = Shape <start = 1, end = -1> (x) y = Expand (m, p)", (6,)),
        ("y = Expand (eight, v)", ("t",)),
        ("y, z = Split <axis = -1, num_outputs = 2> (x)", ("n", 6, UNKNOWN)),
        ("p = Identity (s) y = Reshape (m, p)", ("n", 6, "t")),
        ("p = Sub (s, s) y = Reshape (m, p)", (UNKNOWN,) * 3),
        ("p = Mul (eight, two) q = Div (p, four) y = Expand (m, q)", (4,)),
        ("p = Reshape (last, minus) y = ReduceMean (x, p)", ("n", 6, 1)),  # -1 is an axis, not an unknown size
        ("p = Unsqueeze (last, first) q = Identity (p) y = ReduceMean (x, q)", ("n", 6, 1)),
        ("h = CastLike (x, m) y = Reshape (h, copied)", ("n", UNKNOWN, 4)),
        ("y = Flatten (x)", ("n", UNKNOWN)),
        ("z = Reshape (x, split) y = Flatten <axis = 2> (z)", (UNKNOWN, UNKNOWN)),
        ("z = Expand (eight, v) y = Flatten <axis = -1> (z)", (1, "t")),
        ("z = Reshape (x, target) y = Flatten <axis = 3> (z)", (UNKNOWN, 1)),
        ("p = Mul (eight, two) q = Concat <axis = 0> (p, four, eight) z = Expand (minus, q) y = Flatten (z)", (16, 32)),
    ],
)  # fmt: skip
def test_targets_computed_from_shapes_are_known(body: str, shape: Shape | None) -> None:
    graph = parser.parse_graph(GRAPH.replace("BODY", body))
    assert shapes_of(graph).get("y", Known()).shape == shape
