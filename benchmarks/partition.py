"""How long partitioning takes: chains of supported, and of alternating nodes.

    python benchmarks/partition.py [--nodes 20000] [--max-seconds 2]

Reading the same graph is timed beside it, as the floor: whoever partitions has read it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import onnx
from onnx import TensorProto, helper

from onnxopt.graph import Model, read_model
from onnxopt.pipeline.partition import CapabilityPartitioner, OperatorSupport


def chain(nodes: int, every: int) -> onnx.ModelProto:
    """Relu after Relu; every so many nodes a Neg, which is not supported."""
    graph = onnx.GraphProto(name="chain")
    names = ["x", *(f"v{i}" for i in range(nodes - 1)), "y"]
    for i in range(nodes):
        graph.node.add(op_type="Relu" if (i + 1) % every else "Neg", input=[names[i]], output=[names[i + 1]])
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]))
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def seconds(call: Callable[[], object], runs: int = 3) -> float:
    """The fastest of some runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20_000, help="length of the chains (default: %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=2.0, help="for the slowest (default: %(default)s)")
    options = parser.parse_args()
    slowest = 0.0
    print(f"{'unsupported':>12} {'parts':>7} {'seconds':>8} {'of reading':>10}")
    for every in (options.nodes + 1, 10, 2):
        proto = chain(options.nodes, every)
        model: Model = read_model(proto)
        partitioner = CapabilityPartitioner(model.graph, OperatorSupport(["Relu"]))
        spent, floor = seconds(partitioner.propose), seconds(lambda proto=proto: read_model(proto))
        label = f"1 in {every}" if every <= options.nodes else "none"
        print(f"{label:>12} {len(partitioner.propose()):>7,} {spent:>8.3f} {spent / floor:>10.2f}")
        slowest = max(slowest, spent)
    slow = slowest > options.max_seconds
    print(f"slowest {slowest:.2f} s (limit {options.max_seconds:g}): {'TOO SLOW' if slow else 'ok'}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
