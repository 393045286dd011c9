"""Contents of a stranger's files are plain text on the page of `onnxopt report`."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from playwright.sync_api import Browser, expect

from tests.browser import visit
from tests.cli.conftest import Run
from tests.cli.report.conftest import marked

EVIL = ("</script><script>document.title='owned'</script>", '"><img src=x onerror=alert(1)>', "<!-- ノード & 'quote'")


def test_names_with_markup_are_text(browser: Browser, run: Run, tmp_path: Path) -> None:
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
    record["pipeline"]["passes"][0]["rules"]["<rule>"] = {
        "hits": 1,
        "nodes": 0,
        "declined": {a: {"count": 3, "example": b}},
    }
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
        page.keyboard.press("d")  # no such node exists
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
    for name in ("places", "pieces", "noise"):  # like records of older versions
        del verdict[name]
    assert report().returncode == 0
    assert "Where it differs" not in (tmp_path / "p.html").read_text()
