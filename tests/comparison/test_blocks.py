"""Nodes in blocks: each node once, no level larger than a screen, blocks named after their contents."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.comparison.blocks import MOST, Block, blocks, share_blocks
from onnxopt.comparison.counterparts import match
from onnxopt.comparison.records import GraphRecord, graph_record
from onnxopt.io import from_proto
from tests.samples import ROOT, build


def chain(names: list[str], ops: list[str]) -> GraphRecord:
    """Return the record of unary nodes in a row. A Constant has no reader but the next Add."""
    nodes, last = [], "x"
    for i, (name, op) in enumerate(zip(names, ops, strict=True)):
        nodes.append(helper.make_node(op, [last], [f"v{i}"], name))
        last = f"v{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return graph_record(from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))


def all_blocks(root: Block) -> list[Block]:
    found = [root]
    for block in found:
        found.extend(item for item in block.items if isinstance(item, Block))
    return found


def labels(block: Block) -> list[str]:
    return [item.label for item in block.items if isinstance(item, Block)]


def test_a_small_graph_is_one_block() -> None:
    root = blocks(chain([f"/a/b/{i}" for i in range(10)], ["Neg"] * 10))
    assert root.items == list(range(10))


def test_names_make_modules() -> None:
    names = [
        f"/model/encoder/layer.{i}/{part}/{k}" for i in range(4) for part in ("attention", "mlp") for k in range(8)
    ]
    root = blocks(chain(names, ["Neg", "Abs"] * 32))
    assert labels(root) == [f"layer.{i}" for i in range(4)]
    assert [labels(b) for b in root.items if isinstance(b, Block)] == [["attention", "mlp"]] * 4


def test_repeats_are_found_without_names() -> None:
    unit = ["Neg", "Abs", "Tanh", "Relu", "Exp"]
    root = blocks(chain([""] * 64, ["Cos", "Sin", *unit * 12, "Cos", "Sin"]))
    assert root.items[:2] == [0, 1]
    assert labels(root) == [f"repeat {i + 1} of 12" for i in range(12)]
    assert [list(b.nodes()) for b in root.items if isinstance(b, Block)][1] == [7, 8, 9, 10, 11]


def test_nodes_without_repeats_are_cut_in_sections() -> None:
    root = blocks(chain([""] * 200, ["Neg"] * 200))
    assert labels(root)[0] == "nodes 1 – 23"
    assert all(b.kind == "section" for b in root.items if isinstance(b, Block))


def test_constants_are_in_the_block_of_their_reader() -> None:
    nodes = [helper.make_node("Constant", [], [f"c{i}"], value_float=1.0) for i in range(60)]
    nodes += [
        helper.make_node("Add", [f"a{i - 1}" if i else "x", f"c{i}"], [f"a{i}"], f"/l{i // 15}/{i}") for i in range(60)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "a59")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    root = blocks(graph_record(from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))))
    assert labels(root) == ["l0", "l1", "l2", "l3"]
    assert all(len(list(b.nodes())) == 30 for b in root.items if isinstance(b, Block))


def test_nodes_on_constants_alone_are_in_the_block_of_their_reader() -> None:
    """Nodes on constants alone are in the block of their reader; an unread one stays at the top.

    Dequantized weights are such nodes, at the head of the file and without a module in their names.
    """
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "a59")]
    made = [("Cast", ["w"], [f"c{i}"]) for i in range(60)] + [("Neg", [f"c{i}"], [f"d{i}"]) for i in range(60)]
    nodes = [helper.make_node(op, *names, **({"to": 1} if op == "Cast" else {})) for op, *names in made]
    nodes += [helper.make_node("Neg", ["w"], ["unread"])]
    nodes += [
        helper.make_node("Add", [f"a{i - 1}" if i else "x", f"d{i}"], [f"a{i}"], f"/l{i // 15}/{i}") for i in range(60)
    ]
    weight = helper.make_tensor("w", TensorProto.INT8, [4], [1, 2, 3, 4])
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    root = blocks(graph_record(from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))))
    assert labels(root) == ["l0", "l1", "l2", "l3"] and 120 in root.items
    first = next(item for item in root.items if isinstance(item, Block))
    assert list(first.nodes())[:6] == [0, 60, 121, 1, 61, 122]


@pytest.mark.parametrize("depth", [1, 40, 4000])
def test_any_names_will_do(depth: int) -> None:
    names = ["/" + "a/" * depth + f"{i}" for i in range(100)]
    root = blocks(chain(names, ["Neg", "Abs", "Neg", "Tanh"] * 25))
    assert sorted(root.nodes()) == list(range(100))


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.onnxtxt")), ids=lambda p: p.stem)
def test_each_node_is_in_one_block(path: object) -> None:
    graph = graph_record(from_proto(build.build(path)))
    assert sorted(blocks(graph).nodes()) == list(range(len(graph.nodes)))


@pytest.mark.parametrize("count", [49, 500, 5000])
def test_no_level_is_too_long(count: int) -> None:
    ops = [["Neg", "Abs", "Tanh", "Relu"][(i * i * 7 // 5) % 4] for i in range(count)]
    for names in ([""] * count, [f"/l{i % 90}/{i}" for i in range(count)]):
        root = blocks(chain(names, ops))
        assert sorted(root.nodes()) == list(range(count))
        assert max(len(b.items) for b in all_blocks(root)) <= MOST


def test_another_graph_inherits_the_blocks() -> None:
    names = [f"/layer.{i}/{k}" for i in range(4) for k in range(16)]
    before, after = chain(names, ["Neg", "Abs"] * 32), chain(names[:40], ["Neg", "Abs"] * 20)
    found = share_blocks([before, after], match(before, after))
    assert found.inside[1] == found.inside[0][:40]
    back = share_blocks([after, before], match(after, before))  # the larger graph makes the blocks, whichever it is
    assert back.inside == found.inside[::-1]


def test_graphs_without_common_nodes_are_cut_too() -> None:
    before = chain([f"/a/{i}" for i in range(600)], ["Neg", "Abs"] * 300)
    nodes = [helper.make_node("Relu", [f"r{i}"], [f"r{i + 1}"]) for i in range(500)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("r0", "r500")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    after = graph_record(from_proto(model))
    found = share_blocks([before, after], match(before, after))
    assert max(found.inside[1].count(at) for at in set(found.inside[1])) <= MOST
    assert all(parent < at for at, (_, parent) in enumerate(found.blocks))
