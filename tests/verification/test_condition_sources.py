"""Predicates are followed through operators that repeat or negate them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification.coverage.conditions import asked
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.programs.program import Program

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]> g (float x, bool b) => (bool c)'


@pytest.mark.parametrize(
    ("nodes", "asks"),
    [
        ("c = Identity (b)", ("b", True)),
        ("c = Not (b)", ("b", False)),
        ("n = Not (b) c = Not (n)", ("b", True)),
        ("n = Not (b) i = Identity (n) c = Identity (i)", ("b", False)),
        ("c = Greater (x, x)", ("c", True)),
        ("g = Greater (x, x) c = Not (g)", ("g", False)),
        ("c = And (b, b)", ("c", True)),
        # Of a number, whether it is none: whatever makes it.
        ("c = Cast <to = 9> (x)", ("x", True)),
        ("n = Neg (x) c = Cast <to = 9> (n)", ("n", True)),
        ("i = Cast <to = 7> (x) c = Cast <to = 9> (i)", ("i", True)),  # a half is one, and becomes zero
        # A boolean that was a number on the way is the same.
        ("g = Greater (x, x) i = Cast <to = 6> (g) c = Cast <to = 9> (i)", ("g", True)),
        ("n = Not (b) f = Cast <to = 1> (n) i = Cast <to = 7> (f) c = Cast <to = 9> (i)", ("i", True)),
        ("d = Cast <to = 9> (x) f = Cast <to = 1> (d) c = Cast <to = 9> (f)", ("x", True)),
        ("f = Cast <to = 1> (b) c = Cast <to = 9> (f)", ("f", True)),  # it is not known to be one
        ("g = Greater (x, x) s = Cast <to = 8> (g) c = Cast <to = 9> (s)", ("s", True)),  # text is no number
        ("g = Greater (x, x) i = BitCast <to = 2> (g) c = Cast <to = 9> (i)", ("i", True)),  # nor are bits
        # Nobody knows what others do who are called so.
        ("c = com.acme.Not (b)", ("c", True)),
        ("g = com.acme.Greater (x, x) i = Cast <to = 6> (g) c = Cast <to = 9> (i)", ("i", True)),
        ("g = com.acme.Find <to = 9> (x) i = Cast <to = 6> (g) c = Cast <to = 9> (i)", ("i", True)),
    ],
)
def test_what_a_condition_asks(nodes: str, asks: tuple[str, bool], tmp_path: Path) -> None:
    onnx.save(parser.parse_model(f"{HEAD} {{ {nodes} }}"), tmp_path / "m.onnx")
    assert asked(Program(Skeleton(tmp_path / "m.onnx")), "c") == asks
