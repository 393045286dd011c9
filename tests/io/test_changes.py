"""Files of a model that change during a run: no mixture is read, and no pass is accused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxopt
from onnxopt.batch import Job
from onnxopt.batch.run import run
from onnxopt.errors import ModelError
from onnxopt.graph import Model
from onnxopt.io.load import Watch
from onnxopt.pipeline import Instrument, Pass
from onnxopt.verification import VerifyOptions
from tests.samples import sample


class Meanwhile(Instrument):
    """Does something once, when the passes begin."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = [do]

    def before(self, model: Model, p: Pass) -> None:
        if self.do:
            self.do.pop()()


def replaced(file: Path, data: bytes) -> None:
    """As careful writers do it."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    os.utime(new, ns=(1, 1))
    os.replace(new, file)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    model = sample("residual_block")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return tmp_path / "m.onnx"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    onnx.save(sample("residual_block"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def written_over(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))


@pytest.mark.parametrize("write", [replaced, written_over])
@pytest.mark.parametrize("verified", [True, False])
def test_weights_of_two_times_are_not_mixed(external: Path, write: Callable[..., None], verified: bool) -> None:
    """Some were folded, the others are copied by their name."""
    data, out = external.with_suffix(".data"), external.with_name("out.onnx")
    other = np.random.default_rng(0).standard_normal(data.stat().st_size // 4).astype(np.float32).tobytes()
    with pytest.raises(ModelError, match=r"m\.data was changed while it was read"):
        onnxopt.optimize_file(external, out, verify=verified, instruments=[Meanwhile(lambda: write(data, other))])
    assert sorted(p.name for p in external.parent.iterdir()) == ["m.data", "m.onnx"]


def test_a_result_is_not_accused_of_differing_from_a_model_that_came_later(alone: Path) -> None:
    """The other process may have opened the model before, or not: it is another one then, or none."""
    out, model = alone.with_name("out.onnx"), sample("residual_block")
    next(t for t in model.graph.initializer if t.name == "scale1").raw_data = b"\0" * 32
    for do in (lambda: replaced(alone, model.SerializeToString()), alone.unlink):
        said = ""
        try:
            report = onnxopt.optimize_file(alone, out, strict=True, instruments=[Meanwhile(do)])
        except ModelError as e:
            said = e.message
        if said:
            assert said in (f"{alone} was changed while it was read", f"{alone} was removed while it was read")
            assert not out.exists()
        else:
            assert report.verification is not None and not report.verification.is_refused
            assert len(onnx.load(out).graph.node) == 6
            out.unlink()
        onnx.save(sample("residual_block"), alone)


def test_a_newer_model_is_not_replaced_in_place(alone: Path) -> None:
    other = sample("must_stay").SerializeToString()
    job = Job(str(alone), str(alone), onnxopt.OptimizeOptions(), VerifyOptions())
    assert job.in_place
    outcome = run(job, instruments=[Meanwhile(lambda: replaced(alone, other))])
    assert (outcome.status, outcome.code) == ("failed", 2)
    assert "m.onnx was changed while it was read" in outcome.message
    assert alone.read_bytes() == other


def test_what_was_made_of_another_model_is_not_kept(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXOPT_CACHE_KEY", "of this test")
    first, other = alone.read_bytes(), sample("must_stay").SerializeToString()
    cache, statuses = str(alone.parent / "cache"), []
    for do in (lambda: replaced(alone, other), lambda: None, lambda: None):
        destination = str(alone.parent / f"out{len(statuses)}.onnx")
        job = Job(str(alone), destination, onnxopt.OptimizeOptions(), None, cache=cache)
        statuses.append(run(job, instruments=[Meanwhile(do)]).status)
        alone.write_bytes(first)
    assert statuses == ["optimized", "optimized", "cached"]


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    kept, gone, missing = (tmp_path / name for name in ("kept", "gone", "missing"))
    kept.write_bytes(b"kept")
    gone.write_bytes(b"gone")
    watch = Watch(kept, gone, missing)
    gone.unlink()
    kept.read_bytes()
    assert watch.changed is None
    missing.write_bytes(b"new")
    assert watch.changed == missing


def test_a_file_that_a_worker_reads_first_is_watched_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"first")
    with onnxopt.verification.Verifier(file, start="import time; time.sleep(60)") as verifier:
        assert Watch(file, seen=verifier.seen).changed is None, "the worker has not been told to read"
        verifier.prepare()
        file.write_bytes(b"another")
        assert Watch(file, seen=verifier.seen).changed == file
