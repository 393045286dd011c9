"""Inferred shapes of standard operators equal onnxruntime's, for each opset and all sizes."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as rt
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxopt import OptimizeOptions, optimize_model
from onnxopt.analysis import types
from onnxopt.graph import read_model, write_model
from onnxopt.graph.value import Shape
from onnxopt.io import from_proto
from tests.node_cases import cases
from tests.opsets import at_opset
from tests.runtime import plain_session
from tests.samples import parsed

FUZZ = "ONNXOPT_FUZZ" in os.environ
OPSETS = (7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21, 22, 23)
PARTS = 4


def variant(model: ModelProto, feeds: Mapping[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, int]]:
    """Make inputs of the model constants and their dims symbols, at random; (what it is fed now, symbols' sizes)."""
    fed, sizes = dict(feeds), dict[str, int]()
    share = draw.choice((0.0, 0.5, 1.0))
    for i, given in reversed(list(enumerate(model.graph.input))):
        array = np.asarray(feeds[given.name])
        if i and array.dtype.kind in "iubf" and array.ndim < 2 and array.size < 64 and draw.random() < 0.5:
            model.graph.initializer.append(numpy_helper.from_array(array, given.name))
            del model.graph.input[i], fed[given.name]
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if draw.random() < share:
                dim.dim_param = f"{given.name}_{axis}"
                sizes[dim.dim_param] = array.shape[axis]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return fed, sizes


def is_so(dims: Shape, array: Any, sizes: Mapping[str, int]) -> bool:
    known = [sizes.get(d) if isinstance(d, str) else d for d in dims]
    return len(dims) == array.ndim and all(d is None or d == n for d, n in zip(known, array.shape))


def same_shapes(model: ModelProto, fed: Mapping[str, Any], dims: Sequence[tuple[int, ...]]) -> bool:
    """Does the model, optimized, give these shapes of its outputs, if that is all that it is asked for?"""
    asked = ModelProto.FromString(model.SerializeToString())
    outputs = [o.name for o in asked.graph.output]
    asked.graph.node.extend(helper.make_node("Shape", [o], [f"dims of {o}"]) for o in outputs)
    del asked.graph.output[:]
    for o in outputs:
        asked.graph.output.append(helper.make_tensor_value_info(f"dims of {o}", TensorProto.INT64, [None]))
    indexed = from_proto(asked)
    optimize_model(indexed, OptimizeOptions(level=2))
    found = plain_session(write_model(indexed)).run(None, dict(fed))
    return [tuple(v) for v in found] == list(dims)


@pytest.mark.parametrize("part", range(PARTS))
def test_shapes_are_those_that_are_computed(part: int) -> None:
    draw = random.Random(part)
    wrong, compared = [], 0
    for case in cases()[part::PARTS]:
        if not all(isinstance(v, (np.ndarray, np.generic)) for v in case.feeds.values()):
            continue
        for opset in OPSETS if FUZZ else draw.sample(OPSETS, 1):
            try:
                model = at_opset(case.model, opset)
                if model is None:
                    continue
                fed, sizes = variant(model, case.feeds, draw)
                session = plain_session(model)
                results = dict(zip((o.name for o in session.get_outputs()), session.run(None, fed)))
                outputs = read_model(model).graph.outputs
            except Exception:  # no such operator there, or none of this runtime
                continue
            if not all(isinstance(v, np.ndarray) for v in results.values()):
                continue
            if not same_shapes(model, fed, [results[v.name].shape for v in outputs]):
                wrong.append(f"{case.name}, opset {opset}: a Shape behind it says something else")
            for value in outputs:
                dims, array = types.shape(value), results[value.name]
                if dims is not None:
                    compared += 1
                    if not is_so(dims, array, sizes):
                        wrong.append(f"{case.name}, opset {opset}: {value.name} is {array.shape}, not {dims}")
    assert not wrong
    assert compared > 50


POOL = """<ir_version: 8, opset_import: ["" : 12]>
g (float[1, 1, %d, %d] x) => (float[a, b, c, d] y)
{ y = MaxPool <kernel_shape = [%d, %d], strides = [2, 2], pads = [%d, %d, %d, %d], ceil_mode = 1> (x) }"""
STFT = """g (float[1, 128, 1] x) => (float[a, b, c, d] y) <int64 step = {8}, int64 length = {16}>
{ y = STFT%s (x, step, , length) }"""
ATTENTION = """<ir_version: 11, opset_import: ["" : 23]>
g (float[1, s, w] q, float[1, t, w] k, float[1, t, w] v) => (float[a, b, c] y)
{ o = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)  y = Relu (o) }"""
BESIDE = """<ir_version: 11, opset_import: ["" : 23]>
g (float[1, s, w] q, float[1, t, w] k, float[1, t, w] v, float[1, 4, 2, 2] x) => (float[a, b, c, d] y)
{ o = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)  z = DepthToSpace <blocksize = 2> (x)  y = Relu (z) }"""
SCORES = """<ir_version: 11, opset_import: ["" : 23]>
g (float[1, 2, s, 4] q, float[1, 2, t, 4] k, float[1, 2, t, 4] v) => (float[a, b, c, d] y)
{ o, , , z = Attention (q, k, v)  y = Relu (z) }"""
ALIKE = """g (float[1, 1, 8] x) => (float[a, b, c] y)
{ y = MaxPool <kernel_shape = [2], auto_pad = "SAME_UPPER", %s> (x) }"""
EINSUM = """g (float[n, 3] x, float[%s, 3] w) => (float[a, b] y) { y = Einsum <equation = "ij,ij->ij"> (x, w) }"""
INSIDE = """g (float[n, 3] x, float[%s, 3] w) => (float[a, b] y) <bool yes = {1}>
{ y = If (yes) <
    then_branch = t () => (float[c, d] o) { o = Einsum <equation = "ij,ij->ij"> (x, w) },
    else_branch = e () => (float[c, d] p) { p = Einsum <equation = "ij,ij->ij"> (x, w) }
> }"""
IN_A_FUNCTION = """<ir_version: 9, opset_import: ["" : 17, "f" : 1]>
g (float[n, 3] x, float[m, 3] w) => (float[a, b] y) { y = f.h (x, w) }
<domain: "f", opset_import: ["" : 17]> h (a, b) => (c) { c = %s (a, b) }"""
DOTS = """g (float[%s, 2, 3] x, float[%s, 3, 4] w) => (float[a, b, c] y)
{ y = Einsum <equation = "...ij, ...jk -> ...ik"> (x, w) }"""
PRELU = """g (float[n, %s, 1] x, float[%s, 1] w) => (float[a, b, c] y) { y = PRelu (x, w) }"""
ONE_SLOPE = """g (float[n, 3, 1] x) => (float[a, b, c] y) <float slope = {0.5}> { y = PRelu (x, slope) }"""
NONZERO = """g (float%s x) => (float[a] y) { i = NonZero (x) j = Transpose (i) f = Cast <to = 1> (j) y = Relu (f) }"""
SQUEEZE = """<ir_version: 8, opset_import: ["" : 10]>
g (float[1, 1, s, 5] x) => (float[a, b] y) { y = Squeeze <axes = [%s]> (x) }"""
DFT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[1, 2, 3, 1] x) => (float[a, b, c, d] y) <int64 size = {6}, int64 axis = {1}>
{ n = Size (x) y = DFT (x, %s, axis) }"""
RANGE = """g (float[n] x) => (float[a] y) <float start = {0.1}, float limit = {0.6}, float delta = {0.1}>
{ y = Range (start, limit, delta) }"""
CONV = """g (float[1, 1, 9] x) => (float[a, b, c] y) <float[1, 1, 3] w = {1, 1, 1}>
{ y = ConvTranspose <strides = [3], output_shape = [5]> (x, w) }"""
LONGER = """g (float[1, 1, 9] x) => (float[a, b, c] y) <float[1, 1, 3] w = {1, 1, 1}>
{ y = ConvTranspose <strides = [3], auto_pad = "SAME_LOWER"%s> (x, w) }"""
RESIZE = """<ir_version: 8, opset_import: ["" : 18]>
g (float[3, 4] x) => (float[a, b] y) <int64[1] size = {3}>
{ y = Resize <axes = [%d], keep_aspect_ratio_policy = "not_smaller"> (x, , , size) }"""
SLICE = """g (float[3, 2] x) => (float[a, b] y)
<int64[1] start = {-1}, int64[1] end = {%d}, int64[1] axis = {0}, int64[1] step = {-1}>
{ y = Slice (x, start, end, axis, step) }"""
WIDE = {"w": 8, "s": 3, "t": 5, "n": 1, "m": 4}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (POOL % (2, 2, 1, 1, 0, 0, 0, 0), False),
        (POOL % (3, 3, 2, 2, 1, 1, 1, 1), False),
        (POOL % (6, 5, 3, 3, 1, 1, 1, 1), True),
        (POOL % (6, 5, 2, 2, 0, 0, 0, 0), True),
        (POOL.replace("kernel", 'auto_pad = "SAME_UPPER", kernel') % (6, 5, 3, 3, 0, 0, 0, 0), True),
        (POOL.replace("kernel", "dilations = [2, 2], kernel") % (6, 5, 2, 2, 1, 1, 1, 1), True),
        (ALIKE % "dilations = [2]", False),
        (ALIKE % "dilations = [1]", True),
        (POOL.replace("MaxPool", "AveragePool") % (3, 3, 2, 2, 1, 1, 1, 1), False),
        (EINSUM % "n", True),
        (EINSUM % "m", False),
        (INSIDE % "n", True),
        (INSIDE % "m", False),
        (IN_A_FUNCTION % 'Einsum <equation = "ij,ij->ij">', False),
        (IN_A_FUNCTION % "PRelu", False),
        (DOTS % ("n", "n"), True),
        (DOTS % ("n", "m"), False),
        (DOTS % ("n", "4"), True),  # n is 1 or 4
        (DOTS % ("1", "4"), True),
        (PRELU % ("s", "s"), True),
        (PRELU % ("s", "1"), True),
        (PRELU % ("n", "s"), False),
        (PRELU.replace("n, ", "") % ("n", "4, 3"), False),
        (ONE_SLOPE, True),
        (NONZERO % "[3, 5]", True),
        (NONZERO % "", False),
        (SQUEEZE % "0, 1", True),
        (SQUEEZE % "1, 0", False),
        (DFT % "size", True),
        (DFT % "", True),
        (DFT % "n", False),
        (RANGE, False),
        (CONV, False),
        (LONGER % "", True),
        (LONGER % ", output_padding = [0]", True),
        (LONGER % ", output_padding = [1]", False),
        (SLICE % (2**63 - 1), False),
        (SLICE % (2**31 - 1), False),
        (SLICE % -4, True),
        (RESIZE % 1, True),
        (RESIZE % -1, False),
        (STFT % "", False),
        (STFT % " <onesided = 1>", True),
        (ATTENTION, False),
        (ATTENTION.replace("t, w] v", "t, 8] v"), True),
        (BESIDE, True),
        (SCORES, False),
        (SCORES.replace("y = Relu (z)", "y = Relu (o)").replace("o, , , z", "o"), True),
    ],
)
def test_where_onnx_says_something_else(text: str, known: bool) -> None:
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    sizes = {
        i.name: [d.dim_value or WIDE[d.dim_param] for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }
    feeds = {name: np.ones(dims, np.float32) for name, dims in sizes.items()}
    (array,) = rt.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    dims = types.shape(read_model(model).graph.outputs[0])
    assert not known or (dims is not None and any(isinstance(d, int) for d in dims[1:]))
    assert dims is None or is_so(dims, array, WIDE)


VALUES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[%s] x) => (int64[r] y) <int64 zero = {0}, int64[1] first = {0}, int64 last = {-1}, float16[1] half = {1}>
{ s = Shape (x) %s y = Shape (f) }"""
FILL = "f = ConstantOfShape <value = float[1] {1}> (c)"


@pytest.mark.parametrize("dims", ["2, 300, 2049", "a, b, c"])
@pytest.mark.parametrize(
    "nodes",
    [
        f"n = Cast <to = 2> (s) c = Cast <to = 7> (n) {FILL}",
        f"n = Cast <to = 9> (s) c = Cast <to = 7> (n) {FILL}",
        f"n = Cast <to = 10> (s) c = Cast <to = 7> (n) {FILL}",
        f"n = CastLike (s, half) c = Cast <to = 7> (n) {FILL}",
        f"u = Unsqueeze (s, first) c = Gather (u, last) {FILL}",
        f"u = Unsqueeze (s, first) c = Gather (u, zero) {FILL}",
    ],
    ids=["a byte", "a truth value", "float16", "like float16", "the last row", "the first row"],
)
def test_what_becomes_of_a_shape_is_what_onnxruntime_computes(nodes: str, dims: str) -> None:
    """onnx's own propagation of values takes it through any Cast, and a matrix for a vector."""
    model = parsed(VALUES % (dims, nodes))
    feeds = {"x": np.ones((2, 300, 2049), np.float32)}
    indexed = from_proto(ModelProto.FromString(model.SerializeToString()))
    optimize_model(indexed, OptimizeOptions(level=1))
    a, b = (plain_session(m).run(None, feeds)[0] for m in (model, write_model(indexed)))
    assert list(a) == list(b)


@pytest.mark.parametrize(
    "text", ["g (float[a, minus] x) => (float[r, c] y)", "g (float[a, b] x) => (float[r, minus] y)"]
)
def test_a_negative_size_is_a_dynamic_one(text: str) -> None:
    body = "<int64[4] pads = {0, 1, 0, 1}> { p = Pad (x, pads) y = Concat <axis = 1> (p, p) }"
    model = parsed(f"{text} {body}")
    for info in (model.graph.input[0], model.graph.output[0]):
        dim = info.type.tensor_type.shape.dim[1]
        if dim.dim_param.startswith("minus"):
            dim.dim_value = -1
    dims = types.shape(read_model(model).graph.outputs[0])
    assert dims is None or not isinstance(dims[1], int)


@pytest.mark.parametrize(("first", "known"), [("n", True), ("m", False)])
def test_an_operator_by_itself_is_read_alike(first: str, known: bool) -> None:
    """As when a pass made it: of a letter with two sizes nothing is said."""
    model = read_model(parsed(EINSUM.replace("%s", first)))
    made = model.graph.make("Einsum", model.graph.inputs, equation="ij,ij->ij")
    rows, columns = types.shape(made)  # type: ignore[misc]
    assert columns == 3 and (rows in ("n", "m")) == known
