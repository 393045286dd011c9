"""One model IN into OUT: the way of `onnxopt optimize` that starts fastest and shows most."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.cli.files import json_text, write_text
from onnxopt.cli.options import make_options
from onnxopt.cli.say import say
from onnxopt.cli.telling import Telling
from onnxopt.cli.watching import Recorder, Watch
from onnxopt.errors import OnnxOptError, few
from onnxopt.record import record

if TYPE_CHECKING:
    from onnxopt.api import OptimizeOptions, Report
    from onnxopt.extraction import Extraction
    from onnxopt.verification import VerifyOptions

_SHOWN: Final = 3  # sites in a hint


@record(frozen=True)
class Single:
    """What is asked for. `given`: options of the pipeline; `inputs`, `outputs`: values at which IN is cut; `stats`:
    show what changed, operator by operator."""

    verify_options: VerifyOptions | None
    telling: Telling
    given: dict[str, Any]
    provenance: bool
    report_file: Path | None
    reproducer: Path | None
    zero_weights: bool
    strict: bool
    allow_unverified: bool
    verbose: int
    max_rewrites: int | None
    external: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    stats: bool = False

    def run(self, source: Path, destination: Path, called: tuple[str, ...] = ()) -> int:
        """Optimize, and say what was done; the exit code. `called`: how the user calls source and destination. Raises
        what `optimize_file` raises."""
        try:
            return self._whole_or_cut(source, destination, called)
        except OnnxOptError as e:
            if self.telling.wanted and not hasattr(e, "report"):  # of which nobody was told yet
                from onnxopt.cli.batch import tell_failure

                a, b = called or (str(source), str(destination))
                tell_failure(self.telling, a, b, e)
            e.told = True
            raise

    def _whole_or_cut(self, source: Path, destination: Path, called: tuple[str, ...]) -> int:
        cut: tuple[Path, Extraction] | None = None
        with ExitStack() as stack:
            if self.inputs or self.outputs:
                from onnxopt.cli.extract import say_cut
                from onnxopt.extraction import cut_off

                called = called or (str(source), str(destination))
                whole = source
                source, found = stack.enter_context(cut_off(source, destination, self.inputs, self.outputs))
                say_cut(found)
                cut = whole, found
            return self._run(source, destination, called, cut)

    def _run(
        self, source: Path, destination: Path, called: tuple[str, ...], cut: tuple[Path, Extraction] | None
    ) -> int:
        telling, given, verifier = self.telling, self.given, None
        if self.verify_options is not None and (given["level"] or given["pipeline"] or given["dtype"]):
            from onnxopt.verification import Verifier

            verifier = Verifier(source, self.verify_options)
            verifier.start()  # it imports while we import
        # Not deep inside our own imports: Python's calls are slower where a chunk of its stack ends.
        import onnx  # noqa: F401

        from onnxopt.api import DifferentResult
        from onnxopt.report.progress import Progress
        from onnxopt.rollback import optimize_or_roll_back

        options, watch = make_options(given, self.max_rewrites, self.provenance, self.external), Watch(source, given)
        if self.verbose or self.report_file is not None:
            from onnxopt.pipeline.instruments import Sizes

            watch.instruments.append(Sizes())
        counts = None
        if self.stats or telling.has_summary:
            from onnxopt.pipeline.instruments import Counts

            counts = Counts()
            watch.instruments.append(counts)
        recorder = Recorder() if self.report_file is not None else None
        if recorder is not None:
            watch.instruments += recorder.instruments
        failure: DifferentResult | None = None
        with Progress(enabled=not telling.quiet, steps=True) as progress:
            try:
                report = optimize_or_roll_back(
                    source,
                    destination,
                    options,
                    verify_options=self.verify_options,
                    verifier=verifier,
                    strict=self.strict,
                    allow_unverified=self.allow_unverified,
                    progress=progress.phase,
                    instruments=watch.instruments,
                    again=[*(recorder.instruments if recorder is not None else ()), *([counts] if counts else [])],
                    reproducer=self.reproducer,
                    zero_weights=self.zero_weights,
                )
            except DifferentResult as e:
                failure, report = e, e.report
        if called:
            report.source, report.destination = called
        if cut is not None:
            report.pipeline.nodes_before, report.bytes_before = cut[1].nodes_before, cut[1].bytes_before
        if counts is not None:
            report.stats = counts.to_dict(report.source, report.destination, report.bytes_after)
            if cut is not None and report.stats is not None:
                from onnxopt.api import stats

                report.stats["before"] = stats(cut[0]).to_dict()
        if self.report_file is not None and recorder is not None:
            write_text(self.report_file, json_text(report.to_dict() | recorder.to_dict()))
        if not telling.quiet and telling.format == "text":
            _print(report.to_dict(), self.verbose, telling.data_on_stdout)
            if self.stats:
                from onnxopt.cli.changes import show_changes

                show_changes(report.to_dict(), err=telling.data_on_stdout)
        watch.report()
        _warn_of_unknown(options, report)
        _warn_of_idle(given["plugins"], options)
        code = _warn(report.rolled_back) if report.rolled_back else 0
        if telling.wanted:
            from onnxopt.cli.batch import finish_single

            code = finish_single(telling, report, failure, code)
        if failure is not None:
            raise failure
        return code


def _warn(rolled_back: list[Any]) -> int:
    from onnxopt.report.plain import left_out

    for r in rolled_back:
        for line in (f"warning: {left_out(asdict(r))}", *(f"  {r.scope}: {line}" for line in r.match)):
            say(line, err=True)
    import shlex

    without = shlex.quote(",".join(str(r.site or r.name) for r in rolled_back))
    disable = f"--disable {without} leaves it out at once, " if len(rolled_back) <= _SHOWN else ""
    more = f"{disable}--strict makes this an error, `onnxopt bisect` shows the smallest part"
    report = "" if all(r.name == "convert-dtype" for r in rolled_back) else "report it; "  # that is no bug
    say(f"hint: {report}{more}", err=True)
    return 3


def _warn_of_unknown(options: OptimizeOptions, report: Report) -> None:
    """Of what --disable names, but the run did not meet."""
    for site in options.sites():
        if site not in report.pipeline.left_out:
            say(f"warning: --disable {site}: there was nothing to leave out", err=True)


def _warn_of_idle(plugins: tuple[str, ...], options: OptimizeOptions) -> None:
    """Of plugins that are loaded, and of which nothing runs: a pass has to be asked for, and to be registered."""
    if not plugins:
        return
    from onnxopt.pipeline.registry import registered_by

    names = registered_by(plugins)
    asked = " ".join((*options.extra, options.pipeline or "")).replace("_", "-")
    if not names:
        say(f"warning: --plugin {few(plugins)}: no pass is registered there; @register above it does that", err=True)
    elif not any(name in asked for name in names):
        say(f"warning: --plugin {few(plugins)}: {few(names)} did not run; --with {names[0]} adds it", err=True)


def _print(report: dict[str, Any], verbose: int, data_on_stdout: bool) -> None:
    """A table where somebody looks; plain lines in pipes and logs, which also spares the import of rich."""
    if sys.stdout.isatty():
        from onnxopt.report.console import print_report

        print_report(report, verbose)
        if report["source"] and report["destination"]:
            import shlex

            places = shlex.join((report["source"], report["destination"]))
            say(f"next: onnxopt report {places} -o report.html", dim=True)
    else:
        from onnxopt.report.plain import lines

        for line in lines(report, verbose):
            say(line, err=data_on_stdout)
