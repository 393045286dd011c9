"""What is given wrongly is told what to call."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxopt
from tests.samples import sample


def test_values_that_are_none(tmp_path: Path) -> None:
    proto = sample("residual_block")
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(onnxopt.UsageError, match="there is no level '3'"):
        onnxopt.optimize(proto, level="3")  # type: ignore[arg-type]
    with pytest.raises(onnxopt.UsageError, match="the path of a model is expected, not ModelProto"):
        onnxopt.load(proto)  # type: ignore[arg-type]
    for setting in ("extra", "disable"):
        given: Any = {setting: "dead-code"}
        with pytest.raises(onnxopt.UsageError, match=f"{setting} is 'dead-code', not a list of names") as e:
            onnxopt.optimize(proto, **given)
        assert e.value.hint == f"{setting}=['dead-code']"
    for nothing in (None, proto.graph):
        with pytest.raises(onnxopt.UsageError, match=r"the path of a model is expected, not (NoneType|GraphProto)"):
            onnxopt.optimize(nothing)  # type: ignore[arg-type]
    with pytest.raises(onnxopt.UsageError, match="a Model is written, not a ModelProto") as e:
        onnxopt.save(proto, tmp_path / "out.onnx")  # type: ignore[arg-type]
    assert e.value.hint == "onnx.save writes a ModelProto"
    with pytest.raises(onnxopt.UsageError, match="a ModelProto is read, not a str") as e:
        onnxopt.read_model("in.onnx")  # type: ignore[arg-type]
    assert e.value.hint == "onnxopt.load reads a file"
    with pytest.raises(onnxopt.UsageError, match="verify=False contradicts strict"):
        onnxopt.optimize(proto, verify=False, strict=True)
    with pytest.raises(onnxopt.UsageError, match="there is no dtype 'fp16'"):
        onnxopt.optimize(proto, dtype="fp16")
    with pytest.raises(onnxopt.UsageError, match="external='inline' is for a result that is written"):
        onnxopt.optimize(proto, external="inline")
    with pytest.raises(onnxopt.WriteError, match="is the input itself"):
        onnxopt.optimize(tmp_path / "in.onnx", tmp_path / "in.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"fp16": True}, 'dtype="float16"'),
        ({"options": {"level": 3}}, "each of their fields is a keyword of its own, such as level=3"),
        ({"levl": 3}, "did you mean level?"),
        ({"no_verify": True}, "verify=False"),
        ({"check_n": 3}, "verify=True, which is the default"),
        ({"overwrite_input_shapes": {}}, 'shapes={"x": (1, 3, 224, 224)}'),
        ({"model_check": True}, "verify=True, which is the default"),
        ({"size_threshold": 1}, "max_constant_bytes=BYTES"),
        ({"anything": 1}, "help(onnxopt.optimize) lists those that there are"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_wrong_keyword_names_the_right_one(given: Any, meant: str) -> None:
    with pytest.raises(TypeError) as e:
        onnxopt.optimize("never-read.onnx", **given)
    (name,) = given
    assert str(e.value) == f"optimize() has no keyword {name}: {meant}"


@pytest.mark.parametrize("second", [3, onnxopt.OptimizeOptions(level=3)])
def test_the_second_argument_is_where_the_result_goes(second: Any) -> None:
    with pytest.raises(TypeError, match=r"takes the path of the result as its second argument, not an? .*level=3"):
        onnxopt.optimize("never-read.onnx", second)


def test_keywords_are_the_options_of_the_command() -> None:
    """The same names and defaults, but where Python says it otherwise."""
    from onnxopt.cli.optimize import optimize as command

    called = {"begin": "inputs", "end": "outputs", "inputs": "input"}
    more = {"models", "keep_dynamic", "no_verify"}  # places, and what a keyword does not have to undo
    more |= {"out_dir", "in_place", "backup", "check", "jobs", "cache_dir", "executor", "fail_if", "junit"}
    more |= {"form", "report_file", "stats", "quiet", "verbose"}  # what is printed, and where
    more |= {"time_passes", "print_ir_after", "print_ir_before", "dump_dir", "check_each", "verify_each", "journal"}
    otherwise = {"allow_unverified", "target"}  # depends on who reads what is printed; none is `any`
    defaults = command.make_context("optimize", ["in.onnx", "out.onnx"]).params
    options = {called.get(name, name): default for name, default in defaults.items() if name not in more}
    parameters = inspect.signature(onnxopt.optimize).parameters
    beside = {"model", "output", "verify", "instruments", "trace", "progress", "wrong"}
    assert set(options) == set(parameters) - beside
    for name, default in options.items():
        ours = parameters[name].default
        assert ours == default or not (ours or default) or name in otherwise, name
