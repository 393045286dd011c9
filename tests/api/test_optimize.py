"""`onnxopt.optimize` keeps the promises of the command, for every caller and argument."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxopt
from tests.samples import sample


@pytest.mark.parametrize("place", ["-c", "script"])
def test_whoever_calls_gets_a_right_result_and_is_told(place: str, sines: onnx.ModelProto) -> None:
    """Also where nothing guards the caller's own module: no worker may import it."""
    code = (
        "import onnxopt; print('once'); r = onnxopt.optimize('m.onnx', plugins=['wrong.py'], extra=['wrong']); "
        "print([n.op_type for n in r.model.graph.node], r.report.ok, r.report.rolled_back[0].rule)"
    )
    Path("script.py").write_text(code)
    command = {"-c": ["-c", code], "script": ["script.py"]}[place]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert done.stdout == "once\n['Sin', 'Neg'] True sine_is_cosine\n"
    warned = "rule sine_is_cosine at value `b` was left out, it made the result wrong: `b` differs by"
    assert done.stderr.startswith(f"warning: {warned}"), done.stderr


def test_a_proto_is_verified_too(sines: onnx.ModelProto, caplog: pytest.LogCaptureFixture) -> None:
    before, given = sines.SerializeToString(), dict[str, Any](plugins=["wrong.py"], extra=["wrong"])
    with caplog.at_level("INFO", "onnxopt"):
        result = onnxopt.optimize(sines, **given)
    assert [n.op_type for n in result.model.graph.node] == ["Sin", "Neg"]
    assert [r.rule for r in result.report.rolled_back] == ["sine_is_cosine"]
    assert result.report.ok and result.report.seconds > result.report.phases["roll-back"] > 0
    assert sines.SerializeToString() == before
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert [text[:7] for text, level in levels.items() if level == "WARNING"] == ["warning", "  main:", "hint: c"]
    (*_, verdict, left_out) = str(result.report).splitlines()
    assert verdict == "✓ equal: bit for bit the same, 2 cases"
    assert (levels[verdict], levels[f"warning: {left_out}"]) == ("INFO", "WARNING")
    with pytest.raises(onnxopt.VerificationError, match="ModelProto: the result differs from the original") as e:
        onnxopt.optimize(sines, strict=True, **given)
    assert not e.value.report.ok  # type: ignore[attr-defined]
    assert onnxopt.optimize(sines, verify=False, **given).model.graph.node[0].op_type == "Cos"
    assert sorted(p.name for p in Path().iterdir()) == ["m.onnx", "wrong.py"]


def test_data_for_inputs_are_arrays_too(sines: onnx.ModelProto) -> None:
    report = onnxopt.optimize(sines, input={"x": np.ones((2, 4), np.float32)}).report
    assert report.verification is not None and report.ok
    with pytest.raises(onnxopt.UsageError, match="the model has no input `z`"):
        onnxopt.optimize(sines, input={"z": np.ones(1)})


def test_a_result_is_written_as_the_command_writes_it(sines: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxopt.cli.main import cli

    steps: list[str] = []
    result = onnxopt.optimize("m.onnx", "api.onnx", progress=steps.append)
    cli(["optimize", "m.onnx", "command.onnx", "-q"], standalone_mode=False)
    assert Path("api.onnx").read_bytes() == Path("command.onnx").read_bytes()
    assert result.model == onnx.load("api.onnx") == onnxopt.optimize(sines).model
    shares = [float(step[10:-1]) for step in steps if step.startswith("verifying ")]
    assert steps[0] == "loading" and "verifying" in steps and steps[-1].startswith("verifying ")
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 100, "a share of the steps"
    assert "elim-identity" in steps
    again = onnxopt.optimize("m.onnx", "api.onnx")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert again.model == result.model
    monkeypatch.chdir("..")
    part = onnxopt.optimize("m.onnx", outputs=["b"], verify=False).report
    assert (part.pipeline.nodes_before, part.pipeline.nodes_after) == (3, 1)


@pytest.mark.parametrize("limit", [None, 1000])
def test_weights_come_back_in_the_model(limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beside a file and those of a proto; with the limit lowered of more than protobuf can write, too."""
    for module in ("layout", "save") if limit else ():
        monkeypatch.setattr(import_module(f"onnxopt.io.{module}"), "INLINE_LIMIT", limit)
    proto = sample("residual_block")
    before = proto.SerializeToString()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    whole = onnx.ModelProto.FromString(before)
    for given in (tmp_path / "m.onnx", whole):
        result = onnxopt.optimize(given)
        assert result.report.ok and result.report.changed
        assert not any(t.external_data for t in result.model.graph.initializer)
        onnx.checker.check_model(result.model, full_check=True)
    assert whole.SerializeToString() == before
