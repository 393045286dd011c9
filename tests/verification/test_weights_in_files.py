"""Weights that stay in their file: small ones and those that do not lie as arrays do are read, others mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.wire import Stored

LARGE = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(bytes(range(256)) * (2 * LARGE // 256))
    return tmp_path / "data"


@pytest.mark.parametrize("length", [1, 300, LARGE, 0])
@pytest.mark.parametrize("start", [0, 3, LARGE])
def test_they_are_what_is_there(start: int, length: int, file: Path) -> None:
    whole = file.read_bytes()
    expected = whole[start : start + length] if length else whole[start:]
    stored = Stored(file, start, length)
    assert stored.bytes() == stored.read() == expected


@pytest.mark.parametrize(
    ("start", "length"), [(-1, 4), (0, -4), (2 * LARGE, 4), (4 * LARGE, 4), (0, 1 << 60), (8, 1 << 21)]
)
def test_what_is_not_in_the_file_is_not_allocated(start: int, length: int, file: Path) -> None:
    for take in (Stored(file, start, length).bytes, Stored(file, start, length).read):
        with pytest.raises(ValueError, match="has no"):
            take()


@pytest.mark.parametrize("size", [1024, LARGE])
@pytest.mark.parametrize("shift", range(4))
def test_arrays_are_aligned(size: int, shift: int, tmp_path: Path) -> None:
    """`shift` bytes of a name move the weights in the file."""
    weights = np.arange(size, dtype=np.float32)
    tensor = helper.make_tensor("w" * (1 + shift), TensorProto.FLOAT, [size], weights.tobytes(), raw=True)
    save(helper.make_model(helper.make_graph([], "g", [], [], [tensor])), tmp_path / "m.onnx")
    skeleton = Skeleton(tmp_path / "m.onnx")
    found = skeleton.array(skeleton.proto.graph.initializer[0])
    assert found.flags.aligned
    assert (found == weights).all()
