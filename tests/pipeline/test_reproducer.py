"""A failing pass leaves a reproducer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxopt
from onnxopt.errors import ModelError, PassError, UsageError, WriteError
from onnxopt.graph import write_model
from onnxopt.io import load
from onnxopt.pipeline import PassContext, execute, parse_pipeline
from onnxopt.pipeline.registry import load_module
from onnxopt.pipeline.reproducer import keep_reproducer, reproduce
from tests.samples import ROOT

BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")
ASKED = ("--pipeline", "crashing-rule", "--reproducer")
BODY = "a = Identity (x) n = Neg (a) s = Sigmoid (n) m = MatMul (s, w) y = Identity (m)"


@pytest.fixture
def failing(model: Any, tmp_path: Path) -> Path:
    load_module(BROKEN)
    proto = write_model(model(BODY, weights="<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}>"))
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.tile(weight, (1, 1)), "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path


def fail(folder: Path, **given: Any) -> onnxopt.OnnxOptError:
    pipeline = "fixpoint(elim-identity,crashing-rule,dead-code)"
    with pytest.raises(PassError) as e:
        onnxopt.optimize_file(
            folder / "m.onnx", folder / "out.onnx", pipeline=pipeline, reproducer=folder / "crash", **given
        )
    return e.value


def test_it_holds_the_model_before_the_pass_and_what_was_left_to_run(failing: Path) -> None:
    error = fail(failing, disable=("dead-code",))
    assert not (failing / "out.onnx").exists()
    crash = failing / "crash"
    assert [n.op_type for n in onnx.load(crash / "model.onnx").graph.node] == ["Neg", "Sigmoid", "MatMul"]
    text = (crash / "pipeline.txt").read_text().strip()
    assert text == "crashing-rule,dead-code,fixpoint(elim-identity,crashing-rule,dead-code)"
    assert (crash / "error.txt").read_text() == error.message + "\n"
    assert "ZeroDivisionError: by design" in error.message
    assert "(after elim-identity)" in error.message
    assert f"onnxopt reproduce {crash}" in error.hint
    assert json.loads((crash / "environment.json").read_text())["onnx"] == onnx.__version__
    settings = json.loads((crash / "settings.json").read_text())
    assert settings["disabled_pass"] == ["dead-code"]
    assert settings["plugins"] == ["plugins/broken.py"]
    assert (crash / "plugins" / "broken.py").read_bytes() == Path(BROKEN).read_bytes()


def test_it_fails_again_where_the_plugin_is_not(failing: Path) -> None:
    plugin = failing / "own.py"
    shutil.copy(BROKEN, plugin)
    run_onnxopt("optimize", failing / "m.onnx", failing / "out.onnx", "--plugin", plugin, *ASKED, failing / "crash")
    plugin.unlink()
    code, said = run_onnxopt("reproduce", failing / "crash")
    assert code == 4
    assert "ZeroDivisionError: by design (own.py:" in said


def run_onnxopt(*arguments: Any) -> tuple[int, str]:
    command = [sys.executable, "-m", "onnxopt", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.returncode, run.stderr


def test_it_fails_again_or_says_that_it_does_not(failing: Path) -> None:
    fail(failing)
    again = reproduce(failing / "crash")
    assert again is not None
    assert "rule crashes_at_sigmoid failed at Sigmoid -> s: ZeroDivisionError: by design" in again.message
    (failing / "crash" / "pipeline.txt").write_text("elim-identity\n")
    assert reproduce(failing / "crash") is None


def test_it_holds_the_model_as_the_options_had_it_read(failing: Path) -> None:
    proto = onnx.load(failing / "m.onnx")
    opset = proto.opset_import[0].version
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(proto, failing / "m.onnx")
    fail(failing, target_opset=opset + 1, dims={"rows": 4})
    kept = onnx.load(failing / "crash" / "model.onnx")
    assert kept.opset_import[0].version == opset + 1
    assert kept.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4
    assert reproduce(failing / "crash") is not None


def test_weights_can_be_zeroed(failing: Path) -> None:
    pipeline, ctx = parse_pipeline("elim-identity,crashing-rule"), PassContext()
    with pytest.raises(PassError) as e:
        execute(pipeline, load(failing / "m.onnx"), ctx)
    for zero in (False, True):
        keep_reproducer(failing / "crash", load(failing / "m.onnx"), pipeline, ctx, e.value, zero_weights=zero)
        (weight,) = onnx.load(failing / "crash" / "model.onnx").graph.initializer
        assert numpy_helper.to_array(weight).any() != zero
        assert reproduce(failing / "crash") is not None


def test_what_is_no_reproducer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a reproducer: settings\.json: No such file"):
        reproduce(tmp_path)
    (tmp_path / "pipeline.txt").write_text("dead-code")
    for text in ("{}", "[]", "no JSON"):
        (tmp_path / "settings.json").write_text(text)
        with pytest.raises(UsageError, match=r"is not a reproducer: settings\.json: "):
            reproduce(tmp_path)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"plugins": 5}, "plugins are not a list of files and modules"),
        ({"plugins": [5]}, "plugins are not a list of files and modules"),
        ({"excluded": [["rule", "value"]]}, "excluded is not a list of"),
        ({"excluded": [[{}, "value", "main"]]}, "excluded is not a list of"),
        ({"later": 1}, "no setting is called 'later' in this version"),
        ({"instruments": [1]}, "no setting is called 'instruments' in this version"),
        ({"config": 5}, "config is int, not a dict"),
    ],
)
def test_settings_of_a_stranger(failing: Path, settings: dict[str, Any], why: str) -> None:
    fail(failing)
    file = failing / "crash" / "settings.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(UsageError, match=why):
        reproduce(failing / "crash")


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes are POSIX's")
def test_what_lies_in_the_folder_is_replaced_and_not_written_through(failing: Path) -> None:
    crash, victim = failing / "crash", failing / "victim"
    (crash / "plugins").mkdir(parents=True)
    victim.write_text("mine")
    (crash / "settings.json").symlink_to(victim)
    (crash / "error.txt").hardlink_to(victim)
    (crash / "plugins" / "broken.py").symlink_to(victim)
    os.mkfifo(crash / "pipeline.txt")
    fail(failing)
    assert victim.read_text() == "mine"
    assert reproduce(crash) is not None

    shutil.rmtree(crash / "plugins")
    (crash / "plugins").symlink_to(failing)
    with pytest.raises(WriteError, match="plugins is a link"):
        onnxopt.optimize_file(failing / "m.onnx", failing / "out.onnx", pipeline="crashing-rule", reproducer=crash)
    assert not (failing / "broken.py").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are POSIX's")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "settings.json")
    with pytest.raises(ModelError, match="is a pipe or a device"):
        reproduce(tmp_path)
