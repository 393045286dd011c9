"""Calls outside the standard that a file may hold: onnx's inference crashes on some, and hangs on others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, NodeProto, helper

from onnxopt import optimize
from onnxopt.proto.inference import infer_shapes, inferable
from onnxopt.worker.service import Sandbox
from tests.cli.conftest import Run
from tests.hostile.odd_calls import COUNT

SECONDS = 60.0
C = helper.make_tensor("c", 1, [], [1.0])


def model(call: NodeProto, opset: int = 20) -> ModelProto:
    end = helper.make_node("Relu", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(name, 1, [2, 4]) for name in ("x", "y")]
    outputs = [infos[1], *(onnx.ValueInfoProto(name=name) for name in call.output)]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([call, end], "g", infos[:1], outputs, [C])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def call(op: str, read: list[str], count: int = 1, domain: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(op, read, [f"o{i}" for i in range(count)], domain=domain, **attributes)


CALLS = {
    "an equation with a digit": call("Einsum", ["c"], equation="1"),
    "an equation that is no text": call("Einsum", ["c"], equation=b"\xff"),
    "an equation with two dots": call("Einsum", ["x"], equation="i..j"),
    "an equation with dots twice": call("Einsum", ["x"], equation="...i..."),
    "fewer parts than results": call("Split", ["x"], 3, num_outputs=2),
    "parts beyond number": call("Split", ["x"], 3, num_outputs=2**31),
    "an axis beyond number": call("LayerNormalization", ["x", "c"], 2, axis=2**31),
    "axes below none": call("GatherND", ["x", "c"], batch_dims=-(2**31)),
    "an empty name": call("EyeLike", [""], dtype=1),
    "an empty name, of words": call("RegexFullMatch", [""], pattern="a"),
    "an empty name, of maps": call("DictVectorizer", [""], domain="ai.onnx.ml", string_vocabulary=["a"]),
    "an empty name, of labels": call("LabelEncoder", [""], domain="ai.onnx.ml", keys_floats=[1.0], values_floats=[2.0]),
}


@pytest.mark.parametrize("odd", CALLS)
def test_no_command_dies(odd: str, run: Run, tmp_path: Path) -> None:
    onnx.save(model(CALLS[odd]), tmp_path / "m.onnx")
    for command in (["stats", "m.onnx"], ["optimize", "m.onnx", "o.onnx", "--no-verify", "--work", "1"]):
        done = run(*command)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("odd", ["an equation with a digit", "an equation that is no text"])
def test_endless_calls_are_not_folded(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless calls on constants are not folded. A fold would use up --work in each command."""
    asked: list[str] = []
    monkeypatch.setattr(Sandbox, "call", lambda self, method, *given: asked.append(method))
    report = optimize(model(CALLS[odd]), verify=False).report.pipeline
    (folding,) = (p for p in report.passes if p.name == "constant-folding")
    assert (asked, [*folding.rules["fold"].declined]) == ([], ["runtimes die of it, or take for ever"])


def test_values_beside_an_odd_call_are_inferred() -> None:
    """Only the odd call is hidden from inference."""
    odd = model(CALLS["an equation with a digit"])
    odd.graph.node[1].output[0] = "z"
    odd.graph.node.append(helper.make_node("Shape", ["z"], ["y"]))
    before = odd.SerializeToString()
    found = {i.name: i.type.tensor_type for i in infer_shapes(inferable(odd)).graph.value_info}
    assert [d.dim_value for d in found["z"].shape.dim] == [2, 4]
    assert odd.SerializeToString() == before, "the model itself stays as it is"


ORDINARY = {
    "an equation": call("Einsum", ["x", "x"], equation="... i j, ...kj -> ...ik"),
    "an equation without an arrow": call("Einsum", ["x"], equation="ij"),
    "parts": call("Split", ["x"], 2, num_outputs=2, axis=1),
    "a norm": call("LayerNormalization", ["x", "c"], 3, axis=-1),
}


@pytest.mark.parametrize("ordinary", ORDINARY)
def test_ordinary_calls_are_not_hidden(ordinary: str) -> None:
    asked = model(ORDINARY[ordinary])
    assert inferable(asked) == asked.SerializeToString()
    assert infer_shapes(inferable(asked)).graph.output[1].type.tensor_type.HasField("shape")


@pytest.mark.parametrize("more", [[], ["--below-zero"]], ids=" ".join)
@pytest.mark.parametrize("values", [0, 1])
def test_inference_of_odd_calls_ends(values: int, more: list[str], tmp_path: Path) -> None:
    """Inference of generated odd calls neither crashes nor hangs.

    `odd_calls` makes any number of calls; the calls above were found. All operators read negative sizes: `SINCE` has
    the operators that reject them.
    """
    arguments = [sys.executable, "-m", "tests.hostile.odd_calls", str(COUNT), "--values", str(values), *more]
    calls = tmp_path / "calls"  # one line for each call: a pipe would wake this process for every line
    with calls.open("w") as out:
        done = subprocess.run(arguments, stdout=out, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"{calls.read_text().splitlines()[-1]}: {done.stderr}"
