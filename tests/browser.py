"""The system's Chromium, driven by Playwright. Nothing is downloaded: `make browser` installs one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run "
    "--disable-component-update --disable-sync"
)


def executable() -> str:
    """The path of a Chromium; the test fails, and says what to do, if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(f"no browser: none of {', '.join(NAMES)} is installed; run `make browser`", pytrace=False)
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS.split())
        yield browser
        browser.close()


@dataclass
class Visit:
    """An open page, and what it asked for and complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def ready(self) -> float:
        """Milliseconds from navigation until everything was drawn."""
        deadline = time.monotonic() + 30
        while not (found := self.page.evaluate("performance.getEntriesByName('ready').map((e) => e.startTime)")):
            assert not self.errors and time.monotonic() < deadline, self.errors or "the page does not become ready"
            self.page.wait_for_timeout(20)  # the page's policy forbids to wait inside of it
        return float(found[0])


@contextmanager
def visit(
    browser: Browser, file: Path, width: int = 1440, height: int = 1000, scheme: str = "light", before: str = ""
) -> Iterator[Visit]:
    """Open a local file, after the script `before`, and wait until it is drawn. It scrolls at once: a slow machine
    drops animations midway.

    All are opened in one context, whose start takes three times as long as a page: ours store nothing in it.
    """
    context = browser.contexts[0] if browser.contexts else browser.new_context()
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    if before:
        page.add_init_script(before)
    seen = Visit(page)
    page.on("request", lambda r: seen.requests.append(r.url))
    page.on("pageerror", lambda e: seen.errors.append(str(e)))
    page.on("console", lambda m: seen.errors.append(m.text) if m.type in ("error", "warning") else None)
    page.goto(file.as_uri())
    assert seen.ready > 0
    yield seen
    page.close()
