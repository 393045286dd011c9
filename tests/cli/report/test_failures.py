"""A failing section shows the reason in its place; all other sections are complete."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, expect

import onnxopt
from onnxopt.cli.main import cli
from onnxopt.comparison import compare
from tests.browser import visit
from tests.cli.report.pages import faults
from tests.samples import sample


def raising(*given: object) -> None:
    raise KeyError("a <b> that\nis not there")


TOLD = "could not be made: KeyError: &#x27;a &lt;b&gt; that\\nis not there&#x27;"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(sample("if_branches"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("table", ["_WITHOUT", "_OF_A_RUN"])
def test_a_failing_section_leaves_all_others(table: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failing section shows one note, and the page is complete otherwise. Every other section fails at once."""
    pages = importlib.import_module("onnxopt.reporting.html.page")
    rows = getattr(pages, table)
    names = [name for row in rows for name, _ in row]
    write = onnxopt.report if table == "_WITHOUT" else partial(onnxopt.report, result=model, verify=False, level=0)
    for failing in (names[::2], names[1::2]):
        broken = tuple(tuple((n, raising if n in failing else make) for n, make in row) for row in rows)
        monkeypatch.setattr(pages, table, broken)
        made = write(model)
        assert made.html.count(TOLD) == len(failing)
        assert [d.partition(": KeyError: ")[0] for d in made.doubts] == [
            f"section {name} could not be made" for name in failing
        ]
        for name in {*names} - {"Places"} | {*failing}:
            assert f'id="{name.lower()}"' in made.html or name == "Figures"
    monkeypatch.setenv("ONNXOPT_DEBUG", "1")
    with pytest.raises(KeyError):
        write(model)


@pytest.mark.parametrize(
    ("module", "part", "name", "args"),
    [
        (compare, "weights", "Weights", ["diff", "m.onnx", "m.onnx", "--html", "m.html"]),
        (compare, "drawing", "Graphs", ["report", "m.onnx"]),
    ],
)
def test_a_failing_section_shows_the_reason(
    module: ModuleType,
    part: str,
    name: str,
    args: list[str],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    browser: Browser,
) -> None:
    """A failing section shows the reason in a browser, without script errors. A page without graphs has no scripts."""
    monkeypatch.chdir(model.parent)
    monkeypatch.setattr(module, part, raising)
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0 and f"warning: section {name} could not be made: KeyError" in done.stderr
    with visit(browser, model.with_name("m.html"), before="performance.mark('ready')") as seen:
        expect(seen.page.locator(f"#{name.lower()}")).to_contain_text("This section could not be made: KeyError")
        expect(seen.page.locator("#operators")).to_contain_text("If")
        assert seen.errors == []


@pytest.mark.parametrize(
    ("name", "panes", "write"), [("qdq_conv", 1, onnxopt.report), ("if_branches", 2, onnxopt.diff)]
)
def test_nothing_is_blank_or_cut_off(
    name: str, panes: int, write: Callable[..., object], browser: Browser, tmp_path: Path
) -> None:
    """A page has no blank and no cut parts, checked like `make pages` does."""
    onnx.save(sample(name), tmp_path / "m.onnx")
    write(*[tmp_path / "m.onnx"] * panes, output=tmp_path / "p.html")
    assert not [*faults(browser, tmp_path / "p.html", panes)]
