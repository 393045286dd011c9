"""Two models as files, and the differences found by `onnxopt verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import parser

from tests.cli.conftest import Run

HEADER = 'opset_import: ["" : 17]'
VECTOR = "(float[4] x) => (float[4] y)"
BATCH = "(float[N, 4] x) => (float[N, 4] y)"
CHAIN = "{ p = Neg (x) q = Sin (p) r = Mul (q, k) s = Add (r, x) y = Exp (s) }"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def call(name: str, signature: str, body: str, header: str = HEADER) -> None:
        model = parser.parse_model(f"<ir_version: 8, {header}> g {signature} {body}")
        (tmp_path / name).write_bytes(model.SerializeToString())

    return call


def compare(run: Run, *args: str) -> tuple[int, dict[str, Any]]:
    r = run("verify", "a.onnx", "b.onnx", *args, "--format", "json")
    assert r.stdout, r.stderr
    return r.returncode, json.loads(r.stdout)


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["status"] for c in found["cases"]}
