"""What a worker of these tests serves."""

from __future__ import annotations

import os
import time

from onnxopt.worker.serving import Tell, serve


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


def main() -> None:
    serve(Toy, early=False)
