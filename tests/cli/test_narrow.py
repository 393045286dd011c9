"""On a terminal of 80 columns, names and figures are whole: what is less important goes, what is long folds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from click import unstyle
from click.testing import CliRunner
from onnx import parser

from onnxopt.cli.main import cli
from onnxopt.pipeline import all_passes, origin
from onnxopt.report.stats_table import exact

LAYER = "/model/encoder/layers.{}/self_attention/query_projection"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, 4] x) => (float[batch, 4] y, bool[n, 2] z) <float[4] w = {1, 2, 3, 4}>
        { a = Mul (x, w) b = Sin (a) c = Mul (b, w) y = Exp (c) d = NonZero (x) e = Transpose (d) f = Cast <to = 9> (e)
          z = Not (f) }
    """)
    for i, node in enumerate(proto.graph.node):
        node.name = f"{LAYER.format(i)}/{node.op_type}"
    renamed = {v: f"{LAYER.format(i)}/output_0" for i, v in enumerate("abc")}
    for node in proto.graph.node:
        node.input[:] = [renamed.get(v, v) for v in node.input]
        node.output[:] = [renamed.get(v, v) for v in node.output]
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def shown(monkeypatch: pytest.MonkeyPatch, *args: str | Path, columns: int = 80) -> str:
    """What a terminal shows of a command that succeeds."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    done = CliRunner().invoke(cli, [str(a) for a in args])
    assert done.exit_code == 0, done.output
    text = unstyle(done.output)
    assert all(len(line) <= columns for line in text.splitlines())
    return text


def joined(text: str, column: int) -> str:
    """The lines of a column, without their ends."""
    return "".join(line[column:].split("   ")[0].strip() for line in text.splitlines())


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_passes_are_listed_by_names_that_can_be_typed(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    ours = {name: cls for name, cls in all_passes().items() if origin(cls) == "onnxopt"}  # other tests register theirs
    monkeypatch.setattr("onnxopt.pipeline.all_passes", lambda: ours)
    text = shown(monkeypatch, "passes", columns=columns)
    rows = {row[0]: row for row in map(str.split, text.splitlines()) if row}
    for name, cls in ours.items():
        others = {"convert-dtype": "--dtype", "fixpoint": "-", "sequential": "-"}
        assert rows[name][1:3] == [others.get(name, f"-O{cls.info.opt_level}"), cls.kind]
    assert "…" not in text
    assert ("requires" in rows["pass"]) == (columns == 120)


def test_a_comparison_drops_columns_before_it_cuts_figures(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    wide = shown(monkeypatch, "verify", model, model, "--cases", "dynamic", columns=160)
    narrow = shown(monkeypatch, "verify", model, model, "--cases", "dynamic")
    for heading in ("type", "max abs", "max rel", "cosine", "ulp", "NaN", "Inf"):
        assert heading in wide
    for whole in ("max abs", "max rel", "float32[1,4]", "0.0e+00", "dynamic-1", "✓"):
        assert whole in narrow
    assert "ulp" not in narrow
    assert "…" not in narrow


def test_parts_are_told_apart(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    text = shown(monkeypatch, "partition", model, "--ops", "Mul")
    names = joined(text, text.splitlines()[1].index("inputs"))
    for i in range(3):
        assert f"→ {LAYER.format(i)}/output_0" in names
    assert "…" not in text
    assert text.endswith("2 supported of 5 parts, 2 of 8 nodes\n")


def test_the_nodes_that_compute_most_are_named(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    text = shown(monkeypatch, "stats", model, "--top", "8")
    table = text[text.index(" node ") :]
    for op, i in (("Mul", 0), ("Sin", 1), ("Exp", 3)):
        assert f"{LAYER.format(i)}/{op}" in joined(table, 1)
    assert "times" not in table, "nothing is repeated"
    assert "[?, 2]" in table, "a dim without a name"
    assert "@" not in table
    assert exact(8) in text
