"""What the judge does for each node stays the same in models of any length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

from onnxopt.verification.cases import OWN
from onnxopt.verification.datasets import Data
from onnxopt.verification.judge import Judge
from onnxopt.verification.plan import make_plan
from onnxopt.verification.protocol import Request
from onnxopt.verification.records import EQUAL, VerifyOptions
from tests.steps import lines_executed

SMALL, LARGE = 20, 200


def chain(domains: list[str], functions: list[onnx.FunctionProto]) -> ModelProto:
    """Of operators that each have a name of their own."""
    calls = [
        helper.make_node(f"f{i}", [f"e{i}"], [f"e{i + 1}"], domain=domain) for i, domain in enumerate(reversed(domains))
    ]
    ends = helper.make_node("Relu", ["x"], ["e0"]), helper.make_node("Neg", [f"e{len(domains)}"], ["y"])
    infos = [helper.make_tensor_value_info(name, 1, [2, 4]) for name in ("x", "y")]
    graph = helper.make_graph([ends[0], *calls, ends[1]], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid(domain, 1) for domain in dict.fromkeys(domains)]
    opsets.append(helper.make_opsetid("", 17))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def unknown_domains(count: int) -> ModelProto:
    return chain([f"d{i}" for i in range(count)], [])


def functions(count: int) -> ModelProto:
    opsets = [helper.make_opsetid("", 17)]
    inner = [helper.make_node("Relu", ["a"], ["b"])]
    made = [helper.make_function("my", f"f{i}", ["a"], ["b"], inner, opsets) for i in range(count)]
    return chain(["my"] * count, made)


def judged(path: Path) -> None:
    """As the worker does it, also in pieces."""
    judge = Judge()
    judge.open(str(path), VerifyOptions(), ("A", "B"))
    judge.plan(make_plan(onnx.load(path)))
    names = [recipe.name for recipe in OWN[:1]]
    judge.original(Request(OWN[0], Data({})))
    assert judge.result(str(path), VerifyOptions()) == ""
    assert [judge.compare(name, {}).status for name in names] == [EQUAL]
    judge.pieces(names, ())


@pytest.mark.parametrize("family", [unknown_domains, functions])
def test_the_steps_per_node_stay_flat(family: Callable[[int], ModelProto], tmp_path: Path) -> None:
    steps = []
    for count in (SMALL, SMALL, LARGE):  # the first imports what is needed
        onnx.save(family(count), tmp_path / "m.onnx")
        steps.append(lines_executed(lambda: judged(tmp_path / "m.onnx")))
    assert steps[2] / steps[1] < 15, "a quadratic algorithm takes a hundred times as many"
