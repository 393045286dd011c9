"""`make pages`: open the pages of all models in a folder in Chromium, wide and light, narrow and dark.

    python -m tests.cli.report.pages FOLDER [NAME…] [--runs 8] [--keep DIR]

For the `--runs` smallest models that onnxruntime loads, the pages of an optimization and of a comparison are opened,
too. `--keep` is a folder for the pages and pictures of both. The exit code is 1 if a page has a fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser

import onnxopt
from tests.browser import chromium, visit

SIGHTS: Final = ((1440, "light"), (400, "dark"))
# Elements wider than their place that cannot be scrolled. Parts of an svg are drawn at their size.
CUT: Final = """[...document.querySelectorAll("body *")].filter((e) => !e.closest("svg, .scroll, nav")
  && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline")
  .map((e) => `${e.tagName.toLowerCase()}.${e.className} in ${e.closest("[id]")?.id}`)"""
SEEN: Final = """(pane) => { const box = pane.querySelector("svg").getBoundingClientRect();
  return [...pane.querySelectorAll(".item > .box")].map((e) => e.getBoundingClientRect()).filter((r) =>
    r.width > 4 && r.right > box.left && r.left < box.right && r.bottom > box.top && r.top < box.bottom).length }"""


def faults(browser: Browser, page: Path, panes: int, pictures: bool = False) -> Iterator[str]:
    """Yield the faults of a page with `panes` graphs."""
    for width, scheme in SIGHTS:
        with visit(browser, page, width=width, scheme=scheme) as seen:
            where = f"{page.name} at {width}"
            yield from (f"{where}: {error}" for error in seen.errors)
            yield from (f"{where}: asks for {url}" for url in seen.requests if url != page.as_uri())
            yield from (f"{where}: cut off: {part}" for part in seen.page.evaluate(CUT))
            across = seen.page.evaluate("document.documentElement.scrollWidth")
            if across != width:
                yield f"{where}: {across} pixels across"
            if found := seen.page.locator(".failures:not([hidden])").all_inner_texts():
                yield f"{where}: {found}"
            drawn = [pane.evaluate(SEEN) for pane in seen.page.locator(".pane").all()]
            if len(drawn) != panes or not all(drawn):
                yield f"{where}: a graph is blank, {drawn} boxes are in sight"
            if pictures:
                seen.page.screenshot(path=page.with_name(f"{page.stem}_{width}.png"), full_page=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cli.report.pages", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with models")
    parser.add_argument("names", nargs="*", help="parts of the names of models (all)")
    parser.add_argument("--runs", type=int, default=8, help="models that are optimized and compared, too (8)")
    parser.add_argument("--keep", type=Path, help="a folder for pages and pictures")
    args = parser.parse_args()
    models = [m for m in args.folder.rglob("*.onnx") if not args.names or any(n in str(m) for n in args.names)]
    models.sort(key=lambda m: (m.stat().st_size, m))
    wrong = pages = 0
    with tempfile.TemporaryDirectory() as made, chromium() as browser:
        folder = args.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        for i, model in enumerate(models):
            stem = "_".join(model.relative_to(args.folder).with_suffix("").parts)
            for kind, write in (("", _one), ("_run", _run), ("_diff", _diff)) if i < args.runs else (("", _one),):
                page = (folder / f"{stem}{kind}.html").resolve()
                try:
                    doubts = write(model, folder / f"{stem}.out.onnx", page)
                except onnxopt.ModelError as e:  # a graph without weights
                    print(f"{stem + kind:48} left out: {e.message}", flush=True)
                    continue
                found = [*doubts, *faults(browser, page, 2 if kind else 1, args.keep is not None)]
                wrong, pages = wrong + len(found), pages + 1
                print(f"{stem + kind:48} {'ok' if not found else ''}", *found, sep="\n  " if found else "", flush=True)
    print(f"{pages} pages of {len(models)} models, {wrong} faults")
    return int(wrong > 0 or not models)


def _one(model: Path, result: Path, page: Path) -> list[str]:
    return onnxopt.report(model, output=page).doubts


def _run(model: Path, result: Path, page: Path) -> list[str]:
    onnxopt.optimize(model, result)
    return onnxopt.report(model, result, page).doubts


def _diff(model: Path, result: Path, page: Path) -> list[str]:
    return onnxopt.diff(model, result, page).doubts


if __name__ == "__main__":
    sys.exit(main())
