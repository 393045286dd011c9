"""What a worker of these tests serves."""

from __future__ import annotations

import os
import time

from onnxopt.worker.serving import Tell, is_asked, serve


class Toy:
    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.count = 0

    def add(self) -> tuple[int, int]:
        """(this process, how often it was asked)."""
        self.count += 1
        return os.getpid(), self.count

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def waits(self, seconds: float) -> bool:
        """Whether another call waits within that time."""
        end = time.monotonic() + seconds
        while not is_asked() and time.monotonic() < end:
            time.sleep(0.01)
        return is_asked()


def main() -> None:
    serve(Toy, early=False)
