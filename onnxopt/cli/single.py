"""One model IN into OUT: the way of `onnxopt optimize` that starts fastest and shows most."""

from __future__ import annotations

import re
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
    from onnxopt.extraction import Extraction
    from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report
    from onnxopt.pipeline import Instrument
    from onnxopt.verification import Verifier, VerifyOptions

_SHOWN: Final = 3  # sites in a hint


@record(frozen=True)
class Single:
    """What is asked for. `given`: options of the pipeline; `inputs`, `outputs`: values at which IN is cut."""

    verify_options: VerifyOptions | None
    telling: Telling
    given: dict[str, Any]
    provenance: bool
    report_file: Path | None
    reproducer: Path | None
    zero_weights: bool
    strict: bool
    allow_unverified: bool
    max_rewrites: int | None
    external: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

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
        telling, given = self.telling, self.given
        verifier = self._started(source)
        # Not deep inside our own imports: Python's calls are slower where a chunk of its stack ends.
        import onnx  # noqa: F401

        options, watch = make_options(given, self.max_rewrites, self.provenance, self.external), Watch(source, given)
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
        report, failure = self._optimize(source, destination, options, verifier, [*watch.instruments, *again], again)
        if called:
            report.source, report.destination = called
        if counts is not None:
            report.stats = counts.to_dict(report.source, report.destination, report.bytes_after)
        if cut is not None:
            _count_from(report, *cut)
        if self.report_file is not None and recorder is not None:
            write_text(self.report_file, json_text(report.to_dict() | recorder.to_dict()))
        if not telling.quiet and telling.format == "text":
            _print(report.to_dict(), telling)
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

    def _started(self, source: Path) -> Verifier | None:
        """A verifier that imports while we import, where there is something to verify."""
        if self.verify_options is None or not any(self.given[key] for key in ("level", "pipeline", "dtype")):
            return None
        from onnxopt.verification import Verifier

        verifier = Verifier(source, self.verify_options)
        verifier.start()
        return verifier

    def _optimize(
        self,
        source: Path,
        destination: Path,
        options: OptimizeOptions,
        verifier: Verifier | None,
        instruments: list[Instrument],
        again: list[Instrument],
    ) -> tuple[Report, DifferentResult | None]:
        """The report, also of a result that differs."""
        from onnxopt.optimizer import DifferentResult
        from onnxopt.reporting.progress import Progress
        from onnxopt.rollback import optimize_or_roll_back

        with Progress(enabled=not self.telling.quiet, steps=True) as progress:
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
                    instruments=instruments,
                    again=again,
                    reproducer=self.reproducer,
                    zero_weights=self.zero_weights,
                )
            except DifferentResult as e:
                return e.report, e
        return report, None


def _count_from(report: Report, whole: Path, cut: Extraction) -> None:
    """Have the report begin with the model that was cut."""
    report.pipeline.nodes_before, report.bytes_before = cut.nodes_before, cut.bytes_before
    if report.stats is not None:
        from onnxopt.api import stats

        report.stats["before"] = stats(whole).to_dict()


def _warn(rolled_back: list[Any]) -> int:
    from onnxopt.reporting.plain import left_out

    for line in left_out([asdict(r) for r in rolled_back], matched=True):
        say(line if line.startswith(" ") else f"warning: {line}", err=True)
    import shlex

    without = shlex.quote(",".join(str(r.site or r.name) for r in rolled_back))
    disable = f"--disable {without} leaves it out at once, " if len(rolled_back) <= _SHOWN else ""
    more = f"{disable}--strict makes this an error, `onnxopt bisect` shows the smallest part"
    say(f"hint: {_whom_to_tell(rolled_back)}{more}", err=True)
    return 3


def _whom_to_tell(rolled_back: list[Any]) -> str:
    """What to do about rewrites that were wrong: those of a plugin are their author's."""
    if all(r.name == "convert-dtype" for r in rolled_back):  # that is no bug
        return ""
    from onnxopt.pipeline.registry import get_pass, origin

    try:
        homes = {origin(get_pass(re.split("[{(]", r.pass_text)[0])) for r in rolled_back}
    except OnnxOptError:  # a pass of several, that has no name
        return "report it; "
    return "report it; " if "onnxopt" in homes else f"correct it in {few(sorted(homes))}; "


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


def _print(report: dict[str, Any], telling: Telling) -> None:
    """A table where somebody looks; plain lines in pipes and logs, which also spares the import of rich."""
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
