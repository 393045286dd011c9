"""Results of earlier runs, found by the content of what they were made from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxopt.batch.job import Job


@dataclass(frozen=True)
class Known:
    """A result in the cache: the file of the model, the report and exit code of the run that made it."""

    model: Path
    report: dict[str, Any]
    code: int


class Cache:
    """A folder with an entry for each (model, options, versions). Many processes may use it at once.

    An entry is written beside its place and renamed into it, so that it is there whole or not at all; one that was
    damaged since does not match its digest and counts for nothing. Results with external data are not kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, source: Path, job: Job) -> str:
        """What the result depends on, as a digest: bytes of model, data and plugins, options, versions. Raises
        ModelError if the model cannot be read."""
        from importlib.metadata import version

        from onnxopt import __version__
        from onnxopt.io.external import ExternalData, external_tensors, location
        from onnxopt.io.load import read_proto

        proto = read_proto(source)
        data = ExternalData(source.absolute().parent, source.name)
        files = [source, *(data.path("", f) for f in sorted({location(t).file for t in external_tensors(proto)}))]
        files += [p for p in map(Path, job.plugins) if p.is_file()]
        inputs = job.verify_options.inputs if job.verify_options is not None else {}
        files += [Path(p) for p in inputs.values()]
        made_of = {
            "onnxopt": [__version__, _own_code()],
            "versions": [version(p) for p in ("onnx", "onnxruntime", "numpy")],
            "options": _plain(asdict(job.options)),
            "verify": _plain(asdict(job.verify_options)) if job.verify_options is not None else None,
            "strict": job.strict,
            "plugins": list(job.plugins),
            "files": [_digest(Path(f)) for f in files],
        }
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    def get(self, key: str) -> Known | None:
        """The entry, if it is there and whole."""
        entry = self.folder / key[:2] / key
        try:
            record = json.loads((entry / "record.json").read_text())
            model = entry / "model.onnx"
            if record["sha256"] != _digest(model):
                return None
            return Known(model, dict(record["report"]), int(record["code"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, model: Path, report: dict[str, Any], code: int) -> None:
        """Keep a result. A cache that cannot be written is no reason to fail."""
        entry = self.folder / key[:2] / key
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".new.") as place:
                new = Path(place) / "entry"
                new.mkdir()
                shutil.copyfile(model, new / "model.onnx")
                record = {"sha256": _digest(new / "model.onnx"), "report": report, "code": code}
                (new / "record.json").write_text(json.dumps(record))
                if entry.exists() and self.get(key) is None:
                    shutil.rmtree(entry, ignore_errors=True)
                os.replace(new, entry)
        except OSError:
            return


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def _own_code() -> str:
    """A digest of onnxopt's own files: a version in development changes without a new number."""
    package = Path(__file__).resolve().parents[1]
    marks = [(str(p.relative_to(package)), p.stat().st_size, p.stat().st_mtime_ns) for p in package.rglob("*.py")]
    return hashlib.sha256(repr(sorted(marks)).encode()).hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
