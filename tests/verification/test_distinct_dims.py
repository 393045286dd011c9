"""Dynamic dims have distinct sizes in some case: no dim is mistaken for another."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxopt.verification import Verifier, VerifyOptions, verify
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.worker.process import VERIFYING
from tests.samples import parsed

TAKEN = """<int64 i = {FIRST}, int64 j = {SECOND}, int64[1] four = {4}, int64[2] rows = {-1, 4}, int64[1] none = {0}> {
    s = Shape (x) k = Gather (s, i) l = Gather (s, j) a = Unsqueeze (k, none) b = Unsqueeze (l, none)
    t = Concat <axis = 0> (a, b, four) u = Reshape (x, rows) h = Tanh (u) y = Reshape (h, t) }"""


def taken(first: int, second: int, dims: str) -> str:
    body = TAKEN.replace("FIRST", str(first)).replace("SECOND", str(second))
    return f"g (float[{dims}, 4] x) => (float[A, B, 4] y) {body}"


@pytest.mark.parametrize("dims", ["N, T", "batch, seq", "unk__1, unk__2"])
def test_mistaken_dims_are_found(dims: str, tmp_path: Path) -> None:
    for name, places in (("a", (0, 1)), ("b", (1, 0))):
        onnx.save(parsed(taken(*places, dims)), tmp_path / f"{name}.onnx")
    assert verify(tmp_path / "a.onnx", tmp_path / "a.onnx").status == "equal"
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx").status == "different"


FRONTS = {
    "blocks": "b = SpaceToDepth <blocksize = 6> (x) c = Slice (b, none, three, one) a = Conv (c, w)",
    "mirrored": 'b = Pad <mode = "reflect"> (x, pads) a = Conv (b, w)',
    "two windows": "b = Conv <strides = [2, 2]> (x, w) c = MaxPool <kernel_shape = [21, 21]> (x) "
    "d = GlobalMaxPool (c) e = Conv (d, w1) a = Add (b, e)",
    "pixels": "a = Conv (x, w1)",
}
IMAGE = """g (float[N, 3, H, W] x) => (float[N, 3, P, Q] y)
<int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] rest = {-1},
 int64[8] pads = {0, 0, 40, 40, 0, 0, 40, 40}> {
    FRONT
    s = Shape (a) n = Gather (s, none) h = Gather (s, two) v = Gather (s, three)
    flat = Concat <axis = 0> (n, three, rest) f = Reshape (a, flat) r = Softmax <axis = -1> (f)
    t = Concat <axis = 0> (n, three, FIRST, SECOND) y = Reshape (r, t) }"""


@pytest.mark.parametrize("front", FRONTS)
def test_mistaken_sides_of_an_image_are_found(front: str, tmp_path: Path) -> None:
    """The sides differ in the first case: windows, blocks and mirrors ask for sizes that suit all of them."""
    rng = np.random.default_rng(0)
    for name, first, second in (("a", "h", "v"), ("b", "v", "h")):
        text = IMAGE.replace("FRONT", FRONTS[front]).replace("FIRST", first).replace("SECOND", second)
        model = parsed(text)
        for weight, size in (("w", 3), ("w1", 1)):
            array = rng.standard_normal((3, 3, size, size)).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, weight))
        onnx.save(model, tmp_path / f"{name}.onnx")
    same = verify(tmp_path / "a.onnx", tmp_path / "a.onnx")
    assert same.status == "equal" and all(c.dims["H"] != c.dims["W"] for c in same.cases), same
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx").status == "different"


def test_a_message_names_the_first_of_many_dims(tmp_path: Path) -> None:
    dims = [f"d{i}" for i in range(10)]
    some, others = ", ".join(dims[:5]), ", ".join(dims[5:])
    given, made = f"float[{some}] x, float[{others}] z", f"float[{some}] y, float[{others}] w"
    source = f"g ({given}) => ({made}) {{ y = Tanh (x) w = Tanh (z) }}"
    onnx.save(parsed(source), tmp_path / "m.onnx")
    found = verify(tmp_path / "m.onnx", tmp_path / "m.onnx")
    assert all(list(case.dims) == dims for case in found.cases)
    told = [" ".join(f"{name}={case.dims[name]}" for name in dims[:8]) + " and 2 more" for case in found.cases]
    assert f"({'; '.join(told)})" in found.message


LESS = f"from onnxopt.verification.inputs import cases; cases._FURTHER = {1 << 16}; {VERIFYING}"


@pytest.mark.parametrize(
    ("cases", "start", "most"),
    [(("random", "uniform"), VERIFYING, 1 << 24), (("all",), LESS, 1 << 16)],
    ids=["two cases", "all cases"],
)
def test_a_tensor_of_many_dims_stays_small(cases: tuple[str, ...], start: str, most: int, tmp_path: Path) -> None:
    """A tensor of twelve dims has at most `most` elements, and at least four distinct sizes.

    Less memory is used for each of many cases.
    """
    dims = ", ".join(f"d{i}" for i in range(12))
    onnx.save(parsed(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu (x) }}"), tmp_path / "m.onnx")
    with Verifier(tmp_path / "m.onnx", VerifyOptions(cases=cases), foreign=True, start=start) as verifier:
        verifier.submit(tmp_path / "m.onnx")
        found = verifier.finish()
    assert found.status == "equal"
    assert max(math.prod(case.dims.values()) for case in found.cases) <= most
    assert max(len({*case.dims.values()}) for case in found.cases) >= 4


def test_dims_that_must_be_equal_are_equal(tmp_path: Path) -> None:
    text = "g (float[N, M] x, float[M, K] z) => (float[N, K] y) { a = MatMul (x, x) y = MatMul (a, z) }"
    onnx.save(parsed(text), tmp_path / "m.onnx")
    found = verify(tmp_path / "m.onnx", tmp_path / "m.onnx")
    assert (found.status, found.cases[0].dims) == ("equal", {"N": 2, "M": 2, "K": 2})
    assert len(found.cases) == 2


EACH = """g (float[n, t, 3] x) => (float[n, m, 3] y) <int64[1] zero = {0}, int64[1] end = {END}, int64[1] one = {1},
    int64[1] step = {STEP}> { s = Slice (x, zero, end, one, step) y = Tanh (s) }"""


@pytest.mark.parametrize("step", [2, 3, 6])
def test_a_slice_with_steps_is_compared_at_sizes_with_a_remainder(step: int, tmp_path: Path) -> None:
    """A slice to the end and a slice to the last element but one are told apart.

    They differ at one more than a multiple of the step.
    """
    text = EACH.replace("STEP", str(step))
    for name, end in (("a", "9223372036854775807"), ("b", "-1"), ("c", "1000000")):
        onnx.save(parsed(text.replace("END", end)), tmp_path / f"{name}.onnx")
    for result, status in (("b", "different"), ("c", "equal")):
        with Verifier(tmp_path / "a.onnx") as verifier:
            verifier.submit(tmp_path / f"{result}.onnx")
            assert verifier.finish().status == status


# Padding to whole windows, behind or in front of the elements, perhaps behind a convolution.
WHOLE = """g (float[n, 2, t] x) => (float[n, 2, u] y) <int64[1] zero = {{0}}, int64[1] window = {{{window}}},
    int64[4] none = {{0, 0, 0, 0}}> {{ {front} s = Shape <start = 2> (v) r = Mod (s, window) l = Sub (window, r)
    p = Mod (l, window) pads = Concat <axis = 0> ({parts}) y = Pad (v, pads) }}"""
BLUR = "w = Constant <value = float[2, 1, 3] {1, 2, 3, 4, 5, 6}> () v = Conv <group = 2, pads = [1, 1]> (x, w)"
FRONT, BEHIND = "zero, zero, p, zero, zero, zero", "none, zero, p"


@pytest.mark.parametrize("front", ["v = Neg (x)", BLUR])
@pytest.mark.parametrize("window", [2, 4])
def test_padding_to_whole_windows_is_compared_where_it_is_not_empty(window: int, front: str, tmp_path: Path) -> None:
    for name, parts in (("a", BEHIND), ("b", FRONT), ("c", "zero, zero, zero, zero, zero, p")):
        onnx.save(parsed(WHOLE.format(window=window, front=front, parts=parts)), tmp_path / f"{name}.onnx")
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx").status == "different"
    assert verify(tmp_path / "a.onnx", tmp_path / "c.onnx").status == "equal"


def test_a_model_of_even_sizes_gets_distinct_even_sizes(tmp_path: Path) -> None:
    text = """g (float[n, t, h] x) => (float[n, h, k] y, float[n, h, k, 2] z) <int64[1] zero = {0}, int64[1] end = {99},
        int64[1] two = {2}, int64[4] pairs = {0, 0, -1, 2}> { t = Transpose <perm = [0, 2, 1]> (x)
        y = Slice (t, zero, end, two, two) z = Reshape (t, pairs) }"""
    onnx.save(parsed(text), tmp_path / "m.onnx")
    found = verify(tmp_path / "m.onnx", tmp_path / "m.onnx")
    assert found.status == "equal"
    assert [len({*case.dims.values()}) for case in found.cases] == [1, 3]


@pytest.mark.parametrize(
    ("steps", "stride"), [((2,), 2), ((2, 3), 6), ((-1,), 1), ((-2, 4), 4), ((7, 5), 1), ((0,), 1), ((), 1)]
)
def test_a_stride_is_a_small_common_multiple_of_steps(steps: tuple[int, ...], stride: int) -> None:
    nodes = [f"k{i} = Constant <value_ints = [{n}]> () y{i} = Slice (x, k, k, k, k{i})" for i, n in enumerate(steps)]
    text = f"g (float[n] x, int64[1] k) => (float[n] y) {{ {' '.join(nodes)} y = Slice (x, k, k) }}"
    assert make_plan(parsed(text)).stride == stride
