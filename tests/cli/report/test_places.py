"""Places of differences: marked in both graphs of `onnxopt report`, with the responsible rewrites."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import onnx
from playwright.sync_api import Browser, expect

from tests.browser import visit
from tests.cli.conftest import Run
from tests.cli.report.conftest import marked
from tests.samples import ROOT, build_text

CHAIN = (
    "(float[N, 4] x) => (float[N, 4] y) <float k = {2}>"
    " { p = Neg (x) q = Sin (p) r = Mul (q, k) s = Add (r, x) y = Exp (s) }"
)
BRANCHES = (
    "(bool c, float[N, 4] x) => (float[N, 4] y) <float k = {2}> { p = Neg (x) z = If (c) <then_branch = t () =>"
    " (float[N, 4] u) { s = Sin (p) u = Mul (s, k) }, else_branch = e () => (float[N, 4] v) { v = Cos (p) }>"
    " y = Exp (z) }"
)


def parted(run: Run, folder: Path, text: str, *changes: tuple[str, str]) -> None:
    """Write two models that differ by the changes, and the page about them."""
    for name, body in (("a", text), ("b", functools.reduce(lambda t, change: t.replace(*change), changes, text))):
        onnx.save(build_text(f'<ir_version: 8, opset_import: ["" : 17]> g {body}'), folder / f"{name}.onnx")
    r = run("report", "a.onnx", "b.onnx", "-o", "p.html")
    assert r.returncode == 0, r.stderr


def test_places_are_marked_in_both_graphs(browser: Browser, run: Run, tmp_path: Path) -> None:
    parted(run, tmp_path, CHAIN, ("Neg (x) q = Sin (p)", "Abs (x) i = Identity (p) q = Sin (i)"), ("Add", "Sub"))
    with visit(browser, tmp_path / "p.html") as seen:
        page = seen.page
        expect(page.locator(".verdict")).to_contain_text("DIFFERENT: output `y` differs by ")
        expect(page.locator(".verdict")).to_contain_text(re.compile("it goes wrong at `p` and 1 more$"))
        expect(page.locator(".figures")).to_contain_text("3 of 5 shared values agree; the largest piece has 1 node")
        expect(page.locator(".figures")).to_contain_text("rounding alone changes `y` by ")
        assert marked(page, 0) == ["Add s, merged, differs", "Neg p, merged, differs"]
        assert marked(page, 1) == ["Abs p, new, differs", "Sub s, new, differs"], "not the Identity between them"
        places = page.locator(".places > li")
        assert page.locator(".places h3").all_inner_texts() == ["p", "s"]
        expect(places.first).to_contain_text(re.compile(r"differs by \S+ of its range, rounding alone by \S+, case 2"))
        assert places.last.locator("dd").all_inner_texts() == ["Add(r, x)", "Sub(r, x)", "r, x"]
        places.first.get_by_role("button", name="Neg").click()
        info = page.locator(".info")
        expect(info.locator("h3")).to_have_text("Neg")
        expect(info.locator(".differs")).to_contain_text("at p: differs by ")
        expect(page.locator("[name=differs]")).to_have_text("differs2")
        for go, op in (  # by link, key and legend entry, which start again after the last place
            (lambda: places.first.get_by_role("button", name="Show p").click(), "Abs"),
            (lambda: page.keyboard.press("d"), "Sub"),
            (lambda: page.locator("[name=differs]").click(), "Abs"),
        ):
            go()
            expect(info.locator("h3")).to_have_text(op)
            for side in (0, 1):
                expect(
                    page.locator(".pane").nth(side).locator(".selected.differs, .partner.differs")
                ).to_be_in_viewport()
        page.keyboard.press("/")
        page.keyboard.type("d")
        expect(info.locator("h3")).to_have_text("Abs")
        assert (seen.errors, len(seen.requests)) == ([], 1)


def test_places_in_bodies_are_marked_there(browser: Browser, run: Run, tmp_path: Path) -> None:
    parted(run, tmp_path, BRANCHES, ("u = Mul", "u = Div"))
    with visit(browser, tmp_path / "p.html") as seen:
        page = seen.page
        expect(page.locator(".places h3")).to_have_text("u in main / If / then_branch")
        page.get_by_role("button", name="Collapse all").click()
        for side in (0, 1):
            expect(page.locator(".pane").nth(side).locator(".block.differs")).to_have_count(1)
        page.locator(".places").get_by_role("button", name="Show u").click()
        assert (marked(page, 0), marked(page, 1)) == (["Mul u, merged, differs"], ["Div u, new, differs"])
        expect(page.locator(".info")).to_contain_text("main / If / then_branch")
        assert seen.errors == []


WRONG = ("--plugin", str(ROOT / "tests" / "plugins" / "broken.py"), "--with", "wrong-rule")


def test_rewrites_at_a_place_link_to_their_nodes(browser: Browser, run: Run, tmp_path: Path) -> None:
    """Rewrites at a place link to their nodes.

    The place is of the record of a refused run, or found by the page itself.
    """
    text = "(float[N, 2] x) => (float[N, 2] y) <float[2] a = {1, 2}, float[2] b = {-1, 2}>"
    text += " { i = Identity (x) c = Mul (i, a) d = Sin (c) e = Mul (d, b) y = Exp (e) }"
    onnx.save(build_text(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "o.onnx", *WRONG, "--strict", "--report", "r.json").returncode == 1
    assert run("optimize", "m.onnx", "o.onnx", *WRONG, "--no-verify").returncode == 0
    for args in (("--from", "r.json"), WRONG):
        r = run("report", "m.onnx", "o.onnx", "-o", "p.html", *args)
        assert (r.returncode, r.stderr) == (0, "")
        with visit(browser, tmp_path / "p.html") as seen:
            rewrite = seen.page.locator(".places dd").last
            expect(rewrite).to_have_text(
                re.compile(r"^\d+ wrong-rule/wrong_for_negative_factors: main: replaced Mul -> e")
            )
            rewrite.get_by_role("button").click()
            expect(seen.page.locator(".info h3")).to_have_text("Div")
            expect(seen.page.locator(".info .differs")).to_contain_text("at e: differs by ")
            assert seen.errors == []


def test_an_entry_left_out_links_to_its_node(browser: Browser, run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    record = json.loads((tmp_path / "r.json").read_text())
    entry = {"pass_text": "conv-bn-folding", "rule": "fold_conv_bn", "message": "why", "value": "n1", "scope": "main"}
    record["rolled_back"] = [entry, entry | {"value": "nowhere"}]
    (tmp_path / "r.json").write_text(json.dumps(record))
    assert run("report", "m.onnx", "out.onnx", "-o", "p.html", "--from", "r.json").returncode == 0
    with visit(browser, tmp_path / "p.html") as seen:
        notes = seen.page.locator(".notes li")
        assert notes.all_inner_texts() == [
            "Left out, it made the result wrong: fold_conv_bn at n1 (why) show it",
            "Left out, it made the result wrong: fold_conv_bn at nowhere (why)",
        ]
        notes.first.get_by_role("button").click()
        expect(seen.page.locator(".info h3")).to_have_text("BatchNormalization")
