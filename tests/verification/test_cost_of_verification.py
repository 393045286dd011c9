"""Verification is cheap: weights are mapped, expensive models have fewer cases, files are compared before runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import Verifier, VerifyOptions, original, run
from onnxopt.verification.inputs.cases import OWN, SINGLE, sizes
from onnxopt.verification.inputs.planning import make_plan, products
from onnxopt.verification.job import Job, Submission
from onnxopt.verification.job_runner import JobRunner
from onnxopt.verification.judge import Judge
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.pieces.pairs import Pairs, Sameness
from onnxopt.verification.pieces.value_numbers import elements
from onnxopt.verification.programs.program import Program
from onnxopt.verification.rounding import Draws, last_bit
from onnxopt.verification.run import OnnxRuntime

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
PICTURE = HEAD + "(float[N, 3, 224, 224] x) => (float[N, 8, 222, 222] y) { y = Conv (x, w) }"


def picture(*, batch: str = "N") -> onnx.ModelProto:
    model = parser.parse_model(PICTURE.replace("N", batch))
    weight = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def weighted(path: Path, *, odd: int = 0) -> onnx.ModelProto:
    """Save a MatMul with a weight of 128 KiB, at an offset in the file that is a multiple of four unless `odd`."""
    text = HEAD + "(float[N, 128] x) => (float[N, 256] y) { y = MatMul (x, w) }"
    model = parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(128, 256)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.doc_string = "d" * odd
    path.write_bytes(model.SerializeToString())
    return model


@pytest.mark.parametrize("odd", [0, 1, 2, 3])
def test_large_weights_are_mapped_from_the_model_file(
    odd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    weighted(path, odd=odd)
    feeds = {"x": np.random.default_rng(1).normal(size=(3, 128)).astype(np.float32)}
    expected = OnnxRuntime(str(path)).run(feeds)[0]
    monkeypatch.setattr(run, "_LARGE_FILE", 1)
    light = run.with_weights_mapped(str(path))
    assert light is not None and len(light) < 1000
    for optimize in (False, True):
        assert np.array_equal(OnnxRuntime(str(path), optimize=optimize).run(feeds)[0], expected)


def test_a_file_with_unmappable_weights_fails_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with a wrong weight size fails with the runtime's error of this file. A truncated file is not mapped."""
    monkeypatch.setattr(run, "_LARGE_FILE", 1)
    path = tmp_path / "m.onnx"
    model = weighted(path)
    model.graph.initializer[0].dims[0] = 127
    path.write_bytes(model.SerializeToString())
    with pytest.raises(Exception, match="Load model from"):
        OnnxRuntime(str(path))
    path.write_bytes(path.read_bytes()[:-1000])
    assert run.with_weights_mapped(str(path)) is None


def test_products_are_counted_from_shapes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(picture().SerializeToString())
    feeds = {"x": np.zeros((2, 3, 224, 224), np.float32)}
    assert products(str(path), feeds) == 2 * 8 * 222 * 222 * 27
    path.write_bytes(b"no model")
    assert products(str(path), feeds) == 0


def test_expensive_models_have_small_batches() -> None:
    plan = make_plan(picture())
    base = next(sizes(plan, OWN[0], None))
    assert base["N"] > 1
    assert next(c["N"] for c in sizes(plan, OWN[1], base, is_heavy=True)) == 1
    assert list(sizes(plan, SINGLE, base, is_heavy=True)) == []
    assert [c["N"] for c in sizes(plan, SINGLE, base)] == [1]


@pytest.mark.parametrize(("least", "count"), [(1 << 20, 1), (1 << 40, 2)])
def test_an_expensive_model_of_fixed_sizes_has_one_case(least: int, count: int, tmp_path: Path) -> None:
    """An expensive model of fixed sizes, without decisions and clipping, has one case."""
    path = tmp_path / "m.onnx"
    path.write_bytes(picture(batch="1").SerializeToString())
    start = f"from onnxopt.verification import judge, original; original._ONCE = {least}; judge.main()"
    with Verifier(path, start=start) as verifier:
        verifier.submit(path)
        found = verifier.finish()
    assert found.status == "equal" and len(found.cases) == count, found.message


def same(tmp_path: Path, a: str, b: str) -> bool:
    """Return whether both models make `y` alike, by their files alone."""
    found = []
    for name, text in {"a": a, "b": b}.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(parser.parse_model(HEAD + "(float[3] x) => (float[3] y) " + text).SerializeToString())
        found.append(Program(Skeleton(path)))
    return Sameness(Pairs(*found), found[0].given).is_made_alike("y")


def test_a_fill_equals_its_constant(tmp_path: Path) -> None:
    fill = "<int64[1] s = {3}> { c = ConstantOfShape <value = float[1] {2.5}> (s) y = Mul (x, c) }"
    constant = "<float[3] c = {2.5, 2.5, 2.5}> { y = Mul (x, c) }"
    assert same(tmp_path, fill, constant)
    assert not same(tmp_path, fill, constant.replace("2.5}", "2.75}"))
    assert not same(tmp_path, fill, constant.replace("float[3]", "float[1, 3]"))
    assert not same(tmp_path, fill.replace("<value = float[1] {2.5}> ", ""), constant)


def test_a_dropout_is_the_identity_if_its_mask_is_unread(tmp_path: Path) -> None:
    dropout = "{ d, mask = Dropout (x) y = Neg (d) }"
    assert same(tmp_path, dropout, "{ y = Neg (x) }")
    mask = "{ d, mask = Dropout (x) m = Cast <to = 1> (mask) y = Neg (m) }"
    assert not same(tmp_path, mask, "{ m = Cast <to = 1> (x) y = Neg (m) }")


def test_large_constants_that_differ_in_one_element_differ() -> None:
    a = np.random.default_rng(0).normal(size=1 << 18).astype(np.float32)
    for k in (0, 12345, a.size - 1):
        b = a.copy()
        b[k] += 1
        assert elements(a) == elements(a.copy()) and elements(a) != elements(b)


def test_changes_of_last_bits_are_the_same_for_equal_numbers() -> None:
    """Equal elements get the same change of last bits, as a rounding would change them."""
    moved = last_bit(np.full(100, 0.1, np.float32), Draws(0))
    assert len(np.unique(moved)) == 1 and moved[0] != np.float32(0.1)
    several = last_bit(np.tile(np.array([0.1, 0.3], np.float32), 50), Draws(0))
    assert len(np.unique(several)) == 4


def test_the_work_of_a_picture_with_a_decision_is_measured_before_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + "(float[1, 3, 112, 112] x) => (bool[1, 3, 112, 112] y) <float half = {0.5}> { y = Less (x, half) }"
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    measured: list[str] = []
    monkeypatch.setattr(original, "products", lambda path, feeds: measured.append(path) or 1)
    runner = JobRunner(Judge(), lambda event: None)
    runner.open(Job(str(tmp_path / "m.onnx"), VerifyOptions(), ("A", "B")))
    assert len(measured) == 1
    assert runner.verify(Submission(str(tmp_path / "m.onnx"), VerifyOptions())).status == "equal"
    assert len(measured) == 1


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("normalizes", [False, True])
def test_last_bits_are_shaken_ahead_unless_a_result_waits_that_may_not_ask(
    waits: bool, normalizes: bool, tmp_path: Path
) -> None:
    """Results with folded normalizations mostly ask for the effect of last bits, and other results rarely ask."""
    text = HEAD + "(float[2, 3] x) => (float[2, 3] y) <float[3] s = {1, 2, 3}> "
    text += "{ y = BatchNormalization (x, s, s, s, s) }" if normalizes else "{ y = Mul (x, s) }"
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    runner = JobRunner(Judge(), lambda event: None, lambda: waits)
    runner.open(Job(str(tmp_path / "m.onnx"), VerifyOptions(), ("A", "B")))
    assert bool(runner.judge.shaken) == (normalizes or not waits)
