"""A browser and an optimized model, shared by the tests of pages of `onnxopt report`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium
from tests.cli.conftest import run_script
from tests.cli.fork_server import ForkServer
from tests.samples import sample


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


Onnxopt = Callable[..., str]


@pytest.fixture(scope="session")
def onnxopt(fork_server: ForkServer | None) -> Onnxopt:
    """Return a function that runs the command in a folder, asserts its success, and returns its stdout."""

    def call(folder: Path, *args: str) -> str:
        done = fork_server.run(args, folder, os.environ) if fork_server else run_script(folder, args, os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture(scope="package")
def residual(tmp_path_factory: pytest.TempPathFactory, onnxopt: Onnxopt) -> Path:
    """Return a folder with a model, its result, the report of the run, and the page."""
    folder = tmp_path_factory.mktemp("residual")
    onnx.save(sample("residual_block"), folder / "m.onnx")
    onnxopt(folder, "optimize", "m.onnx", "out.onnx", "--report", "r.json", "-q")
    onnxopt(folder, "report", "m.onnx", "out.onnx", "-o", "page.html", "--from", "r.json", "-q")
    return folder


def marked(page: Page, side: int) -> list[str]:
    items = page.locator(".pane").nth(side).locator(".item.differs")
    return sorted(items.evaluate_all("all => all.map((e) => e.getAttribute('aria-label'))"))
