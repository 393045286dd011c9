"""The house has directions: nothing imports what stands above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "onnxopt"
ORDER = re.search(r"```\n(record <[^`]*)", (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8"))
assert ORDER is not None
LEVEL = {name: i for i, names in enumerate(ORDER[1].split("<")) for name in re.findall(r"\w+", names)}


def imports(file: Path) -> set[str]:
    """Rooms of the package that a file imports, also inside functions; types alone do not count."""
    tree = ast.parse(file.read_text())
    hints = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skip = {id(x) for h in hints for x in ast.walk(h)}
    found = set()
    for node in ast.walk(tree):
        if id(node) not in skip:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {n.split(".")[1] if n.count(".") else "" for n in names if n.split(".")[0] == "onnxopt"}
    return found - {""}


def test_imports_go_one_way() -> None:
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert room in {*LEVEL, "verification", "report", "__init__", "__main__"}, room
        for other in imports(file) - {room}:
            where = f"{file.relative_to(PACKAGE)} imports {other}"
            if room == "verification":
                assert other in ("errors", "inferring", "lazy", "ort", "protos", "record", "wire", "worker"), where
            elif room == "report":
                assert other in ("report", "plaintext"), where
            elif room in LEVEL and other in LEVEL:
                assert LEVEL[other] < LEVEL[room], where


def test_passes_do_not_import_each_other() -> None:
    for file in (PACKAGE / "passes").glob("*.py"):
        if file.stem not in ("__init__", "levels"):
            assert "passes" not in imports(file), file.name
