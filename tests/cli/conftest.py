"""Sample models for commands, and readers of results."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path
from runpy import run_path

import onnx
import psutil
import pytest
from onnx import parser

from tests.commands import SCRIPT, Run, run_script
from tests.samples import ROOT, build

__all__ = ["SCRIPT", "Run", "run_script"]
NAMES = ("repvgg_blocks", "residual_block", "qdq_conv")
LITE = ROOT / "examples" / "lite"  # a pass that fuses to its own operator
FUSING = ("--plugin", str(LITE / "lite_fc.py"), "--with", "lite-fc-fuse", "--allow-domain", "lite")


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def is_gone(process: psutil.Process) -> bool:
    """Return whether a process ends within 10 s.

    A dead process without a reader of its exit code counts as ended: the system takes its time to free its memory.
    """
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    return True


def operators(path: Path) -> list[str]:
    """Return the operators of the model in a file, in node order."""
    return [n.op_type for n in onnx.load(path).graph.node]


def statuses(text: str) -> list[str]:
    """Return the outcome of each model, from the JSON output of a run."""
    return [o["status"] for o in json.loads(text)["models"]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    build.build_all(folder)
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a library with the operator of the example, built once."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) here that the library could be built with")
    made = tmp_path_factory.mktemp("library") / "fc.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(LITE / "fc.c")], check=True)
    return str(made)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the example's model, in which its pass fuses twice."""
    made = tmp_path_factory.mktemp("model") / "model.onnx"
    run_path(str(LITE / "mlp.py"))["write"](made)
    return made


@pytest.fixture
def models(samples: Path, tmp_path: Path) -> list[str]:
    """Copy three models to a folder of the test, and return their paths."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(samples / f"{name}.onnx", folder)
    return [f"models/{name}.onnx" for name in NAMES]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cache key out of the configuration folder of the user who runs the tests."""
    for variable in ("XDG_CONFIG_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path_factory.getbasetemp() / "config"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    body = "a = Identity (x) n = Neg (a) s = Sigmoid (n) t = Tanh (s) y = Cos (t)"
    source = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) {{ {body} }}'
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    return tmp_path
