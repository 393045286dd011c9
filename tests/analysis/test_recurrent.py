"""Scan and Loop as runtimes infer them: the scanned axis is absent inside, collected results have one more."""

from __future__ import annotations

from onnx import parser

from onnxopt.analysis import types
from onnxopt.analysis.inference import recurred
from onnxopt.graph import read_model
from onnxopt.graph.value import Shape
from onnxopt.proto.messages import tensor_type

SCAN = """<ir_version: 8, opset_import: ["" : OPSET]> g (float[2] s, float[4, 3, 2] x, float[3, 5] z)
    => (float[A] last, float[B, C] first, float[D, E] second)
{ last, first, second = Scan <num_scan_inputs = 2, scan_input_axes = [1, -2], scan_output_axes = [0, -1],
    body = b (float[K] h, float[L, M] e, float[P] f) => (float[Q] k, float[2] c, float[5] d)
    { k = Identity (h) c = Identity (k) d = Identity (f) }> (s, x, z) }"""
LOOP = """<ir_version: 8, opset_import: ["" : 17]> g (int64 n, float[2] s, float[3, 4] w)
    => (float[A] last, float[B, C] all)
{ last, all = Loop (n, , s) <body = b (int64 i, bool go, float[2] h) => (bool g, float[2] k, float[3, 4] c)
    { g = Identity (go) k = Neg (h) c = Identity (w) }> }"""


def inferred(text: str, opset: int) -> dict[str, Shape | None]:
    model = read_model(parser.parse_model(text.replace("OPSET", str(opset))))
    (node,) = model.graph
    return {value.name: tensor_type(kind)[1] for value, (kind, _) in recurred(node, opset, types.shape).items()}


def test_a_scan_goes_along_axes_and_collects_along_others() -> None:
    found = inferred(SCAN, 17)
    assert {name: found[name] for name in "hef"} == {"h": (2,), "e": (4, 2), "f": (5,)}
    assert {name: found[name] for name in ("last", "first", "second")} == {
        "last": (2,),
        "first": (3, 2),
        "second": (5, 3),
    }


def test_before_opset_9_a_scan_has_a_batch() -> None:
    assert inferred(SCAN, 8) == {}


def test_of_a_loop_what_is_collected_is_known() -> None:
    """What it carries may change its shape."""
    assert inferred(LOOP, 17) == {"all": (None, 3, 4)}


def test_as_many_results_are_collected_as_parts_are_read() -> None:
    found = inferred(SCAN.replace("float[4, 3, 2] x, float[3, 5] z", "float[4, T, 2] x, float[T, 5] z"), 17)
    assert (found["first"], found["second"]) == (("T", 2), (5, "T"))
