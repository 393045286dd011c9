"""The Python API, and its promised names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

import onnxopt
from tests.samples import ROOT, sample


def test_no_module_hides_a_public_name() -> None:
    """`onnxopt.rewrite` is the decorator, whatever was imported before: a package may not be called so."""
    modules = {p.stem for p in (ROOT / "onnxopt").iterdir()}
    assert not modules & set(onnxopt.__all__)


def test_optimize_a_proto_leaves_it_alone() -> None:
    proto = sample("residual_block")
    data = proto.SerializeToString()
    result = onnxopt.optimize(proto)
    assert proto.SerializeToString() == data
    assert len(result.model.graph.node) == len(proto.graph.node) - 3
    assert result.report.pipeline.nodes_before - result.report.pipeline.nodes_after == 3
    onnx.checker.check_model(result.model, full_check=True)


def test_bytes_are_no_model_and_no_path() -> None:
    with pytest.raises(onnxopt.UsageError, match="not bytes") as refused:
        onnxopt.optimize(b"abc")  # type: ignore[arg-type]
    assert "load_model_from_string" in refused.value.hint


@pytest.mark.parametrize("beside", [False, True])
def test_weights_of_a_proto_that_are_in_a_file(beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which file nobody knows, whatever lies in the current folder: no bug in a rule, and no invalid model."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4] x) => (float[1, 4] y) { y = Add (x, w) }'
    )
    weights = proto.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=1)
    weights.external_data.add(key="location", value="w.bin")
    monkeypatch.chdir(tmp_path)
    if beside:
        Path("w.bin").write_bytes(b"\0" * 16)
    with pytest.raises(onnxopt.ModelError, match="the data of `w` are in a file, and a ModelProto does not say where"):
        onnxopt.optimize(proto)
    if beside:
        onnx.save(proto, "m.onnx")
        assert [n.op_type for n in onnxopt.optimize("m.onnx").model.graph.node] == ["Identity"]


def test_the_same_input_gives_the_same_bytes() -> None:
    first, second = (
        onnxopt.optimize(sample("residual_block"), verify=False).model.SerializeToString() for _ in range(2)
    )
    assert first == second


def test_files(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    report = onnxopt.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.verification is not None
    assert report.verification.status == "verified"
    assert onnxopt.verify(tmp_path / "in.onnx", tmp_path / "out.onnx").status == "verified"
    assert onnxopt.stats(tmp_path / "out.onnx").nodes == report.pipeline.nodes_after
    model = onnxopt.load(tmp_path / "in.onnx")
    onnxopt.optimize_model(model, onnxopt.OptimizeOptions(level=1))
    onnxopt.save(model, tmp_path / "level1.onnx")
    assert onnxopt.stats(tmp_path / "level1.onnx").operators["BatchNormalization"] == 3


def test_max_rewrites_is_fuel() -> None:
    for fuel in range(4):
        model = onnxopt.optimize(sample("residual_block"), max_rewrites=fuel, verify=False).model
        left = sum(n.op_type == "BatchNormalization" for n in model.graph.node)
        assert left == 3 - fuel


def test_errors_carry_a_hint(tmp_path: Path) -> None:
    with pytest.raises(onnxopt.OnnxOptError) as e:
        onnxopt.load(tmp_path / "none.onnx")
    assert (e.value.exit_code, e.value.hint) == (2, "check the path")
    with pytest.raises(onnxopt.OnnxOptError, match="no level 7"):
        onnxopt.optimize(sample("residual_block"), level=7)


def test_who_does_not_verify_imports_no_verifier() -> None:
    code = "import sys, onnxopt.api.settings; print('onnxopt.verification.verifier' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_names_are_completed_before_they_are_imported() -> None:
    code = "import onnxopt, sys; print(set(onnxopt.__all__) <= set(dir(onnxopt)), 'onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
    for package in (onnxopt.pipeline, onnxopt.rewriting):
        assert set(package.__all__) <= set(dir(package))


def test_what_is_returned_is_a_line_in_an_interpreter(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    report = onnxopt.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    nodes = report.pipeline.nodes_after
    assert repr(report) == f"Report({nodes + 3} → {nodes} nodes, verified)"
    result = onnxopt.optimize(sample("residual_block"), verify=False)
    assert repr(result) == f"Result(report=Report({nodes + 3} → {nodes} nodes))"
    assert result._repr_html_().startswith("<div><p><b>ModelProto: ")
    assert "<td>conv-bn-folding</td><td>3</td><td>-3</td>" in result._repr_html_()
    for shown in (repr(report.verification), repr(report.pipeline)):
        assert len(shown) < 400
        assert "\n" not in shown
