"""What the documentation shows is what happens: its examples are run, page by page.

Each Python block runs alone: no name, pass or key of another is there. Files are, that blocks and commands before it
wrote; a block that reads one says so. Blocks with a title are files (tests among them are run by pytest). Console
blocks are commands and their whole output; … stands for anything within a line, or for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import onnx
import pytest
from playwright.sync_api import expect

import onnxopt.passes
from onnxopt.cli.main import cli
from onnxopt.pipeline import registry, settings
from tests.browser import chromium
from tests.cli.conftest import SCRIPT
from tests.cli.fork_server import ForkServer
from tests.docs import pictures
from tests.samples import ROOT, sample

PAGES = sorted((ROOT / "docs").glob("*.md"))
SHELL = re.compile(r"[|$<>&;]")  # what only a shell understands, outside of quotes
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, shown in (("model", "residual_block"), ("must_stay", "must_stay")):
        onnx.save(sample(shown), tmp_path / f"{name}.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def alone() -> Iterator[dict[str, Any]]:
    """A namespace, a registry and config keys that nobody has used."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PASSES", "_ORIGINS", "_MODULES", "_NAMED"):
            patch.setattr(registry, name, getattr(registry, name).copy())
        patch.setattr(settings, "DECLARED", settings.DECLARED.copy())
        for name in [m for m in sys.modules if m.startswith("onnxopt_plugin_")]:
            patch.delitem(sys.modules, name)
        module = ModuleType("__page__")  # dataclasses look their module up
        patch.setitem(sys.modules, "__page__", module)
        yield module.__dict__
        for name in [m for m in sys.modules if m.startswith("onnxopt_plugin_")]:
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_examples_run(page: Path, folder: Path, fork_server: ForkServer | None) -> None:
    for language, title, text in FENCE.findall(page.read_text()):
        if title:
            (folder / title).write_text(text)
            if title.startswith("test_"):
                done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", title], folder)
                assert done.returncode == 0, done.stdout
        elif language == "python":
            with alone() as scope:
                exec(compile(text, f"{page.name}: python", "exec"), scope)
        elif language == "console":
            console(text, folder, fork_server)


def console(text: str, folder: Path, server: ForkServer | None) -> None:
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        if server is None or SHELL.search(re.sub(r'"[^"]*"', "", command)):
            done = run(command.replace("onnxopt", str(SCRIPT), 1), folder, shell=True)
        else:
            words = [
                name for word in shlex.split(command)[1:] for name in sorted(glob(word, root_dir=folder)) or [word]
            ]
            done = server.run(words, folder, os.environ, together=True)
        output = done.stdout + (f"[exit code {done.returncode}]\n" if done.returncode else "")
        wanted = re.escape(expected).replace("…\\\n", "(?:.*\\n)*?").replace("…", "[^\\n]*")
        assert re.fullmatch(wanted, output), f"$ {command}\n{output}\nis not\n{expected}"


def run(command: Any, folder: Path, shell: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        shell=shell,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )


def test_every_numbered_part_of_the_framework_has_a_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert f"{page.name}\n" in nav, f"{page.name} is not in the navigation"
    for page in re.findall(r"(\S+\.md)$", nav, re.MULTILINE):
        assert (ROOT / "docs" / page).is_file(), page


def test_the_reference_and_what_is_exported_are_the_same() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    named = set(re.findall(r"^`(\w+)`$", text, re.MULTILINE))
    for path, members in re.findall(
        r"^::: (\S+)\n(?:    options:\n(?:      .*\n)*?      members: \[(.*)\]\n)?", text, re.M
    ):
        name = path.rpartition(".")[2]
        is_class = name != name.lower()
        named |= set(members.split(", ")) if members and not is_class else {name}
    assert sorted(named) == sorted(set(onnxopt.__all__) - {"__version__"})
    homes = [name for names in onnxopt._HOMES.values() for name in names.split()]
    assert sorted([*homes, "__version__"]) == sorted(onnxopt.__all__)
    for name in named:
        assert name == "op" or getattr(onnxopt, name).__doc__, f"{name} has no documentation"


def test_pages_that_read_a_model_say_where_it_comes_from() -> None:
    for page in PAGES:
        text = page.read_text()
        if any('"model.onnx"' in block or "$ onnxopt" in block for _, _, block in FENCE.findall(text)):
            assert "(index.md#the-model-of-the-examples)" in text or page.name == "index.md", page.name


def test_the_page_on_plugins_shows_the_example() -> None:
    assert (ROOT / "examples/plugin/onnxopt_powers.py").read_text() in (ROOT / "docs/plugins.md").read_text()


def test_the_first_pass_is_short() -> None:
    blocks = {title: text for _, title, text in FENCE.findall((ROOT / "docs/writing-a-pass.md").read_text())}
    assert len(blocks["doc_strings.py"].strip().splitlines()) <= 25


def test_pictures_are_there_and_shown() -> None:
    """`make pictures` makes those that are not drawn by hand."""
    shown = {name for page in PAGES for name in re.findall(r"!\[[^]]+\]\(images/([^)]+)\)", page.read_text())}
    sizes = {file.name: file.stat().st_size for file in pictures.IMAGES.iterdir()}
    assert shown == {*pictures.MADE, *pictures.DRAWN} == {*sizes}
    assert max(sizes.values()) < 150_000 and sum(sizes.values()) < 1_000_000


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """`make docs`: every export and option is there, and the search finds words in pages that are opened as files."""
    done = run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)], ROOT)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout.replace("NO_MKDOCS_2_WARNING", "")
    reference = (tmp_path / "reference.html").read_text()
    missing = [n for n in onnxopt.__all__ if n != "__version__" and n not in reference]
    assert not missing
    page = unescape(re.sub(r"<[^>]*>", "", (tmp_path / "commands.html").read_text()))
    assert "Sentinel" not in page and "\nonnxopt verify model.onnx model.opt.onnx\nonnxopt stats" in page
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    shown = [p for c in commands if c is not None for p in c.params if isinstance(p, click.Option) and not p.hidden]
    assert shown and not {option for p in shown for option in p.opts if option not in page}
    with chromium() as browser:
        site, asked, errors = browser.new_page(), list[str](), list[str]()
        site.on("request", lambda r: asked.append(r.url))
        site.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        site.goto((tmp_path / "index.html").as_uri())
        site.get_by_placeholder("Search").click()  # the index is read when the search is opened
        expect(site.locator(".md-search-result__meta")).to_contain_text("Type to start", timeout=20_000)
        site.keyboard.type("cutpoint")
        expect(site.locator(".md-search-result__list")).to_contain_text("verified", timeout=20_000)
        assert site.locator("a.md-source").first.get_attribute("href") == "https://github.com/onnxopt/onnxopt"
        assert not errors and all(url.startswith("file:") for url in asked)
