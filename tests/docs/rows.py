"""Rows of a page that says what another tool's words are here: each is run, and uses the names that the page gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from onnx import parser

from onnxopt import Model, read_model
from tests.samples import ROOT

F = TypeVar("F", bound=Callable[..., Any])

_NAME: Final = re.compile(r"[A-Za-z_][\w-]{2,}")
_STANDS_FOR: Final = {"name", "path", "proto", "value", "index", "pattern", "replacement", "check", "domain", "what"}


class Rows:
    """The rows of a page's first table, by what stands in the first column."""

    def __init__(self, page: str) -> None:
        text = (ROOT / "docs" / page).read_text()
        table = [line.strip("|").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")][1:]
        self.here = {left.strip(): right.strip() for left, right in table}
        self.tested: dict[str, Callable[..., Any]] = {}

    def __call__(self, *left: str) -> Callable[[F], F]:
        """Decorates the test of these rows."""

        def note(test: F) -> F:
            for cell in left:
                assert cell in self.here, f"no row begins with {cell}"
                assert cell not in self.tested, f"{cell} is tested twice"
                self.tested[cell] = test
            return test

        return note

    def untested(self) -> list[str]:
        return [cell for cell in self.here if cell not in self.tested]

    def unused(self) -> dict[str, set[str]]:
        """Names that a row gives in code, and its test does not use."""
        found = {}
        for cell, test in self.tested.items():
            code = " ".join(re.findall(r"`([^`]+)`", re.sub(r"\]\([^)]*\)", "", self.here[cell])))
            source = inspect.getsource(test)
            missing = {name for name in _NAME.findall(code) if name not in source} - _STANDS_FOR
            if missing:
                found[cell] = missing
        return found


def model(body: str = "a = Identity (x) b = Relu (a) y = Neg (b)", rest: str = "") -> Model:
    """A model with one input and one output."""
    header = '<ir_version: 10, opset_import: ["" : 17, "l" : 1]> g (float[N, 4] x) => (float[N, 4] y)'
    return read_model(parser.parse_model(f"{header} {{ {body} }} {rest}"))


def operators(m: Model) -> list[str]:
    return [node.op for node in m.graph]
