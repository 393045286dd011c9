"""`onnxopt optimize IN OUT`: the path with the fastest start and the most output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.cli.files import json_text, write_text
from onnxopt.cli.options import make_options
from onnxopt.cli.say import say
from onnxopt.cli.telling import Telling
from onnxopt.cli.watching import Recorder, Watch
from onnxopt.errors import OnnxOptError
from onnxopt.startup.record import record

if TYPE_CHECKING:
    from onnxopt.conversion.extraction import Extraction
    from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report
    from onnxopt.pipeline import Instrument
    from onnxopt.verification import Verifier, VerifyOptions


@record(frozen=True)
class Single:
    """The request. `given`: options of the pipeline.

    `of_a_result`: other options of the optimizer. `inputs`, `outputs`: values at the ends of the part.
    """

    verify_options: VerifyOptions | None
    telling: Telling
    given: dict[str, Any]
    report_file: Path | None
    reproducer: Path | None
    zero_weights: bool
    strict: bool
    allow_unverified: bool
    of_a_result: dict[str, Any]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def run(self, source: Path, destination: Path, called: tuple[str, ...] = ()) -> int:
        """Optimize, and print the result; returns the exit code.

        `called`: the user's names of source and destination. Raises the errors of `optimize_file`.
        """
        called = called or (str(source), str(destination))
        try:
            return self._run(source, destination, called)
        except OnnxOptError as e:
            if self.telling.wanted and not hasattr(e, "report"):  # of which nobody was told yet
                from onnxopt.cli.batch import tell_failure

                tell_failure(self.telling, called[0], called[1], e)
            e.told = True
            raise

    def _run(self, source: Path, destination: Path, called: tuple[str, ...]) -> int:
        telling, given = self.telling, self.given
        verifier = self._started(source)
        # Not deep inside our own imports: Python's calls are slower where a chunk of its stack ends.
        import onnx  # noqa: F401

        options = make_options(given, **self.of_a_result)
        watch = Watch(source, given, self.verify_options)
        if telling.verbose or self.report_file is not None:
            from onnxopt.pipeline.instruments import Sizes

            watch.instruments.append(Sizes())
        again: list[Instrument] = []  # what a run after a rollback begins anew
        recorder = Recorder() if self.report_file is not None else None
        if recorder is not None:
            again += recorder.instruments
        counts = None
        if telling.stats or telling.has_summary:
            from onnxopt.pipeline.instruments import Counts

            counts = Counts()
            again.append(counts)
        report, failure = self._optimize(
            source, destination, called, options, verifier, [*watch.instruments, *again], again
        )
        if counts is not None:
            counted = counts.to_dict(report.source, report.destination, report.bytes_after)
            if counted is not None and (self.inputs or self.outputs):
                from onnxopt.api import stats

                counted["before"] = stats(source).to_dict()
            report.stats = counted
        if self.report_file is not None and recorder is not None:
            write_text(self.report_file, json_text(report.to_dict() | recorder.to_dict()))
        if not telling.quiet and telling.format == "text":
            _print(report.to_dict(), telling)
        watch.report()
        for line in report.remarks(options, given["plugins"]):
            say(line, err=True)
        code = 3 if report.rolled_back else 0
        if telling.wanted:
            from onnxopt.cli.batch import finish_single

            code = finish_single(telling, report, failure, code)
        if failure is not None:
            raise failure
        return code

    def _started(self, source: Path) -> Verifier | None:
        """Returns a verifier that imports in parallel, if the whole model is verified."""
        given = any(self.given[key] for key in ("level", "pipeline", "dtype", "int32", "strip_qdq"))
        if self.verify_options is None or not given or self.inputs or self.outputs:
            return None
        from onnxopt.verification import Verifier

        verifier = Verifier(source, self.verify_options)
        verifier.start()
        return verifier

    def _optimize(
        self,
        source: Path,
        destination: Path,
        called: tuple[str, ...],
        options: OptimizeOptions,
        verifier: Verifier | None,
        instruments: list[Instrument],
        again: list[Instrument],
    ) -> tuple[Report, DifferentResult | None]:
        """Returns the report, also for a different result."""
        from onnxopt.api.running import run
        from onnxopt.optimizer import DifferentResult
        from onnxopt.reporting.progress import Progress

        with Progress(enabled=not self.telling.quiet, steps=True) as progress:
            try:
                report = run(
                    source,
                    destination,
                    options,
                    called=(called[0], called[1]),
                    inputs=self.inputs,
                    outputs=self.outputs,
                    cut=_say_cut,
                    verify_options=self.verify_options,
                    verifier=verifier,
                    strict=self.strict,
                    allow_unverified=self.allow_unverified,
                    progress=progress.phase,
                    instruments=instruments,
                    again=again,
                    reproducer=self.reproducer,
                    zero_weights=self.zero_weights,
                    began=click.get_current_context().obj,
                )
            except DifferentResult as e:
                return e.report, e
        return report, None


def _print(report: dict[str, Any], telling: Telling) -> None:
    """Print a table on a terminal, and plain lines elsewhere, without an import of rich."""
    if sys.stdout.isatty():
        from onnxopt.reporting.console import print_report

        print_report(report, telling.verbose)
        if report["source"] and report["destination"]:
            import shlex

            places = shlex.join((report["source"], report["destination"]))
            say(f"next: onnxopt report {places} -o report.html", dim=True)
    else:
        from onnxopt.reporting.plain import lines

        for line in lines(report, telling.verbose):
            say(line, err=telling.data_on_stdout)
    if telling.stats:
        from onnxopt.cli.changes import show_changes

        show_changes(report, err=telling.data_on_stdout)


def _say_cut(done: Extraction) -> None:
    """Warn of names left out of the part; the import is needed only for parts."""
    from onnxopt.cli.extract import say_cut

    say_cut(done)
