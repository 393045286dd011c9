"""Operands of unknown type crash onnx's inference for some operators: guarded inference gives the same types."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.defs import OpSchema

from onnxopt.proto.inference import BLIND, Inferable, infer_shapes, inferable
from tests.cli.conftest import Run

X = helper.make_node("Find", ["x"], ["u"], domain="my")
EYE = helper.make_node("EyeLike", ["u"], ["e"], dtype=1)
LABELS = helper.make_node(
    "LabelEncoder", ["u"], ["e"], domain="ai.onnx.ml", keys_floats=[1.0, 2.0], values_floats=[3.0, 4.0]
)


def model(nodes: Iterable[NodeProto], reads: str = "e") -> ModelProto:
    last = helper.make_node("Relu", [reads], ["y"])
    infos = [helper.make_tensor_value_info(name, 1, [2, 2]) for name in ("x", "y")]
    graph = helper.make_graph([*nodes, last], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid(name, version) for name, version in (("", 17), ("ai.onnx.ml", 3), ("my", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def body(node: NodeProto) -> GraphProto:
    return helper.make_graph([node], "b", [], [helper.make_tensor_value_info("e", 1, None)])


def branches(inner: NodeProto) -> list[NodeProto]:
    true = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
    return [X, true, helper.make_node("If", ["c"], ["f"], then_branch=body(inner), else_branch=body(inner))]


def function() -> ModelProto:
    made = model([X, helper.make_node("f", ["u"], ["e"], domain="my")])
    inner = [helper.make_node("Identity", ["a"], ["u"]), EYE]
    made.functions.append(helper.make_function("my", "f", ["a"], ["e"], inner, [helper.make_opsetid("", 17)]))
    return made


MODELS = {
    "in the main graph": model([X, EYE]),
    "of another domain": model([X, LABELS]),
    "in a branch": model(branches(EYE), "f"),
    "in a function": function(),
}


@pytest.mark.parametrize("where", MODELS)
@pytest.mark.parametrize("command", ["optimize", "stats", "verify", "report"])
def test_no_command_dies(command: str, where: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(MODELS[where], path)
    rest = {"optimize": ["o.onnx"], "verify": [str(path), "--pieces"], "report": ["-o", "r.html"]}.get(command, [])
    done = run(command, path, *rest)
    assert 0 <= done.returncode <= 3, done.stderr


def test_guarded_inference_gives_the_same_types() -> None:
    typed = helper.make_node("Relu", ["x"], ["u"])
    plain = model(
        [
            typed,
            EYE,
            helper.make_node(
                "LabelEncoder", ["u"], ["l"], domain="ai.onnx.ml", keys_floats=[1.0], values_strings=["a"]
            ),
        ]
    )
    given = inferable(plain)
    assert len(ModelProto.FromString(given).graph.value_info) == 1
    found = [
        {i.name: i.type for i in infer_shapes(data).graph.value_info}
        for data in (Inferable(plain.SerializeToString()), given)
    ]
    assert found[0] == found[1]
    assert not plain.graph.value_info, "the model itself stays as it is"


VALUES: dict[int, list[Any]] = {
    AttributeProto.INT: [1, 0, -1],
    AttributeProto.FLOAT: [0.5],
    AttributeProto.STRING: ["x", ""],
    AttributeProto.INTS: [[1, 1], [0], [-1, 2, 3]],
    AttributeProto.FLOATS: [[1.0, 2.0], [0.5]],
    AttributeProto.STRINGS: [["a", "b"], ["x"]],
    AttributeProto.TENSOR: [
        helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("t", TensorProto.INT64, [2], [1, 2]),
    ],
    AttributeProto.GRAPH: [helper.make_graph([], "b", [], [])],
}


def calls(schema: OpSchema) -> Iterable[ModelProto]:
    """Yield calls of an operator on untyped operands: without attributes, with the required ones, with any two more."""
    needed = [a for a in schema.attributes.values() if a.required]
    others = [[a] for a in schema.attributes.values()] + [
        [a, b] for a in schema.attributes.values() for b in schema.attributes.values() if a.name < b.name
    ]
    for attributes in ([], needed, *([*needed, *more] for more in others)):
        for variant in range(3 if attributes else 1):
            for count in {schema.min_input, min(schema.max_input, 6)} - {0}:
                made = helper.make_node(schema.name, [f"u{i}" for i in range(count)], ["e"], domain=schema.domain)
                for a in {a.name: a for a in attributes}.values():
                    if choices := VALUES.get(a.type.value):
                        made.attribute.append(helper.make_attribute(a.name, choices[variant % len(choices)]))
                before = [helper.make_node("Find", [], [f"u{i}"], domain="my") for i in range(count)]
                graph = helper.make_graph([*before, made], "g", [], [])
                opsets = [helper.make_opsetid(schema.domain, schema.since_version), helper.make_opsetid("my", 1)]
                yield helper.make_model(graph, opset_imports=opsets, ir_version=8)


def main(only: str) -> None:
    """Infer the types of every call: as guarded by `inferable`, or unguarded if `only` names an operator."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if only in ("", schema.name):
            print(schema.domain, schema.name, schema.since_version, flush=True)
            for found in calls(schema):
                with contextlib.suppress(Exception):  # a call may be refused
                    infer_shapes(Inferable(found.SerializeToString()) if only else inferable(found))


def infer(only: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", __name__, only], capture_output=True, text=True)


def test_inference_of_no_operator_dies() -> None:
    done = infer()
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1]}: {done.stderr}"


@pytest.mark.skipif(sys.platform == "win32", reason="a death by a signal")
@pytest.mark.skipif(not onnx.__version__.startswith("1.23."), reason="as these versions are")
@pytest.mark.parametrize("op", sorted(BLIND))
def test_unguarded_inference_still_crashes(op: str) -> None:
    assert infer(op).returncode < 0, f"{op} need not be given a type any more"


if __name__ == "__main__":
    main(sys.argv[1])
