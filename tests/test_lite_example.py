"""The example of an accelerator's own operators: from the pass to the backend, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.samples import ROOT


def test_its_own_test_is_green() -> None:
    folder = ROOT / "examples" / "lite"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lite.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{4 if shutil.which('cc') else 3} passed" in done.stdout
