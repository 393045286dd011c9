"""`onnxopt report`: the page, opened in a browser."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import Browser, Page, expect

from tests.browser import chromium, visit
from tests.cli.conftest import SCRIPT, Run
from tests.samples import ROOT, build, build_text

EVIL = ("</script><script>document.title='owned'</script>", '"><img src=x onerror=alert(1)>', "<!-- ノード & 'quote'")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def onnxopt(folder: Path, *args: str) -> None:
    done = subprocess.run([SCRIPT, *args], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, what was made of it, the report of that, and the page."""
    folder = tmp_path_factory.mktemp("residual")
    onnx.save(build.build(ROOT / "models" / "residual_block.onnxtxt"), folder / "m.onnx")
    onnxopt(folder, "optimize", "m.onnx", "out.onnx", "--report", "r.json", "-q")
    onnxopt(folder, "report", "m.onnx", "out.onnx", "-o", "page.html", "--from", "r.json", "-q")
    return folder


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 nodes: 250 layers of 20, an Identity in each; what was made of them, and the page."""
    folder = tmp_path_factory.mktemp("layers")
    ops = ["Relu", "Identity", "Neg", "Abs", "Tanh"] * 4
    nodes, last = [], "x"
    for i in range(250):
        for k, op in enumerate(ops):
            name = f"/encoder/layer.{i}/mlp/{op}_{k}"
            nodes.append(helper.make_node(op, [last], [f"{name}_output_0"], name))
            last = f"{name}_output_0"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "m.onnx")
    onnxopt(folder, "optimize", "m.onnx", "out.onnx", "--no-verify", "-q")
    onnxopt(folder, "report", "m.onnx", "out.onnx", "-o", "page.html", "-q", "--no-verify")
    return folder


def test_the_page_opens_quietly_and_says_what_was_done(browser: Browser, residual: Path) -> None:
    stats = [json.loads(_stats(residual / name)) for name in ("m.onnx", "out.onnx")]
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
        assert all(len(set(picture)) > 200 and len(picture) > 10_000 for picture in pictures)  # not one colour
        assert seen.requests == [(residual / "page.html").as_uri()]
        assert seen.errors == []


def _stats(path: Path) -> str:
    return subprocess.run(
        [SCRIPT, "stats", path, "--format", "json"], capture_output=True, text=True, check=True
    ).stdout


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


def test_search_finds_nodes_of_both_graphs(browser: Browser, layers: Path) -> None:
    with visit(browser, layers / "page.html") as seen:
        page = seen.page
        page.keyboard.press("/")
        page.keyboard.type("layer.123/ relu_0")
        expect(page.locator("#hits .count")).to_have_text("6 found")  # the Relu, and what names its values, in both
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator(".info")).to_contain_text("/encoder/layer.123/mlp/Relu_0")
        for side in (0, 1):  # its block was opened, and it is on the screen
            expect(page.locator(".pane").nth(side).locator(".selected, .partner")).to_be_in_viewport()
        page.locator(".search input").fill("layer.7/")
        page.locator(".chip.gone").click()
        expect(page.locator("#hits .count")).to_have_text("4 found")
        assert set(page.locator("#hits li[role=option] > span:nth-child(2)").all_inner_texts()) == {"Identity"}
        page.locator(".search input").fill("nothing like that")
        expect(page.locator("#hits .count")).to_have_text("nothing found")
        assert seen.errors == []


def test_blocks_open_and_close_in_both_graphs(browser: Browser, layers: Path) -> None:
    with visit(browser, layers / "page.html") as seen:
        page = seen.page
        page.get_by_role("button", name="Collapse all").click()
        sections = page.locator(".pane").nth(0).locator(".item.block")
        labels = sections.evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))")
        assert labels[0].startswith("block layer.0/mlp – layer.22/mlp, ")
        assert sum(int(re.search(r", (\d+) nodes", text)[1]) for text in labels) == 5000  # type: ignore[index]
        assert page.locator(".item:not(.block):not(.end)").count() == 0
        sections.first.dispatch_event("click")
        for side in (0, 1):
            inner = (
                page.locator(".pane").nth(side).get_by_role("button", name=re.compile(r"^block layer\.0.mlp, .*closed"))
            )
            expect(inner).to_have_count(1)
        page.locator(".pane").nth(0).get_by_role("button", name=re.compile(r"^block layer\.0.mlp, ")).dispatch_event(
            "click"
        )
        expect(page.locator(".pane").nth(0).locator(".item.gone")).to_have_count(4)
        expect(page.locator(".pane").nth(1).locator(".item.kept")).to_have_count(16)
        page.locator(".pane").nth(1).locator(".head").last.dispatch_event("click")
        expect(page.locator(".item.gone")).to_have_count(0)
        assert seen.errors == []


def test_a_large_model_opens_at_once(browser: Browser, layers: Path) -> None:
    times = []
    for _ in range(3):
        with visit(browser, layers / "page.html") as seen:
            times.append(seen.ready)
            expect(seen.page.locator(".card", has_text="Nodes").locator("dd")).to_contain_text("from 5,000")
    assert min(times) < 3000


def test_of_a_very_large_model_the_page_shows_blocks(browser: Browser, tmp_path: Path) -> None:
    ops = ["Relu", "Identity", "Neg", "Abs", "Tanh"]
    graph = onnx.GraphProto(name="long")
    for i in range(21_000):
        graph.node.add(op_type=ops[i % 5], input=[f"v{i}"], output=[f"v{i + 1}"])
    for found, name in ((graph.input, "v0"), (graph.output, "v21000")):
        found.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]))
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    onnxopt(tmp_path, "optimize", "m.onnx", "out.onnx", "--no-verify", "-q")
    onnxopt(tmp_path, "report", "m.onnx", "out.onnx", "-o", "page.html", "-q", "--no-verify")
    assert (tmp_path / "page.html").stat().st_size < 1_000_000  # the scripts are 350 kB of it
    with visit(browser, tmp_path / "page.html") as seen:
        page = seen.page
        expect(page.locator(".notes")).to_contain_text("a box stands for a block of nodes")
        expect(page.locator(".card", has_text="Nodes").locator("dd")).to_contain_text("from 21,000")
        page.get_by_role("button", name="Expand all").click()
        boxes = page.locator(".pane").first.locator(".item:not(.block):not(.end)")
        assert 20 < boxes.count() <= 1000
        boxes.first.dispatch_event("click")
        expect(page.locator(".info")).to_contain_text("nodes")
        expect(page.locator(".info")).to_contain_text("Identity")


def test_names_are_text_whatever_they_say(browser: Browser, run: Run, tmp_path: Path) -> None:
    a, b, c = EVIL
    nodes = [helper.make_node("Identity", ["x"], [a], a), helper.make_node("Neg", [a], [b], b)]
    nodes += [helper.make_node("Relu", [b], [c], c, domain="")]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["<b>N</b>", 4]) for name in ("x", c)]
    graph = helper.make_graph(nodes, a, ends[:1], ends[1:])
    folder = tmp_path / "<i>&"
    folder.mkdir()
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "<u>'m\".onnx")
    assert run("optimize", folder / "<u>'m\".onnx", "o.onnx", "--report", "r.json").returncode == 0
    record = json.loads((tmp_path / "r.json").read_text())
    record["pipeline"]["passes"][0]["rules"]["<rule>"] = {"hits": 1, "nodes": 0, "declined": {a: [3, b]}}
    record["verification"]["message"] = c
    (tmp_path / "r.json").write_text(json.dumps(record))
    r = run("report", folder / "<u>'m\".onnx", "o.onnx", "-o", "p.html", "--from", "r.json")
    assert r.returncode == 0, r.stderr
    with visit(browser, tmp_path / "p.html") as seen:
        page = seen.page
        assert page.title() == "<u>'m\".onnx → o.onnx: onnxopt"
        assert page.locator("script").count() == 3
        assert page.locator("img, u, i:not([style]), body b:not(.chip b):not(figcaption b)").count() == 0
        expect(page.locator("#declined")).to_contain_text(a)
        expect(page.locator(".verdict")).to_contain_text(c)
        page.locator(".search input").fill("onerror")
        page.keyboard.press("Enter")
        expect(page.locator(".info")).to_contain_text(b)
        expect(page.locator(".info")).to_contain_text("float[<b>N</b>,4]")
        assert (seen.errors, len(seen.requests)) == ([], 1)


def test_a_declined_example_leads_to_its_node(browser: Browser, run: Run, tmp_path: Path) -> None:
    onnx.save(build.build(ROOT / "models" / "must_stay.onnxtxt"), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "o.onnx").returncode == 0
    assert run("report", "m.onnx", "o.onnx", "-o", "p.html").returncode == 0
    with visit(browser, tmp_path / "p.html") as seen:
        row = seen.page.locator("#declined tr", has_text="Conv output used elsewhere").first
        expect(row.locator("td.num")).to_have_text("1")
        row.get_by_role("button").click()
        expect(seen.page.locator(".info h3")).to_have_text("BatchNormalization")
        assert seen.errors == []


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
    """Two models that differ by the changes, and the page about them."""
    for name, body in (("a", text), ("b", functools.reduce(lambda t, change: t.replace(*change), changes, text))):
        onnx.save(build_text(f'<ir_version: 8, opset_import: ["" : 17]> g {body}'), folder / f"{name}.onnx")
    r = run("report", "a.onnx", "b.onnx", "-o", "p.html")
    assert r.returncode == 0, r.stderr


def marked(page: Page, side: int) -> list[str]:
    items = page.locator(".pane").nth(side).locator(".item.differs")
    return sorted(items.evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))"))


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
        for go, op in (  # by the link, the key, and the entry of the legend, which begin again after the last
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


def test_rewrites_at_a_place_lead_to_what_they_made(browser: Browser, run: Run, tmp_path: Path) -> None:
    """In the record of a run that was refused, and where the page finds it out itself."""
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


def test_what_was_left_out_leads_to_its_node(browser: Browser, run: Run, residual: Path, tmp_path: Path) -> None:
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


PLACE = {
    "case": "case 1",
    "value": EVIL[0],
    "scope": EVIL[1],
    "record": {"note": EVIL[2]},
    "entries": [EVIL[0]],
    "a": [{"node": EVIL[1], "op": EVIL[2], "inputs": [EVIL[0]], "outputs": ["nothing"]}],
    "b": [],
    "rewrites": [EVIL[1]],
    "noise": None,
}
PIECES = dict.fromkeys(("cuts", "shared", "same", "noisy", "blank", "largest"), 1)
PIECES |= {"worst": EVIL[0], "note": EVIL[1], "worst_rel": None, "branches": [EVIL[2]]}


def test_a_verdict_in_a_file_is_data(browser: Browser, run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    record = json.loads((tmp_path / "r.json").read_text())
    verdict = record["verification"] | {"places": [PLACE], "pieces": PIECES, "noise": {EVIL[2]: 0.5}}

    def report(**changed: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "r.json").write_text(json.dumps(record | {"verification": verdict | changed}))
        return run("report", "m.onnx", "out.onnx", "-o", "p.html", "--from", "r.json")

    assert report().returncode == 0
    with visit(browser, tmp_path / "p.html") as seen:
        page = seen.page
        assert page.title() == "m.onnx → out.onnx: onnxopt"
        assert (page.locator("script").count(), page.locator("img").count()) == (3, 0)
        for text in EVIL:
            expect(page.locator(".places")).to_contain_text(text)
        for text in EVIL[1:]:
            expect(page.locator(".figures")).to_contain_text(text)
        page.keyboard.press("d")  # there is no such node
        assert (marked(page, 0), marked(page, 1), seen.errors) == ([], [], [])
    for broken in (
        {"places": [PLACE | {"a": ["x"]}]},
        {"places": [PLACE | {"noise": "much"}]},
        {"places": 5},
        {"pieces": {"cuts": 1}},
        {"noise": {"y": "x"}},
    ):
        r = report(**broken)
        assert (r.returncode, "is not the report of an optimization" in r.stderr) == (2, True), broken
    for name in ("places", "pieces", "noise"):  # as older versions wrote it
        del verdict[name]
    assert report().returncode == 0
    assert "Where it differs" not in (tmp_path / "p.html").read_text()


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_and_fits_a_phone(browser: Browser, residual: Path, scheme: str) -> None:
    with visit(browser, residual / "page.html", width=390, height=800, scheme=scheme) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        pairs = [("text", "bg"), ("text", "panel"), ("muted", "bg"), ("muted", "panel"), ("muted", "sunk")]
        pairs += [
            ("accent", "panel"),
            *((f, f"{f}-soft") for f in ("changed", "merged", "gone", "new", "good", "warn", "place")),
            ("place", "panel"),
        ]
        for front, back in pairs:
            colours = [_colour(seen.page, name) for name in (front, back)]
            light, dark = sorted(map(_luminance, colours), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (scheme, front, back)
        unnamed = (
            "[...document.querySelectorAll('button, input, svg[tabindex]')].filter((e) => !(e.innerText ?? '').trim()"
        )
        unnamed += " && !e.getAttribute('aria-label') && !e.closest('label')).length"
        assert seen.page.evaluate(unnamed) == 0


def _colour(page: Page, name: str) -> list[int]:
    text = page.evaluate(
        "(name) => { const e = document.body.appendChild(document.createElement('b'));"
        " e.style.color = `var(--${name})`; const found = getComputedStyle(e).color; e.remove(); return found; }",
        name,
    )
    return [int(n) for n in re.findall(r"\d+", text)[:3]]


def _luminance(colour: list[int]) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


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


def test_a_result_that_this_run_does_not_make_is_named(run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    r = run("report", "m.onnx", "m.onnx", "-o", "p.html")
    assert r.returncode == 0
    assert "warning: m.onnx is not what this run makes" in r.stderr
    assert "m.onnx is not what this run makes" in (tmp_path / "p.html").read_text()
    r = run("report", "m.onnx", "m.onnx", "-o", "p.html", "--from", "r.json")
    assert "warning: the report is of another file than m.onnx" in r.stderr.lower()
    assert "bit for bit" in (tmp_path / "p.html").read_text()  # verified now: the recorded verdict is of another file
    r = run("report", "m.onnx", "m.onnx", "-o", "p.html", "-O0")
    assert (r.returncode, r.stderr) == (0, "")


def test_a_report_without_a_journal_will_do(run: Run, residual: Path, tmp_path: Path) -> None:
    shutil.copytree(residual, tmp_path, dirs_exist_ok=True)
    record = json.loads((tmp_path / "r.json").read_text())
    assert {e["pass_name"] for e in record["journal"]} >= {"conv-bn-folding"}
    assert [r["name"] for r in record["timeline"]].count("conv-bn-folding") > 1
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


def test_the_wheel_has_what_the_page_is_made_of(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "onnxopt" / "report" / "html"
    parts = [p for p in folder.rglob("*") if p.suffix in (".js", ".css", ".LICENSE")]
    assert len(parts) == 9
    assert {str(p.relative_to(ROOT)) for p in parts} <= names
