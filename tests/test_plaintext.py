"""Text: counts, short names, escapes."""

from __future__ import annotations

import pytest

from onnxopt.plaintext import counted


@pytest.mark.parametrize(
    ("n", "what", "text"),
    [
        (0, "node", "0 nodes"),
        (1, "node", "1 node"),
        (1234, "node", "1,234 nodes"),
        (1, "match", "1 match"),
        (2, "match", "2 matches"),
        (2, "pass", "2 passes"),
        (2, "time", "2 times"),
    ],
)
def test_one_is_singular(n: int, what: str, text: str) -> None:
    assert counted(n, what) == text
