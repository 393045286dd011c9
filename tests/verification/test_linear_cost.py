"""The verifier's work per node stays constant in models of any length."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, helper, parser

from onnxopt.verification import EQUAL, VerifyOptions
from onnxopt.verification.inputs.cases import OWN
from onnxopt.verification.inputs.feeding import Data
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.job import Job
from onnxopt.verification.judge import Judge
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.programs.program import Program
from tests.steps import lines_executed

SMALL, LARGE = 10, 100  # a quadratic algorithm takes 100 times as many steps
MOST = 14.0


def chain(domains: list[str], functions: list[onnx.FunctionProto]) -> ModelProto:
    """Return a chain of calls `f0`, `f1`, …, in these domains."""
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


IF = """If (c) <then_branch: graph = t () => (float[N] p) { PRODUCT }, else_branch: graph = e () => (float[N] q)
    { q = Tanh (a) }>"""
WRITTEN, FOLDED = "k = Constant <value_float = 2.0> () l = Mul (k, k) p = Mul (a, l)", "p = Mul (a, four)"


def branching(count: int, product: str, name: str) -> ModelProto:
    """Return a chain of functions with a branch each."""
    found = chain(["my"] * count, [])
    for node in list(found.graph.node)[1:-1]:
        node.input.append("c")
    for i in range(count):
        text = IF.replace("PRODUCT", product)
        head = '<domain: "my", opset_import: ["" : 17]> '
        body = f"(a, c) => (b) {{ four = Constant <value_float = 4.0> () b = {text} }}"
        found.functions.append(parser.parse_function(f"{head} f{i} {body}"))
    found.graph.input.append(helper.make_tensor_value_info("c", 9, []))
    for info in (*found.graph.input[:1], *found.graph.output):
        info.CopyFrom(helper.make_tensor_value_info(info.name, 1, ["N"]))
    return found


def branches(count: int, product: str, name: str) -> ModelProto:
    """Return branches on conditions of their own, in a chain of values that begin with `name`."""
    steps = []
    for i in range(count):
        text = IF.replace("PRODUCT", product)
        for local in "acpqkl":
            text = re.sub(rf"\b{local}\b", f"{local if local in 'pqkl' else name}{local}{i}", text)
        before = f"h{i} = Constant <value_float = {1 + i / 1000}> () {name}c{i} = Less (s, h{i})"
        steps.append(f"{before} {name}a{i} = Neg ({name}v{i}) {name}v{i + 1} = {text}")
    head = f"four = Constant <value_float = 4.0> () s = ReduceSum <keepdims = 0> (x) {name}v0 = Relu (x)"
    text = f"{{ {head} {' '.join(steps)} y = Neg ({name}v{count}) }}"
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) {text}')


def outputs(count: int, product: str, name: str) -> ModelProto:
    """Return one branch with `count` outputs."""
    made, then, otherwise = (", ".join(f"{letter}{i}" for i in range(count)) for letter in "vpq")
    products = " ".join(re.sub(r"\b([pkl])\b", rf"\g<1>{i}", product) for i in range(count))
    others = " ".join(f"q{i} = Tanh (a)" for i in range(count))
    text = f"""{{ four = Constant <value_float = 4.0> ()
        {made} = If (c) <then_branch: graph = t () => ({then}) {{ {products} }},
        else_branch: graph = e () => ({otherwise}) {{ {others} }}> y = Sum ({made}) }}"""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[N] a, bool c) => (float[N] y) {text}')


def decisions(count: int) -> ModelProto:
    """Return a chain of decisions, each on the value chosen by the one before."""
    steps = [
        f"a{i} = Abs (v{i}) g{i} = Greater (a{i}, tenth) v{i + 1} = Where (g{i}, a{i}, fifth)" for i in range(count)
    ]
    numbers = "<float tenth = {0.1}, float fifth = {0.2}>"
    text = f"{numbers} {{ v0 = Relu (x) {' '.join(steps)} y = Neg (v{count}) }}"
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) {text}')


def same(make: Callable[[int], ModelProto]) -> Callable[[int], tuple[ModelProto, ModelProto]]:
    return lambda count: (make(count), make(count))


def folded(make: Callable[[int, str, str], ModelProto], name: str = "") -> Callable[[int], tuple[ModelProto, ...]]:
    return lambda count: (make(count, WRITTEN, ""), make(count, FOLDED, name))


FAMILIES: dict[str, Callable[[int], tuple[ModelProto, ...]]] = {
    "unknown domains": same(unknown_domains),
    "functions": same(functions),
    "functions whose branches were changed": folded(branching),
    "branches that were changed": folded(branches),
    "a branch that makes much": folded(outputs),
    "branches that lost their names": folded(branches, "other"),
}


def judged(original: Path, result: Path) -> None:
    """Compare the two files like the worker, also in pieces."""
    judge = Judge()
    judge.open(Job(str(original), VerifyOptions(), ("A", "B")))
    judge.plan(make_plan(onnx.load(original)))
    names = [recipe.name for recipe in OWN[:1]]
    judge.original(OWN[0], Data({}))
    assert judge.result(str(result), VerifyOptions()) == ""
    assert [judge.compare(name, {}).status for name in names] == [EQUAL]
    judge.pieces(names)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_steps_per_node_stay_flat(family: str, tmp_path: Path) -> None:
    steps = []
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for count in (1, SMALL, LARGE):  # the first imports modules
        for model, path in zip(FAMILIES[family](count), paths):
            onnx.save(model, path)
        steps.append(lines_executed(lambda: judged(*paths)))
    assert steps[2] / steps[1] < MOST


def test_a_piece_holds_the_functions_that_it_calls(tmp_path: Path) -> None:
    """A piece holds only the functions that it calls. A runtime reads every function of a model, at each load."""
    model = branching(3, WRITTEN, "")
    model.functions[1].node.append(helper.make_node("f2", ["b", "c"], ["d"], domain="my"))
    onnx.save(model, tmp_path / "m.onnx")
    program = Program(Skeleton(tmp_path / "m.onnx"))
    calls = {node.op_type: i for i, node in enumerate(program.nodes)}

    def held(*names: str) -> list[str]:
        piece, _ = program.model([calls[name] for name in names], {}, {})
        return [f.name for f in piece.functions]

    assert [held("Relu"), held("f0"), held("f1"), held("f0", "f1")] == [[], ["f0"], ["f1", "f2"], ["f0", "f1", "f2"]]


def test_values_behind_a_failing_node_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing node costs runs in the logarithm of the number of values, not one run for each value behind it."""
    opened: list[int] = []
    run = Replay.run

    def counted(replay: Replay, wanted: Sequence[str], fed: Collection[str]) -> dict[str, list[Any]]:
        opened.append(len(wanted))
        return run(replay, wanted, fed)

    monkeypatch.setattr(Replay, "run", counted)
    for name, suffix, turn in (("a", "", "0, 1"), ("b", "_rows", "1, 0")):
        steps = [f"v{i + 1}{suffix} = Neg (v{i}{suffix})" for i in range(100)]
        text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[3, 4] x) => (float[m, n] y)
            <float[4] w = {{1, 2, 3, 4}}>
            {{ t = Transpose <perm = [{turn}]> (x) v0{suffix} = Add (t, w)
            {" ".join(steps)} y = Abs (v100{suffix}) }}"""
        onnx.save(parser.parse_model(text), tmp_path / f"{name}.onnx")
    a, b = (str(tmp_path / f"{name}.onnx") for name in "ab")
    judge = Judge()
    judge.open(Job(a, VerifyOptions(), ("the original", "the result")))
    judge.plan(make_plan(onnx.load(a)))
    judge.original(OWN[0], Data({}))
    judge.result(b, VerifyOptions())
    _, places = judge.pieces([OWN[0].name], [])
    assert places and len(opened) < 40
