"""One worker for successive callers: as new for each, and without waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from onnxopt.worker.service import Spare

START = "from tests.worker.toy import main; main()"

SLOW_START = f"import time; time.sleep(60); {START}"


@pytest.fixture
def spare() -> Iterator[Spare]:
    found = Spare()
    yield found
    found.close()


def test_the_next_caller_gets_the_process_and_nothing_of_what_was_said(spare: Spare) -> None:
    first = spare.take(START, 10.0, 0)
    process, count = first.call("add")
    first.post("add")  # nobody asks for the answer
    spare.keep(first)
    second = spare.take(START, 10.0, 0)
    assert (process, count) == (second.call("add")[0], 1)
    assert second.call("add") == (process, 2)
    second.close()


def test_what_is_still_busy_is_not_waited_for(spare: Spare) -> None:
    first = spare.take(START, 10.0, 0)
    process, _ = first.call("add")
    first.post("sleep", 60.0)
    spare.keep(first)
    began = time.monotonic()
    second = spare.take(START, 10.0, 0)
    assert time.monotonic() - began < 10
    assert second.call("add")[0] != process
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    second.close()


def test_other_limits_need_another_process(spare: Spare) -> None:
    first = spare.take(START, 10.0, 0)
    process, _ = first.call("add")
    spare.keep(first)
    second = spare.take(START, 10.0, 4 << 30)
    assert second.call("add")[0] != process
    second.close()


def test_one_is_kept(spare: Spare) -> None:
    first, second = spare.take(START, 10.0, 0), spare.take(START, 10.0, 0)
    spare.keep(first)
    spare.keep(second)
    assert not first.alive
    assert second.alive


def test_a_deadline_of_one_who_asked_nothing_is_not_the_next_ones(spare: Spare) -> None:
    first = spare.take(START, 10.0, 0)
    first.deadline = time.monotonic()
    spare.keep(first)
    second = spare.take(START, 10.0, 0)
    assert second is first
    assert second.call("add")[1] == 1
    second.close()


def test_one_that_is_prepared_is_not_asked_whether_it_has_started(spare: Spare) -> None:
    spare.prepare(SLOW_START, 10.0, 0)
    began = time.monotonic()
    spare.take(SLOW_START, 10.0, 0).close()
    assert time.monotonic() - began < 2.0
