"""Transfer functions of shapes by operator: equal to a size of an operand, or free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from onnx import parser

from onnxopt.verification.inputs.sizes import UNKNOWN, Call, Shape, carried

PICTURE: Shape = ("n", "c", "h", "w")
NOTHING: Mapping[str, Sequence[int]] = {}
PICTURES = [PICTURE]


def of(node: str, shapes: Sequence[Shape | None], integers: Mapping[str, Sequence[int]] = NOTHING) -> Shape | None:
    made = parser.parse_graph(f"g (float x) => (float y) {{ y = {node} }}").node[0]
    return carried(Call(made, shapes, lambda name: integers.get(name)))


@pytest.mark.parametrize(
    ("node", "shapes", "integers", "made"),
    [
        ("Relu (x)", PICTURES, {}, PICTURE),
        ("Relu (x)", [None], {}, None),
        ("Transpose <perm = [0, 2, 3, 1]> (x)", PICTURES, {}, ("n", "h", "w", "c")),
        ("Transpose <perm = [0, 2, 1]> (x)", PICTURES, {}, None),  # of another number of axes
        ("Transpose <perm = [0, 2, 2, 1]> (x)", PICTURES, {}, None),
        ("Transpose (x)", PICTURES, {}, None),
    ],
)
def test_what_keeps_sizes_or_turns_them(
    node: str, shapes: list[Shape | None], integers: dict[str, list[int]], made: Shape | None
) -> None:
    assert of(node, shapes, integers) == made


@pytest.mark.parametrize(
    ("node", "integers", "made"),
    [
        ("Pad (x, p)", {"p": [0, 0, 1, 0, 0, 0, 0, 2]}, ("n", "c", UNKNOWN, UNKNOWN)),
        ("Pad (x, p)", {"p": [0, -1, 0, 0, 0, 0, 0, 0]}, ("n", UNKNOWN, "h", "w")),
        ("Pad (x, p, , a)", {"p": [1, 0, 0, 0], "a": [1, -1]}, ("n", UNKNOWN, "h", "w")),
        ("Pad (x, p, , a)", {"p": [1, 1]}, None),  # nobody knows of which axes
        ("Pad (x, p, , a)", {"p": [1, 1], "a": [4]}, None),  # nor which that is
        ("Pad (x, p, , a)", {"p": [1, 1], "a": [-5]}, None),
        ("Pad (x, p, , a)", {"a": [0, 2]}, (UNKNOWN, "c", UNKNOWN, "w")),
        ("Pad (x, p)", {}, ("n", "c", UNKNOWN, UNKNOWN)),  # computed: those of a window
        ("Pad (x, p)", {"p": [0, 0]}, (UNKNOWN,) * 4),  # not as many as it has to be
        ("Pad <pads = [0, 0, 0, 0, 0, 0, 3, 0]> (x)", {}, ("n", "c", UNKNOWN, "w")),
        ("Slice (x, s, e, a)", {"s": [1], "a": [-2]}, ("n", "c", UNKNOWN, "w")),
        ("Slice (x, s, e, a)", {"s": [1]}, None),
        ("Slice (x, s, e)", {"s": [0, 3]}, (UNKNOWN, UNKNOWN, "h", "w")),
        ("Slice (x, s, e)", {}, None),
        ("Slice <axes = [3], starts = [1], ends = [2]> (x)", {}, ("n", "c", "h", UNKNOWN)),
        ("Slice <starts = [1], ends = [2]> (x)", {}, (UNKNOWN, "c", "h", "w")),
        ("Unsqueeze (x, a)", {"a": [0, -1]}, (1, "n", "c", "h", "w", 1)),
        ("Unsqueeze <axes = [2]> (x)", {}, ("n", "c", 1, "h", "w")),
        ("Unsqueeze (x, a)", {"a": [0, -6]}, None),  # the same one twice
        ("Unsqueeze (x, a)", {"a": [5]}, None),
        ("Unsqueeze (x, a)", {}, None),
        ("Squeeze (x, a)", {"a": [1, -1]}, ("n", "h")),
        ("Squeeze (x)", {}, None),  # all that are one
    ],
)
def test_what_changes_some_sizes(node: str, integers: dict[str, list[int]], made: Shape | None) -> None:
    assert of(node, PICTURES, integers) == made


@pytest.mark.parametrize("node", ["Unsqueeze (x, a)", "Slice (x, a, e)", "Pad (x, p)", "Transpose <perm = [0]> (x)"])
def test_nothing_is_known_of_what_is_made_of_an_unknown_shape(node: str) -> None:
    assert of(node, [None], {"a": [0]}) is None


@pytest.mark.parametrize("rank", [1, 2])
def test_computed_pads_of_what_has_no_window_may_be_of_any_axis(rank: int) -> None:
    assert of("Pad (x, p)", [PICTURE[:rank]]) == (UNKNOWN,) * rank


@pytest.mark.parametrize(
    ("node", "shapes", "made"),
    [
        ("Concat <axis = 1> (x, z)", [("n", "c", "t"), ("n", "d", "t")], ("n", UNKNOWN, "t")),
        ("Concat <axis = -1> (x, z)", [("n", "c"), ("n", "d")], ("n", UNKNOWN)),
        ("Concat <axis = 1> (x, z)", [("n", "c", "t"), (UNKNOWN, "c", 7)], ("n", UNKNOWN, 7)),
        ("Concat <axis = 1> (x, z)", [("n", "c", UNKNOWN), ("m", "c", UNKNOWN)], ("n", UNKNOWN, UNKNOWN)),
        ("Concat <axis = 1> (x, z)", [None, ("n", "c")], ("n", UNKNOWN)),  # the other has to have the same
        ("Concat <axis = 1> (x, z)", [None, None], None),
        ("Concat <axis = 1> (x, z)", [("n", "c"), ("n", "c", "t")], None),
        ("Concat <axis = 2> (x, z)", [("n", "c"), ("n", "c")], None),
        ("Concat <axis = -3> (x, z)", [("n", "c"), ("n", "c")], None),
        ("Concat (x, z)", [("n", "c"), ("n", "c")], None),
        ("Add (x, z)", [("n", "c"), ("n", "c")], ("n", "c")),
        ("Add (x, z)", [("n", "c"), ()], ("n", "c")),
        ("Add (x, z)", [("c",), ("n", 1)], ("n", "c")),
        ("Add (x, z)", [(1, "c"), (1, 8)], (1, 8)),  # what is not one is 8
        ("Add (x, z)", [("n", "c"), ("m", "c")], (UNKNOWN, "c")),  # either may be one
        ("Add (x, z)", [("n", UNKNOWN), ("n", "c")], ("n", UNKNOWN)),
        ("Add (x, z)", [("n", UNKNOWN), ("n", 1)], ("n", UNKNOWN)),
        ("Add (x, z)", [("n",), None], None),
        ("Add (x, z)", [None, ("n",)], None),
    ],
)
def test_what_is_made_of_several(node: str, shapes: list[Shape | None], made: Shape | None) -> None:
    assert of(node, shapes) == made
