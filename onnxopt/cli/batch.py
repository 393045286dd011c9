"""Several models, or one that is checked, cached or replaced: `onnxopt optimize` beyond IN OUT."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from onnxopt.batch import Budget, Job, Outcome, destinations, run, run_locally, worst_code
from onnxopt.cli.options import write_bytes
from onnxopt.cli.telling import Telling
from onnxopt.errors import OnnxOptError, UsageError

if TYPE_CHECKING:
    from onnxopt.api import Report
    from onnxopt.pipeline import Instrument


@dataclass(frozen=True)
class Places:
    """Which results go where."""

    models: tuple[str, ...]
    out_dir: str | None
    in_place: bool
    check: bool

    def pairs(self) -> list[tuple[str, str]]:
        """(source, destination) of each job. Raises UsageError where they contradict each other."""
        if sum((self.out_dir is not None, self.in_place, self.check)) > 1:
            raise UsageError("--out-dir, --in-place and --check exclude each other", "leave all but one out")
        if "-" in self.models:
            raise UsageError("stdin and stdout are for one model: onnxopt optimize - -", "name files")
        if self.in_place or self.check:
            return [(m, m) for m in self.models]
        if self.out_dir is not None:
            return list(zip(self.models, destinations(self.models, self.out_dir)))
        if len(self.models) == 2:
            return [(self.models[0], self.models[1])]
        raise UsageError("the results of several models need a folder", "--out-dir DIR, or --in-place to replace them")


def judge(budgets: Sequence[Budget], outcomes: Sequence[Outcome]) -> None:
    """Outcomes that exceed a budget fail."""
    for outcome in outcomes:
        if outcome.report is None or outcome.code not in (0, 3):
            continue
        exceeded = [said for b in budgets if (said := b.exceeded(outcome.report))]
        if exceeded:
            outcome.code, outcome.message = 1, f"{outcome.source}: over budget: {'; '.join(exceeded)}"
            outcome.hint = "the result is there; the budget is --fail-if, or fail-if in the project's file"


def tell(telling: Telling, outcomes: Sequence[Outcome]) -> None:
    """Files and annotations for build systems, and JSON on stdout."""
    from onnxopt.report.ci import junit, workflow_commands

    records = [o.to_dict() for o in outcomes]
    if telling.junit is not None:
        write_bytes(telling.junit, junit(records))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        from onnxopt.report.batch import markdown

        with open(summary, "a", encoding="utf-8") as f:
            f.write(markdown(records) + "\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for text in workflow_commands(records):
            click.echo(text, err=telling.data_on_stdout or telling.format == "json")
    if telling.format == "json":
        code = worst_code(o.code for o in outcomes)
        click.echo(json.dumps({"models": records, "exit_code": code}, indent=2))


def optimize_many(
    jobs: Sequence[Job], processes: int, executor: str, telling: Telling, instruments: Sequence[Instrument] = ()
) -> int:
    """Run the jobs, say what came of them; the exit code of all."""
    from onnxopt.report.progress import Bar

    with Bar(len(jobs), enabled=not telling.quiet) as bar:

        def done(outcome: Outcome) -> None:
            judge(telling.budgets, [outcome])
            bar.advance(outcome.source)
            if telling.format == "text" and not telling.quiet and not sys.stdout.isatty():
                _say(outcome)

        outcomes = _run(jobs, processes, executor, done, instruments)
    if telling.format == "text" and not telling.quiet:
        from onnxopt.report.batch import print_table, summary

        records = [o.to_dict() for o in outcomes]
        if sys.stdout.isatty():
            print_table(records)
        elif len(records) > 1:
            click.echo(summary(records))
    for outcome in outcomes:
        if outcome.code and (outcome.message or outcome.hint) and telling.format == "text":
            click.echo(f"error: {outcome.message}" if outcome.message else f"error: {outcome.source}", err=True)
            click.echo(f"hint: {outcome.hint}", err=True) if outcome.hint else None
    tell(telling, outcomes)
    return worst_code(o.code for o in outcomes)


def _say(outcome: Outcome) -> None:
    from onnxopt.report.batch import line

    click.echo(line(outcome.to_dict()))


def _run(
    jobs: Sequence[Job],
    processes: int,
    executor: str,
    done: Callable[[Outcome], None],
    instruments: Sequence[Instrument],
) -> list[Outcome]:
    kind, _, address = executor.partition(":")
    if kind == "dask" and address:
        from onnxopt.batch.cluster import run_on_dask

        return run_on_dask(jobs, address, done)
    if executor != "local":
        raise UsageError(f"there is no executor {executor!r}", "local, or dask:ADDRESS, such as dask:tcp://host:8786")
    if len(jobs) > 1:
        return run_locally(jobs, processes, done)
    outcomes = [run(job, instruments=instruments) for job in jobs]
    for outcome in outcomes:
        done(outcome)
    return outcomes


def finish_single(telling: Telling, report: Report, failure: OnnxOptError | None, code: int) -> int:
    """What build systems are told of a run of IN OUT; the exit code, in view of the budgets."""
    record: dict[str, Any] = report.to_dict()
    changed = any(rule["hits"] for p in record["pipeline"]["passes"] for rule in p["rules"].values())
    status = "optimized" if changed else "unchanged"
    outcome = Outcome(report.source, report.destination, status, code, report=record, seconds=report.seconds)
    if failure is not None:
        outcome.status, outcome.code = "failed", failure.exit_code
        outcome.message, outcome.hint = failure.message, failure.hint
    judge(telling.budgets, [outcome])
    tell(telling, [outcome])
    if failure is None and outcome.code == 1:
        click.echo(f"error: {outcome.message}", err=True)
        click.echo(f"hint: {outcome.hint}", err=True)
    return outcome.code
