"""Imports between rooms go one way."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "onnxopt"
TEXT = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")


def levels(first: str) -> dict[str, int]:
    """Returns the rooms of the order documented in the given words, lowest first."""
    order = re.search(rf"```\n({first}[^`]*)", TEXT)
    assert order is not None
    return {name: i for i, names in enumerate(order[1].split("<")) for name in re.findall(r"\w+", names)}


LEVEL = levels("errors, startup <")
JUDGE = levels("runtime <")
SEEN = re.findall(r"`(\w+)`", TEXT.partition("`verification` sees only ")[2].partition("`reporting`")[0])
RECORDS = (("stats_table.py", "analysis"), ("stats_text.py", "analysis"))  # the type of what they show
ROOMS = TEXT.partition("## Rooms")[2].partition("A room imports only")[0]


def described() -> dict[str, str]:
    """Returns the documented text of each room and top-level file, by path."""
    entries = re.findall(r"^- \*\*`([\w./]+?)/?`\*\*:(.*(?:\n  .*)*)", ROOMS, re.MULTILINE)
    said = dict(entries)
    assert len(said) == len(entries)
    return said


def imports(file: Path, inside: str = "onnxopt") -> set[str]:
    """Rooms of a package that a file imports, also inside functions, and for types alone."""
    return set(re.findall(rf"^\s*(?:from|import) {inside}\.(\w+)", file.read_text(), re.MULTILINE))


def test_imports_go_one_way() -> None:
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert room in {*LEVEL, "verification", "reporting", "__init__", "__main__"}, room
        for other in imports(file) - {room}:
            where = f"{file.relative_to(PACKAGE)} imports {other}"
            if room == "verification":
                assert other in SEEN, where
            elif room == "reporting":
                assert other == "plaintext" or (file.name, other) in RECORDS, where
            elif room in LEVEL and other in LEVEL:
                assert LEVEL[other] < LEVEL[room], where


def test_the_judge_goes_one_way() -> None:
    judge = PACKAGE / "verification"
    assert all((judge / room).is_dir() or (judge / f"{room}.py").is_file() for room in JUDGE)
    for file in judge.rglob("*.py"):
        room = file.relative_to(judge).parts[0].removesuffix(".py")
        for other in imports(file, "onnxopt.verification") - {room}:
            if room in JUDGE:
                assert JUDGE.get(other, len(JUDGE)) < JUDGE[room], f"{file.relative_to(judge)} imports {other}"


def test_passes_do_not_import_each_other() -> None:
    for file in (PACKAGE / "passes").rglob("*.py"):
        if file.stem not in ("__init__", "levels"):
            assert "passes" not in imports(file), file.name


def test_every_file_is_where_the_documentation_says() -> None:
    said = described()
    folders = {f.relative_to(PACKAGE).parent.as_posix() for f in PACKAGE.rglob("__init__.py")} - {".", "reporting/html"}
    top = {f.name for f in PACKAGE.glob("[!_]*.py")}
    assert sorted(said) == sorted(folders | top)
    for file in PACKAGE.rglob("[!_]*.py"):
        room = file.relative_to(PACKAGE).parent.as_posix()
        if room != "." and room.partition("/")[0] not in ("cli", "passes", "reporting"):
            assert re.search(rf"\b{file.stem.replace('_', '[_ ]')}\b", said[room]), f"{room}/ does not name {file.stem}"
