"""Results of earlier runs, found by the content of what they were made from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxopt.batch.job import Job
from onnxopt.batch.placing import file_digest, files_of


@dataclass(frozen=True)
class Key:
    """What a result depends on, as a digest. `named`: its data files are called after it, so its name is part of it."""

    digest: str
    named: bool


@dataclass(frozen=True)
class Known:
    """A result in the cache: the file of the model, alone or with its data, the report and exit code of its run."""

    model: Path
    report: dict[str, Any]
    code: int


class Cache:
    """A folder with an entry for each (model, options, versions). Many processes may use it at once.

    An entry is written beside its place and renamed into it, so that it is there whole or not at all; one that was
    damaged since does not match its digests and counts for nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, source: Path, job: Job) -> Key:
        """From the bytes of model, data, inputs and plugins, options, versions. Raises ModelError for a bad model."""
        from importlib.metadata import version

        from onnxopt import __version__
        from onnxopt.io.external import ExternalData, external_tensors, location
        from onnxopt.io.load import read_proto

        data = ExternalData(source.absolute().parent, source.name)
        beside = sorted({location(t).file for t in external_tensors(read_proto(source))})
        inputs = job.verify_options.inputs if job.verify_options is not None else {}
        made_of = {
            "onnxopt": [__version__, _code_digest(Path(__file__).resolve().parents[1])],
            "versions": [version(p) for p in ("onnx", "onnxruntime", "numpy")],
            "options": _plain(asdict(job.options)),
            "verify": _plain(asdict(job.verify_options)) if job.verify_options is not None else None,
            "strict": job.strict,
            "plugins": [[p, _module_digest(p)] for p in job.plugins] + list(_installed_plugins()),
            "model": file_digest(source),
            "data": [[name, file_digest(data.path("", name))] for name in beside],
            "inputs": [file_digest(Path(p)) for p in inputs.values()],
            "name": Path(job.destination).name if beside else "",
        }
        return Key(hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest(), bool(beside))

    def get(self, key: Key) -> Known | None:
        """The entry, if it is there and whole."""
        entry = self._entry(key)
        try:
            record = json.loads((entry / "record.json").read_text())
            files = {name: entry / "files" / name for name in record["files"]}
            if any(file_digest(files[name]) != digest for name, digest in record["files"].items()):
                return None
            return Known(files[record["model"]], dict(record["report"]), int(record["code"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(self, key: Key, model: Path, report: dict[str, Any], code: int) -> None:
        """Keep a result that has a folder to itself. A cache that cannot be written is no reason to fail."""
        entry, files = self._entry(key), list(files_of(model))
        if len(files) > 1 and not key.named:
            return  # it outgrew a single file: its data are called after it
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".new.") as place:
                new = Path(place) / "entry"
                digests = {}
                for file in files:
                    name = file.relative_to(model.parent).as_posix()
                    copy = new / "files" / name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
                    digests[name] = file_digest(copy)
                record = {"model": model.name, "files": digests, "report": report, "code": code}
                (new / "record.json").write_text(json.dumps(record))
                if entry.exists() and self.get(key) is None:
                    shutil.rmtree(entry, ignore_errors=True)
                os.replace(new, entry)
        except OSError:
            return

    def _entry(self, key: Key) -> Path:
        return self.folder / key.digest[:2] / key.digest


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def _code_digest(package: Path) -> str:
    """A digest of a package's sources. Their bytes, not their times: each installation has other times."""
    found = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        data = file.read_bytes()
        found.update(f"{file.relative_to(package)} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()


def _module_digest(source: str) -> str:
    """A digest of a plugin's code: the file, or all of the package; empty for what has no source."""
    from importlib.util import find_spec

    if source.endswith(".py"):
        return file_digest(Path(source))
    spec = find_spec(source.partition(".")[0])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ""
    return _code_digest(Path(spec.origin).parent) if spec.submodule_search_locations else file_digest(Path(spec.origin))


def _installed_plugins() -> Iterator[list[str]]:
    from importlib.metadata import entry_points

    from onnxopt.pipeline.registry import GROUP

    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        yield [point.name, point.value, _module_digest(point.value.partition(":")[0])]
