"""`onnxopt optimize` for several models, and for a model that is checked, cached or replaced."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onnxopt.batch import Job, Outcome, worst_code
from onnxopt.batch.budget import Budget
from onnxopt.batch.local import run_locally
from onnxopt.batch.places import destinations, refuse_shared
from onnxopt.batch.run import run
from onnxopt.cli.files import json_text, write_bytes
from onnxopt.cli.say import OutputSettings, say, say_all, say_command, say_error
from onnxopt.cli.stats import changes_markdown, show_changes
from onnxopt.errors import OnnxOptError, UsageError, few, noted

if TYPE_CHECKING:
    from onnxopt.optimizer import Report
    from onnxopt.pipeline import Instrument


def places(models: Sequence[str], out_dir: str | None, in_place: bool, check: bool) -> list[tuple[str, str]]:
    """Return (source, destination) of each job. Raises UsageError for contradictory destinations."""
    if sum((out_dir is not None, in_place, check)) > 1:
        raise UsageError("--out-dir, --in-place and --check exclude each other", "leave all but one out")
    if "-" in models:
        raise UsageError("stdin and stdout are for one model: onnxopt optimize - -", "name files")
    if in_place or check:
        pairs = [(m, m) for m in models]
    elif out_dir is not None:
        pairs = list(zip(models, destinations(models, out_dir)))
    elif len(models) == 2:
        pairs = [(models[0], models[1])]
    else:
        raise UsageError("the results of several models need a folder", "--out-dir DIR, or --in-place to replace them")
    if not check:
        refuse_shared(pairs)
    return pairs


def mark_over_budget(budgets: Sequence[Budget], outcomes: Sequence[Outcome]) -> None:
    """Mark outcomes above a budget as failed."""
    for outcome in outcomes:
        if outcome.report is None or outcome.code not in (0, 3):
            continue
        exceeded = [said for b in budgets if (said := b.exceeded(outcome.report))]
        if exceeded:
            outcome.code, outcome.message = 1, f"{outcome.source}: over budget: {'; '.join(exceeded)}"
            outcome.hint = "the result is there; the budget is --fail-if, or fail-if in the project's file"


def publish(output: OutputSettings, outcomes: Sequence[Outcome]) -> None:
    """Write files and annotations for build systems, and JSON to stdout."""
    from onnxopt.reporting.batch import junit, workflow_commands

    records = [o.to_dict() for o in outcomes]
    document = {"models": records, "exit_code": worst_code(o.code for o in outcomes)}
    if output.junit is not None:
        write_bytes(output.junit, junit(records))
    if output.report is not None:
        write_bytes(output.report, json_text(document).encode())
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        _append_summary(summary, records)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for text in workflow_commands(records):
            say_command(text, err=output.data_on_stdout or output.form == "json")
    if output.form == "json":
        say_all(json_text(document))


def _append_summary(file: str, records: list[dict[str, Any]]) -> None:
    from onnxopt.reporting.batch import markdown

    try:
        with open(file, "a", encoding="utf-8") as f:
            f.write(markdown(records) + "\n" + changes_markdown(records))
    except OSError as e:
        say(f"warning: GITHUB_STEP_SUMMARY: cannot write {file}: {e.strerror or e}", err=True)


def optimize_many(
    jobs: Sequence[Job], processes: int, executor: str, output: OutputSettings, instruments: Sequence[Instrument]
) -> int:
    """Run the jobs and print the outcomes; returns the exit code of the whole run."""
    from onnxopt.reporting.progress import Board

    shown, finished = output.form == "text" and not output.quiet, 0
    at_work: dict[str, str] = {}
    try:
        with Board(len(jobs), enabled=not output.quiet) as board:

            def done(outcome: Outcome) -> None:
                nonlocal finished
                finished += 1
                at_work.pop(outcome.source, None)
                mark_over_budget(output.budgets, [outcome])
                board.done(outcome.source)
                if shown and not sys.stdout.isatty():
                    _say(outcome, output.verbose)
                    if output.stats and outcome.report is not None:
                        show_changes(outcome.report)

            def phase(source: str, name: str) -> None:
                at_work[source] = name
                board.show(source, name)

            outcomes = _run(jobs, processes, executor, done, phase, instruments)
    except KeyboardInterrupt as e:
        say(err=True)  # behind the terminal's ^C, as click does
        stages = [f"{source} ({stage})" for source, stage in dict(at_work).items()]  # which threads may add to
        where = noted(e) or (f"at {few(stages)}" if stages else "")
        hint = f"{finished} of {len(jobs)} models were finished before, and stay" if finished else "nothing was written"
        hint = hint if executor == "local" else "what runs on the cluster already is finished there"
        raise _Interrupted(f"interrupted {where}".rstrip(), hint) from None
    if shown and output.stats and sys.stdout.isatty():
        for outcome in outcomes:
            show_changes(outcome.report or {})
    if shown:
        _conclude(outcomes, output.verbose)
    return _finish(outcomes, output)


def _finish(outcomes: Sequence[Outcome], output: OutputSettings) -> int:
    """Print warnings and errors, and write files for build systems; returns the exit code of the whole run."""
    for note in dict.fromkeys(note for outcome in outcomes for note in outcome.notes):
        say(f"warning: {note}", err=True)
    for outcome in outcomes:
        if outcome.code and (outcome.message or outcome.hint) and output.form == "text":
            say_error(outcome.message or outcome.source, outcome.hint)
    publish(output, outcomes)
    return worst_code(o.code for o in outcomes)


class _Interrupted(OnnxOptError):
    """An interrupted run of several models; the message names the running models."""

    exit_code = 130


def _say(outcome: Outcome, verbose: int) -> None:
    """Print the outcome of a model as plain lines, on request with the rewrites of the passes."""
    from onnxopt.plaintext import cleaned
    from onnxopt.reporting.batch import lines
    from onnxopt.reporting.plain import details

    if outcome.report is not None and verbose:
        for text in details(cleaned(outcome.report), verbose):
            say(text)
    for text in lines(outcome.to_dict()):
        say(text)


def _conclude(outcomes: Sequence[Outcome], verbose: int) -> None:
    """Print all outcomes: a table on a terminal, a single line elsewhere."""
    from onnxopt.reporting.batch import lines, print_table, summary

    records = [o.to_dict() for o in outcomes]
    if not sys.stdout.isatty():
        if len(records) > 1:
            say(summary(records))
        return
    from onnxopt.reporting.console import print_details

    for record in records:
        if record["report"] is not None and verbose:
            print_details(record["report"], verbose, record["source"] if len(records) > 1 else "")
    if len(records) == 1:
        for text in lines(records[0]):
            say(text)
    else:
        print_table(records)


def _run(
    jobs: Sequence[Job],
    processes: int,
    executor: str,
    done: Callable[[Outcome], None],
    phase: Callable[[str, str], None],
    instruments: Sequence[Instrument],
) -> list[Outcome]:
    kind, _, address = executor.partition(":")
    if kind == "dask" and address:
        from onnxopt.batch.cluster import run_on_dask

        return run_on_dask(jobs, address, done)
    if executor != "local":
        raise UsageError(f"there is no executor {executor!r}", "local, or dask:ADDRESS, such as dask:tcp://host:8786")
    if len(jobs) > 1:
        return run_locally(jobs, processes, done, phase)
    outcome = run(jobs[0], partial(phase, jobs[0].source), instruments)
    done(outcome)
    return [outcome]


def finish_single(
    output: OutputSettings, called: tuple[str, str], report: Report | None, failure: OnnxOptError | None, code: int = 0
) -> int:
    """Report a run of IN OUT to build systems; returns the exit code, with budgets. `report`: None if it failed."""
    outcome = Outcome(*called, "optimized", code)
    if report is not None:
        outcome.status = "optimized" if report.changed else "unchanged"
        outcome.report, outcome.seconds = report.to_dict(), report.seconds
    if failure is not None:
        outcome.status, outcome.code = "failed", failure.exit_code
        outcome.message, outcome.hint = failure.message, failure.hint
    mark_over_budget(output.budgets, [outcome])
    publish(output, [outcome])
    if failure is None and outcome.code == 1:
        say_error(outcome.message, outcome.hint)
    return outcome.code
