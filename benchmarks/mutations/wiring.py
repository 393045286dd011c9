"""Nodes that read the wrong values, or in the wrong order, are another operator, or are not there."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Final

from onnx import NodeProto, TensorProto, helper

from mutations.place import Edit, Place

ACTIVATIONS: Final = (
    *("Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Elu", "Selu"),
    *("Softplus", "Erf", "Softmax", "Swish", "Mish"),
)
ORDERED: Final = ("Sub", "Div", "MatMul", "Pow", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Mod")
_PAIRS: Final = (
    *(("Add", "Mul"), ("Max", "Min"), ("Floor", "Ceil"), ("Sin", "Cos"), ("Sqrt", "Reciprocal")),
    *(("Sigmoid", "Tanh"), ("GlobalAveragePool", "GlobalMaxPool"), ("ReduceMean", "ReduceSum")),
)
OTHERS: Final = {
    **{a: b for pair in _PAIRS for a, b in (pair, reversed(pair))},
    "Sub": "Add",
    "Div": "Mul",
    "Round": "Floor",
    "MaxPool": "AveragePool",
    "HardSwish": "Relu",
    "LayerNormalization": "RMSNormalization",
    "ReduceMax": "ReduceMin",
}
COMPARISONS: Final = {a: a + "OrEqual" for a in ("Less", "Greater")} | {a + "OrEqual": a for a in ("Less", "Greater")}
LOGIC: Final = {"And": "Or", "Or": "And", "Xor": "Or"}

# Optional inputs: lengths and states of a recurrence, a mask, the bounds of a Clip.
OPTIONAL: Final = {**dict.fromkeys(("LSTM", "GRU", "RNN"), (3, 4, 5, 6, 7)), "Attention": (3,), "Clip": (1, 2)}


def activation_dropped(place: Place, _: Random) -> Edit | None:
    return place.passed_on(0, f"{place.op} is left out") if place.op in ACTIVATIONS else None


def term_dropped(place: Place, rng: Random) -> Edit | None:
    """One of two that are added or multiplied is all there is: the skip connection, the gate."""
    out = place.shape(place.node.output[0])
    kept = [i for i in range(len(place.node.input)) if out is not None and place.shape(place.input(i)) == out]
    if place.op not in ("Add", "Mul", "Sub", "Div") or not kept:
        return None
    i = rng.choice(kept)
    return place.passed_on(i, f"input {1 - i} is left out")


def transpose_dropped(place: Place, _: Random) -> Edit | None:
    if place.op != "Transpose" or place.shape(place.input(0)) != place.shape(place.node.output[0]):
        return None
    return place.passed_on(0, "Transpose is left out")


def operands_swapped(place: Place, _: Random) -> Edit | None:
    if place.op not in ORDERED:
        return None
    return place.with_inputs(list(reversed(place.node.input)), "the operands are swapped")


def other_operator(place: Place, _: Random) -> Edit | None:
    if place.op not in OTHERS:
        return None
    edit = place.with_op(OTHERS[place.op])
    if place.op == "LayerNormalization":  # what RMSNormalization does not read
        del edit.nodes[0].input[2:]
    return edit


def comparison_includes(place: Place, _: Random) -> Edit | None:
    """Or does not: only ties tell."""
    return place.with_op(COMPARISONS[place.op]) if place.op in COMPARISONS else None


def mask_turned(place: Place, _: Random) -> Edit | None:
    if place.op == "Where":
        condition, a, b = place.node.input
        return place.with_inputs([condition, b, a], "the alternatives are swapped")
    if place.op == "Not":
        return place.passed_on(0, "Not is left out")
    return place.with_op(LOGIC[place.op]) if place.op in LOGIC else None


def reshape_dims_swapped(place: Place, rng: Random) -> Edit | None:
    dims = place.array(1) if place.op == "Reshape" else None
    if dims is None or dims.size < 2:
        return None
    found = [i for i in range(dims.size - 1) if dims[i] != dims[i + 1] and 1 not in (dims[i], dims[i + 1])]
    found = [i for i in found if 0 not in (dims[i], dims[i + 1])]
    if not found:
        return None
    new, i = dims.copy(), rng.choice(found)
    new[[i, i + 1]] = dims[[i + 1, i]]
    return place.with_constants({1: new}, f"to {new.tolist()}, not {dims.tolist()}")


def cast_left_out(place: Place, _: Random) -> Edit | None:
    return place.passed_on(0, "Cast is left out") if place.op == "Cast" else None


def narrowed(place: Place, _: Random) -> Edit | None:
    """The result goes through a narrower type on its way."""
    out = place.node.output[0]
    kind = place.known.shapes.get(out, ("", ()))[0]
    narrow, wide = {
        "float64": (TensorProto.FLOAT, TensorProto.DOUBLE),
        "float32": (TensorProto.FLOAT16, TensorProto.FLOAT),
        "float16": (TensorProto.BFLOAT16, TensorProto.FLOAT16),
        "int64": (TensorProto.INT8, TensorProto.INT64),
    }.get(kind, (0, 0))
    if not narrow:
        return None
    node, inner, small = place.copy(), f"{out}/inner", f"{out}/small"
    node.output[0] = inner
    casts = [helper.make_node("Cast", [inner], [small], to=narrow), helper.make_node("Cast", [small], [out], to=wide)]
    return Edit([node, *casts], f"{kind} through {TensorProto.DataType.Name(narrow).lower()}")


def outputs_swapped(place: Place, rng: Random) -> Edit | None:
    """Of a Split, two of one shape."""
    if place.op != "Split":
        return None
    outs = list(place.node.output)
    pairs = [(i, j) for j in range(len(outs)) for i in range(j) if place.shape(outs[i]) == place.shape(outs[j])]
    if not pairs:
        return None
    node, (i, j) = place.copy(), rng.choice(pairs)
    node.output[i], node.output[j] = outs[j], outs[i]
    return Edit([node], f"outputs {i} and {j} are swapped")


def output_taken_twice(place: Place, rng: Random) -> Edit | None:
    """A value that a Split makes is read where another of its values should be."""
    found = []
    for i, name in enumerate(place.node.input):
        split: NodeProto | None = place.known.makers.get(name)
        if split is not None and split.op_type == "Split":
            found += [(i, o) for o in split.output if o and o != name and place.shape(o) == place.shape(name)]
    return _reading(place, rng.choice(found)) if found else None


def wrong_value_read(place: Place, rng: Random) -> Edit | None:
    """The last value before this one that has the type and shape of what should be read."""
    found = []
    for i, name in enumerate(place.node.input):
        kind = place.known.shapes.get(name)
        if kind is None or name in place.known.constants or prod(kind[1]) < 2:
            continue
        alike = [v for v in place.before if v not in place.node.input and place.known.shapes.get(v) == kind]
        found += [(i, v) for v in alike[-1:]]
    return _reading(place, rng.choice(found)) if found else None


def _reading(place: Place, at: tuple[int, str]) -> Edit | None:
    inputs = list(place.node.input)
    inputs[at[0]] = at[1]
    return place.with_inputs(inputs, f"input {at[0]} is `{at[1]}`, not `{place.input(at[0])}`")


def optional_dropped(place: Place, rng: Random) -> Edit | None:
    """An optional input is not passed on."""
    found = [i for i in OPTIONAL.get(place.op, ()) if place.input(i)]
    if not found:
        return None
    dropped = rng.choice(found)
    inputs = ["" if i == dropped else name for i, name in enumerate(place.node.input)]
    return place.with_inputs(inputs, f"input {dropped} is left out")
