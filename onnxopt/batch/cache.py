"""Cache of results, by digests of all inputs; entries are authenticated by a key of the user."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from onnxopt.batch import Job
from onnxopt.batch.places import file_digest, files_of
from onnxopt.io.load import Watch, named_files

VARIABLE: Final = "ONNXOPT_CACHE_KEY"  # a secret of a build system, whose machines have no permanent home
_BYTES: Final = 32


def cache_key() -> bytes:
    """Return the key. Raises OSError if no key can be stored, or the file is readable by others."""
    given = os.environ.get(VARIABLE, "")
    if given:
        return hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
    file = _folder() / "cache.key"
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(file)
        _make(file)
        return _read(file)
    except OSError as e:
        if e.strerror is None:  # the message is complete
            raise
        raise OSError(f"its key cannot be kept at {file}: {e.strerror}; {VARIABLE} gives one") from None


def is_own(found: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the current user; always True on systems without POSIX ids."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def _folder() -> Path:
    """Return the user's configuration folder, not the cache, which may be copied between machines."""
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    try:
        return Path(base) / "onnxopt" if os.path.isabs(base) else Path.home() / ".config" / "onnxopt"
    except RuntimeError as e:
        raise OSError(str(e)) from None


def _read(file: Path) -> bytes:
    with open(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as f:
        found = os.fstat(f.fileno())
        if not is_own(found) or (os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077):
            raise PermissionError(f"{file} can be read by others: remove it")
        key = f.read(_BYTES + 1)
    if len(key) != _BYTES:
        raise OSError(f"{file} is no key: remove it")
    return key


def _make(file: Path) -> None:
    """Create the key file with its content at once. If several processes create it, the first wins."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=file.parent, prefix=".cache.key.")  # readable by the user only
    try:
        with open(handle, "wb") as f:
            f.write(secrets.token_bytes(_BYTES))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
        except OSError:  # a file system without hard links
            os.replace(new, file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


_ALONE: Final = "model.onnx"  # name of a result without data files, whose own name is arbitrary


@dataclass(frozen=True)
class Key:
    """Digest of everything a result depends on."""

    digest: str
    named: bool  # data files are named after the result, so its name is included
    watch: Watch = field(default_factory=Watch, compare=False)  # of the files read


@dataclass(frozen=True)
class CachedResult:
    """A cached result, copied."""

    model: Path  # model file, with its data beside
    report: dict[str, Any]
    code: int


class _Refused(Exception):
    """An entry damaged, or not made by the user."""


class Cache:
    """A folder with an entry for each (model, options, versions), shared by processes.

    An entry is written beside its place, then renamed: it is complete or absent. Entries are authenticated with the
    user's key: damaged or foreign entries are ignored, and reported in `notes`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._secret: bytes | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_own(folder.stat()):
                raise PermissionError("it belongs to another user")
            self._secret = cache_key()
        except OSError as e:
            self.notes.append(f"the cache {folder} is not used: {e.strerror or e}")

    def key(self, source: Path, job: Job) -> Key:
        """Return the key of a job: bytes of all files read, options, versions. Raises ModelError for a bad model."""
        from onnxopt import __version__
        from onnxopt.proto.external import ExternalData
        from onnxopt.runtime import version_of

        data = ExternalData(source.absolute().parent, source.name)
        beside = named_files(source)
        watch = Watch(source, *(data.path("", name) for name in beside))
        verify = job.verify_options
        read = [*verify.inputs.values(), *verify.custom_op_libraries] if verify is not None else []
        made_of = {
            "onnxopt": [__version__, _code_digest(Path(__file__).resolve().parents[1])],
            "versions": [version_of(p) for p in ("onnx", "onnxruntime", "numpy")],
            "options": _plain(asdict(job.options)),
            "verify": _plain(asdict(verify)) if verify is not None else None,
            "strict": job.strict,
            "stats": job.stats,  # the report depends on `stats`
            "plugins": [[p, _module_digest(p)] for p in job.plugins] + list(_installed_plugins()),
            "model": file_digest(source),
            "data": [[name, file_digest(data.path("", name))] for name in beside],
            "inputs": [file_digest(Path(p)) for p in read],
            "name": Path(job.destination).name if beside else "",
        }
        return Key(hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest(), bool(beside), watch)

    def get(self, key: Key, into: Path) -> CachedResult | None:
        """Return the entry with files copied `into` a folder; None if absent or invalid."""
        if self._secret is None:
            return None
        try:
            record = self._record(key)
            for name, digest in record["files"].items():
                stored, copy = self._inside(key, "files", name), into / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(stored, copy)
                if file_digest(copy) != digest:  # the copy cannot be changed by others
                    raise _Refused
            if record["model"] not in record["files"]:
                raise _Refused
            return CachedResult(into / record["model"], dict(record["report"]), int(record["code"]))
        except FileNotFoundError:
            return None
        except (_Refused, OSError, ValueError, KeyError, TypeError, AttributeError):
            self._note_refused()
            return None

    def put(self, key: Key, model: Path, report: dict[str, Any], code: int) -> None:
        """Store a result in a folder of its own. Write errors are ignored."""
        entry, files = self._entry(key), list(files_of(model))
        if self._secret is None or (len(files) > 1 and not key.named):
            return  # data files of a result that outgrew a single file are named after the result
        called = {file: file.relative_to(model.parent).as_posix() for file in files} if key.named else {model: _ALONE}
        if any(_leads_out(name) for name in called.values()):
            return
        try:
            entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.path.realpath(entry.parent) != os.path.join(os.path.realpath(self.folder), entry.parent.name):
                raise _Refused
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".new.") as place:
                new = Path(place) / "entry"
                digests = {}
                for file, name in called.items():
                    copy = new / "files" / name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
                    digests[name] = file_digest(copy)
                record = json.dumps({"model": called[model], "files": digests, "report": report, "code": code})
                (new / "record").write_text(f"{self._mac(key, record)}\n{record}", encoding="utf-8")
                shutil.rmtree(entry, ignore_errors=True) if not entry.is_symlink() else entry.unlink()
                os.replace(new, entry)
        except _Refused:
            self._note_refused()
        except OSError:
            return

    def _record(self, key: Key) -> dict[str, Any]:
        """Return the authenticated record of an entry. Raises FileNotFoundError if absent, _Refused if invalid."""
        mac, _, text = self._inside(key, "record").read_text(encoding="utf-8").partition("\n")
        if not hmac.compare_digest(mac.encode(), self._mac(key, text).encode()):
            raise _Refused
        return dict(json.loads(text))

    def _inside(self, key: Key, *names: str) -> Path:
        """Return a regular file of an entry. Raises _Refused for links, and for paths outside the entry."""
        entry = self._entry(key)
        if not entry.exists():
            raise FileNotFoundError(entry)
        if any(_leads_out(name) for name in names):
            raise _Refused
        parts = [part for name in names for part in name.split("/")]
        real = os.path.join(os.path.realpath(self.folder), *entry.parts[-2:], *parts)
        if os.path.realpath(real) != real or not stat.S_ISREG(os.lstat(real).st_mode):
            raise _Refused
        return Path(real)

    def _mac(self, key: Key, text: str) -> str:
        assert self._secret is not None
        return hmac.new(self._secret, f"{key.digest}\n{text}".encode(), "sha256").hexdigest()

    def _note_refused(self) -> None:
        self.notes.append(f"the cache {self.folder}: what is damaged, or was not made with your key, is made anew")

    def _entry(self, key: Key) -> Path:
        return self.folder / key.digest[:2] / key.digest


def _leads_out(name: str) -> bool:
    """Return whether a name may lead out of its folder on some system, such as `net:v2.onnx` on Windows."""
    return any(part in ("", ".", "..") or "\\" in part or ":" in part for part in name.split("/"))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def _code_digest(package: Path) -> str:
    """Return a digest of a package's sources and data, by content, as times differ between installations."""
    found = hashlib.sha256()
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.json")]):
        data = file.read_bytes()
        found.update(f"{file.relative_to(package)} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()


def _module_digest(source: str) -> str:
    """Return a digest of a plugin's file or package; "" without source."""
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
