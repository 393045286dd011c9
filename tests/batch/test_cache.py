"""The cache belongs to one user: entries made or changed by others count for nothing and lead nowhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxopt.batch import cache
from onnxopt.batch.cache import Cache, Key
from onnxopt.batch.places import file_digest

DATA = "m.onnx.0123456789ab.data"  # a name that results give
KEY = Key(hashlib.sha256(b"a model").hexdigest(), named=True)
links = pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
posix = pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    for variable in ("XDG_CONFIG_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A cache with an entry of a model and its data."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "m.onnx").write_bytes(b"model")
    (made / DATA).write_bytes(b"data")
    Cache(tmp_path / "cache").put(KEY, made / "m.onnx", {"nodes": 3}, 0)
    return tmp_path / "cache"


def entry(folder: Path) -> Path:
    return folder / KEY.digest[:2] / KEY.digest


def taken(folder: Path, into: Path) -> tuple[bool, list[str]]:
    """(was the entry taken, what was said)."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    cache = Cache(folder)
    known = cache.get(KEY, into)
    if known is not None:
        assert known.model == into / "m.onnx"
        assert (known.model.read_bytes(), (into / DATA).read_bytes()) == (b"model", b"data")
        assert (known.report, known.code) == ({"nodes": 3}, 0)
    return known is not None, cache.notes


def rewrite(folder: Path, change: Callable[[dict[str, object]], None], signed: bool = False) -> None:
    """Change the record, without the key or (what its owner only could do) with it."""
    file = entry(folder) / "record"
    mac, _, text = file.read_text().partition("\n")
    record = json.loads(text)
    change(record)
    text = json.dumps(record)
    file.write_text(f"{Cache(folder)._mac(KEY, text) if signed else mac}\n{text}")


def test_what_was_put_is_taken(full: Path, tmp_path: Path) -> None:
    assert taken(full, tmp_path / "into") == (True, [])
    assert Cache(full).get(Key("0" * 64, False), tmp_path / "into") is None


@posix
def test_the_cache_and_its_key_are_the_users_alone(full: Path, home: Path) -> None:
    for place in (full, *(p for p in full.rglob("*") if p.is_dir() and "files" not in p.parts)):
        assert place.stat().st_mode & 0o077 == 0 or place.parent.name == KEY.digest[:2], place
    assert stat.S_IMODE((home / "onnxopt" / "cache.key").stat().st_mode) == 0o600
    assert len((home / "onnxopt" / "cache.key").read_bytes()) == 32
    assert not list((home / "onnxopt").glob(".*")), "nothing is left of making it"


def test_a_changed_record(full: Path, tmp_path: Path) -> None:
    rewrite(full, lambda record: record.update(report={"nodes": 1}))
    found, notes = taken(full, tmp_path / "into")
    assert not found
    assert notes == [f"the cache {full}: what is damaged, or was not made with your key, is made anew"]


def test_a_changed_payload(full: Path, tmp_path: Path) -> None:
    (entry(full) / "files" / "m.onnx").write_bytes(b"evil!")
    assert not taken(full, tmp_path / "into")[0]

    def follow(record: dict[str, object]) -> None:
        record["files"] = {"m.onnx": file_digest(entry(full) / "files" / "m.onnx")}

    rewrite(full, follow)
    assert not taken(full, tmp_path / "into")[0], "a digest is no signature"


def test_an_entry_of_another_model(full: Path, tmp_path: Path) -> None:
    other = Key(hashlib.sha256(b"another").hexdigest(), named=True)
    shutil.copytree(entry(full), full / other.digest[:2] / other.digest)
    cache = Cache(full)
    assert cache.get(other, tmp_path / "into") is None and len(cache.notes) == 1


@pytest.mark.parametrize("name", ["../../../../outside", "/etc/passwd", "a/../../../x", "..\\x", "C:x", "a//b", "."])
def test_names_that_lead_out_of_it(full: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"model")

    def lead_out(record: dict[str, object]) -> None:
        record.update(files={name: file_digest(tmp_path / "outside")}, model=name)

    rewrite(full, lead_out, signed=True)
    before = sorted(tmp_path.rglob("*"))
    assert not taken(full, tmp_path / "into")[0]
    assert [p for p in sorted(tmp_path.rglob("*")) if p not in before] == [tmp_path / "into"]


@links
@pytest.mark.parametrize("what", ["files/m.onnx", "files", "record", "", ".."])
def test_links(full: Path, tmp_path: Path, what: str) -> None:
    place = Path(os.path.normpath(entry(full) / what))
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    found, notes = taken(full, tmp_path / "into")
    assert not found and len(notes) == 1
    before = {p: p.read_bytes() for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()}
    cache = Cache(full)
    cache.put(KEY, tmp_path / "made" / "m.onnx", {"nodes": 3}, 0)
    assert {p: p.read_bytes() for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()} == before
    assert taken(full, tmp_path / "into")[0] or what == ".."


@posix
def test_no_wait_for_what_is_no_file(full: Path, tmp_path: Path) -> None:
    (entry(full) / "files" / "m.onnx").unlink()
    os.mkfifo(entry(full) / "files" / "m.onnx")
    assert not taken(full, tmp_path / "into")[0]


def test_the_key_of_another(full: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "stranger"))
    found, notes = taken(full, tmp_path / "into")
    assert not found and "was not made with your key" in notes[0]
    Cache(full).put(KEY, tmp_path / "made" / "m.onnx", {"nodes": 3}, 0)
    assert taken(full, tmp_path / "into") == (True, []), "made anew"


def test_the_key_of_a_build(full: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "secret of the build")
    shutil.rmtree(home)
    assert not taken(full, tmp_path / "into")[0]
    Cache(full).put(KEY, tmp_path / "made" / "m.onnx", {"nodes": 3}, 0)
    assert taken(full, tmp_path / "into") == (True, [])
    assert not home.exists()


@posix
def test_a_key_that_others_can_read_is_none(full: Path, tmp_path: Path, home: Path) -> None:
    (home / "onnxopt" / "cache.key").chmod(0o644)
    found, notes = taken(full, tmp_path / "into")
    assert not found and "can be read by others: remove it" in notes[0]
    (home / "onnxopt" / "cache.key").chmod(0o600)
    (home / "onnxopt" / "cache.key").write_bytes(b"short")
    assert "is no key" in taken(full, tmp_path / "into")[1][0]


@posix
def test_a_cache_of_another_user(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: full.stat().st_uid + 1)
    found, notes = taken(full, tmp_path / "into")
    assert not found
    assert notes == [f"the cache {full} is not used: it belongs to another user"]
    cache = Cache(full)
    cache.put(Key("1" * 64, True), tmp_path / "made" / "m.onnx", {}, 0)
    assert not (full / "11").exists()


def test_no_place_for_a_key(full: Path, tmp_path: Path, home: Path) -> None:
    shutil.rmtree(home)
    home.write_text("a file")
    found, notes = taken(full, tmp_path / "into")
    assert not found and notes[0].startswith(f"the cache {full} is not used: ")
