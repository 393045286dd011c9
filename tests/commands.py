"""The installed console script: started, or forked from a process that serves all tests of a session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli.fork_server import ForkServer

SCRIPT = Path(sys.executable).with_name("onnxopt")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run_script(folder: Path, args: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A process from its very start on."""
    return subprocess.run([SCRIPT, *args], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    """None where processes cannot be forked, or not safely."""
    if sys.platform != "linux":
        yield None
        return
    with ForkServer(SCRIPT) as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, fork_server: ForkServer | None) -> Run:
    """The command in the test's folder; `env`: more for its environment."""

    def call(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        words, environment = [*map(str, args)], os.environ | env
        if fork_server is None or not fork_server.can_have(environment):
            return run_script(tmp_path, words, environment)
        return fork_server.run(words, tmp_path, environment)

    return call
