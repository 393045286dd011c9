"""Bytes from file to file: equal, with holes, by every means of the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from onnxopt.io.external import copy_file, copy_range
from onnxopt.proto.wire import map_file

MEANS = ["kernel", "memory", "refused", "no holes"]


@pytest.fixture(params=MEANS)
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def refuse(*args: object) -> int:
        raise OSError(errno.EXDEV, "another file system")

    if request.param == "memory":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif request.param == "refused":
        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    elif request.param == "no holes":
        monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    return str(request.param)


def test_a_copy_is_the_same(means: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with open(tmp_path / "a", "wb") as f:
        for offset in (0, 1 << 20, (1 << 22) + 13, 9 << 20):
            f.seek(offset)
            f.write(rng.bytes(5000))
        f.truncate(32 << 20)
    copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    blocks = [(tmp_path / name).stat().st_blocks for name in "ab"]
    assert means == "no holes" or blocks[1] <= blocks[0] + 16
    for start, length, at in ((0, 6000, 0), (100, 2 << 20, 4096), (3 << 20, 5 << 20, 77), (30 << 20, 2 << 20, 65536)):
        with open(tmp_path / "a", "rb") as f, open(tmp_path / "c", "wb+") as g:
            copy_range(f.fileno(), start, length, g.fileno(), at)
            g.truncate(at + length)
            g.seek(at)
            f.seek(start)
            assert g.read() == f.read(length)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_what_ends_too_early_is_an_error(size: int, means: str, tmp_path: Path) -> None:
    """Nor are there zeros in place of what is gone: behind its end a file is like a hole."""
    (tmp_path / "a").write_bytes(b"x" * size)
    with (
        open(tmp_path / "a", "rb") as f,
        open(tmp_path / "b", "wb") as g,
        pytest.raises(OSError, match="became shorter"),
    ):
        copy_range(f.fileno(), 77, 10_000, g.fileno(), 0)


def test_mapped_files_keep_no_descriptor(tmp_path: Path) -> None:
    views = []
    before = len(os.listdir("/proc/self/fd"))
    for i in range(300):
        (tmp_path / str(i)).write_bytes(bytes([i % 256]) * (i + 1))
        views.append(map_file(tmp_path / str(i)))
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(bytes(v) == bytes([i % 256]) * (i + 1) for i, v in enumerate(views))
    assert all(v.readonly for v in views)
    array = np.frombuffer(views[7], np.uint8)
    del views
    assert array.tolist() == [7] * 8, "the array keeps its pages"
    (tmp_path / "empty").touch()
    assert len(map_file(tmp_path / "empty")) == 0
