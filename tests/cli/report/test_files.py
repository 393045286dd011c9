"""Files read and written by `onnxopt report`, and messages on wrong files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Run
from tests.samples import ROOT, build_text


def test_the_same_files_give_the_same_page(run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    for args in (["--from", "r.json"], ["--no-times"]):
        pages = []
        for name in ("a.html", "b.html"):
            assert run("report", "m.onnx", "out.onnx", "-o", name, *args).returncode == 0
            pages.append((tmp_path / name).read_bytes())
        assert pages[0] == pages[1]
    assert b" ms" not in pages[0].split(b"<script")[0]
    assert b"as recorded" in (residual / "page.html").read_bytes()
    assert b"run again for this page" in pages[0]


def test_a_result_of_another_run_is_named(run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    r = run("report", "m.onnx", "m.onnx", "-o", "p.html")
    assert r.returncode == 0
    assert "warning: m.onnx is not what this run makes" in r.stderr
    assert "m.onnx is not what this run makes" in (tmp_path / "p.html").read_text()
    r = run("report", "m.onnx", "m.onnx", "-o", "p.html", "--from", "r.json")
    assert "warning: the report is of another file than m.onnx" in r.stderr.lower()
    assert "bit for bit" in (tmp_path / "p.html").read_text()  # verified now: the record is of another file
    r = run("report", "m.onnx", "m.onnx", "-o", "p.html", "-O0")
    assert (r.returncode, r.stderr) == (0, "")


def test_a_report_without_a_journal_will_do(run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    record = json.loads((tmp_path / "r.json").read_text())
    assert {e["pass_name"] for e in record["journal"]} >= {"conv-bn-folding"}
    assert [r["name"] for r in record["timeline"]].count("canonicalize") > 1
    del record["journal"], record["timeline"]
    (tmp_path / "r.json").write_text(json.dumps(record))
    r = run("report", "m.onnx", "out.onnx", "-o", "p.html", "--from", "r.json")
    assert (r.returncode, r.stderr) == (0, "")
    text = (tmp_path / "p.html").read_text()
    assert "The report has no journal" in text
    assert "the report has no timeline" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.onnx", "out.onnx", "-o", "p.html"], "error: none.onnx: no such file"),
        (["m.onnx", "none.onnx", "-o", "p.html"], "error: none.onnx: no such file"),
        (["m.onnx", "out.onnx", "-o", "none/p.html"], "error: cannot write none/p.html: No such file or directory"),
        (["m.onnx", "out.onnx", "-o", "."], "error: . is a directory"),
        (["m.onnx", "out.onnx", "-o", "out.onnx"], "error: out.onnx is one of the files to read"),
        (["m.onnx", "out.onnx", "-o", "p.html", "--from", "none.json"], "error: none.json: No such file or directory"),
        (["m.onnx", "out.onnx", "-o", "p.html", "--from", "m.onnx"], "error: m.onnx is not JSON"),
        (["m.onnx", "out.onnx", "-o", "p.html", "--from", "x.json"], "error: x.json is not the report of an optimiz"),
        (["m.onnx", "out.onnx", "-o", "p.html", "--from", "r.json", "-O1"], "error: --from contradicts --level"),
        (["none.onnx", "-o", "p.html"], "error: none.onnx: no such file"),
        (["m.onnx", "-o", "m.onnx"], "error: m.onnx is one of the files to read"),
        (["m.onnx", "-o", "p.html", "--from", "r.json"], "error: --from is about two models"),
        (["m.onnx", "-o", "p.html", "-O3"], "error: --level is about two models"),
        (["page.onnx"], "error: page.html exists"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(
    run: Run, residual: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    (tmp_path / "x.json").write_text('{"pipeline": []}')
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    r = run("report", *args)
    assert (r.returncode, r.stdout) == (2, "")
    assert r.stderr.startswith(message)
    assert [line.split(":")[0] for line in r.stderr.splitlines()] == ["error", "hint"]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_fixed_dims_are_verified_at_their_size(run: Run, tmp_path: Path) -> None:
    body = "a = Identity (x) y = Neg (a)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) {{ {body} }}'
    onnx.save(build_text(text), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "o.onnx", "--dim", "N=3").returncode == 0
    r = run("report", "m.onnx", "o.onnx", "-o", "p.html", "--dim", "N=3")
    assert (r.returncode, r.stderr) == (0, "")
    text = (tmp_path / "p.html").read_text()
    assert "equal: bit for bit the same" in text
    assert "The result takes these sizes only: N = 3" in text


def test_the_wheel_has_scripts_and_styles_of_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "onnxopt" / "reporting" / "html"
    parts = [p for p in folder.rglob("*") if p.suffix in (".js", ".css", ".LICENSE")]
    assert len(parts) == 10
    assert {str(p.relative_to(ROOT)) for p in parts} <= names
