"""A spinner on stderr for work that takes more than a second, a bar for many models; nothing when nobody looks."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any


class Progress:
    """`phase(name)` says what happens now. Shown from one second on, on a terminal only."""

    def __init__(self, enabled: bool = True, delay: float = 1.0) -> None:
        self._timer = threading.Timer(delay, self._show) if enabled and sys.stderr.isatty() else None
        self._shown: Any = None
        self._text = ""
        self._lock = threading.Lock()

    def phase(self, name: str) -> None:
        self._text = name
        with self._lock:
            if self._shown is not None:
                self._shown.update(self._task, description=name)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Columns
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._shown = Columns(*columns, console=Console(stderr=True), transient=True)
            self._task = self._shown.add_task(self._text, total=None)
            self._shown.start()

    def __enter__(self) -> Progress:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            if self._shown is not None:
                self._shown.stop()


class Bar:
    """How many of so many are done, and how long the rest may take; on a terminal only."""

    def __init__(self, total: int, enabled: bool = True) -> None:
        self._progress: Any = None
        if enabled and total > 1 and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("", total=total)

    def advance(self, name: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, advance=1, description=name)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
