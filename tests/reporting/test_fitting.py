"""Layout for the width of a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console, RenderableType
from rich.table import Column, Table

from onnxopt.reporting.terminal import Fitting, Name, folded


def printed(what: RenderableType, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("short", 20, ["short"]),
        ("", 20, [""]),
        ("/model/layers.0/mlp/MatMul", 20, ["/model/layers.0/mlp/", "MatMul"]),
        ("layer_norm_output.weight", 12, ["layer_norm_", "output.", "weight"]),
        ("com.microsoft::QLinearGlobalAveragePool", 20, ["com.microsoft::", "QLinearGlobal", "AveragePool"]),
        ("BatchNormalization", 12, ["Batch", "Normalizat", "ion"]),
        ("abcdefghij", 4, ["abcd", "ef", "gh", "ij"]),
        ("abc", 1, ["a", "b", "c"]),
    ],
)
def test_names_fold_between_their_parts(name: str, width: int, lines: list[str]) -> None:
    assert list(folded(name, width)) == lines
    assert "".join(lines) == name


def test_columns_go_before_figures_are_cut() -> None:
    def table(*headings: str) -> Table:
        made = Table(Column("name"), *(Column(h, no_wrap=True) for h in headings), box=None)
        made.add_row(Name("/a/name/of/many/parts"), *("1.0e-05" for _ in headings))
        return made

    fitting = Fitting([table("one", "two", "three"), table("one", "two"), table("one")], least=10)
    assert [printed(fitting, width)[0].split()[1:] for width in (60, 36, 25)] == [
        ["one", "two", "three"],
        ["one", "two"],
        ["one"],
    ]
    assert all("1.0e-05" in " ".join(printed(fitting, width)) for width in (60, 36, 25))
