"""A probe of a value that B holds in another layout than A."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt.verification import PROVEN
from onnxopt.verification.coverage import cones
from onnxopt.verification.coverage.cones import Cone
from onnxopt.verification.pieces.walk import Walk
from tests.verification.pairs import opened, verdict, with_constants

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4, 4] x) => (float[2, 4, 4] y, float[2, 4, 4] z)'
NUMBERS = {"ones": np.ones(4), "one": 1e-6, "two": 2e-6, "three": 3e-6}
CONSTANTS = {name: np.asarray(n, np.float32) for name, n in NUMBERS.items()}
SHARED = "l = LayerNormalization (x, ones) u = Transpose <perm = [0, 2, 1]> (l) z = Neg (u) h = Exp (x)"
APART = f"{SHARED} t = Transpose <perm = [0, 2, 1]> (h) i = Add (t, one) j = Add (i, two) s = Add (j, u) y = Neg (s)"
TURNED = f"{SHARED} q = Add (h, three) s_n = Add (q, l) y_n = Neg (s_n) y = Transpose <perm = [0, 2, 1]> (y_n)"


def test_a_probe_feeds_consistent_numbers_and_compares_in_the_known_layout(tmp_path: Path) -> None:
    """B reads `l`, and A the transposed `u`. Sizes are equal, and the epsilons 1e-6 and 2e-6 are merged."""
    found = verdict(tmp_path, *(with_constants(f"{HEAD} {{ {body} }}", CONSTANTS) for body in (APART, TURNED)))
    assert found.status in PROVEN, found.message


def test_a_cone_beyond_the_limit_is_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cone that is cut off ends at values that are no cutpoints."""
    a, b = (f"{HEAD} {{ {body} }}" for body in (APART, TURNED))
    runners = []
    for name, text in (("a", a), ("b", b)):
        onnx.save(with_constants(text, CONSTANTS), tmp_path / name)
        runners.append(opened(tmp_path / name, name))
    case = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    walk = Walk(*runners, [{"x": case}], {"x": "tensor(float)"}).run()
    assert (cone := Cone.of(walk, "s_n")) is not None
    assert cone.entries == ["l", "h"]
    monkeypatch.setattr(cones, "MAX_NODES", 1)
    assert Cone.of(walk, "s_n") is None
