"""Inference makes negative sizes, on which some operators crash onnx: guarded inference gives the same types."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from onnxopt.proto.inference import _NO_NEGATIVE, Inferable, infer_call, infer_shapes, inferable
from onnxopt.proto.negative_dims import DOMAIN, SINCE
from tests.cli.conftest import Run

POOL = helper.make_node("AveragePool", ["x"], ["i"], kernel_shape=[7, 7])
GATHER = helper.make_node("GatherND", ["x", "i"], ["y"])
SLICE = helper.make_node("Slice", ["i", "s", "e"], ["y"])
BACKWARDS = helper.make_node("Slice", ["i", "s", "e", "a", "a"], ["y"])
CONSTANTS = [helper.make_tensor("s", 7, [4], [0, 0, 2**40, 2**40]), helper.make_tensor("e", 7, [4], [1, 1, 2, 2])]
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]


def model(nodes: list[NodeProto], inits: list[TensorProto], size: int = 4, opset: int = 17) -> ModelProto:
    last = helper.make_node("Shape", ["y"], ["z"])
    x, c = helper.make_tensor_value_info("x", 1, (1, 1, size, size)), helper.make_tensor_value_info("c", 9, ())
    graph = helper.make_graph([*nodes, last], "g", [x, c], [ValueInfoProto(name="z")], inits)
    opsets = [helper.make_opsetid("", opset), *OPSETS[1:]]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def branch(nodes: list[NodeProto], inits: list[TensorProto]) -> GraphProto:
    return helper.make_graph(nodes, "b", [], [ValueInfoProto(name="y")], inits)


def branches(nodes: list[NodeProto], inits: list[TensorProto], size: int = 4) -> ModelProto:
    bodies = {name: branch(nodes, inits) for name in ("then_branch", "else_branch")}
    return model([POOL, helper.make_node("If", ["c"], ["y"], **bodies)], [], size)


def function(reader: NodeProto, size: int = 4, domain: str = "my") -> ModelProto:
    """Return a model with the call of a function; the caller gives the bounds of its Slice."""
    reads = ["x", "i", "s", "e"]
    made = model([POOL, helper.make_node("f", reads, ["y"], domain=domain)], CONSTANTS, size)
    made.functions.append(helper.make_function(domain, "f", reads, ["y"], [reader], OPSETS[:1]))
    return made


def by_nodes() -> ModelProto:
    starts = [helper.make_node("Constant", [], [t.name], value_ints=list(t.int64_data)) for t in CONSTANTS]
    return model([POOL, *starts, SLICE], [])


MODELS = {
    "GatherND": model([POOL, GATHER], []),
    "Slice": model([POOL, SLICE], CONSTANTS),
    "Slice before opset 11": model([POOL, SLICE], CONSTANTS, opset=10),
    "Slice, backwards": model([POOL, BACKWARDS], [helper.make_tensor(name, 7, [1], [-1]) for name in "sea"]),
    "Slice by nodes": by_nodes(),
    "GatherND in a branch": branches([GATHER], []),
    "Slice in a branch": branches([SLICE], CONSTANTS),
    "GatherND in a function": function(GATHER),
    "Slice in a function": function(SLICE),
    "Slice in a function without a domain": function(SLICE, domain=""),
}


@pytest.mark.parametrize("where", MODELS)
@pytest.mark.parametrize("command", ["stats", "optimize"])
def test_no_command_dies(command: str, where: str, run: Run, tmp_path: Path) -> None:
    onnx.save(MODELS[where], tmp_path / "m.onnx")
    rest = ["o.onnx", "--no-verify", "--work", "1"] if command == "optimize" else []
    done = run(command, "m.onnx", *rest)
    assert done.returncode == 0, done.stderr


ORDINARY = {
    "GatherND": model([POOL, helper.make_node("GatherND", ["x", "i"], ["y"])], [], 9),
    "Slice": model([POOL, SLICE], CONSTANTS, 9),
    "Slice before opset 11": model([POOL, SLICE], CONSTANTS, 9, opset=10),
    "Slice in a branch": branches([SLICE], CONSTANTS, 9),
    "Slice in a function": function(SLICE, 9),
}


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("where", ORDINARY)
def test_guarded_inference_gives_the_same_types(where: str, values: bool) -> None:
    plain = ORDINARY[where].SerializeToString()
    given = inferable(ORDINARY[where])
    assert given.find(DOMAIN.encode()) > 0
    assert ORDINARY[where].SerializeToString() == plain, "the model itself stays as it is"
    assert infer_shapes(given, values) == infer_shapes(Inferable(plain), values)


VAGUE: dict[str, dict[str, int]] = {
    "in ir 3": {"ir_version": 3},
    "of numbers before opset 12": {"opset": 11},
    "without a shape": {"unshaped": 1},
}


@pytest.mark.parametrize("how", VAGUE)
def test_axes_ignored_by_a_slice_are_not_trusted(how: str) -> None:
    """Axes that onnx's Slice ignores are not trusted. onnx takes such axes for absent, and cuts along others."""
    options = VAGUE[how]
    asked = model([POOL, helper.make_node("Slice", ["i", "s", "e", "a"], ["y"])], CONSTANTS)
    asked.ir_version = options.get("ir_version", 8)
    asked.opset_import[0].version = options.get("opset", 17)
    axes = list(range(4))
    if "opset" in options:
        asked.graph.node.insert(0, helper.make_node("Constant", [], ["a"], value_ints=axes))
    else:
        asked.graph.initializer.append(helper.make_tensor("a", 7, [4], axes))
    if "unshaped" in options:
        asked.graph.value_info.append(helper.make_tensor_value_info("a", 7, None))
    called = {f.overload for f in ModelProto.FromString(inferable(asked)).functions if f.name == "Slice"}
    assert called == {f"{asked.opset_import[0].version} ++++ ?"}


def test_guard_functions_of_a_file_are_not_trusted() -> None:
    """A file with its own definition of the guard functions, without the check, is still guarded."""
    asked = ModelProto.FromString(inferable(MODELS["GatherND"]))
    for f in asked.functions:
        if f.name == "SizeCheck":
            del f.node[1:]
            f.node[0].CopyFrom(helper.make_node("Identity", ["x"], f.output))
    before = asked.SerializeToString()
    assert "GatherND" not in {n.op_type for f in infer_shapes(inferable(asked)).functions for n in f.node}
    assert asked.SerializeToString() == before


def test_a_single_call_with_a_negative_size_is_not_inferred() -> None:
    schema = onnx.defs.get_schema("GatherND", 17)
    types: dict[str, TypeProto] = {
        "x": helper.make_tensor_type_proto(1, (2, 2)),
        "i": helper.make_tensor_type_proto(7, (-9,)),
    }
    assert infer_call(schema, GATHER, types, {}, 17) == {}
    types["i"] = helper.make_tensor_type_proto(7, (1,))
    assert infer_call(schema, GATHER, types, {}, 17)["y"] == helper.make_tensor_type_proto(1, (2,))


def test_the_list_of_guarded_operators_is_complete() -> None:
    assert SINCE.keys() == _NO_NEGATIVE
