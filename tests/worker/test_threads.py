"""Settings of numpy's BLAS threads, before their start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from onnxopt.worker.process import child

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
ASK = f"import os, sys; assert 'numpy' not in sys.modules; print(os.environ[{VARIABLE!r}])"
COMMAND = f"from onnxopt.cli import main as m; m.cli = lambda **_: exec({ASK!r}); m.main()"


@pytest.mark.parametrize("command", [child(ASK), [sys.executable, "-c", COMMAND]], ids=["worker", "command"])
@pytest.mark.parametrize(("given", "told"), [({}, "4"), ({VARIABLE: "20"}, "20")], ids=["", "whoever says otherwise"])
def test_they_sleep_while_they_wait(command: list[str], given: dict[str, str], told: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | given
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert done.stdout.split() == [told]
