"""One model of many: what to do, and what came of it. Both are plain data, and can be sent."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from onnxopt.api import OptimizeOptions
from onnxopt.batch.cache import Cache
from onnxopt.batch.storage import fetched, is_url, stored
from onnxopt.errors import ModelError, OnnxOptError, WriteError
from onnxopt.verification import VerifyOptions

if TYPE_CHECKING:
    from onnxopt.pipeline import Instrument

# From the best to the worst that can happen; `worst_code` goes by it.
_SEVERITY = (0, 3, 1, 2, 4)


@dataclass(frozen=True)
class Job:
    """Optimize `source` into `destination` (paths or URLs); the same path twice means in place.

    `check`: write nothing, and say whether the result would be another file. `backup`: a suffix under which what is
    replaced in place is kept, unless such a file is there already. `cache`: a folder with results of earlier runs.
    `plugins`: files or modules that define passes. `token`: tells the job from others, also when it is tried again.
    """

    source: str
    destination: str
    options: OptimizeOptions = field(default_factory=OptimizeOptions)
    verify_options: VerifyOptions | None = field(default_factory=VerifyOptions)  # None: do not verify
    strict: bool = False
    check: bool = False
    backup: str = ""
    cache: str = ""
    plugins: tuple[str, ...] = ()
    reproducer: str = ""
    token: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def in_place(self) -> bool:
        return not self.check and os.path.realpath(self.source) == os.path.realpath(self.destination)


@dataclass
class Outcome:
    """What came of a job.

    `status`: optimized, unchanged (the result is the input), current (the destination is the result already), cached
    (taken from the cache), would change (`check`), failed. `code`: what `onnxopt optimize` would exit with.
    `report`: that of `api.Report`, None where there is none. `seconds`: of this run.
    """

    source: str
    destination: str
    status: str = "failed"
    code: int = 4
    message: str = ""
    hint: str = ""
    report: dict[str, Any] | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def worst_code(codes: Iterable[int]) -> int:
    """The exit code of all: 4 (a bug) before 2 (input, usage), 1 (a check failed), 3 (a rule was left out), 0."""
    return max(codes, key=lambda c: _SEVERITY.index(c) if c in _SEVERITY else len(_SEVERITY), default=0)


def run(
    job: Job, progress: Callable[[str], None] = lambda name: None, instruments: Sequence[Instrument] = ()
) -> Outcome:
    """Do it. Never raises for what happens to one model: the outcome says it."""
    start = time.perf_counter()
    outcome = Outcome(job.source, job.destination)
    try:
        _run(job, outcome, progress, instruments)
    except OnnxOptError as e:
        outcome.status, outcome.code, outcome.message, outcome.hint = "failed", e.exit_code, e.message, e.hint
        report = getattr(e, "report", None)
        outcome.report = report.to_dict() if report is not None else outcome.report
    except Exception as e:
        outcome.status, outcome.code = "failed", 4
        outcome.message = f"{job.source}: internal error: {type(e).__name__}: {' '.join(str(e).split())}"
        outcome.hint = "please report it"
    outcome.seconds = time.perf_counter() - start
    return outcome


def _run(job: Job, outcome: Outcome, progress: Callable[[str], None], instruments: Sequence[Instrument]) -> None:
    from onnxopt.pipeline.registry import load_module

    for plugin in job.plugins:
        load_module(plugin)
    with ExitStack() as stack:
        source = stack.enter_context(fetched(job.source))
        if job.in_place:
            _refuse_external(source)
        cache = Cache(Path(job.cache)) if job.cache else None
        key = cache.key(source, job) if cache is not None else ""
        known = cache.get(key) if cache is not None else None
        if known is not None:
            outcome.report = known.report | {"source": job.source, "destination": "" if job.check else job.destination}
            outcome.code = known.code
            _place(job, source, known.model, outcome, cached=True)
            return
        clear_staging(job)
        folder = Path(stack.enter_context(_beside(job)))
        made = folder / (Path(job.destination).name or "model.onnx")
        report = _optimized(job, source, made, progress, instruments)
        report.source, report.destination = job.source, "" if job.check else job.destination
        outcome.report, outcome.code = report.to_dict(), 3 if report.rolled_back else 0
        if cache is not None and {p.name for p in folder.iterdir()} == {made.name}:
            cache.put(key, made, outcome.report, outcome.code)
        _place(job, source, made, outcome, cached=False)


def _optimized(
    job: Job, source: Path, made: Path, progress: Callable[[str], None], instruments: Sequence[Instrument]
) -> Any:
    from onnxopt.rollback import optimize_or_roll_back

    return optimize_or_roll_back(
        source,
        made,
        job.options,
        verify_options=job.verify_options,
        strict=job.strict,
        progress=progress,
        instruments=instruments,
        reproducer=job.reproducer or None,
    )


def _beside(job: Job) -> Any:
    """A folder for the result on the file system where it goes; anywhere if it goes nowhere, or over a network."""
    if job.check or is_url(job.destination):
        return tempfile.TemporaryDirectory()
    place = Path(os.path.realpath(job.destination)).parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=_staging(job), suffix=".tmp", dir=place)
    except OSError as e:
        raise WriteError(
            f"cannot write {job.destination}: {e.strerror or e}", "name a folder that can be written"
        ) from None


def _staging(job: Job) -> str:
    return f".onnxopt.{job.token}."


def clear_staging(job: Job) -> None:
    """Remove what a process that was killed had staged for this job."""
    if not is_url(job.destination):
        for folder in Path(os.path.realpath(job.destination)).parent.glob(f"{_staging(job)}*.tmp"):
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_external(source: Path) -> None:
    from onnxopt.io.external import external_tensors
    from onnxopt.io.load import read_proto

    if any(True for _ in external_tensors(read_proto(source))):
        raise ModelError(f"{source} has external data, which is not replaced in place", "use OUT or --out-dir")


def _place(job: Job, source: Path, made: Path, outcome: Outcome, cached: bool) -> None:
    """Bring the result to its destination, if it is not there already."""
    digest = file_digest(made)
    if digest == file_digest(source):
        outcome.status = "unchanged"
        if job.check or job.in_place:
            return
    elif job.check:
        outcome.status, outcome.code = "would change", 1
        return
    else:
        outcome.status = "cached" if cached else "optimized"
    if is_url(job.destination):
        stored(made, job.destination)
        return
    target = Path(job.destination)
    alone = not any(p for p in made.parent.iterdir() if p != made) or cached
    if alone and target.is_file() and file_digest(target) == digest:
        outcome.status = "unchanged" if outcome.status == "unchanged" else "current"
        return
    try:
        if job.in_place and job.backup:
            _keep(target, Path(f"{target}{job.backup}"))
        _move(made, target, cached)
    except OSError as e:
        raise WriteError(f"cannot write {target}: {e.strerror or e}", "the original is as it was") from None


def _keep(original: Path, backup: Path) -> None:
    """The first original stays: a second run would replace it by what the first one made."""
    if not backup.exists():
        shutil.copy2(original, backup)


def _move(made: Path, target: Path, cached: bool) -> None:
    """Files of the result into place, the model last; what comes out of a cache is copied."""
    real = Path(os.path.realpath(target))
    real.parent.mkdir(parents=True, exist_ok=True)
    if cached:
        with tempfile.TemporaryDirectory(prefix=".onnxopt.", suffix=".tmp", dir=real.parent) as folder:
            copy = Path(folder) / real.name
            shutil.copyfile(made, copy)
            _move(copy, real, cached=False)
        return
    for file in sorted(made.parent.rglob("*"), key=lambda p: p == made):
        if file.is_file() and not file.is_symlink():
            place = real if file == made else real.parent / file.relative_to(made.parent)
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                shutil.copymode(place, file)
            os.replace(file, place)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
