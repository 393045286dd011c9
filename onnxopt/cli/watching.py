"""Options for observing a run, and their instruments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onnxopt.cli.completing import known_passes, names_option
from onnxopt.cli.files import write_text
from onnxopt.cli.options import apply_all, requested_changes
from onnxopt.cli.say import say
from onnxopt.cli.values import NewFile

if TYPE_CHECKING:
    from onnxopt.pipeline import Instrument
    from onnxopt.verification import VerifyOptions

F = TypeVar("F", bound=Callable[..., Any])
WATCHES = ("time_passes", "print_ir_after", "print_ir_before", "dump_dir", "check_each", "verify_each", "journal")


def instrument_options(function: F) -> F:
    """Options for instruments; `Watch` creates the instruments."""
    return apply_all(
        [
            click.option("--time-passes", is_flag=True, help="Show where the time went, as a tree of passes."),
            names_option(
                "--print-ir-after",
                complete=known_passes,
                metavar="PASS|all|changed",
                help="Print the model as text after these passes.",
            ),
            names_option(
                "--print-ir-before",
                complete=known_passes,
                metavar="PASS|all",
                help="Print the model before these passes.",
            ),
            click.option(
                "--dump-dir",
                type=click.Path(path_type=Path, file_okay=False),
                metavar="DIR",
                help="Write the model into this folder after each pass with changes, numbered.",
            ),
            click.option("--check-each", is_flag=True, help="Check the graph's invariants after each pass."),
            click.option("--verify-each", is_flag=True, help="Compare with the original after each pass."),
            click.option(
                "--journal",
                type=NewFile(),
                metavar="FILE",
                help="Write the rule of each new node as JSON.",
            ),
        ],
        function,
    )


class Watch:
    """The instruments of the command line; `report` prints their data."""

    def __init__(self, source: Path, given: dict[str, Any], verify_options: VerifyOptions | None = None) -> None:
        self.instruments: list[Instrument] = []
        self._timing: Any = None
        self._journal: Any = None
        self._file: Path | None = given["journal"]
        if not any(given[k] for k in WATCHES):
            return
        from onnxopt.pipeline import CheckEach, DumpModels, Journal, PrintIR, Timing, VerifyEach

        if given["print_ir_after"] or given["print_ir_before"]:
            self.instruments.append(PrintIR(given["print_ir_after"], given["print_ir_before"]))
        if given["dump_dir"]:
            self.instruments.append(DumpModels(given["dump_dir"]))
        if given["check_each"]:
            self.instruments.append(CheckEach())
        if given["verify_each"]:
            from onnxopt.verification import VerifyOptions

            libraries = verify_options.custom_op_libraries if verify_options is not None else ()
            options = VerifyOptions(custom_op_libraries=libraries, **requested_changes(given))
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

            write_text(self._file, json.dumps(self._journal.to_list(), indent=2) + "\n")


class Recorder:
    """The data of `--report` beside the report: times of passes, and the rule of each new node."""

    def __init__(self) -> None:
        from onnxopt.pipeline.instruments import Timeline
        from onnxopt.pipeline.journal import Journal

        self._timeline, self._journal = Timeline(), Journal()
        self.instruments: list[Instrument] = [self._timeline, self._journal]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"timeline": self._timeline.to_list(), "journal": self._journal.to_list()}
