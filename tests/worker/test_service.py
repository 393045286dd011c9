"""Calls into another process, each with a time limit."""

from __future__ import annotations

import pytest

from onnxopt.worker.process import CAN_WAIT
from onnxopt.worker.service import Died, Service

START = "from tests.worker.toy import main; main()"


def test_what_is_asked_has_its_time_from_the_start_on() -> None:
    with Service(f"import time; time.sleep(1); {START}", 0.5) as service:
        assert service.call("add")[1] == 1
        with pytest.raises(Died, match=r"did not finish within 0.5 s \(--timeout\)"):
            service.call("sleep", 60.0)


@pytest.mark.skipif(not CAN_WAIT, reason="the system cannot wait for a pipe")
def test_a_worker_knows_whether_another_request_waits() -> None:
    with Service(START, 60) as service:
        service.post("awaits_another", 60.0)
        service.post("awaits_another", 0.0)
        assert service.call("awaits_another")
        assert not service.call("awaits_another")
