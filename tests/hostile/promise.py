"""The promises for every input, and the broken promises of a run, in words."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import _get_all_tensors

SECONDS = 20.0
MEMORY = 2 << 30
HERE = "here"  # the folder in which a command runs; its neighbours are somebody else's
_LINE = 2100  # characters
_WHOLE = 8 << 20  # bytes: larger files are compared by size and time

CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
BUILD = re.compile(r"^\s*(::|##\w*\[)", re.MULTILINE)
WARNING = re.compile(r"\b\w+Warning: ")
Tree = dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class Call:
    """A command, its possible exit codes, and the files (patterns below `here`) that it may make on success."""

    args: tuple[str, ...]
    makes: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0, 1, 2)
    always: tuple[str, ...] = ()  # files that it may make with any exit code


@dataclass
class Ran:
    code: int
    late: bool
    seconds: float
    cpu: float
    memory: int
    left: list[str]
    stdout: bytes
    stderr: bytes
    before: Tree
    after: Tree
    broken: list[str] = field(default_factory=list)


def tree(folder: Path) -> Tree:
    """Return kind, size and contents of every entry below `folder`."""
    found: Tree = {}
    for at, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(at, name)
            found[os.path.relpath(path, folder)] = _entry(path)
    return found


def _entry(path: str) -> tuple[object, ...]:
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return "link", os.readlink(path)
    if not stat.S_ISREG(info.st_mode):
        return (stat.S_IFMT(info.st_mode),)
    if info.st_size > _WHOLE:
        return info.st_ino, info.st_size, info.st_mtime_ns
    with open(path, "rb") as f:
        return info.st_mode, hashlib.sha256(f.read()).digest()


def broken(call: Call, ran: Ran, folder: Path, seconds: float = SECONDS) -> list[str]:
    """Return the promises broken by this run. `folder`: as left by the run."""
    return [*_ending(call, ran, seconds), *_words(call, ran), *_files(call, ran, folder)]


def _ending(call: Call, ran: Ran, seconds: float) -> list[str]:
    found = []
    if ran.late or ran.seconds > seconds:
        found.append(f"took {ran.seconds:.1f} s, {ran.cpu:.1f} s of a processor")
    elif ran.code not in call.codes:
        found.append(f"exit code {ran.code}")
    if ran.memory > MEMORY:
        found.append(f"took {ran.memory / 2**30:.1f} GiB")
    if ran.left:
        found.append(f"left running: {ran.left}")
    return found


def _words(call: Call, ran: Ran) -> list[str]:
    found = []
    for stream, data in (("stdout", ran.stdout), ("stderr", ran.stderr)):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            found.append(f"{stream} is not UTF-8")
            continue
        for what, pattern in (("a control character", CONTROL), ("a command to a build", BUILD), ("", WARNING)):
            if seen := pattern.search(text):
                found.append(f"{stream}: {what} {text[max(0, seen.start() - 60) : seen.end() + 60]!r}".strip())
        if "Traceback" in text or "internal error" in text:
            found.append(f"{stream}: a traceback")
    if ran.code == 2 and not ran.late:
        lines = ran.stderr.decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if len(errors) != 1 or not lines[-1].startswith("hint: ") or any(len(line) > _LINE for line in lines):
            found.append("stderr is no line of error and one of hint")
    return found


def _files(call: Call, ran: Ran, folder: Path) -> list[str]:
    found = []
    allowed = call.always + (call.makes if ran.code in (0, 1, 3) and not ran.late else ())
    for name in sorted(ran.before.keys() | ran.after.keys()):
        if ran.before.get(name) == ran.after.get(name):
            continue
        inside = name.removeprefix(f"{HERE}/")
        if not name.startswith(f"{HERE}/") or not any(fnmatch.fnmatchcase(inside, pattern) for pattern in allowed):
            found.append(f"{'changed' if name in ran.before else 'made'} {name}")
        elif name.endswith(".onnx") and name in ran.after and (folder / name).is_file():
            found += [f"{name}: {why}" for why in partial(folder / name)]
    return found


def partial(path: Path) -> list[str]:
    """Return the parts missing in a written model."""
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError:
        return ["no model"]
    found = []
    for tensor in _get_all_tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        given = {entry.key: entry.value for entry in tensor.external_data}
        try:
            data = path.parent / given["location"]
            whole = data.stat().st_size >= int(given.get("offset") or 0) + int(given.get("length") or 0)
        except (KeyError, ValueError, OSError):
            whole = False
        if not whole:
            found.append(f"without the data of {tensor.name}")
    return found
