"""Limits of a worker, and its own figures."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onnxopt.worker.process import child

LARGE = 300 << 20  # bytes
SMALL = 1 << 12


@pytest.mark.skipif(sys.platform == "win32", reason="nobody counts there")
def test_the_peak_of_a_worker_is_its_own_and_not_that_of_a_large_parent() -> None:
    ask = "from onnxopt.worker import peak_memory; print(peak_memory())"
    parent = f"import subprocess; subprocess.run({child(ask)!r})"
    for memory in (0, LARGE):
        found = subprocess.run(
            [sys.executable, "-c", f"held = b'1' * {memory}; {parent}"], capture_output=True, check=True, text=True
        )
        assert 0 < int(found.stdout) < LARGE
