"""All output formats of `onnxopt stats` agree."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3, 8, 8] x) => (float[batch, 4, 8, 8] y)'
        " <float[4, 3, 1, 1] w = {1,2,3,4,5,6,7,8,9,10,11,12}>"
        " { [conv] a = Conv (x, w) [clutter] b = Identity (a) [relu] y = Relu (b) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_one_model(run: Run, model: Path) -> None:
    done = run("stats", model, "--dim", "batch=2", "--top", "1")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "Conv 1 1,536 3,072" in lines
    assert "MACs 1,536" in lines
    assert "FLOPs 3,584" in lines
    assert "dynamic batch x[0]" in lines
    assert "conv Conv [2, 4, 8, 8] 1,536 3,072 85.7%" in lines
    assert any(line.startswith("memory is highest at Identity") for line in lines)


def test_notes_are_one_line_in_a_pipe(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each note is one line in a pipe, for programs like grep. COLUMNS sets a width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    proto = onnx.load(model)
    proto.graph.node[1].output[0] = proto.graph.node[2].input[0] = "a value with a name " * 10
    onnx.save(proto, model)
    lines = run("stats", "m.onnx").stdout.splitlines()
    assert "MACs, FLOPs and memory are a lower bound: the sizes of 2 nodes are not known (--dim, --shape)" in lines
    assert 'memory is highest at Identity "clutter" -> ' + "a value with a name " * 10 in lines
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, run("stats", "m.onnx").stdout.splitlines())) <= 40


def test_work_is_a_lower_bound_without_sizes(run: Run, model: Path) -> None:
    done = run("stats", model)
    assert "MACs, FLOPs and memory are a lower bound: the sizes of 2 nodes are not known" in " ".join(
        done.stdout.split()
    )
    assert "(--dim, --shape)" in done.stdout
    quick = run("stats", model, "--no-work")
    assert "MACs" not in quick.stdout


def test_no_size_option_is_suggested_without_a_dynamic_dim(run: Run, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "x" : 1]>
        g (float[2, 3] x) => (y) { a = x.Foo (x) y = Relu (a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    done = run("stats", "m.onnx")
    assert ("lower bound" in done.stdout, "--dim" in done.stdout) == (True, False)


def test_a_comparison_notes_the_lower_bound_of_each_model(run: Run, model: Path) -> None:
    assert run("optimize", model, "out.onnx").returncode == 0
    pair = ("stats", model, "out.onnx")
    table = " ".join(run(*pair).stdout.split())
    for said in (
        "before: MACs, FLOPs and memory are a lower bound: the sizes of 2 nodes",
        "after: MACs, FLOPs and memory are a lower bound: the sizes of 2 nodes",
    ):
        assert said in table
        assert said in run(*pair, "--format", "markdown").stdout
    assert "lower bound,nodes of unknown size,2,2\n" in run(*pair, "--format", "csv").stdout
    alone = run("stats", model, "--format", "csv").stdout
    assert "lower bound,nodes of unknown size,2\n" in alone
    assert "lower bound,peak memory,1\n" in alone
    for form in ("table", "markdown", "csv"):
        assert "lower bound" not in run(*pair, "--dim", "batch=2", "--format", form).stdout


def test_every_format_has_the_same_figures(run: Run, model: Path) -> None:
    assert run("optimize", model, "out.onnx").returncode == 0
    pair = ("stats", model, "out.onnx", "--dim", "batch=2")
    record = json.loads(run(*pair, "--format", "json").stdout)
    assert record["before"]["work"]["macs"] == record["after"]["work"]["macs"] == 1536
    assert record["before"]["dynamic"] == {"batch": ["x[0]"]}
    rows = {(r["kind"], r["name"]): r for r in csv.DictReader(io.StringIO(run(*pair, "--format", "csv").stdout))}
    assert rows["total", "nodes"]["before"] == "3"
    assert rows["total", "nodes"]["after"] == "2"
    assert rows["operator", "Identity"]["after"] == "0"
    assert rows["macs", "Conv"]["after"] == "1536"
    assert rows["scope", "main"]["after"] == "2"
    markdown = run(*pair, "--format", "markdown").stdout
    assert "| **nodes** | 3 | 2 | -1 | -33% |" in markdown
    assert "| **MACs** | 1,536 | 1,536 |  |  |" in markdown
    table = run(*pair).stdout
    assert "1,536" in table
    assert "-33%" in table
    alone = list(csv.reader(io.StringIO(run("stats", model, "--format", "csv").stdout)))
    assert alone[0] == ["kind", "name", "value"]


def test_a_missing_data_file_gives_a_warning(run: Run, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.onnx").write_bytes((samples / "external_weights.onnx").read_bytes())
    done = run("stats", "alone.onnx")
    assert done.returncode == 0
    assert done.stderr == (
        "warning: alone.onnx: its data file external_weights.data is missing: bytes on disk are without it\n"
    )
    assert json.loads(run("stats", "alone.onnx", "--format", "json").stdout)["missing_files"] == [
        "external_weights.data"
    ]
    assert run("stats", samples / "external_weights.onnx").stderr == ""


def test_invalid_options_are_refused(run: Run, model: Path) -> None:
    ignored = (("--top", "1", "--format", "csv"), ("--top", "1", "--no-work"), (model, "--top", "1"))
    for args in (("--dim", "width=2"), ("--shape", "z:1,2"), ("--format", "xml"), ("--top", "-1"), *ignored):
        done = run("stats", model, *args)
        assert done.returncode == 2, args
        assert "Traceback" not in done.stderr


def test_names_in_notes_fold_between_their_parts(run: Run, tmp_path: Path) -> None:
    name = "/a_first_module_of_some_length/another_module_inside/and_one_more_that_is_long/Sin"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Sin (x) }'
    )
    model.graph.node[0].name = name
    onnx.save(model, tmp_path / "long.onnx")
    lines = run("stats", "long.onnx", COLUMNS="60").stdout.splitlines()
    told = [line.strip() for line in lines[lines.index(next(s for s in lines if s.startswith("memory is"))) :]]
    assert name in "".join(told) and len(told) > 1 and all(s[-1] in "/ >=" or " -> " in s for s in told[:-1]), told
