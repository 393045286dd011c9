"""On a terminal of 80 columns, names and figures are whole: minor columns are dropped, long texts wrap."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from click import unstyle
from click.testing import CliRunner
from onnx import parser

from onnxopt.cli.main import cli
from onnxopt.pipeline import all_passes, origin
from onnxopt.reporting.stats_text import exact

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
    """Return the output of a successful command at a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    done = CliRunner().invoke(cli, [str(a) for a in args])
    assert done.exit_code == 0, done.output
    text = unstyle(done.output)
    assert all(len(line) <= columns for line in text.splitlines())
    return text


def joined(text: str, column: int) -> str:
    """Return the joined text of a column that is wrapped over lines."""
    return "".join(line[column:].split("   ")[0].strip() for line in text.splitlines())


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_passes_are_listed_by_whole_names(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    ours = {name: cls for name, cls in all_passes().items() if origin(cls) == "onnxopt"}  # other tests register passes
    monkeypatch.setattr("onnxopt.pipeline.all_passes", lambda: ours)
    text = shown(monkeypatch, "passes", columns=columns)
    rows = {row[0]: row for row in map(str.split, text.splitlines()) if row}
    for name, cls in ours.items():
        others = {"convert-dtype": "--dtype", "convert-int32": "--int32", "fixpoint": "-", "sequential": "-"}
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


def test_the_most_expensive_nodes_are_named(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    text = shown(monkeypatch, "stats", model, "--top", "8")
    table = text[text.index(" node ") :]
    for op, i in (("Mul", 0), ("Sin", 1), ("Exp", 3)):
        assert f"{LAYER.format(i)}/{op}" in joined(table, 1)
    assert "times" not in table, "nothing is repeated"
    assert "[?, 2]" in table, "a dim without a name"
    assert "@" not in table
    assert exact(8) in text


@pytest.mark.parametrize("columns", [40, 60])
def test_words_are_whole_in_statistics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int) -> None:
    """Words are whole in statistics at each width: columns of figures are dropped, and never both compared ones."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[n, 4, 8] features_of_a_sentence) => (float[n, 4, 8] y)
        <float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0}, float[4] m = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}>
        { y = BatchNormalization (features_of_a_sentence, s, b, m, v) }
    """)
    onnx.save(proto, tmp_path / "model.onnx")
    one = shown(monkeypatch, "stats", tmp_path / "model.onnx", columns=columns)
    two = shown(monkeypatch, "stats", tmp_path / "model.onnx", tmp_path / "model.onnx", columns=columns)
    for text in (one, two):
        words = {line.strip().split("  ")[0] for line in text.splitlines()}
        assert {"BatchNormalization", "initializers", "bytes in memory", "operator types"} <= words
    assert "nodes" in one
    assert "before" in two
    assert "after" in two
    assert ("FLOPs" in one.split("BatchNormalization")[0]) == (columns == 60)


def test_many_models_on_a_narrow_terminal_are_a_list(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """Without room for a table, each model is a line, like in a log. A failed model has no figures."""
    names, headings = [str(model), "nothing.onnx"], []
    for columns in range(30, 120, 6):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
        done = CliRunner().invoke(cli, ["optimize", *names, "--check", "--no-verify"])
        text = unstyle(done.output)
        assert isinstance(done.exception, SystemExit), done.exception
        found = re.search(r"^ +model +nodes +(size +)?result +$", text, re.MULTILINE)
        headings.append(len(found[0].split()) if found is not None else 0)
        assert "nothing.onnx" in text
        assert "2 models:" in text
    assert headings == sorted(headings)
    assert set(headings) == {0, 3, 4}


def test_lists_where_there_is_no_room_for_a_table(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    parts = shown(monkeypatch, "partition", model, "--ops", "Mul", columns=40)
    assert parts.startswith("part_000  rest  4 nodes: NonZero, \n")
    passes = shown(monkeypatch, "passes", columns=40).splitlines()
    at = passes.index("deduplicate-constants  -O1  graph")
    assert passes[at + 1].startswith("  Merges initializers of equal type,")


@pytest.mark.parametrize("columns", [60, 80])
def test_explanations_wrap_between_words(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Explanations wrap between words, with the indentation of the first line. In a pipe, lines do not wrap."""
    page = shown(monkeypatch, "explain", "constant-folding", columns=columns)
    monkeypatch.undo()
    plain = CliRunner().invoke(cli, ["explain", "constant-folding"]).output
    assert page.split() == plain.split()
    assert len(page.splitlines()) > len(plain.splitlines())
    assert all(line.startswith("  ") for line in page.splitlines()[2:] if line and not line.startswith("Options"))


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm"}])
def test_colour_is_off_by_environment_variables(
    variable: dict[str, str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    out = model.with_name("out.onnx")
    done = CliRunner().invoke(cli, ["optimize", str(model), str(out), "--no-verify"], color=True)
    last = done.output.splitlines()[-1]
    assert "next: onnxopt report" in last
    assert ("\x1b" in last) == (variable == {"TERM": "xterm"})


COMMANDS = """
optimize model.onnx out.onnx -v --no-verify
optimize model.onnx other.onnx --check --no-verify
stats model.onnx --top 8
diff model.onnx other.onnx
why model.onnx matmul-scale-folding --node NAME/Mul
passes
explain conv-bn-folding
verify model.onnx other.onnx --cases ones
bench model.onnx --runs 1
partition model.onnx --ops Mul
extract model.onnx part.onnx --outputs NAME/output_0
find model.onnx Mul(x,y)
"""
CUT_WHERE = "/._-: "


@pytest.mark.parametrize("command", COMMANDS.strip().splitlines())
def test_long_names_stand_alone_on_a_line(monkeypatch: pytest.MonkeyPatch, model: Path, command: str) -> None:
    """At 60 columns, a line that is longer is a name alone, ready to copy, or a command."""
    other = onnx.load(model)
    other.graph.initializer[0].float_data[:] = [1, 2, 3, 9]
    onnx.save(other, model.with_name("other.onnx"))
    monkeypatch.chdir(model.parent)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    monkeypatch.setattr("onnxopt.reporting.progress._is_terminal", lambda: False)
    done = CliRunner().invoke(cli, [word.replace("NAME", LAYER.format(2)) for word in command.split()])
    assert done.exit_code in (0, 1) and not isinstance(done.exception, Exception), done.output
    lines = [line.strip() for line in unstyle(done.output).splitlines() if not line.startswith("next: ")]
    assert lines and all(len(line) <= 60 or " " not in line for line in lines)
    proto = onnx.load(model).graph
    names = {n.name for n in proto.node} | {v for n in proto.node for v in n.output} | {n.op_type for n in proto.node}
    cut = [
        (line, after)
        for line, after in pairwise(lines)
        for name in names
        for k in range(4, len(name) - 3)
        if line.endswith(name[:k]) and after.startswith(name[k : k + 4]) and name[k - 1] not in CUT_WHERE
    ]
    assert not cut
    assert not re.search(r"[a-z]…( |$)", done.output)
