"""Small models in partitions, and whether their parts compute what they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import parser

from onnxopt.graph import Model, check_model, read_model, write_model
from onnxopt.pipeline.outlining import Part, fuse_partition, split
from onnxopt.pipeline.partition import CapabilityPartitioner, OperatorSupport, Partition
from tests.runtime import outputs

X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
SIGNATURE = "(float[2, 4] x) => (float[2, 4] y)"


def model(body: str, signature: str = SIGNATURE, weights: str = "", ir: int = 8) -> Model:
    return read_model(
        parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : 17]> g {signature} {weights} {{ {body} }}')
    )


def propose(m: Model, *ops: str, **options: Any) -> list[Partition]:
    return CapabilityPartitioner(m.graph, OperatorSupport(ops), **options).propose()


def operators(partitions: list[Partition]) -> list[list[str]]:
    return [[n.op for n in p.nodes] for p in partitions]


def run_parts(parts: list[Part], feeds: dict[str, Any]) -> dict[str, Any]:
    values = dict(feeds)
    for part in parts:
        onnx.checker.check_model(part.proto)
        given = outputs(part.proto, {name: values[name] for name in part.inputs})
        assert tuple(given) == part.outputs
        values |= given
    return values


def assert_both_compute_the_same(m: Model, partitions: list[Partition], feeds: dict[str, Any]) -> None:
    """Split, then fused: the outputs are those of the model, bit for bit."""
    expected = outputs(write_model(m), feeds)
    found = run_parts(split(m, partitions), feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    for p in partitions:
        fuse_partition(p, "part")
    check_model(m)
    proto = write_model(m)
    onnx.checker.check_model(proto, full_check=True)
    check_model(read_model(onnx.ModelProto.FromString(proto.SerializeToString())))
    for name, value in outputs(proto, feeds).items():
        np.testing.assert_array_equal(value, expected[name])
