"""Execution of a single job in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.batch import Job, Outcome, places
from onnxopt.batch.cache import Cache, Key
from onnxopt.errors import MAKE_ROOM, ModelError, OnnxOptError, in_a_line, inside, refused, unreadable, unwritable
from onnxopt.io import refuse_overwriting_input
from onnxopt.io.load import Watch, named_files
from onnxopt.io.staging import put_in_place, refuse_special
from onnxopt.verification import UNVERIFIED, Verifier

if TYPE_CHECKING:
    from onnxopt.io.staging import StagingFolder
    from onnxopt.optimizer import Report
    from onnxopt.pipeline import Instrument
    from onnxopt.worker.service import Spare

Phase = Callable[[str], None]


def run(
    job: Job, progress: Phase = lambda name: None, instruments: Sequence[Instrument] = (), judge: Spare | None = None
) -> Outcome:
    """Run a job and return its outcome; errors of a model are outcomes.

    judge: pool of workers, reused between jobs.
    """
    start = time.perf_counter()
    outcome = Outcome(job.source, job.destination)
    try:
        _run(job, outcome, progress, instruments, judge)
    except Exception as e:
        outcome.status = "failed"
        outcome.code, outcome.message, outcome.hint = _failure(job, e)
        if (report := getattr(e, "report", None)) is not None:
            outcome.report = report.to_dict()
    outcome.seconds = time.perf_counter() - start
    return outcome


def _failure(job: Job, error: Exception) -> tuple[int, str, str]:
    """Return the exit code, message and hint for an exception."""
    if what := refused(error):
        return 2, f"{job.source}: the system refuses: {what}", MAKE_ROOM
    if isinstance(error, OSError) and error.filename:  # a file present before
        error = unreadable(error.filename, error)
    if isinstance(error, OnnxOptError):
        return error.exit_code, error.message, error.hint
    return 4, f"{job.source}: internal error: {type(error).__name__}: {in_a_line(error)}", "please report it"


def _run(job: Job, outcome: Outcome, progress: Phase, instruments: Sequence[Instrument], judge: Spare | None) -> None:
    """Run a job, from the cache or by optimization, and complete the outcome. Raises errors of the model."""
    from onnxopt.pipeline.registry import load_module

    for plugin in job.plugins:
        load_module(plugin)
    with ExitStack() as stack:
        watch = Watch(Path(job.source))
        source = _model_file(job, progress, stack)
        _refuse_place(job, source)
        # Results that refer to further files are not cached.
        cache = Cache(Path(job.cache)) if job.cache and job.options.external != "reuse" else None
        if cache is not None:
            key, outcome.notes = cache.key(source, job), cache.notes  # includes later notes
            if _from_cache(cache, key, job, source, outcome, stack.enter_context(places.staging(job))):
                return
        folder = stack.enter_context(places.staging(job))
        made = folder.path / (Path(os.path.realpath(job.destination)).name or "model.onnx")
        try:
            report = _optimized(job, source, made, progress, instruments, judge)
        except OnnxOptError as e:  # replaces the temporary name in the message
            e.message = e.message.replace(str(made), job.destination or job.source)
            raise
        report.source, report.destination = job.source, "" if job.check else job.destination
        outcome.report, outcome.code = report.to_dict(), 3 if report.rolled_back else 0
        lasts = report.verification is None or report.verification.status != UNVERIFIED  # more time may give a verdict
        if cache is not None and lasts and key.watch.changed is None:
            cache.put(key, made, outcome.report, outcome.code)
        if job.in_place:
            watch.refuse()  # a newer model is not replaced by a result of the older
        _place(job, source, made, outcome, folder, cached=False)


def _model_file(job: Job, progress: Phase, stack: ExitStack) -> Path:
    """Return the file of the model; a download lasts until `stack` closes."""
    source = Path(job.source)
    if places.is_url(job.source):
        progress("fetching")
        source = places.fetch(job.source, stack.enter_context(places.fetching()).path)
    if source.is_dir():
        raise ModelError(f"{source} is a directory", inside(source))
    return source


def _refuse_place(job: Job, source: Path) -> None:
    """Raise an error for a destination that must not be replaced."""
    if job.in_place:
        _refuse_parted(source)
    elif not (job.check or places.is_url(job.destination)):
        refuse_special(Path(os.path.realpath(job.destination)))
        refuse_overwriting_input(source, Path(job.destination))


def _from_cache(cache: Cache, key: Key, job: Job, source: Path, outcome: Outcome, shelf: StagingFolder) -> bool:
    """Put a cached result into place; return whether one exists."""
    known = cache.get(key, shelf.path)
    if known is None:
        return False
    outcome.report = known.report | {"source": job.source, "destination": "" if job.check else job.destination}
    outcome.code = known.code
    _place(job, source, known.model, outcome, shelf, cached=True)
    return True


def _optimized(
    job: Job, source: Path, made: Path, progress: Phase, instruments: Sequence[Instrument], judge: Spare | None
) -> Report:
    """Optimize into `made` and return the report."""
    from onnxopt.rollback import optimize_or_roll_back

    counting: list[Counts] = []
    if job.stats:
        from onnxopt.pipeline.instruments import Counts

        counting.append(Counts())
    verifier = None
    if job.verify_options is not None and not job.options.only_copy:
        verifier = Verifier(source, job.verify_options, spare=judge)
    report = optimize_or_roll_back(
        source,
        made,
        job.options,
        verify_options=job.verify_options,
        verifier=verifier,
        strict=job.strict,
        allow_unverified=job.allow_unverified,
        progress=progress,
        instruments=[*instruments, *counting],
        reproducer=job.reproducer or None,
        zero_weights=job.zero_weights,
        home=_home(job, source),
    )
    for counts in counting:
        report.stats = counts.to_dict(job.source, job.destination, report.bytes_after)
    return report


def _home(job: Job, source: Path) -> Path | None:
    """Return the folder where the result will be read (with `check`, the source's); None for a URL."""
    if places.is_url(job.destination):
        return None
    return source.absolute().parent if job.check else Path(os.path.realpath(job.destination)).parent


def _refuse_parted(source: Path) -> None:
    """Raise ModelError for a model that in-place replacement would separate from its data.

    Either the model is a link to a different folder, or the model file is its own data file.
    """
    named = named_files(source)
    if named and os.path.dirname(os.path.realpath(source)) != os.path.realpath(source.absolute().parent):
        hint = f"name {os.path.realpath(source)} itself, or use OUT or --out-dir"
        raise ModelError(f"{source} has external data, and is a link into another folder", hint)
    for name in named:
        with suppress(OSError, ValueError):
            if os.path.samefile(source.absolute().parent / name, source):
                raise ModelError(f"{source} is its own data file, which is not replaced", "use OUT or --out-dir")


def _is_same(made: Path, source: Path, job: Job) -> bool:
    """Return whether two files have equal bytes. Raises ModelError if unreadable, where relevant."""
    try:
        return places.file_digest(made) == places.file_digest(source)
    except OSError as e:
        if job.check or job.in_place or not isinstance(e, FileNotFoundError):
            raise unreadable(source, e) from None
        return False  # the result outlives its source


def _place(job: Job, source: Path, made: Path, outcome: Outcome, folder: StagingFolder, cached: bool) -> None:
    """Move a result from `folder` to its destination, unless already there, and set the status. Raises WriteError."""
    if _is_same(made, source, job):
        outcome.status = "unchanged"
        if job.check or job.in_place:
            return
    elif job.check:
        outcome.status, outcome.code = "would change", 1
        return
    else:
        outcome.status = "cached" if cached else "optimized"
    if places.is_url(job.destination):
        places.store(made, list(places.files_of(made)), job.destination)
        return
    target = Path(job.destination)
    if places.same_files(made, target):
        outcome.status = "unchanged" if outcome.status == "unchanged" else "current"
        return
    try:
        backup = Path(f"{target}{job.backup}") if job.in_place and job.backup else None
        if backup is not None:
            places.keep_original(target, backup)
        data = [file for file in places.files_of(made) if file != made]
        put_in_place(made, data, Path(os.path.realpath(target)), folder.intend, backup)
    except OSError as e:
        raise unwritable(target, e, "the original is as it was") from None
