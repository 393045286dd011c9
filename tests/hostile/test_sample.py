"""A sample of hostile inputs keeps the promises; `make fuzz-hostile` runs all inputs.

`test_dangerous_models.py`, `test_names.py` and `test_external.py` test details, this file the breadth.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT
from tests.hostile.damaged import odd_fields
from tests.hostile.inputs import Input, inputs
from tests.hostile.promise import HERE, Ran, broken, tree
from tests.hostile.runner import Runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what a run left behind")

ALL = 5000
EVERY = 30
PARTS = 4  # each part is a test, so that parts may run in parallel
INSTALLED = 450  # the step between inputs of the installed command
SECONDS = 60.0  # for runs of a third of the time, on a busy machine


@cache
def everything() -> list[Input]:
    """Return every input. Inputs are made at the run of a test, not at collection."""
    return list(inputs())


def test_there_are_enough() -> None:
    assert len(everything()) >= ALL


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("runs"), SECONDS) as found:
        yield found


@pytest.mark.parametrize("part", range(PARTS))
def test_promises_are_kept_for_a_sample(part: int, runner: Runner) -> None:
    for given in everything()[part * EVERY :: EVERY * PARTS]:
        ran = runner.run(given)
        assert not ran.broken, f"{given.name}: {given.call.args}\n{ran.broken}\n{ran.stdout!r}\n{ran.stderr!r}"


@pytest.mark.parametrize("number", range(5, ALL + 700, INSTALLED))
def test_promises_are_kept_by_the_installed_command(number: int, tmp_path: Path) -> None:
    """The installed command keeps the promises, without forks: each run is a start of Python."""
    given = everything()[number]
    given.lay(tmp_path)
    before = tree(tmp_path)
    done = subprocess.run(
        [SCRIPT, *given.call.args], cwd=tmp_path / HERE, capture_output=True, timeout=SECONDS, check=False
    )
    ran = Ran(done.returncode, False, 0.0, 0.0, 0, [], done.stdout, done.stderr, before, tree(tmp_path))
    assert not broken(given.call, ran, tmp_path), (given.name, done.stdout, done.stderr)


def test_an_empty_file_has_no_field_to_damage() -> None:
    """An empty file stays empty. Repeated damage may empty a file, which ended the fuzzer."""
    assert odd_fields(b"", random.Random(0)) == b""
