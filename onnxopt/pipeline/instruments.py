"""Instruments: statistics, times, text and files between passes, checks."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from onnxopt.analysis.stats import ModelStats, model_stats
from onnxopt.errors import InvariantError, OnnxOptError, VerificationError, is_starved, unwritable
from onnxopt.graph import check_model, write_model
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.records import Instrument
from onnxopt.pipeline.registry import check_names

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline.base import Pass
    from onnxopt.verification import Verifier, VerifyOptions


# -- counts --------------------------------------------------------------------------------------------------------


class Counts(Instrument):
    """Records operators, parameters and bytes by type; after several runs the last counts."""

    def __init__(self) -> None:
        self._before: ModelStats | None = None
        self._after: ModelStats | None = None

    def begin(self, model: Model) -> None:
        self._before = model_stats(model)

    def end(self, model: Model) -> None:
        self._after = model_stats(model)

    def to_dict(self, source: str, destination: str, size: int) -> dict[str, Any] | None:
        """Return both statistics as `ModelStats.to_dict`, under the names known to users; `size`: bytes written."""
        if self._before is None or self._after is None:
            return None
        before, after = replace(self._before, path=source), replace(self._after, path=destination, file_bytes=size)
        return {"before": before.to_dict(), "after": after.to_dict()}


# -- times --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassRun:
    """A run of a pass. `start` and `seconds` in seconds, from the beginning; `nodes`: number of nodes afterwards."""

    name: str
    start: float
    seconds: float
    nodes: int


class Timeline(Instrument):
    """Records `runs` in order of their ends; of a composite only the children.

    Durations equal the pass's record, without the time of other instruments (such as a journal listing nodes).
    """

    def __init__(self) -> None:
        self.runs: list[PassRun] = []
        self._zero = 0.0
        self._open: list[tuple[float, float]] = []

    def begin(self, model: Model) -> None:
        self.runs, self._open = [], []
        self._zero = time.perf_counter()

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self._open.append((time.perf_counter(), _recorded(p)))

    def after(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        now, (asked, before) = time.perf_counter(), self._open.pop()
        seconds = _recorded(p) - before
        self.runs.append(PassRun(p.name, max(asked, now - seconds) - self._zero, seconds, model.node_count()))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the runs for JSON."""
        return [asdict(r) for r in self.runs]


def _recorded(p: Pass) -> float:
    """Return the total seconds of a pass so far."""
    report = PassContext.current().report
    return report.of(p.name).seconds if report is not None else 0.0


@dataclass
class Span:
    """All runs of a pass at a position of the pipeline. `seconds` includes child passes."""

    name: str
    seconds: float = 0.0
    runs: int = 0
    children: dict[str, Span] = field(default_factory=dict)

    @property
    def self_seconds(self) -> float:
        """Seconds without child and called passes."""
        return self.seconds - sum(c.seconds for c in self.children.values())

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Span]]:
        """Yield (depth, span), parents first."""
        yield depth, self
        for child in self.children.values():
            yield from child.walk(depth + 1)


class Timing(Instrument):
    """Records a tree of spans, `Timing().root`; `lines()` shows it."""

    def __init__(self) -> None:
        self.root = Span("total")
        self._open: list[tuple[Span, float]] = []

    def begin(self, model: Model) -> None:
        self._open = [(self.root, time.perf_counter())]

    def before(self, model: Model, p: Pass) -> None:
        span = self._open[-1][0].children.setdefault(p.name, Span(p.name))
        self._open.append((span, time.perf_counter()))

    def after(self, model: Model, p: Pass) -> None:
        self._close()

    def end(self, model: Model) -> None:
        while self._open:
            self._close()

    def _close(self) -> None:
        span, start = self._open.pop()
        span.seconds += time.perf_counter() - start
        span.runs += 1

    def lines(self) -> Iterator[str]:
        """Yield a table: total and self time in milliseconds, share of all, runs, pass."""
        yield f"{'total ms':>10} {'self ms':>10} {'share':>6} {'runs':>5}  pass"
        whole = self.root.seconds or 1.0
        for depth, span in self.root.walk():
            yield (
                f"{span.seconds * 1e3:>10,.1f} {span.self_seconds * 1e3:>10,.1f} {span.self_seconds / whole:>6.1%} "
                f"{span.runs:>5}  {'  ' * depth}{span.name}"
            )


# -- the model between passes -------------------------------------------------------------------------------------

CHANGED: Final = "changed"
ALL: Final = "all"


Names = str | Collection[str]


def _names(given: Names) -> set[str]:
    return {name.replace("_", "-") for name in ([given] if isinstance(given, str) else given)}


class _Selected(Instrument):
    """Calls `show` after the passes in `after` (and before those in `before`): names, `all`, or `changed`.

    Raises UsageError for an unknown pass.
    """

    def __init__(self, after: Names = CHANGED, before: Names = ()) -> None:
        self._after, self._before = _names(after), _names(before)
        check_names((self._after | self._before) - {ALL, CHANGED}, type(self).__name__)
        self._version = 0
        self._count = 0

    def before(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        self._version = model.version
        self._count += 1
        if self._before & {p.name, ALL}:
            self.show(model, p, "before")

    def after(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        changed = CHANGED in self._after and model.version != self._version
        if changed or self._after & {p.name, ALL}:
            self.show(model, p, "after" if model.version != self._version else "after (unchanged)")

    def show(self, model: Model, p: Pass, when: str) -> None:
        raise NotImplementedError


class PrintIR(_Selected):
    """Prints the model as text to `file` (default: stderr)."""

    def __init__(self, after: Names = CHANGED, before: Names = (), file: TextIO | None = None) -> None:
        super().__init__(after, before)
        self.file = file

    def show(self, model: Model, p: Pass, when: str) -> None:
        from onnxopt.graph.text import model_text

        print(f"-- {when} {p} --\n{model_text(model)}", file=self.file or sys.stderr)


class DumpModels(_Selected):
    """Writes the model into `folder`, a file for each pass, numbered by run: `003-canonicalize.onnx`."""

    def __init__(self, folder: str | Path, after: Names = CHANGED, before: Names = ()) -> None:
        super().__init__(after, before)
        self.folder = Path(folder)

    def begin(self, model: Model) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise unwritable(self.folder, e, "name another folder") from None

    def show(self, model: Model, p: Pass, when: str) -> None:
        from onnxopt.io import refuse_overwriting_input, save

        suffix = "-before" if when == "before" else ""
        file = self.folder / f"{self._count:03}-{p.name}{suffix}.onnx"
        if model.path is not None:
            refuse_overwriting_input(model.path, file)
        save(model, file)


# -- checks -------------------------------------------------------------------------------------------------------


class CheckEach(Instrument):
    """After each pass checks the graph's invariants, the model as written, and `checks`, which raise on errors.

    A pass that uses a removed value raises InvariantError at this point. With `suppress`, failures become warnings in
    the run's report.
    """

    def __init__(
        self, checks: Sequence[Callable[[Model], None]] = (), *, invariants: bool = True, suppress: bool = False
    ) -> None:
        self.checks: list[Callable[[Model], object]] = ([check_model, write_model] if invariants else []) + list(checks)
        self.suppress = suppress

    def begin(self, model: Model) -> None:
        model.debug = True

    def after(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        for check in self.checks:
            try:
                check(model)
            except Exception as e:
                if is_starved(e):
                    raise
                if not self.suppress:
                    if isinstance(e, OnnxOptError):
                        raise
                    name = getattr(check, "__name__", type(check).__name__)
                    raise InvariantError(
                        f"{model.name}: the check {name} fails: {type(e).__name__}: {e}", "the pass broke it"
                    ) from e
                report = PassContext.current().report
                assert report is not None
                report.warnings.append(f"after {p.name}: {e}")


class VerifyEach(Instrument):
    """After each pass with changes compares the model with the original file in onnxruntime.

    Raises VerificationError at the first pass with a different result.
    """

    def __init__(self, original: str | Path, options: VerifyOptions | None = None) -> None:
        self.original = Path(original)
        self.options = options
        self._verifier: Verifier | None = None
        self._version = -1

    def begin(self, model: Model) -> None:
        from onnxopt.verification import Verifier

        self._version = model.version
        self._verifier = Verifier(self.original, self.options)
        self._verifier.start()

    def after(self, model: Model, p: Pass) -> None:
        from onnxopt.io import save

        if p.children or model.version == self._version:
            return
        self._version = model.version
        assert self._verifier is not None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            save(model, path)
            self._verifier.submit(path, model.tolerances)
            verdict = self._verifier.finish()
        if verdict.is_refused:
            raise VerificationError(
                f"{model.name}: the result {verdict.fault}: {verdict.message}", "`onnxopt bisect` finds the rewrite"
            )

    def end(self, model: Model) -> None:
        if self._verifier is not None:
            self._verifier.close()
