"""A run of `onnxopt optimize IN OUT`: instruments, optimization, output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.cli.files import json_text, write_bytes
from onnxopt.cli.options import changes_in, make_options, together
from onnxopt.cli.say import OutputSettings, say, say_cut
from onnxopt.cli.values import NewFile, known_passes, names_option
from onnxopt.errors import OnnxOptError

if TYPE_CHECKING:
    from onnxopt.optimizer import DifferentResult, Report
    from onnxopt.pipeline import Instrument
    from onnxopt.verification import Verifier, VerifyOptions


# Options with which the job of a verifier changes: by sizes, or by references that plugins declare when a name is read.
_OF_A_JOB = ("dims", "shapes", "freeze_initializers", "plugins", "pipeline", "extra", "disable", "config", "target")
WATCHES = ("time_passes", "print_ir_after", "print_ir_before", "dump_dir", "check_each", "verify_each", "journal")


# Options for instruments; `CommandInstruments` creates the instruments.
instrument_options = together(
    click.option("--time-passes", is_flag=True, help="Show where the time went, as a tree of passes."),
    names_option(
        "--print-ir-after",
        complete=known_passes,
        metavar="PASS|all|changed",
        help="Print the model as text after these passes.",
    ),
    names_option(
        "--print-ir-before", complete=known_passes, metavar="PASS|all", help="Print the model before these passes."
    ),
    click.option(
        "--dump-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write the model into this folder after each pass with changes, numbered.",
    ),
    click.option("--check-each", is_flag=True, help="Check the graph's invariants after each pass."),
    click.option("--verify-each", is_flag=True, help="Compare with the original after each pass."),
    click.option("--journal", type=NewFile(), metavar="FILE", help="Write the rule of each new node as JSON."),
)


class CommandInstruments:
    """The instruments of the command line; `report` prints their data."""

    def __init__(self, source: Path, given: dict[str, Any], verify_options: VerifyOptions | None = None) -> None:
        self.instruments: list[Instrument] = []
        self._timing: Any = None
        self._journal: Any = None
        self._file: Path | None = given["journal"]
        if not any(given[k] for k in WATCHES):
            return
        from onnxopt.pipeline.instruments import CheckEach, DumpModels, PrintIR, Timing, VerifyEach
        from onnxopt.pipeline.journal import Journal

        if given["print_ir_after"] or given["print_ir_before"]:
            self.instruments.append(PrintIR(given["print_ir_after"], given["print_ir_before"]))
        if given["dump_dir"]:
            self.instruments.append(DumpModels(given["dump_dir"]))
        if given["check_each"]:
            self.instruments.append(CheckEach())
        if given["verify_each"]:
            from onnxopt.verification import VerifyOptions

            libraries = verify_options.custom_op_libraries if verify_options is not None else ()
            options = VerifyOptions(custom_op_libraries=libraries, **changes_in(given))
            self.instruments.append(VerifyEach(source, options))
        if given["journal"]:
            self._journal = Journal()
            self.instruments.append(self._journal)
        if given["time_passes"]:
            self._timing = Timing()
            self.instruments.append(self._timing)

    def report(self) -> None:
        """Print the times to stderr and write the journal."""
        if self._timing is not None:
            for line in self._timing.lines():
                say(line, err=True)
        if self._journal is not None and self._file is not None:
            import json

            write_bytes(self._file, f"{json.dumps(self._journal.to_list(), indent=2)}\n".encode())


# -- the run ----------------------------------------------------------------------------------------------------------


class SingleRun:
    """A run of IN OUT. `asked`: the parameters of the command by name."""

    def __init__(self, asked: dict[str, Any], verify_options: VerifyOptions | None, output: OutputSettings) -> None:
        self.asked, self.verify_options, self.output = asked, verify_options, output

    def run(self, source: Path, destination: Path, called: tuple[str, str] | None = None) -> int:
        """Optimize, and print the result; returns the exit code.

        `called`: the user's names of source and destination. Raises the errors of `optimize_file`.
        """
        output, called = self.output, called or (str(source), str(destination))
        report: Report | None = None
        failure: OnnxOptError | None = None
        try:
            report, failure = self._optimize(source, destination, called)
        except OnnxOptError as e:
            failure = e
        code = 3 if report is not None and report.rolled_back else 0
        if output.wanted:
            from onnxopt.cli.batch import finish_single

            code = finish_single(output, called, report, failure, code)
        if failure is not None:
            failure.told = True
            raise failure
        return code

    def _optimize(
        self, source: Path, destination: Path, called: tuple[str, str]
    ) -> tuple[Report, DifferentResult | None]:
        """Return the report, also for a different result, after printing it and all that instruments recorded."""
        asked, output = self.asked, self.output
        verifier = self._started(source)
        # Here, not in nested imports: calls are slower at the end of a chunk of Python's stack.
        import onnx  # noqa: F401

        options = make_options(asked)
        watch = CommandInstruments(source, asked, self.verify_options)
        recorded = self._recorders()
        from onnxopt.api.settings import run
        from onnxopt.optimizer import DifferentResult
        from onnxopt.reporting.progress import Progress

        failure = None
        with Progress(enabled=not output.quiet, steps=True) as progress:
            try:
                report = run(
                    source,
                    destination,
                    options,
                    called=called,
                    inputs=asked["begin"],
                    outputs=asked["end"],
                    cut=say_cut,
                    verify_options=self.verify_options,
                    verifier=verifier,
                    progress=progress.phase,
                    instruments=[*watch.instruments, *recorded.values()],
                    began=click.get_current_context().obj,
                    **{name: asked[name] for name in ("strict", "allow_unverified", "reproducer", "zero_weights")},
                )
            except DifferentResult as e:
                report, failure = e.report, e
        if (counts := recorded.pop("stats", None)) is not None:
            report.stats = counts.to_dict(*called, report.bytes_after)
            if asked["begin"] or asked["end"]:
                from onnxopt.api.analyses import stats

                report.stats["before"] = stats(source).to_dict()
        if asked["report_file"] is not None:
            parts = {name: instrument.to_list() for name, instrument in recorded.items()}
            write_bytes(asked["report_file"], json_text(report.to_dict() | parts).encode())
        if not output.quiet and output.form == "text":
            _print(report.to_dict(), output)
        watch.report()
        for line in report.remarks(options, asked["plugins"]):
            say(line, err=True)
        return report, failure

    def _recorders(self) -> dict[str, Any]:
        """Return the instruments whose records become parts of the report, by key."""
        found: dict[str, Any] = {}
        if self.asked["report_file"] is not None:
            from onnxopt.pipeline.instruments import Timeline
            from onnxopt.pipeline.journal import Journal

            found |= {"timeline": Timeline(), "journal": Journal()}
        if self.output.stats or self.output.has_summary:
            from onnxopt.pipeline.instruments import Counts

            found["stats"] = Counts()
        return found

    def _started(self, source: Path) -> Verifier | None:
        """Return a verifier that imports in parallel, if the whole model is verified.

        It runs the original at once, unless options change the job.
        """
        asked = self.asked
        changes = any(asked[key] for key in ("level", "pipeline", "dtype", "int32", "strip_qdq"))
        if self.verify_options is None or not changes or asked["begin"] or asked["end"]:
            return None
        from onnxopt.verification import Verifier

        verifier = Verifier(source, self.verify_options)
        verifier.start()
        if not (verifier.names_inputs or any(asked[key] for key in _OF_A_JOB)):
            verifier.prepare()
        return verifier


def _print(report: dict[str, Any], output: OutputSettings) -> None:
    """Print a table on a terminal, and plain lines elsewhere, without an import of rich."""
    if sys.stdout.isatty():
        from onnxopt.reporting.console import print_report

        print_report(report, output.verbose)
        if report["source"] and report["destination"]:
            import shlex

            places = shlex.join((report["source"], report["destination"]))
            say(f"next: onnxopt report {places} -o report.html", dim=True)
    else:
        from onnxopt.reporting.plain import lines

        for line in lines(report, output.verbose):
            say(line, err=output.data_on_stdout)
    if output.stats:
        from onnxopt.cli.stats import show_changes

        show_changes(report, err=output.data_on_stdout)
