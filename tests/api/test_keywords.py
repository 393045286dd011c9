"""Wrong keywords are answered by the right ones."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import onnxopt
from tests.samples import sample

DYNAMIC = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { a = Identity (x) y = Neg (a) }'


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
    ("given", "message"),
    [
        ({"dims": {"N": "3"}}, "dims['N'] is '3', not a size"),
        ({"dims": ["N"]}, "dims is list, not a dict"),
        ({"shapes": {"x": 3}}, "shapes['x'] is 3, not a list of sizes"),
        ({"shapes": {"x": (1, 2.5)}}, "shapes['x'] is 2.5, not a size"),
        ({"verify_dims": {"N": None}}, "dims['N'] is None, not a size"),
        ({"config": "dead-code"}, "config is 'dead-code', not a dict"),
        ({"pipeline": ["dead-code"]}, "pipeline is no text"),
        ({"target_opset": "18"}, "target_opset is '18', not a whole number"),
        ({"max_rewrites": -1}, "max_rewrites is -1"),
        ({"seed": 0.5}, "seed is 0.5, not a whole number"),
        ({"rtol": "1e-3"}, "rtol is '1e-3', not a number"),
        ({"timeout": None}, "timeout is None, not a number"),
        ({"verify_memory": "2G"}, "memory is '2G', not a whole number"),
        ({"memory": "2G"}, "memory is '2G', not a whole number"),
        ({"memory": 1 << 20}, "a memory of 1048576 bytes is not enough"),
        ({"work": "10"}, "work is '10', not a number"),
        ({"instruments": onnxopt.Timing()}, "instruments is one instrument, not a list"),
        ({"plugins": "passes.py"}, "plugins is 'passes.py', not a list of files and modules"),
        ({"input": {"x": object()}}, "input['x'] is object, not an array"),
        ({"input": [np.ones(1)]}, "input is list, not a dict"),
        ({"input": {"x": np.ones(1)}}, "array 1: input `x` takes float32, not float64"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_setting_of_another_type_is_named(given: Any, message: str) -> None:
    with pytest.raises(onnxopt.UsageError) as e:
        onnxopt.optimize(sample("residual_block"), **given)
    assert str(e.value).startswith(message)


def test_numbers_and_paths_may_be_those_of_others(tmp_path: Path) -> None:
    """numpy's numbers, and paths that are no text."""
    proto, plugin = parse_model(DYNAMIC), tmp_path / "empty.py"
    plugin.write_text("")
    given: Any = {"dims": {"N": np.int64(3)}, "rtol": np.float32(1e-3), "seed": np.uint8(1), "plugins": [plugin]}
    report = onnxopt.optimize(proto, **given).report
    assert report.ok
    assert json.loads(json.dumps(report.to_dict()))["fixed_dims"] == {"N": 3}
    assert onnxopt.optimize(proto, shapes={"x": np.array([3])}).report.fixed_dims == {"N": 3}  # type: ignore[dict-item]


def test_what_is_compared_how_is_of_its_type() -> None:
    with pytest.raises(onnxopt.UsageError, match="cases is 'random', not a list of names"):
        onnxopt.verify(sample("residual_block"), sample("residual_block"), cases="random")
    with pytest.raises(TypeError, match="takes VerifyOptions as its third argument, not a dict"):
        onnxopt.verify("a.onnx", "b.onnx", {"rtol": 1})  # type: ignore[arg-type]


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
        ({"check_rtol": 1e-3}, "rtol=1e-3"),
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
