"""Invalid calls of every operator in every version, and the effect of inference on them.

The calls have too few or too many operands and results, empty names, attributes of other types, meaningless numbers
and words, or undeclared types. `python -m tests.hostile.odd_calls 500 --seed 1` infers about 500 calls of each
version.
"""

from __future__ import annotations

import argparse
import contextlib
from random import Random
from typing import Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, TypeProto, helper
from onnx.defs import OpSchema, get_all_schemas_with_history

from onnxopt.proto.inference import Inferable, infer_shapes, inferable

COUNT: Final = 8  # calls of each version, in the suite
_TENSOR = helper.make_tensor_type_proto
KINDS: Final = [
    *(_TENSOR(1, dims) for dims in ((2, 4), ("a", "b"), None, (), (0,), (1, 1, 4, 4), (2, 3, 8), (-1, 2**62))),
    *(_TENSOR(code, (2,)) for code in (0, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL, 99)),
    helper.make_sequence_type_proto(_TENSOR(1, (2, 4))),
    helper.make_optional_type_proto(_TENSOR(1, None)),
    helper.make_map_type_proto(TensorProto.INT64, _TENSOR(1, ())),
    helper.make_sparse_tensor_type_proto(1, (2, 4)),
    TypeProto(),
    TypeProto(sequence_type=TypeProto.Sequence()),
    TypeProto(optional_type=TypeProto.Optional()),
    TypeProto(map_type=TypeProto.Map()),
]
HUGE: Final = (-(2**63), -(2**31), -3, -1, 0, 1, 2, 3, 7, 2**31, 2**40, 2**62, 2**63 - 1)
FLOATS: Final = (0.0, -1.0, 0.5, 2.0, 1e30, float("nan"), float("inf"))
TEXTS: Final = (
    b"",
    b"1",
    b"\xff",
    b"SAME_UPPER",
    b"ij->ji",
    b"i..j",
    b",,->",
    b"...",
    b"linear",
    b"reflect",
    b"a" * 99,
)
SHAPES: Final[tuple[tuple[int, ...], ...]] = ((), (0,), (1,), (2,), (4,), (2, 2), (1, 1, 1), (-1,))


def tensor(rng: Random) -> TensorProto:
    dims = rng.choice(SHAPES)
    count = abs(int(onnx.numpy_helper.np.prod(dims)))
    made = TensorProto(dims=dims)
    match rng.randrange(6):
        case 0 | 1:
            made.data_type = TensorProto.INT64
            made.int64_data.extend(rng.choice(HUGE) for _ in range(count))
        case 2 | 3:
            made.data_type = TensorProto.FLOAT
            made.float_data.extend(rng.choice(FLOATS) for _ in range(count))
        case 4:
            made.data_type = TensorProto.STRING
            made.string_data.extend(rng.choice(TEXTS) for _ in range(count))
        case _:  # element types that do not exist
            made.data_type = rng.choice((0, 1, 6, 7, 9, 10, 16, 22, 99))
            made.raw_data = bytes(rng.choice((0, 4, 8)))
    return made


def body(rng: Random) -> GraphProto:
    made = GraphProto(name="b")
    for i in range(rng.randrange(4)):
        info = made.input.add(name=f"i{i}")
        if rng.random() < 0.6:
            info.type.CopyFrom(rng.choice(KINDS))
    for i in range(rng.randrange(4)):
        read = rng.choice(["x0", "x3", "", *(v.name for v in made.input)])
        made.node.add(op_type=rng.choice(["Identity", "Shape", "EyeLike", "No"]), input=[read], output=[f"q{i}"])
        info = made.output.add(name=f"q{i}")
        if rng.random() < 0.5:
            info.type.CopyFrom(rng.choice(KINDS))
    return made


def fill(attribute: AttributeProto, rng: Random) -> None:
    """Set a value of the attribute's type."""
    few = rng.choice((0, 1, 1, 2, 4, 20))
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = rng.choice(HUGE)
        case AttributeProto.FLOAT:
            attribute.f = rng.choice(FLOATS)
        case AttributeProto.STRING:
            attribute.s = rng.choice(TEXTS)
        case AttributeProto.TENSOR:
            attribute.t.CopyFrom(tensor(rng))
        case AttributeProto.GRAPH:
            attribute.g.CopyFrom(body(rng))
        case AttributeProto.INTS:
            attribute.ints.extend(rng.choice(HUGE) if rng.random() < 0.3 else rng.randrange(4) for _ in range(few))
        case AttributeProto.FLOATS:
            attribute.floats.extend(rng.choice(FLOATS) for _ in range(few))
        case AttributeProto.STRINGS:
            attribute.strings.extend(rng.choice(TEXTS) for _ in range(few))


def call(schema: OpSchema, rng: Random) -> ModelProto:
    graph = GraphProto(name="g")
    graph.input.extend(onnx.ValueInfoProto(name=f"x{i}", type=kind) for i, kind in enumerate(KINDS))
    graph.node.add(op_type="Find", domain="my", output=["u"])
    node = graph.node.add(op_type=schema.name, domain=schema.domain)
    odd = rng.random() < 0.3
    for i in range(_count(schema.min_input, schema.max_input, rng)):
        chance = rng.random()
        if chance < 0.4:
            node.input.append(f"x{rng.randrange(8)}" if rng.random() < 0.6 else f"x{rng.randrange(len(KINDS))}")
        elif chance < 0.9:
            node.input.append(f"c{i}")
            graph.initializer.append(tensor(rng))
            graph.initializer[-1].name = f"c{i}"
        else:
            node.input.append("" if odd else "u")
    for i in range(_count(schema.min_output, schema.max_output, rng)):
        node.output.append("" if rng.random() < 0.1 else f"o{i}")
    for a in schema.attributes.values():
        if rng.random() < (0.9 if a.required else 0.4):
            made = node.attribute.add(name=a.name, type=a.type.value)
            if odd and rng.random() < 0.2:
                made.type = rng.choice(AttributeProto.AttributeType.values())
            fill(made, rng)
            if odd and rng.random() < 0.1:
                made.type = a.type.value  # not the attribute's type
    graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o)
    versions = {"": 17, "my": 1, schema.domain: schema.since_version}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _count(least: int, most: int, rng: Random) -> int:
    count = rng.randint(least, max(least, min(most, least + 4)))
    return max(0, count + rng.choice((-2, -1, 1))) if rng.random() < 0.15 else count


def below_zero(asked: ModelProto, rng: Random) -> ModelProto:
    """Return the model with some negative sizes of inputs, as inference may make them."""
    for info in asked.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if rng.random() < 0.5:
                dim.dim_value = rng.choice((-1, -2, -3, -7, -(2**31), -(2**62)))
    return asked


def main() -> None:
    """Infer each call. Its operator and number are printed before, to identify a crash."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, help="calls of each version of each operator")
    parser.add_argument("--values", type=int, default=0, help="1: values of integers are followed too")
    parser.add_argument("--seed", default="")
    parser.add_argument("--start", type=int, default=0, help="the first version")
    parser.add_argument("--below-zero", action="store_true", help="sizes of what is read are less than zero")
    chosen = parser.parse_args()
    for i, schema in enumerate(get_all_schemas_with_history()[chosen.start :], chosen.start):
        for number in range(chosen.count):
            print(i, schema.name, schema.since_version, number, flush=True)
            rng = Random(f"{chosen.seed}{schema.domain} {schema.name} {schema.since_version} {number}")
            given = inferable(call(schema, rng))
            if chosen.below_zero:
                given = Inferable(below_zero(ModelProto.FromString(given), rng).SerializeToString())
            with contextlib.suppress(Exception):  # a call may be refused
                infer_shapes(given, bool(chosen.values))


if __name__ == "__main__":
    main()
