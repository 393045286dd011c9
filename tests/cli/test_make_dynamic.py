"""Fixed dims become symbols, in all operators that contain the number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from onnxopt.conversion.dynamic import make_dynamic
from onnxopt.errors import UsageError
from onnxopt.io import from_proto, load, save
from tests.cli.conftest import Run

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
OF_TWO = """g (float[2, 4, 6] x, int64[2, 4] mask) => (float[2, 5, 6] y)
<float[2, 1, 6] cls = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, int64[4] heads = {2, 4, 2, 3}, int64[3] whole = {2, 4, 6},
 int64[3] wide = {2, 4, 6}, int64[1] last = {2}, int64[2] lines = {8, 6}, float[6] b = {1, 2, 3, 4, 5, 6}>
{ h = Reshape (x, heads) t = Transpose <perm = [0, 2, 1, 3]> (h) back = Transpose <perm = [0, 2, 1, 3]> (t)
  w = Reshape (back, whole) rows = Reshape (w, lines) moved = Add (rows, b) again = Reshape (moved, whole)
  m = Cast <to = 1> (mask) m3 = Unsqueeze (m, last) e = Expand (m3, wide) masked = Mul (again, e)
  y = Concat <axis = 1> (cls, masked) }"""


def write(folder: Path, text: str) -> Path:
    onnx.save(parser.parse_model(HEAD + text), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_fixed_batch_becomes_dynamic_in_all_operators(run: Run, tmp_path: Path) -> None:
    """A batch of two becomes dynamic in targets of Reshape, in an Expand, and in a token folded for each sample."""
    write(tmp_path, OF_TWO)
    r = run("optimize", "m.onnx", "out.onnx", "--dim", "batch=?")
    assert r.returncode == 0, r.stderr
    assert "dynamic: batch, was 2" in r.stdout and "the same for each part at batch=4" in r.stdout
    made = onnx.load(tmp_path / "out.onnx")
    infos = (*made.graph.input, *made.graph.output)
    dims = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in infos]
    assert dims == [["batch", 4, 6], ["batch", 4], ["batch", 5, 6]]
    x, mask = np.random.default_rng(0).standard_normal((6, 4, 6), np.float32), np.arange(24).reshape(6, 4)
    a, b = (ort.InferenceSession(tmp_path / name) for name in ("m.onnx", "out.onnx"))
    parts = [a.run(None, {"x": x[i : i + 2], "mask": mask[i : i + 2]})[0] for i in (0, 2, 4)]
    np.testing.assert_array_equal(b.run(None, {"x": x, "mask": mask})[0], np.concatenate(parts))


def test_a_result_of_unknown_rank_is_refused() -> None:
    """Before opset 10, onnx infers no shape of the mask of a Dropout."""
    text = "g (float[2, 3] x) => (float[A, B] y) { d, m = Dropout (x) y = Neg (m) }"
    model = parser.parse_model(f'<ir_version: 7, opset_import: ["" : 7]> {text}')
    with pytest.raises(UsageError, match=r"Dropout.*: the rank of what it reads or makes is unknown"):
        make_dynamic(from_proto(model), {"*:0": "batch"})


def test_a_merged_batch_is_refused_by_verification(run: Run, tmp_path: Path) -> None:
    """A batch merged into another axis is refused by verification: at twice the size, the parts are not the samples.

    No rule finds the fault.
    """
    write(tmp_path, "g (float[2, 1, 3] x) => (float[6] y) <int64[1] all = {6}> { y = Reshape (x, all) }")
    r = run("optimize", "m.onnx", "out.onnx", "--make-dynamic", "x:1=batch")
    assert r.returncode == 2 and not (tmp_path / "out.onnx").exists()
    said = (
        "error: m.onnx: batch cannot be dynamic: at batch=2 output `y` is not what each part of the batch gives alone"
    )
    assert r.stderr.startswith(said) and len(r.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--make-dynamic", "w:0=n"], "no input is called 'w'"),
        (["--make-dynamic", "x:3=n"], "input 'x' has no axis 3: it has 3 dims"),
        (["--make-dynamic", "x=n"], "is not INPUT:AXIS=NAME"),
        (["--dim", "a=?", "--dim", "b=?"], "two names: a, b"),
    ],
)
def test_bad_places(args: list[str], says: str, run: Run, tmp_path: Path) -> None:
    write(tmp_path, OF_TWO)
    r = run("optimize", "m.onnx", "out.onnx", *args)
    assert r.returncode == 2 and says in r.stderr and not (tmp_path / "out.onnx").exists()


X = "float[2, 4] x"
TIED = {
    f"g ({X}) => (float[2, 4] y) {{ y = Softmax <axis = 0> (x) }}": "Softmax -> y: its results depend on all places",
    f"g ({X}) => (float[2, 2] y) {{ t = Transpose <perm = [1, 0]> (x) y = MatMul (x, t) }}": (
        "MatMul -> y: 'n' meets itself"
    ),
    f"g ({X}) => (float[2, 4] y) <float[2, 1] c = {{1, 2}}> {{ y = Add (x, c) }}": "Add -> y: `c` holds different",
    f"g ({X}) => (float[4] y) <int64 i = {{1}}> {{ y = Gather (x, i) }}": "Gather -> y: it takes some of the places",
    f"g ({X}) => (float[1, 4] y) <int64[1] a = {{1}}, int64[1] e = {{2}}> {{ y = Slice (x, a, e) }}": (
        "Slice -> y: it takes some of the places"
    ),
    f"g ({X}, bool c) => (float[2, 4] y) <float[2, 4] w = {{1, 2, 3, 4, 1, 2, 3, 4}}>"
    "{ y = If (c) <then_branch = a () => (float[2, 4] p) { p = Neg (x) },"
    " else_branch = b () => (float[2, 4] q) { q = Identity (w) }> }": "If -> y: its branches do not give 'n' along one",
    f"g ({X}) => (float[2, 4] y) {{ d = Shape <start = 0, end = 1> (x) e = Squeeze (d) c = Cast <to = 9> (e)"
    " y = If (c) <then_branch = a () => (float[2, 4] p) { p = Neg (x) },"
    " else_branch = b () => (float[2, 4] q) { q = Abs (x) }> }": "it computes with the size of 'n'",
    f"g ({X}, bool c, int64 t) => (float[2, 4] y) {{ y = Loop (t, c, x) <body = b (int64 i, bool k, float[2, 4] s)"
    " => (bool l, float[2, 4] r) { l = Identity (k) r = Neg (s) }> }": "Loop -> y: it, or its body, reads",
    f"g ({X}, float[3] z) => (float[2, 4] y) {{ y = Neg (x) }}": "'n' would be of different sizes: x: 2, z: 3",
    "g (float[n, 4] x, float[2] z) => (float[n, 4] y) { y = Neg (x) }": "'n' is a dynamic dim already",
    "g (float x) => (float y) { y = Neg (x) }": "no input has a fixed first axis",
    "g (float[2] x) => (float y) <float c = {1}> { y = Neg (c) }": "no output follows 'n'",
    f"g ({X}) => (float[2, 4] y, int64[2] s) {{ y = Neg (x) s = Shape (x) }}": (
        "output `s` holds a size that follows 'n', which no sample has"
    ),
}


@pytest.mark.parametrize(("text", "says"), TIED.items())
def test_operators_that_mix_samples_are_named(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as e:
        make_dynamic(load(write(tmp_path, text)), {"*:0": "n"})
    assert says in str(e.value), str(e.value)


ONE = {
    "steps in front": (
        "g (float[5, 1, 6] x) => (float[5, 1, 6] y)"
        "<int64[3] s = {5, 2, 3}, int64[2] t = {5, 6}, int64[3] u = {5, 1, 6}, float[6] g = {1, 2, 3, 4, 5, 6}>"
        "{ h = Reshape (x, s) a = Transpose <perm = [1, 0, 2]> (h) b = Transpose <perm = [1, 2, 0]> (h)"
        " c = MatMul (a, b) p = Softmax <axis = -1> (c) o = MatMul (p, a)"
        " r = Transpose <perm = [1, 0, 2]> (o) f = Reshape (r, t)"
        " n = LayerNormalization <axis = 1> (f, g) y = Reshape (n, u) }"
    ),
    "rows": (
        "g (float[1, 4, 6] x) => (float[1, 4, 6] y)"
        "<int64[2] s = {4, 6}, int64[3] t = {1, 4, 6}, float[4, 1] p = {1, 2, 3, 4}>"
        "{ a = Reshape (x, s) b = Add (a, p) y = Reshape (b, t) }"
    ),
    "indices": (
        "g (float[1, 3] x) => (float[1, 1, 3] y) <int64[1, 1, 3, 2] i = {0, 0, 0, 1, 0, 2}> { y = GatherND (x, i) }"
    ),
    "sizes": (
        "g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <int64[4] s = {1, 1, 4, 4}>"
        '{ y = Resize <mode = "nearest"> (x, , , s) }'
    ),
    "branches": (
        "g (float[1, 4] x) => (float[1, 2] y)"
        "<int64[3] r = {1, 2, 2}, float[1, 4] w = {1, 2, 3, 4}, int64 one = {1}, float zero = {0}, bool c = {1}>"
        "{ u = Neg (x) z = If (c) <then_branch = a () => (float[1, 2, 2] p) { q = Reshape (u, r) p = Mul (q, q) },"
        " else_branch = b () => (float[1, 2, 2] s) { v = Add (x, w) s = Reshape (v, r) }>"
        " y = Gather <axis = 2> (z, one) }"
    ),
    "a state": (
        "g (float[1, 3, 2] x) => (float[1, 3, 2] y) <int64[3] s = {1, 3, 2}, int64[1] z = {0}>"
        "{ d = Shape (x) n = Gather (d, z) c = ConstantOfShape (s) y = Add (x, c) }"
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_a_fixed_batch_of_one_becomes_dynamic(name: str, tmp_path: Path) -> None:
    """A batch of one becomes dynamic, and larger batches give the results of each sample.

    Many axes have size one: the order of the elements identifies the batch axis.
    """
    source = write(tmp_path, ONE[name])
    model, axis = load(source), int(name == "steps in front")
    assert make_dynamic(model, {f"x:{axis}": "n"}) == {"n": 1}
    save(model, tmp_path / "out.onnx")
    a, b = (ort.InferenceSession(tmp_path / f) for f in ("m.onnx", "out.onnx"))
    shape = [d.dim_value for d in onnx.load(source).graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal([*shape[:axis], 3, *shape[axis + 1 :]], np.float32)
    each = [a.run(None, {"x": part})[0] for part in np.split(x, 3, axis)]
    np.testing.assert_allclose(b.run(None, {"x": x})[0], np.concatenate(each, axis), rtol=1e-5, atol=1e-6)


def test_an_unverified_size_is_inconclusive(run: Run, tmp_path: Path) -> None:
    """The verdict is inconclusive if onnxruntime cannot run another size.

    Only the reference evaluator multiplies bfloat16.
    """
    write(
        tmp_path, "g (float[1, 4] x) => (float[1, 4] y) { a = Cast <to = 16> (x) b = Mul (a, a) y = Cast <to = 1> (b) }"
    )
    r = run("optimize", "m.onnx", "out.onnx", "--dim", "batch=?")
    assert r.returncode == 0
    assert "? verification is inconclusive" in r.stderr + r.stdout
    assert "another size was not compared: onnxruntime does not run all of the model" in r.stderr + r.stdout
    assert run("optimize", "m.onnx", "strict.onnx", "--dim", "batch=?", "--strict").returncode == 1
