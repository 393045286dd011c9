"""Proposing a partition costs the same per node in every graph."""

from __future__ import annotations

import random
from functools import partial

import pytest
from onnx import helper

from onnxopt.graph import Model, read_model
from tests.pipeline.partitioning import propose
from tests.steps import lines_executed

COUNT = 4_000


def _chain(n: int) -> list[int]:
    return [n - 1]


def _ladder(n: int) -> list[int]:
    return [n - 1, max(0, n - 7)]


def _wide(n: int) -> list[int]:
    """140 branches that one node gathers."""
    return [max(0, n - 140)] if n < COUNT - 1 else list(range(n - 140, n))


def _nested_skips(n: int) -> list[int]:
    """Like a U-Net: each node of the second half also reads its mirror image."""
    return [n - 1] + ([COUNT - 1 - n] if n > COUNT // 2 else [])


SHAPES = {
    "chain": (_chain, lambda n: True),
    "alternating": (_chain, lambda n: n % 2 == 0),
    "ladder": (_ladder, lambda n: n % 3 > 0),
    "wide": (_wide, lambda n: (n + n // 140) % 2 == 0),
    "random wide": (_wide, lambda n: random.Random(n).random() < 0.6),
    "nested skips": (_nested_skips, lambda n: n % 4 != 1),
}


def _shape(name: str, count: int) -> Model:
    before, own = SHAPES[name]
    nodes = [
        helper.make_node("Sum" if own(n) else "Mean", [f"v{p}" for p in before(n)] if n else ["x"], [f"v{n}"])
        for n in range(count)
    ]
    info = [helper.make_tensor_value_info(v, 1, [2, 4]) for v in ("x", f"v{count - 1}")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_steps_per_node_stay_flat(name: str) -> None:
    """Ten times the nodes, ten times the work; `benchmarks/partition.py` says how long that takes."""
    small, large = _shape(name, COUNT // 10), _shape(name, COUNT)
    large_steps, small_steps = (lines_executed(partial(propose, m, "Sum")) for m in (large, small))
    assert large_steps / small_steps < 20, "a quadratic algorithm takes a hundred times as many"
    partitions, own = propose(large, "Sum"), SHAPES[name][1]
    assert sum(len(p) for p in partitions) == sum(own(n) for n in range(COUNT))
    assert name != "chain" or len(partitions) == 1
