"""Axes of operators: a node on permuted values computes the same numbers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxopt.graph import read_model, write_model
from onnxopt.operators import BROADCASTING, EXACT, FORMS, REDUCTIONS, UNARY, VARIADIC
from onnxopt.operators.operands import AXES
from onnxopt.passes.movement.flatten_rows import Rows
from onnxopt.passes.movement.unmerge_batches import Apart
from onnxopt.rewriting.axes import Turned, View, WithOnes, WithoutOnes, passes
from onnxopt.rewriting.relayout import Relayout
from tests.runtime import outputs

Array = np.ndarray[Any, Any]
SEEDS = 40  # draws of an operator, until it has passed through each kind of view twice
NO_KERNEL = {"CumProd", "RMSNormalization", "BitwiseNot", "Swish"}  # in the oldest onnxruntime that the tests know
OF_BOOLS = {"And", "Not", "Or", "Xor"}
ROUNDED_ALIKE = set(FORMS.values()) - {"unary", "axis", "reduce", "normalize"}  # others: vectors end otherwise
OF_INTEGERS = {"BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"}


class Drawn(NamedTuple):
    """A node; the first operands are inputs, the others constants."""

    op: str
    inputs: list[Array]
    constants: list[Array | None]
    attributes: dict[str, Any]
    results: int
    opset: int

    def model(self) -> onnx.ModelProto:
        names = [f"x{i}" for i in range(len(self.inputs))]
        held = {f"c{i}": c for i, c in enumerate(self.constants)}
        made = [f"y{i}" for i in range(self.results)]
        node = helper.make_node(
            self.op, names + [n if c is not None else "" for n, c in held.items()], made, **self.attributes
        )
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                for n, x in zip(names, self.inputs)
            ],
            [helper.make_empty_tensor_value_info(n) for n in made],
            [numpy_helper.from_array(c, n) for n, c in held.items() if c is not None],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def numbers(draw: random.Random, shape: tuple[int, ...], op: str = "") -> Array:
    """Whole and half numbers, of which sums are exact, in the type that the operator has."""
    found = np.random.default_rng(draw.randrange(2**32)).integers(1, 9, shape)
    if op in OF_BOOLS:
        return found > 4
    if op in OF_INTEGERS:
        return found.astype(np.uint32)
    return (found / 2 - 2).astype(np.float32)


def of_same_rank(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dims that are broadcast to the shape: of less axes, or with ones."""
    dims = tuple(d if draw.random() < 0.6 else 1 for d in shape)
    return dims[draw.choice([0, 0, 1, len(shape)]) :]


def drawn(op: str, seed: int) -> Drawn:
    draw = random.Random(f"{op} {seed}")
    rank = draw.randint(2, 4)
    shape = (draw.choice([4, 6]), *(draw.choice([1, 2, 3]) for _ in range(rank - 1)))
    axis = draw.randrange(rank)
    said, n = draw.choice([axis, axis - rank]), shape[axis]
    x, opset = numbers(draw, shape, op), draw.choice([13, 17, 18])
    form, along = FORMS[op], AXES[op].along

    def made(constants: list[Array | None], results: int = 1, more: list[Array] | None = None, **given: Any) -> Drawn:
        return Drawn(op, [x, *(more or [])], constants, given, results, given.pop("opset", opset))

    if op in UNARY:
        given = {"to": onnx.TensorProto.INT32} if op == "Cast" else {}
        return made([], opset={"Swish": 23, "Gelu": 20}.get(op, 18), **given)
    if op == "Clip":
        return made([np.array(-1, np.float32), None if draw.random() < 0.3 else np.array(1, np.float32)])
    if op in BROADCASTING:
        count = 2 if op == "Where" else draw.randint(1, 2) if op in VARIADIC else 1
        others = [numbers(draw, of_same_rank(draw, shape), op) for _ in range(count)]
        given = {"direction": "LEFT"} if op == "BitShift" else {"fmod": 1} if op == "Mod" else {}
        first = Drawn(op, [x], [], given, 1, 18)
        if op == "Where":
            first = first._replace(inputs=[x > 0])
        if draw.random() < 0.5:
            return first._replace(constants=list(others))
        return first._replace(inputs=[*first.inputs, *others])
    if op in REDUCTIONS:
        axes = draw.sample(range(rank), draw.randint(1, rank - 1))
        axes = [a if draw.random() < 0.5 else a - rank for a in axes]
        given = {"keepdims": draw.randint(0, 1)}
        if opset >= 18 or op == "ReduceSum":
            return made([np.array(axes)], **given)
        return made([], axes=axes, **given)
    if form == "contract":
        m, k, width = draw.randint(1, 3), shape[-1], draw.randint(1, 3)
        lead = (*shape[:-2], m) if draw.random() < 0.7 else shape[:-1]
        x = numbers(draw, (*lead, k))
        w = numbers(draw, (*of_same_rank(draw, lead[:-1]), k, width))
        return made([w]) if draw.random() < 0.5 else made([], more=[w])
    old = draw.random() < 0.3
    index = np.array(draw.choices(range(n), k=2))
    each = tuple(2 if i == axis else d for i, d in enumerate(shape))
    scale = [np.full(shape[axis], 0.5, np.float32), np.arange(shape[axis]).astype(np.uint8)]
    if draw.random() < 0.5:
        scale = [s[0] for s in scale]
    choices: dict[str, Callable[[], Drawn]] = {
        "Concat": lambda: made([], more=[x + 1], axis=said),
        "CumSum": lambda: made([np.array(said)]),
        "CumProd": lambda: made([np.array(said)], opset=25),
        "DequantizeLinear": lambda: made(list(scale), axis=said)._replace(inputs=[(x * 2 + 9).astype(np.uint8)]),
        "QuantizeLinear": lambda: made(list(scale), axis=said),
        "Gather": lambda: made([index if draw.random() < 0.7 else index[0]], axis=said),
        "GatherElements": lambda: made([], more=[np.resize(index, each)], axis=said),
        "ScatterElements": lambda: made(
            [],
            more=[
                np.arange(n)[::-1].reshape([-1 if i == axis else 1 for i in range(rank)]) + np.zeros(shape, np.int64),
                x * 2,
            ],
            axis=said,
        ),
        "LayerNormalization": lambda: made([numbers(draw, shape[axis:])], axis=said, opset=17),
        "RMSNormalization": lambda: made([numbers(draw, shape[axis:])], axis=said, opset=23),
        "LpNormalization": lambda: made([], axis=said, p=1),
        "Pad": lambda: made(
            [np.array([*(i == axis for i in range(rank)), *(2 * (i == axis) for i in range(rank))]) + 0]
        ),
        "Slice": lambda: made([np.array([0]), np.array([(n + 1) // 2]), np.array([said])]),
        "Split": lambda: made([np.array([n - 1, 1][-n:])], min(n, 2), axis=said, opset=17),
        "TopK": lambda: made([np.array([1])], 2, axis=said),
        "Transpose": lambda: made([], perm=draw.sample(range(rank), rank)),
        "Trilu": lambda: made([], upper=draw.randint(0, 1), opset=17),
    }
    for name in ("Hardmax", "LogSoftmax", "Softmax"):
        choices[name] = lambda: made([], axis=said, opset=11 if old else 13)
    assert op in choices, f"{op}: a test of its line is missing ({along})"
    return choices[op]()


def views(draw: random.Random, rank: int, dims: tuple[int, ...]) -> list[View]:
    """Each kind, for a value of these dims."""
    found: list[View] = [Turned(draw.sample(range(rank), rank)), WithOnes(rank, draw.sample(range(rank + 1), 1))]
    if rank > 1:
        found.append(Rows(dims[:-1]))
    if ones := [a for a, d in enumerate(dims) if d == 1]:
        found.append(WithoutOnes(rank, [draw.choice(ones)]))
    if dims[0] in (4, 6):
        found.append(Apart(dims[:1], (2, dims[0] // 2)))
    return found


@pytest.mark.parametrize("op", sorted(set(AXES) - NO_KERNEL))
def test_a_node_seen_otherwise_makes_the_same_numbers(op: str) -> None:
    passed = Counter[str]()
    rtol = 0 if op in EXACT or FORMS[op] in ROUNDED_ALIKE else 1e-6
    for seed in range(SEEDS):
        if len(passed) == 5 and min(passed.values()) > 1:
            break
        case = drawn(op, seed)
        feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(case.inputs)}
        wanted = outputs(case.model(), feeds)
        dims = wanted["y0"].shape if AXES[op].everything else case.inputs[0].shape
        for view in views(random.Random(seed), len(dims), dims) if dims else ():
            model = read_model(case.model())
            node = next(iter(model.graph))
            if passes(node, view) is None:
                continue
            beside = Relayout(model.graph, [node], view)
            beside.look()
            beside.carry_out()
            passed[type(view).__name__] += 1
            got = outputs(write_model(model), feeds)
            for name, value in wanted.items():
                np.testing.assert_allclose(got[name], value, rtol, 0, err_msg=f"{case} {vars(view)}")
    kinds = {"Turned", "Rows", "Apart", "WithOnes", "WithoutOnes"}
    if op in ("MatMul", "Transpose", "Trilu"):
        kinds = {"Apart"}
    if AXES[op].along == "from:axis":
        kinds.remove("Turned")
    assert kinds <= set(passed), passed
