"""A sample of what strangers may send: `make fuzz-hostile` runs all of it.

What other tests ask in detail (`test_dangerous_models.py`, `test_names.py`, `test_external.py`) is here in its breadth.
"""

from __future__ import annotations

import random
import subprocess
import sys
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
PARTS = 4  # each a test, so that they may run side by side
INSTALLED = 450  # every so many go through the installed command
SECONDS = 60.0  # for what takes a third of it, on a machine that does other things


@cache
def everything() -> list[Input]:
    """Made when a test is run, not when it is found."""
    return list(inputs())


def test_there_are_enough() -> None:
    assert len(everything()) >= ALL


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_promised(part: int, tmp_path: Path) -> None:
    with Runner(tmp_path, SECONDS) as runner:
        for given in everything()[part * EVERY :: EVERY * PARTS]:
            ran = runner.run(given)
            assert not ran.broken, f"{given.name}: {given.call.args}\n{ran.broken}\n{ran.stdout!r}\n{ran.stderr!r}"


@pytest.mark.parametrize("number", range(5, ALL + 700, INSTALLED))
def test_the_installed_command(number: int, tmp_path: Path) -> None:
    """Without a fork of anything: a start of Python for each."""
    given = everything()[number]
    given.lay(tmp_path)
    before = tree(tmp_path)
    done = subprocess.run(
        [SCRIPT, *given.call.args], cwd=tmp_path / HERE, capture_output=True, timeout=SECONDS, check=False
    )
    ran = Ran(done.returncode, False, 0.0, 0.0, 0, [], done.stdout, done.stderr, before, tree(tmp_path))
    assert not broken(given.call, ran, tmp_path), (given.name, done.stdout, done.stderr)


def test_what_is_empty_has_no_field_to_damage() -> None:
    """What is damaged again and again may be: the fuzzer ended there."""
    assert odd_fields(b"", random.Random(0)) == b""
