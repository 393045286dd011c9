"""The sample models are valid, run, and are reproducible."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxopt
from tests.runtime import plain_session
from tests.samples import ROOT, build

pytestmark = pytest.mark.usefixtures("kept_judge")
SAMPLES = ROOT / "models"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.onnxtxt"))
DIMENSIONS = {"batch": 2, "sequence": 5}
FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.stem: path for path in build.build_all(tmp_path_factory.mktemp("samples"))}


def _feeds(session: ort.InferenceSession) -> list[dict[str, np.ndarray]]:
    """Inputs for one run per combination of the boolean inputs, so that every branch is taken."""
    rng = np.random.default_rng(0)
    feed: dict[str, np.ndarray] = {}
    switches: list[str] = []
    for value in session.get_inputs():
        shape = [dim if isinstance(dim, int) else DIMENSIONS[dim] for dim in value.shape]
        if value.type in FLOATS:
            feed[value.name] = rng.standard_normal(shape).astype(FLOATS[value.type])
        elif value.type == "tensor(int64)":
            feed[value.name] = np.asarray(rng.integers(1, 4, shape), np.int64)
        else:
            assert value.type == "tensor(bool)"
            switches.append(value.name)
    combinations = itertools.product([False, True], repeat=len(switches))
    return [feed | {name: np.asarray(on) for name, on in zip(switches, chosen)} for chosen in combinations]


def _arrays(outputs: list[object]) -> list[np.ndarray]:
    """The tensors of all outputs, sequences taken apart."""
    return [np.asarray(array) for out in outputs for array in (out if isinstance(out, list) else [out])]


def test_every_feature_has_a_sample() -> None:
    models = [build.build(SAMPLES / f"{name}.onnxtxt") for name in NAMES]
    operators = {node.op_type for model in models for node in model.graph.node}
    folds = {"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Mul", "Add", "Sub"}
    clutter = {"Shape", "Gather", "Unsqueeze", "Concat", "Reshape", "Cast", "Identity", "Dropout", "Constant"}
    scopes = {"If", "Loop", "SequenceConstruct", "SequenceAt", "QuantizeLinear", "DequantizeLinear"}
    assert operators >= folds | clutter | scopes
    assert any(model.functions for model in models)


@pytest.mark.parametrize("name", NAMES)
def test_passes_the_checker(name: str, built: dict[str, Path]) -> None:
    onnx.checker.check_model(str(built[name]), full_check=True)


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_shows(name: str) -> None:
    model = build.build(SAMPLES / f"{name}.onnxtxt")
    assert model.graph.name == name
    assert model.doc_string
    assert f"`{name}`" in (SAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_runs_with_finite_and_varied_outputs(name: str, built: dict[str, Path]) -> None:
    session = plain_session(built[name])
    for feed in _feeds(session):
        outputs = _arrays(session.run(None, feed))
        assert outputs
        for array in outputs:
            assert np.isfinite(array).all()
            assert array.std() > 1e-3, "an output that hardly varies proves nothing"


def test_building_twice_gives_identical_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    for again in (tmp_path, tmp_path):  # the second time over existing files
        build.build_all(again)
        for first in built["external_weights"].parent.iterdir():
            assert (again / first.name).read_bytes() == first.read_bytes(), first.name


def test_external_weights_are_beside_the_model(built: dict[str, Path]) -> None:
    path = built["external_weights"]
    model = onnx.load(path, load_external_data=False)
    outside = {tensor.name for tensor in model.graph.initializer if tensor.data_location == tensor.EXTERNAL}
    assert outside == {"w1", "w2"}
    assert path.with_suffix(".data").stat().st_size >= 16 * 4 * 9 * 4 + 16 * 10 * 4


def test_a_weight_that_is_not_declared_is_named(tmp_path: Path) -> None:
    text = tmp_path / "bad.onnxtxt"
    header = '# weights: normal w\n<ir_version: 10, opset_import: ["" : 17]>\n'
    text.write_text(header + "bad (float[2] x) => (float[2] y) { y = Relu (x) }\n")
    with pytest.raises(ValueError, match=r"bad\.onnxtxt: weight 'w' is not declared"):
        build.build(text)


@pytest.mark.parametrize(("name", "left"), [("repvgg_blocks", 3), ("mobileone_block", 2)])
def test_parallel_branches_collapse_to_one_conv(name: str, left: int, built: dict[str, Path], tmp_path: Path) -> None:
    report = onnxopt.optimize_file(built[name], tmp_path / "out.onnx", level=3)
    assert report.verification is not None
    assert report.verification.status == "verified"
    operators = [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]
    assert operators == ["Conv", "Relu"] * left
