"""Run inputs in a process of forks, and report broken promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.hostile.forks import GRACE
from tests.hostile.inputs import Input
from tests.hostile.promise import HERE, SECONDS, Ran, broken, tree

ROOT = Path(__file__).resolve().parents[2]


class Runner:
    """A process of forks. `seconds`: the limit of a run, which is killed after three times as many."""

    def __init__(self, folder: Path, seconds: float = SECONDS) -> None:
        self._folder = folder
        self._seconds = seconds
        env = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config"), "OMP_NUM_THREADS": "1"}
        env["OPENBLAS_NUM_THREADS"] = "1"  # threads do not survive a fork
        folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.hostile.forks"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, given: Input, **env: str) -> Ran:
        where = self._folder / "case"
        shutil.rmtree(where, ignore_errors=True)
        given.lay(where)
        before = tree(where)
        streams = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        request: dict[str, Any] = {"folder": str(where / HERE), "args": given.call.args, "env": env, **streams}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request | {"timeout": 3 * self._seconds}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        said = {name: Path(path).read_bytes() for name, path in streams.items()}
        ran = Ran(**answer, **said, before=before, after=tree(where))
        ran.broken = broken(given.call, ran, where, self._seconds)
        return ran

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._process.communicate(timeout=GRACE)
        finally:
            self._process.kill()
            self._process.communicate()
