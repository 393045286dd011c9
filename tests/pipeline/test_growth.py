"""Passes cost the same per node in models of any length, and names stay short."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.graph import Model, read_model
from onnxopt.graph.model import Names
from onnxopt.passes.levels import pipeline_for
from onnxopt.pipeline import PassContext, execute, parse_pipeline
from tests.steps import lines_executed

SMALL, LARGE = 100, 1000


def model(
    nodes: list[onnx.NodeProto], weights: dict[str, Any], functions: tuple[onnx.FunctionProto, ...] = ()
) -> Model:
    """`x` of 4 by 4 to `y`."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    ends[0].type.tensor_type.shape.dim.add(dim_value=4)
    ends[0].type.tensor_type.shape.dim.add(dim_value=4)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return read_model(helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions))


def readers(count: int) -> Model:
    """Identities of one value, all of which a Sum reads."""
    ends = [helper.make_node("Identity", ["r"], [f"v{i}"]) for i in range(count)]
    head = helper.make_node("Exp", ["x"], ["r"])
    return model([head, *ends, helper.make_node("Sum", [v.output[0] for v in ends], ["y"])], {})


def unread_parts(count: int) -> Model:
    """A Split, and of each part but the last a reader that nothing reads, the last part first."""
    parts = [f"p{i}" for i in range(count)]
    unread = [helper.make_node("Exp", [p], [f"d{i}"]) for i, p in enumerate(reversed(parts[:-1]))]
    split = helper.make_node("Split", ["x", "sizes"], parts, axis=0)
    return model([split, *unread, helper.make_node("Neg", parts[-1:], ["y"])], {"sizes": np.ones(count, np.int64)})


def parts(count: int) -> Model:
    """A Split of sizes, which a Concat joins."""
    names = [f"p{i}" for i in range(count)]
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Expand", ["s", "count"], ["e"])]
    nodes += [
        helper.make_node("Split", ["e", "sizes"], names, axis=0),
        helper.make_node("Concat", names, ["c"], axis=0),
    ]
    nodes.append(helper.make_node("Expand", ["x", "c"], ["y"]))
    return model(nodes, {"sizes": np.ones(count, np.int64), "count": np.array([count])})


def overlaps(count: int) -> Model:
    """A Concat of terms, and Slices of it that begin and end between joints, all of which a Sum reads."""
    nodes = [helper.make_node("Add", ["x", f"w{i}"], [f"v{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Concat", [n.output[0] for n in nodes], ["c"], axis=0))
    nodes += [helper.make_node("Slice", ["c", f"at{i}", f"to{i}"], [f"s{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Sum", [f"s{i}" for i in range(count)], ["y"]))
    weights = {f"w{i}": np.full((4, 4), i + 1, np.float32) for i in range(count)}
    places = {f"{name}{i}": np.array([4 * i + k]) for i in range(count) for name, k in (("at", 1), ("to", 3))}
    return model(nodes, weights | places)


def choices(count: int) -> Model:
    """Ifs, all of which a Sum reads."""
    nodes = [helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.array(0.5, np.float32)))]
    nodes += [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Less", ["m", "t"], ["c"])]
    for i in range(count):
        bodies = {
            name: helper.make_graph(
                [helper.make_node(op, ["x"], [f"{op}{i}"])],
                name,
                [],
                [helper.make_tensor_value_info(f"{op}{i}", TensorProto.FLOAT, None)],
            )
            for name, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
        }
        nodes.append(helper.make_node("If", ["c"], [f"v{i}"], **bodies))
    return model([*nodes, helper.make_node("Sum", [f"v{i}" for i in range(count)], ["y"])], {})


def unread_functions(count: int) -> Model:
    """Functions, most of which call the one before, and nothing the last."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    found = []
    for i in range(count):
        calls = i % 50 > 0  # no deeper than models may go
        inner = helper.make_node(f"f{i - 1}" if calls else "Neg", ["a"], ["b"], domain="local" if calls else "")
        found.append(helper.make_function("local", f"f{i}", ["a"], ["b"], [inner], opset))
    return model([helper.make_node("f3", ["x"], ["y"], domain="local")], {}, tuple(found))


def products(count: int) -> Model:
    """Products of one value, all of which a Sum reads."""
    nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"v{i}"]) for i in range(count)]
    weights = {f"w{i}": np.full((4, 4), i, np.float32) for i in range(count)}
    return model([*nodes, helper.make_node("Sum", [n.output[0] for n in nodes], ["y"])], weights)


def adds(count: int) -> Model:
    """A chain of Adds of constants."""
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    nodes = [helper.make_node("Add", [a, f"c{i}"], [b]) for i, (a, b) in enumerate(pairwise(names))]
    return model(nodes, {f"c{i}": np.full((4,), i, np.float32) for i in range(count)})


def sizes(count: int) -> Model:
    """A dim that the targets of all Reshapes begin with, a Sum of which is read."""
    head = helper.make_node("Gather", ["s", "zero"], ["n"])
    nodes = [helper.make_node("Shape", ["x"], ["s"]), head]
    for i in range(count):
        nodes.append(helper.make_node("Concat", ["n", f"c{i}"], [f"t{i}"], axis=0))
        nodes.append(helper.make_node("Reshape", ["x", f"t{i}"], [f"v{i}"]))
    nodes.append(helper.make_node("Sum", [f"v{i}" for i in range(count)], ["y"]))
    return model(nodes, {"zero": np.array([0]), **{f"c{i}": np.array([4]) for i in range(count)}})


def axes(count: int) -> Model:
    """Two Unsqueezes of so many axes."""
    places = np.arange(count)
    nodes = [helper.make_node("Unsqueeze", [a, b], [c]) for a, b, c in (("x", "a", "v"), ("v", "b", "y"))]
    return model(nodes, {"a": places, "b": 2 * places})


def steps(m: Model, pipeline: str, level: int) -> int:
    return lines_executed(lambda: execute(parse_pipeline(pipeline), m, PassContext(opt_level=level)))


@pytest.mark.parametrize(
    ("family", "pipeline", "left"),
    [
        (readers, "elim-identity", 2),
        (unread_parts, "dead-code", 2),
        (unread_functions, "dead-code", 1 + 4),
        (products, "merge-parallel", 3),
        (adds, "simplify-arithmetic", 1),
        (sizes, "index-chains", 2 * LARGE + 2),
        (parts, "shape-arithmetic", 5),
        (axes, "reshape-chains", 1),
        (overlaps, "parts-of-concat", 2 * LARGE + 2),
        (choices, "known-conditions", 3 * LARGE + 4),
    ],
)
def test_the_steps_per_node_stay_flat(family: Any, pipeline: str, left: int) -> None:
    """Ten times the nodes, ten times the work; `benchmarks/scale.py` says how long that takes."""
    small, large = family(SMALL), family(LARGE)
    assert steps(large, pipeline, 3) / steps(small, pipeline, 3) < 15, (
        "a quadratic algorithm takes a hundred times as many"
    )
    assert large.node_count() == left


def test_of_branches_that_nothing_tells_apart_no_sizes_are_asked() -> None:
    """Inference copies what is known around each body, and takes the square of the time for Ifs beside each other."""
    bodies = {
        name: helper.make_graph([helper.make_node(op, ["x"], ["b"])], name, [], [onnx.ValueInfoProto(name="b")])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    truth = helper.make_node("Cast", ["x"], ["c"], to=TensorProto.BOOL)
    m = model([truth, helper.make_node("If", ["c"], ["i"], **bodies), helper.make_node("Sqrt", ["i"], ["y"])], {})
    execute(parse_pipeline("known-conditions"), m)
    assert m.inferred_version == -1


def test_names_do_not_grow_with_rewrites() -> None:
    m = adds(300)
    execute(pipeline_for(2), m)
    assert m.node_count() == 1
    assert max(len(name) for name in m.graph.initializers) < 12
    names = Names()
    names.update(["conv_1"])
    made = ["conv_1"]
    for _ in range(100):
        made.append(names.fresh(made[-1]))
        made.append(names.fresh(made[-1], "_Mul"))
    assert len(set(made)) == len(made)
    assert made[1:3] == ["conv_1_1", "conv_1_Mul"], "what the model calls itself is not taken apart"
    assert max(map(len, made)) < len("conv_1_Mul_100") + 1


@pytest.mark.parametrize(("count", "second", "most"), [(40, "itself", 64), (3000, "x", 1024)])
def test_joined_concats_have_a_bounded_number_of_parts(count: int, second: str, most: int) -> None:
    """Copies of copies double at each step; a chain that is one node is written again at each step."""
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    nodes = [
        helper.make_node("Concat", [a, a if second == "itself" else second], [b], axis=0) for a, b in pairwise(names)
    ]
    m = model(nodes, {})
    execute(parse_pipeline("merge-chains"), m, PassContext())
    assert 2 < max(len(node.inputs) for node in m.nodes()) <= most


def test_what_is_known_of_many_dims_takes_no_square_of_memory() -> None:
    rank, count = 300, 60
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [f"d{i}" for i in range(rank)])
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    weights = {"zero": np.zeros(1), "two": np.full(1, 2), **{f"k{i}": np.full(1, i) for i in range(count)}}
    tensors = [numpy_helper.from_array(array.astype(np.int64), name) for name, array in weights.items()]
    nodes = [helper.make_node("Slice", [a, "zero", "two", f"k{i}"], [b]) for i, (a, b) in enumerate(pairwise(names))]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    m = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    tracemalloc.start()
    try:
        execute(parse_pipeline("shape-arithmetic"), m, PassContext())
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
