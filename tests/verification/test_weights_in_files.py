"""Weights in files: small and non-contiguous ones are read, others mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from onnxopt.errors import ModelError
from onnxopt.proto.messages import all_tensors, is_external
from onnxopt.proto.wire import Stored
from onnxopt.verification import verify
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.programs.foreign import read_skeleton
from onnxopt.worker.serving import Refused
from tests.cli.weights import beside
from tests.samples import parsed

LARGE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(256)) * (2 * LARGE // 256))
    return tmp_path / "data"


@pytest.mark.parametrize("length", [1, 300, LARGE, 0])
@pytest.mark.parametrize("start", [0, 3, LARGE])
def test_stored_bytes_equal_the_file(start: int, length: int, file: Path) -> None:
    whole = file.read_bytes()
    expected = whole[start : start + length] if length else whole[start:]
    stored = Stored(file, start, length)
    assert stored.bytes() == stored.read() == expected


@pytest.mark.parametrize(
    ("start", "length"), [(-1, 4), (0, -4), (2 * LARGE, 4), (4 * LARGE, 4), (0, 1 << 60), (8, 1 << 21)]
)
def test_bytes_beyond_the_file_are_not_allocated(start: int, length: int, file: Path) -> None:
    for take in (Stored(file, start, length).bytes, Stored(file, start, length).read):
        with pytest.raises(ValueError, match="has no"):
            take()


@pytest.mark.parametrize("size", [1024, LARGE])
@pytest.mark.parametrize("shift", range(4))
def test_arrays_are_aligned(size: int, shift: int, tmp_path: Path) -> None:
    """Arrays are aligned, wherever the weights begin: `shift` bytes of a name move them in the file."""
    weights = np.arange(size, dtype=np.float32)
    tensor = helper.make_tensor("w" * (1 + shift), TensorProto.FLOAT, [size], weights.tobytes(), raw=True)
    save(helper.make_model(helper.make_graph([], "g", [], [], [tensor])), tmp_path / "m.onnx")
    skeleton = Skeleton(tmp_path / "m.onnx")
    found = skeleton.array(skeleton.proto.graph.initializer[0])
    assert found.flags.aligned
    assert (found == weights).all()


HIDING = """g (float[4,64] x) => (float[4,64] y) <float[64,64] W = {0}, float high = {1e20}> {
  a = MatMul (x, W)  m = ReduceMax <keepdims = 0> (x)  c = Less (high, m)
  y = If (c) <then_branch = t () => (float[4,64] p) <float[64,64] W = {0}> { p = MatMul (a, W) },
              else_branch = e () => (float[4,64] q) { q = Neg (a) }> }"""


def hiding(path: Path, fill: float) -> Path:
    """Save a model whose untaken branch has a weight named like an outer one."""
    model = parsed(HIDING)
    draw = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8
    branch = model.graph.node[-1].attribute[0].g
    for tensor, array in ((model.graph.initializer[0], draw), (branch.initializer[0], draw.T * fill)):
        tensor.CopyFrom(numpy_helper.from_array(array, "W"))
    save(model, path)
    return path


def test_a_weight_of_a_body_hides_the_outer_weight_of_its_name(tmp_path: Path) -> None:
    original, same, other = (hiding(tmp_path / f"{n}.onnx", n) for n in (1, 1.0, 2))
    assert verify(original, same).status == "verified in pieces"
    found = verify(original, other)
    assert (found.status, [place.value for place in found.places]) == ("different", ["p"])


def test_only_large_external_tensors_stay_in_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large external tensors of the main graph stay in their files; others are loaded, within the size of a message."""
    made = parsed(HIDING.replace("high = {1e20}", "high = {1e20}, float[300] large = {0}"))
    inner = made.graph.node[-1].attribute[0].g.initializer[0]
    for tensor, dims, fill in zip((*made.graph.initializer, inner), ((64, 64), (), (300,), (64, 64)), (5, 5, 5, 7)):
        tensor.CopyFrom(numpy_helper.from_array(np.full(dims, fill, np.float32), tensor.name))
    path = beside(made, tmp_path / "m.onnx")
    skeleton = Skeleton(path)
    assert [t.name for t in all_tensors(skeleton.proto) if is_external(t)] == ["W", "large"]
    assert skeleton.values(skeleton.proto.graph.initializer[0])[0, 0] == 5
    body = skeleton.proto.graph.node[-1].attribute[0].g
    assert (skeleton.values(body.initializer[0]) == 7).all()
    monkeypatch.setattr("onnxopt.verification.model.skeleton._ROOM", 1 << 12)
    assert Skeleton(path).left_outside == 4 * 64 * 64
    with pytest.raises(Refused, match="GiB of weights that bodies read lie beside the model"):
        read_skeleton(str(path))
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(ModelError, match=r"the data file m\.onnx\.data of `high` is missing"):
        Skeleton(path)
