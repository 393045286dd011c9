# ruff: noqa: E501
"""Declared locations of weights, and the files at these locations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from onnx import ModelProto, TensorProto

from tests.hostile.altered import EVIL
from tests.hostile.bases import base

LOCATIONS = [
    *("/etc/hostname", "..", ".", "", "/", "//w.bin", "./w.bin", "sub/../w.bin", "../up.bin", "../here/w.bin", "nothing.bin"),
    *("m.onnx", "out.onnx", "Makefile", ".git/hooks/pre-commit", "pipe", "device", "folder", "link", "circle", "dangling"),
    *("out.onnx.data", "a\0b", "x" * 5000, "w.bin/", "~/w.bin", "$HOME", "file:///etc/hostname", "http://127.0.0.1:9/w"),
    *("C:\\w.bin", "\\\\host\\w.bin", "CON", "w.bin\n::error::x", EVIL.replace("\0", ""), "*", "-", "|id", "/dev/zero", "/dev/stdin"),
    *("/proc/self/mem", "hard.bin", "empty.bin", "holes.bin", "secret.bin"),
]  # fmt: skip
NUMBERS = ["", "-1", "1", "3", "60", "64", "65", "99999999999", str(1 << 63), str(1 << 64), "-9223372036854775808", "1e3", "0x10", " 0",
           "1_0", "٣", "nan", "9" * 5000, "+4", "4.0", "\n"]  # fmt: skip
KEYS = ["location", "offset", "length", "checksum", "", "basepath", EVIL]


def at_places() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield (name, function that fills the folder in which the command runs)."""
    for i, location in enumerate(LOCATIONS):
        yield f"location {i} {location[:20]!r}", _saved(_with("location", location))
    for key in ("offset", "length"):
        for i, number in enumerate(NUMBERS):
            yield f"{key} {i} {number[:20]!r}", _saved(_with(key, number))
    for key in KEYS:
        model = base("beside")
        model.graph.initializer[0].external_data.add(key=key, value="w.bin")
        yield f"{key[:10]!r} twice", _saved(model)
    for what in ("none", "half", "raw too", "not external", "large", "text", "in a body", "in a function"):
        yield what, _saved(_otherwise(what))


def _with(key: str, value: str) -> ModelProto:
    model = base("beside")
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value
    return model


def _otherwise(what: str) -> ModelProto:
    model = base("beside")
    tensor = model.graph.initializer[0]
    if what == "none":
        del tensor.external_data[:]
    elif what == "half":
        del tensor.external_data[1:]
    elif what == "raw too":
        tensor.raw_data = b"\1" * 64
    elif what == "not external":
        tensor.data_location = TensorProto.DEFAULT
    elif what == "large":
        tensor.dims[:] = [1 << 20, 1 << 20]
    elif what == "text":
        tensor.data_type = TensorProto.STRING
    else:
        constant = model.graph.node.add(op_type="Constant", output=["more"]).attribute.add(name="value", type=4)
        constant.t.CopyFrom(tensor)
        if what == "in a function":
            node = model.graph.node.pop()
            function = model.functions.add(name="f", domain="l", output=["more"])
            function.node.append(node)
            function.opset_import.add(version=17)
            model.graph.node.add(op_type="f", domain="l", output=["called"])
    return model


def _saved(model: ModelProto) -> Callable[[Path], None]:
    def fill(here: Path) -> None:
        surround(here)
        (here / "m.onnx").write_bytes(model.SerializeToString())

    return fill


def surround(here: Path) -> None:
    """Create the files that may be beside a model."""
    (here / "w.bin").write_bytes(bytes(range(64)))
    (here.parent / "up.bin").write_bytes(b"\2" * 64)
    os.link(here.parent / "up.bin", here / "hard.bin")
    (here / "empty.bin").touch()
    (here / "secret.bin").write_bytes(b"\3" * 64)
    (here / "secret.bin").chmod(0)
    with open(here / "holes.bin", "wb") as f:
        f.truncate(1 << 30)
    (here / "folder").mkdir()
    os.mkfifo(here / "pipe")
    for name, target in (("device", "/dev/zero"), ("link", "../up.bin"), ("circle", "circle"), ("dangling", "gone")):
        (here / name).symlink_to(target)
