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
        ("c = Constant <value = bool {1}> ()", ("c", True)),
        # A Cast of a number to boolean asks the number.
        ("c = Cast <to = 9> (x)", ("x", True)),
        ("n = Neg (x) c = Cast <to = 9> (n)", ("n", True)),
        ("i = Cast <to = 7> (x) c = Cast <to = 9> (i)", ("i", True)),  # 0.5 is true, and its integer 0 is not
        # A boolean cast through a number is the same predicate.
        ("g = Greater (x, x) i = Cast <to = 6> (g) c = Cast <to = 9> (i)", ("g", True)),
        ("n = Not (b) f = Cast <to = 1> (n) i = Cast <to = 7> (f) c = Cast <to = 9> (i)", ("b", False)),
        ("d = Cast <to = 9> (x) f = Cast <to = 1> (d) c = Cast <to = 9> (f)", ("x", True)),
        ("f = Cast <to = 1> (b) c = Cast <to = 9> (f)", ("f", True)),  # b is not known to be a boolean
        ("g = Greater (x, x) s = Cast <to = 8> (g) c = Cast <to = 9> (s)", ("s", True)),  # text is not a number
        ("g = Greater (x, x) i = BitCast <to = 2> (g) c = Cast <to = 9> (i)", ("i", True)),  # bits are no number
        # A function or foreign operator of the same name may compute anything.
        ("c = com.acme.Not (b)", ("c", True)),
        ("g = com.acme.Greater (x, x) i = Cast <to = 6> (g) c = Cast <to = 9> (i)", ("i", True)),
        ("g = com.acme.Find <to = 9> (x) i = Cast <to = 6> (g) c = Cast <to = 9> (i)", ("i", True)),
    ],
)
def test_source_and_sign_of_a_condition(nodes: str, asks: tuple[str, bool], tmp_path: Path) -> None:
    onnx.save(parser.parse_model(f"{HEAD} {{ {nodes} }}"), tmp_path / "m.onnx")
    assert asked(Program(Skeleton(tmp_path / "m.onnx")), "c") == asks
