"""Versions of installed packages, under any distribution name."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as rt
import pytest

import onnxopt
from onnxopt.batch import Job
from onnxopt.batch.cache import Cache
from onnxopt.pipeline.reproducer import environment
from onnxopt.runtime import version_of
from tests.samples import sample


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was installed under the names that we know: onnxruntime-gpu, and a folder of our source."""

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_as_installed() -> None:
    assert version_of("numpy") == importlib.metadata.version("numpy")


@pytest.mark.usefixtures("others")
def test_as_the_package_says() -> None:
    assert version_of("onnxruntime") == rt.__version__
    assert version_of("onnxopt") == onnxopt.__version__
    with pytest.raises(ImportError):
        version_of("no_such_package")
    assert environment()["numpy"] == np.__version__


@pytest.mark.usefixtures("others")
def test_a_cache_of_another_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    onnx.save(sample("residual_block"), tmp_path / "m.onnx")
    cache, job = Cache(tmp_path / "c"), Job("m.onnx", "out.onnx")
    one = cache.key(tmp_path / "m.onnx", job)
    assert cache.key(tmp_path / "m.onnx", job) == one
    monkeypatch.setattr(rt, "__version__", "0")
    assert cache.key(tmp_path / "m.onnx", job) != one
