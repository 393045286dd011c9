"""The page of `onnxopt report` in a browser: the run, links to nodes, legibility."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
from playwright.sync_api import Browser, Page, expect

from tests.browser import visit
from tests.cli.conftest import Run
from tests.cli.report.conftest import Onnxopt
from tests.samples import sample


def test_the_page_opens_without_errors_and_shows_the_run(browser: Browser, residual: Path, onnxopt: Onnxopt) -> None:
    stats = [json.loads(onnxopt(residual, "stats", name, "--format", "json")) for name in ("m.onnx", "out.onnx")]
    with visit(browser, residual / "page.html") as seen:
        page = seen.page
        assert page.title() == "m.onnx → out.onnx: onnxopt"
        nodes = page.locator(".card", has_text="Nodes").locator("dd")
        expect(nodes).to_contain_text(re.compile(rf"^{stats[1]['nodes']}from {stats[0]['nodes']} -\d+%$"))
        expect(page.locator(".verdict")).to_contain_text("verified: largest difference")
        row = page.locator("#operators tr", has_text="BatchNormalization").locator("td.num")
        assert row.all_inner_texts() == ["3", "0", "-3"]
        row = page.locator("#passes tr", has=page.get_by_text("conv-bn-folding", exact=True)).locator("td.num")
        assert row.all_inner_texts()[1:3] == ["3", "-3"]
        expect(page.locator("#timeline .lane").filter(has_text="conv-bn-folding").locator("i.did")).to_have_count(1)
        expect(page.locator(".notes")).to_have_count(0)
        pictures = page.screenshot(), page.locator("#graphs .panes").screenshot()
        assert all(len(set(picture)) > 200 and len(picture) > 10_000 for picture in pictures)  # more than one colour
        assert seen.requests == [(residual / "page.html").as_uri()]
        assert seen.errors == []


def test_sections_are_listed_in_page_order_and_texts_fit(browser: Browser, residual: Path) -> None:
    with visit(browser, residual / "page.html") as seen:
        for width in (400, 800, 1280):
            seen.page.set_viewport_size({"width": width, "height": 1000})
            listed = seen.page.locator("nav a").evaluate_all("links => links.map(a => a.hash)")
            stand = seen.page.locator(", ".join(listed)).evaluate_all("parts => parts.map(p => '#' + p.id)")
            assert listed == stand and len(listed) > 5
            told = seen.page.locator("#timeline .lane > :last-child")
            heights = told.evaluate_all("cells => cells.map(c => c.getClientRects().length && c.clientHeight)")
            assert max(heights) < 30, (width, heights)  # one line
            search = seen.page.locator("input[type=search]")
            assert search.evaluate(
                "i => { const c = document.createElement('canvas').getContext('2d'); c.font = getComputedStyle(i).font;"
                " return c.measureText(i.placeholder).width + 26 < i.clientWidth }"
            ), width


def test_a_click_shows_the_node_and_its_counterpart(browser: Browser, residual: Path) -> None:
    with visit(browser, residual / "page.html") as seen:
        page = seen.page
        page.locator(".pane").nth(1).get_by_role("button", name="Conv conv1, changed").click()
        info = page.locator(".info")
        expect(info.locator("h3")).to_have_text("Conv")
        expect(info.locator(".badge")).to_have_text("~ changed")
        for text in ("conv-bn-folding/fold_conv_bn", "kernel_shape", "[3,3]", "float[8,3,3,3] constant"):
            expect(info).to_contain_text(text)
        assert info.locator(".nodes").all_inner_texts() == ["Conv conv1", "BatchNormalization bn1"]
        partners = page.locator(".pane").nth(0).locator(".partner")
        assert sorted(partners.evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))")) == [
            "BatchNormalization bn1, merged",
            "Conv conv1, changed",
        ]
        info.get_by_role("button", name="BatchNormalization bn1").click()
        expect(info.locator(".badge")).to_have_text("⤳ merged into another node")
        expect(info).to_contain_text("conv-bn-folding/fold_conv_bn")
        page.get_by_role("button", name="Close details").click()
        expect(info).to_be_hidden()
        assert seen.errors == []


def test_keys_walk_through_the_graph(browser: Browser, residual: Path) -> None:
    with visit(browser, residual / "page.html") as seen:
        page = seen.page
        page.locator(".pane svg").nth(1).focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator(".info h3")).to_have_text("Conv")
        page.keyboard.press("Escape")
        expect(page.locator(".info")).to_be_hidden()
        scale = page.locator(".pane svg > g").nth(1).get_attribute("transform")
        page.keyboard.press("+")
        assert page.locator(".pane svg > g").nth(1).get_attribute("transform") != scale


def test_a_declined_example_leads_to_its_node(browser: Browser, run: Run, tmp_path: Path) -> None:
    onnx.save(sample("must_stay"), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "o.onnx").returncode == 0
    assert run("report", "m.onnx", "o.onnx", "-o", "p.html").returncode == 0
    with visit(browser, tmp_path / "p.html") as seen:
        row = seen.page.locator("#declined tr", has_text="Conv output used elsewhere").first
        expect(row.locator("td.num")).to_have_text("1")
        row.get_by_role("button").click()
        expect(seen.page.locator(".info h3")).to_have_text("BatchNormalization")
        assert seen.errors == []


def test_bodies_and_functions_are_blocks(browser: Browser, run: Run, samples: Path, tmp_path: Path) -> None:
    for name, label in (("if_branches", "then_branch"), ("local_functions", "function")):
        assert run("optimize", samples / f"{name}.onnx", "o.onnx", "-O0").returncode == 0
        r = run("report", samples / f"{name}.onnx", "o.onnx", "-o", "p.html", "-O0")
        assert r.returncode == 0, r.stderr
        with visit(browser, tmp_path / "p.html") as seen:
            blocks = seen.page.locator(".pane").nth(0).get_by_role("button", name=re.compile(rf"^block .*{label}"))
            assert blocks.count() + seen.page.locator(f".pane >> nth=0 >> [aria-label*='{label}']").count() > 0
            expect(seen.page.locator(".verdict")).to_contain_text("bit for bit")
            assert seen.errors == []


def test_everything_can_be_read_and_fits_a_phone(browser: Browser, residual: Path) -> None:
    with visit(browser, residual / "page.html", width=390, height=800) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        unnamed = (
            "[...document.querySelectorAll('button, input, svg[tabindex]')].filter((e) => !(e.innerText ?? '').trim()"
        )
        unnamed += " && !e.getAttribute('aria-label') && !e.closest('label')).length"
        assert seen.page.evaluate(unnamed) == 0
        pairs = [("text", "bg"), ("text", "panel"), ("muted", "bg"), ("muted", "panel"), ("muted", "sunk")]
        pairs += [
            ("accent", "panel"),
            *((f, f"{f}-soft") for f in ("changed", "merged", "gone", "new", "good", "warn", "place")),
            ("place", "panel"),
        ]
        backgrounds = []
        for scheme in ("light", "dark"):
            seen.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            backgrounds.append(_luminance(_colour(seen.page, "bg")))
            for front, back in pairs:
                colours = [_colour(seen.page, name) for name in (front, back)]
                light, dark = sorted(map(_luminance, colours), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (scheme, front, back)
        assert backgrounds[0] > 0.5 > backgrounds[1]


def _colour(page: Page, name: str) -> list[int]:
    text = page.evaluate(
        "(name) => { const e = document.body.appendChild(document.createElement('b'));"
        " e.style.color = `var(--${name})`; const found = getComputedStyle(e).color; e.remove(); return found; }",
        name,
    )
    return [int(n) for n in re.findall(r"\d+", text)[:3]]


def _luminance(colour: list[int]) -> float:
    """Return the relative luminance of a colour, as defined by WCAG 2."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
