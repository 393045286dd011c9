"""A probe of a value that B holds in another layout than A."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onnxopt.verification import PROVEN
from tests.verification.pairs import verdict, with_constants

SHARED = "l = LayerNormalization (x, ones) u = Transpose <perm = [0, 2, 1]> (l) z = Neg (u) h = Exp (x)"
APART = f"{SHARED} t = Transpose <perm = [0, 2, 1]> (h) i = Add (t, one) j = Add (i, two) s = Add (j, u) y = Neg (s)"
TURNED = f"{SHARED} q = Add (h, three) s_n = Add (q, l) y_n = Neg (s_n) y = Transpose <perm = [0, 2, 1]> (y_n)"


def test_a_probe_feeds_consistent_numbers_and_compares_in_the_known_layout(tmp_path: Path) -> None:
    """B reads `l`, and A the transposed `u`. Sizes are equal, and the epsilons 1e-6 and 2e-6 are merged."""
    numbers = {"ones": np.ones(4), "one": 1e-6, "two": 2e-6, "three": 3e-6}
    constants = {name: np.asarray(n, np.float32) for name, n in numbers.items()}
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4, 4] x) => (float[2, 4, 4] y, float[2, 4, 4] z)'
    found = verdict(tmp_path, *(with_constants(f"{head} {{ {body} }}", constants) for body in (APART, TURNED)))
    assert found.status in PROVEN, found.message
