"""A browser and an optimized model, one for all that look at pages of `onnxopt report`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium
from tests.cli.conftest import SCRIPT
from tests.samples import sample


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def onnxopt(folder: Path, *args: str) -> None:
    done = subprocess.run([SCRIPT, *args], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="package")
def residual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, what was made of it, the report of that, and the page."""
    folder = tmp_path_factory.mktemp("residual")
    onnx.save(sample("residual_block"), folder / "m.onnx")
    onnxopt(folder, "optimize", "m.onnx", "out.onnx", "--report", "r.json", "-q")
    onnxopt(folder, "report", "m.onnx", "out.onnx", "-o", "page.html", "--from", "r.json", "-q")
    return folder


def marked(page: Page, side: int) -> list[str]:
    items = page.locator(".pane").nth(side).locator(".item.differs")
    return sorted(items.evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))"))
