"""The pages of a single model and of `onnxopt diff`, with the keyboard and on a phone."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import visit
from tests.cli.conftest import Run
from tests.samples import parsed

BRANCH = (
    "g (bool c, float[2] x) => (float[2] y) { k = Constant <value = float[2] {3, 4}> () z = If (c) <then_branch = a ()"
    " => (float[2] t) { t = Constant <value = float[2] {1, 2}> () }, else_branch = b () => (float[2] e)"
    " { e = Neg (x) }> y = Add (z, k) }"
)
SHOWN = ["Add y", "Constant t", "If z", "Neg e", "input c", "input x", "output y"]
MODULE = "a_module_with_a_name_that_has_no_end.of_those_that_nobody_would_write_by_hand"
DAGRE = (
    "let held; Object.defineProperty(window, 'dagre', { configurable: true, get: () => held,"
    " set: (d) => { held = { ...d, layout: (g) => { d.layout(g); %s } }; } })"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of 60 nodes with long names in three blocks, and a changed copy.

    The copy has other constants and one changed operator.
    """
    made = tmp_path_factory.mktemp("view")
    onnx.save(parsed(BRANCH), made / "branch.onnx")
    for name, last, number in (("long", "Exp", 2), ("other", "Tanh", 3)):
        ops = [("Relu", "Mul")[i % 2] for i in range(59)] + [last]
        lines = [f"v{i + 1} = {op} (v{i}{', w' if op == 'Mul' else ''})" for i, op in enumerate(ops)]
        model = parsed(f"g (float[N, 4] v0) => (float[N, 4] v60) <float w = {{{number}}}> {{ {' '.join(lines)} }}")
        for i, node in enumerate(model.graph.node):
            node.name = f"/{MODULE}/layer.{i // 20}/{MODULE}.{node.op_type}_{i}"
        onnx.save(model, made / f"{name}.onnx")
    return made


def boxes(page: Page, side: int = 0) -> list[str]:
    """Return the accessible labels of the boxes of a graph."""
    items = page.locator(".pane").nth(side).locator(".item")
    return sorted(items.evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))"))


def test_one_model_is_shown(browser: Browser, run: Run, folder: Path, tmp_path: Path) -> None:
    r = run("report", folder / "branch.onnx")
    assert (r.returncode, r.stderr) == (0, "") and r.stdout.startswith("branch.html: ")
    with visit(browser, tmp_path / "branch.html") as seen:
        page = seen.page
        assert page.title() == "branch.onnx: onnxopt"
        assert page.locator("nav a").all_inner_texts() == ["Summary", "Graphs", "Operators", "Interface", "Weights"]
        assert boxes(page) == SHOWN  # also the branch that is only a Constant
        expect(page.locator("svg .end").first).to_be_in_viewport()
        page.get_by_label("Constants").check()  # the other Constant is part of the Add that reads it
        assert boxes(page) == sorted([*SHOWN, "Constant k"])
        page.get_by_role("button", name="Add y", exact=True).click()
        expect(page.locator(".info")).to_contain_text("float[2] = {3,4}")
        assert page.locator(".badge, .chip, .verdict").count() == 0
        row = page.locator("#operators tr", has_text="Constant")
        assert row.locator("td.num").all_inner_texts() == ["2"]
        types = page.locator("#interface tbody tr").all_inner_texts()
        assert [t.split() for t in types] == [
            ["c", "input", "bool"],
            ["x", "input", "float[2]"],
            ["y", "output", "float[2]"],
        ]
        assert len(page.locator("#weights tbody tr").all()) == 2
        assert seen.errors == []


def test_two_models_are_compared_without_a_run(browser: Browser, run: Run, folder: Path, tmp_path: Path) -> None:
    both = folder / "long.onnx", folder / "other.onnx"
    r = run("diff", *both, "--html", "d.html")
    assert r.returncode == 0 and r.stderr.startswith("d.html: ")
    assert r.stdout == run("stats", *both).stdout and "Tanh" in r.stdout
    with visit(browser, tmp_path / "d.html") as seen:
        page = seen.page
        assert page.title() == "long.onnx → other.onnx: onnxopt"
        chips = page.locator(".chip").all_inner_texts()
        assert " ".join(chips).split() == ["~", "changed", "29", "⤳", "merged", "1", "+", "new", "1", "kept", "30"]
        row = page.locator("#weights tbody tr").all_inner_texts()
        assert [r.split("\t") for r in row] == [["w", "float = 2", "4 B", "float = 3", "4 B"]]
        expect(page.locator("#operators")).to_contain_text("Tanh")
        assert page.locator("#interface .differing, .verdict, #passes").count() == 0
        assert seen.errors == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.onnx"], "error: missing argument 'B'"),
        (["m.onnx", "none.onnx"], "error: none.onnx: no such file"),
        (["m.onnx", "m.onnx", "--html", "m.onnx"], "error: m.onnx is one of the files to read"),
        (["m.onnx", "m.onnx", "--html", "none/p.html"], "error: "),
        (["m.onnx", "m.onnx", "--html", "."], "error: . is a directory"),
        (["m.onnx", "m.onnx", "--format", "html"], "error: "),
    ],
)
def test_diff_refuses_in_a_line(run: Run, small: Path, args: list[str], message: str) -> None:
    before = (small / "m.onnx").read_bytes()
    r = run("diff", *args)
    assert r.returncode == 2 and r.stderr.lower().startswith(message.lower()), r.stderr
    assert [line.split(":")[0] for line in r.stderr.splitlines()] == ["error", "hint"]
    assert [p.name for p in small.iterdir()] == ["m.onnx"] and (small / "m.onnx").read_bytes() == before


def test_keys_open_close_and_find(browser: Browser, run: Run, folder: Path, tmp_path: Path) -> None:
    assert run("report", folder / "long.onnx", "-o", "p.html").returncode == 0
    with visit(browser, tmp_path / "p.html") as seen:
        page, focused = seen.page, "document.activeElement.getAttribute('aria-label')"
        page.get_by_role("button", name="Collapse all").click()
        page.locator(".pane svg").focus()
        for _ in range(2):  # the input, then the first block
            page.keyboard.press("ArrowDown")
        assert "layer.0" in page.evaluate(focused) and page.evaluate(focused).endswith("closed")
        page.keyboard.press("Enter")
        assert page.evaluate(focused).endswith("open")
        page.keyboard.press("ArrowDown")
        assert page.evaluate(focused).startswith("Relu ")
        page.keyboard.press("Enter")
        expect(page.locator(".info h3")).to_have_text("Relu")
        page.keyboard.press("Escape")
        expect(page.locator(".info")).to_be_hidden()
        page.keyboard.press("Escape")  # then the block around the node
        assert page.evaluate(focused).endswith("closed")
        page.keyboard.press("/")
        page.keyboard.type("exp_59")
        expect(page.locator("#hits .count")).to_have_text("1 found")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator(".info h3")).to_have_text("Exp")
        expect(page.locator(".item.selected")).to_be_in_viewport()
        assert seen.errors == []


def test_long_names_wrap_where_it_is_narrow(browser: Browser, run: Run, folder: Path, tmp_path: Path) -> None:
    assert run("diff", folder / "long.onnx", folder / "other.onnx", "--html", "p.html").returncode == 0
    with visit(browser, tmp_path / "p.html", width=320, height=800, scheme="dark") as seen:
        page = seen.page
        for width, scheme in ((320, "dark"), (390, "light"), (768, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
            page.locator("input[type=search]").fill("exp_59")
            page.keyboard.press("Enter")
            expect(page.locator(".info")).to_contain_text(MODULE)
            page.locator("input[type=search]").fill("relu")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            for part in (".info", "#hits"):
                assert page.locator(part).evaluate("e => e.scrollWidth <= e.clientWidth"), (width, part)
            two = page.locator("svg .item.merged text.sub").evaluate_all("all => all.map((e) => e.textContent)")
            assert len(two) == 2 and (f"{MODULE}.Exp_59").endswith("".join(two).lstrip("…"))
        assert seen.errors == []


@pytest.mark.parametrize(
    ("before", "told", "left"),
    [
        (
            DAGRE % "if (g.nodeCount() === 2) throw Error('no')",
            "the edges of block If then_branch are not drawn: no",
            SHOWN,
        ),
        (
            DAGRE % "for (const n of g.nodes()) g.node(n).x = NaN",
            "the edges of block model are not drawn: a size",
            SHOWN,
        ),
        ("window.ResizeObserver = undefined", "The graphs are not drawn: ", []),
    ],
)
def test_a_failure_of_the_layout_is_shown_and_leaves_the_rest(
    browser: Browser, run: Run, folder: Path, tmp_path: Path, before: str, told: str, left: list[str]
) -> None:
    """A failure of one block's layout, of the whole layout or of drawing is listed; the rest is shown."""
    assert run("report", folder / "branch.onnx", "-o", "p.html").returncode == 0
    with visit(browser, tmp_path / "p.html", before=before) as seen:
        assert boxes(seen.page) == left
        lines = seen.page.locator(".failures li").all_inner_texts()
        assert lines and any(line.startswith(told) for line in lines), lines
        expect(seen.page.locator("#operators")).to_contain_text("Neg")
        assert len(seen.errors) == len(lines)
