"""Calls into another process, each with a time limit."""

from __future__ import annotations

import pytest

from onnxopt.worker.service import Died, Service

START = "from tests.worker.toy import main; main()"


def test_what_is_asked_has_its_time_from_the_start_on() -> None:
    with Service(f"import time; time.sleep(1); {START}", 0.5) as service:
        assert service.call("add")[1] == 1
        with pytest.raises(Died, match=r"did not finish within 0.5 s \(--timeout\)"):
            service.call("sleep", 60.0)
