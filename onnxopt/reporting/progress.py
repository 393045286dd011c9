"""Progress on stderr of work longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Final, Self

from onnxopt.plaintext import line

_DELAY: Final = 1.0  # seconds; shorter work is not shown
_PHASES: Final = ("load", "passes", "write", "verify")
_PHASE_OF: Final = {"loading": "load", "writing": "write", "verifying": "verify"}


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # pythonw on Windows has none


class Progress:
    """Display of the current phase, set by `phase(name)`. `steps`: of an optimization.

    The display starts after a second, on a terminal only, with the time since the start.
    """

    def __init__(self, enabled: bool = True, steps: bool = False) -> None:
        self._timer = threading.Timer(_DELAY, self._show) if enabled and _is_terminal() else None
        self._shown: Any = None
        self._text = ""
        self._steps = steps
        self._lock = threading.Lock()

    def phase(self, name: str) -> None:
        self._text = name
        with self._lock:
            if self._shown is not None:
                self._shown.update(self._task, description=self._description())

    def _description(self) -> str:
        from rich.markup import escape

        return optimization_steps(self._text) if self._steps else escape(self._text)

    def _show(self) -> None:
        with self._lock:
            if self._timer is None:  # the work ended at the same time
                return
            self._shown = _spinners()
            self._task = self._shown.add_task(self._description(), total=None)
            self._shown.tasks[0].start_time = self._began
            self._shown.start()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._shown is not None:
                self._shown.stop()


def optimization_steps(phase: str) -> str:
    """Return `load › passes: dead-code › write › verify` in rich's markup.

    The current step is bold, finished steps are green. A share behind the name of the current step shows its progress.
    A phase that is no step, such as bisecting, stands alone; every other name is a pass.
    """
    from rich.markup import escape

    name, _, share = phase.partition(" ")
    if not phase or (share and not share.endswith("%")):
        return escape(phase)
    now = _PHASES.index(_PHASE_OF.get(name, "passes"))
    said = f"{_PHASES[now]} {share}".rstrip() if name in _PHASE_OF else f"passes: {escape(name)}"
    done, rest = (
        [f"[{style}]{step}[/]" for step in steps]
        for style, steps in (("green", _PHASES[:now]), ("dim", _PHASES[now + 1 :]))
    )
    return " › ".join([*done, f"[bold]{said}[/]", *rest])


class Board(Progress):
    """Display of running models and their phases, on a terminal only.

    The display has the number of finished models, and the estimated remaining time; of a single model, its progress.
    """

    def __init__(self, total: int, enabled: bool = True) -> None:
        super().__init__(enabled and total == 1, steps=True)
        self._live: Any = None
        self._running: dict[str, Any] = {}
        if total > 1 and enabled and _is_terminal():
            from rich.console import Group
            from rich.live import Live
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            from onnxopt.reporting.terminal import Terminal

            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
            self._models, self._all = _spinners(), Bars(*columns)
            self._task = self._all.add_task("", total=total)
            self._live = Live(Group(self._models, self._all), console=Terminal(stderr=True), transient=True)

    def show(self, model: str, name: str) -> None:
        """Show the phase of a model. May be called from any thread."""
        if self._live is None:
            self.phase(name)
            return
        from rich.markup import escape

        with self._lock:
            if model not in self._running:
                self._running[model] = self._models.add_task("", total=None)
            said = f"{escape(line(model))}  {optimization_steps(name)}"
            self._models.update(self._running[model], description=said)

    def done(self, model: str) -> None:
        if self._live is not None:
            with self._lock:
                if model in self._running:
                    self._models.remove_task(self._running.pop(model))
            self._all.update(self._task, advance=1)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._live is not None:
            self._live.stop()


def _spinners() -> Any:
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from onnxopt.reporting.terminal import Terminal

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Bars(*columns, console=Terminal(stderr=True), transient=True)
