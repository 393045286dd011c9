"""`make pictures`: the pictures of the documentation that show pages of the report, made in Chromium.

The networks of the gallery are graphs of the onnx package with random weights; blocks are samples of `models/`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import onnx
from playwright.sync_api import Browser, Page

import onnxopt
from tests.browser import chromium, visit
from tests.samples import ROOT, sample

IMAGES: Final = ROOT / "docs" / "images"
GALLERY: Final = {"densenet121": 2, "inception_v2": 2, "resnet50": 2, "shufflenet": 2}  # with the level of optimization
BLOCKS: Final = {"transformer_block": 3, "repvgg_blocks": 3}
DRAWN: Final = ("cutpoint.svg", "probe.svg")  # by hand


def head(page: Page) -> None:
    """The summary, the operators and the timeline."""
    page.locator("#summary").wait_for()


def node(page: Page) -> None:
    """The graphs, with the details of a changed node."""
    page.get_by_role("button", name="Conv block_conv1, changed").last.click()


def search(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("bn")
    page.locator("#hits li").first.wait_for()


# The name of each picture of the demo's page: what is done there, the element in the picture, its size, the scheme.
DEMO: Final[dict[str, tuple[Callable[[Page], None], str, int, int, str]]] = {
    "report-summary.png": (head, "", 1280, 900, "light"),
    "report.png": (node, "#graphs .panes", 1280, 900, "light"),
    "report-search.png": (search, "", 400, 800, "dark"),
}
MADE: Final = [*DEMO, *(f"{name}.png" for name in (*GALLERY, *BLOCKS))]


def main() -> int:
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        folder = Path(made)
        command = [sys.executable, "-m", "onnxopt", "demo", "--out-dir", made]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        onnxopt.report(folder / "demo.onnx", folder / "demo.opt.onnx", folder / "demo.html")
        for name, (act, part, width, height, scheme) in DEMO.items():
            with visit(browser, folder / "demo.html", width=width, height=height, scheme=scheme) as seen:
                act(seen.page)
                save(seen.page, part, name)
        sys.path.insert(0, str(ROOT / "models"))
        from network import network  # type: ignore[import-not-found]

        for name, level in (GALLERY | BLOCKS).items():
            onnx.save(network(name) if name in GALLERY else sample(name), folder / f"{name}.onnx")
            compare(browser, folder, name, level)
    return 0


def compare(browser: Browser, folder: Path, name: str, level: int) -> None:
    """The graphs of a model and of its result, side by side."""
    source, result, page = (folder / f"{name}{end}" for end in (".onnx", ".opt.onnx", ".html"))
    report = onnxopt.optimize(source, result, level=level).report
    assert report.ok and not report.rolled_back, str(report)
    onnxopt.diff(source, result, page)
    with visit(browser, page, width=1200, height=760) as seen:
        save(seen.page, "#graphs .panes", f"{name}.png")
    source.unlink()
    result.unlink()


def save(page: Page, part: str, name: str) -> None:
    """The picture of an element, or of what is in sight."""
    target = page.locator(part) if part else page
    target.screenshot(path=IMAGES / name)
    print(f"docs/images/{name}: {(IMAGES / name).stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
