"""Every operator of the standard, by the tests that ONNX brings for it: optimized, it computes what it did.

With its inputs constant, all or all but one (where the standard writes an operator out, of which it has many cases
each, one input takes turns); and between operators that rules move, merge or fold, so that each rule
meets each operator. Original and result run in onnxruntime, optimizations off.

Between others, and in branches, what has the same operators takes turns: `make fuzz` takes all of it.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxopt import OptimizeOptions, optimize_model, write_model
from onnxopt.io.load import from_proto
from tests.node_cases import Case, cases
from tests.runtime import plain_session

pytestmark = pytest.mark.usefixtures("kept_worker")
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
TURNS = 1 if "ONNXOPT_FUZZ" in os.environ else 16
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def is_written_out(case: Case) -> bool:
    """Returns whether a case writes an operator out by its definition; there are hundreds, long and alike."""
    return case.name.endswith("_expanded")


# -- constants in place of inputs ------------------------------------------------------------------------------


def with_constants(case: Case, free: set[str]) -> Case | None:
    """The inputs but `free` are initializers; None where one is no tensor."""
    model = ModelProto()
    model.CopyFrom(case.model)
    for name, value in case.feeds.items():
        if name not in free:
            if not isinstance(value, (np.ndarray, np.generic)):
                return None
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    keep = [i for i in case.model.graph.input if i.name in free]
    del model.graph.input[:]
    model.graph.input.extend(keep)
    return Case(case.name, model, {n: v for n, v in case.feeds.items() if n in free}, case.outputs)


def constant_inputs(case: Case) -> Iterator[Case | None]:
    yield with_constants(case, set())
    if len(case.feeds) > 1:
        names = [*case.feeds]
        if TURNS > 1 and is_written_out(case):
            names = [names[zlib.crc32(case.name.encode()) % len(names)]]
        yield from (with_constants(case, {name}) for name in names)


# -- other operators around it ---------------------------------------------------------------------------------


class Step(NamedTuple):
    """An operator on the preceding value and constants."""

    op: str
    constants: tuple[Array, ...] = ()
    attributes: dict[str, Any] = {}


class Around(NamedTuple):
    """The graph input from which `steps` make the operator's input, and operators on its outputs."""

    before: Callable[[Array], tuple[Array, list[Step]]]
    after: Callable[[Array], list[Step]]
    min_rank: int = 1
    floats: bool = False


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def rotation(rank: int) -> list[int]:
    return [rank - 1, *range(rank - 1)]


def vector(x: Array) -> Array:
    """One factor for each element of the last axis."""
    return RNG.uniform(0.5, 2, x.shape[-1:]).astype(x.dtype)


def channels(x: Array) -> Array:
    return RNG.uniform(0.5, 2, (x.shape[1], *[1] * (x.ndim - 2))).astype(x.dtype)


def statistics(x: Array) -> tuple[Array, ...]:
    return tuple(RNG.uniform(0.5, 2, x.shape[1]).astype(x.dtype) for _ in range(4))


AROUND = {
    "transposes": Around(
        lambda x: (
            np.ascontiguousarray(x.transpose(rotation(x.ndim))),
            [Step("Transpose", (), {"perm": [*range(1, x.ndim), 0]})],
        ),
        lambda y: [Step("Transpose", (), {"perm": rotation(y.ndim)})],
        min_rank=2,
    ),
    "reshapes": Around(
        lambda x: (x.reshape(-1), [Step("Reshape", (ints(*x.shape),))]),
        lambda y: [Step("Reshape", (ints(-1),))],
    ),
    "axes of one": Around(
        lambda x: (x, [Step("Unsqueeze", (ints(0),)), Step("Squeeze", (ints(0),))]),
        lambda y: [Step("Unsqueeze", (ints(-1, 0),)), Step("Squeeze", (ints(0),))],
    ),
    "scales": Around(
        lambda x: (x, [Step("Mul", (np.array(0.75, x.dtype),))]),
        lambda y: [Step("Mul", (np.array(1.5, y.dtype),)), Step("Div", (np.array(0.7, y.dtype),))],
        floats=True,
    ),
    "columns": Around(
        lambda x: (x, [Step("Mul", (vector(x),))]),
        lambda y: [Step("Mul", (vector(y),)), Step("Add", (vector(y),))],
        min_rank=2,
        floats=True,
    ),
    "channels": Around(
        lambda x: (x, [Step("Mul", (channels(x),))]),
        lambda y: [Step("Mul", (channels(y),)), Step("Add", (channels(y),))],
        min_rank=3,
        floats=True,
    ),
    "normalizations": Around(
        lambda x: (x, []),
        lambda y: [Step("BatchNormalization", statistics(y))],
        min_rank=3,
        floats=True,
    ),
    "slices": Around(
        lambda x: (np.concatenate([x, x]), [Step("Slice", (ints(0), ints(x.shape[0]), ints(0)))]),
        lambda y: [Step("Slice", (ints(-1), ints(-(2**62)), ints(-1), ints(-1)))],
    ),
    "windows": Around(
        lambda x: (x, [Step("Clip", (np.array(-0.9, x.dtype), np.array(0.9, x.dtype)))]),
        lambda y: [Step("Clip", (np.array(-1, y.dtype), np.array(2, y.dtype))), Step("Relu")],
        floats=True,
    ),
    "wider types": Around(
        lambda x: (x, [Step("Cast", (), {"to": TensorProto.DOUBLE}), Step("Cast", (), {"to": TensorProto.FLOAT})]),
        lambda y: [Step("Cast", (), {"to": TensorProto.DOUBLE})],
        floats=True,
    ),
}


def surrounded(case: Case, around: Around) -> Case | None:
    """None where nothing fits."""
    if not any(o.domain in ("", "ai.onnx") and o.version >= 13 for o in case.model.opset_import):
        return None
    model = ModelProto()
    model.CopyFrom(case.model)
    graph, feeds = model.graph, dict(case.feeds)
    before: list[NodeProto] = []
    after: list[NodeProto] = []

    def chain(nodes: list[NodeProto], steps: list[Step], source: str, target: str) -> None:
        for i, (op, constants, attributes) in enumerate(steps):
            names = [f"{target}_{i}_{k}" for k in range(len(constants))]
            graph.initializer.extend(map(numpy_helper.from_array, constants, names))
            made = target if i == len(steps) - 1 else f"{target}_{i}"
            nodes.append(helper.make_node(op, [source, *names], [made], **attributes))
            source = made

    for value in graph.input:
        x = case.feeds[value.name]
        if fits(value, x, around):
            outer, steps = around.before(x)
            if steps:
                name, value.name = value.name, f"{value.name}_outer"
                chain(before, steps, value.name, name)
                del feeds[name]
                feeds[value.name] = outer
                value.type.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(1, outer.shape).tensor_type.shape)
    for value, y in zip(graph.output, case.outputs, strict=False):
        if fits(value, y, around):
            inner = f"{value.name}_inner"
            for node in graph.node:
                for names in (node.input, node.output):
                    names[:] = [inner if n == value.name else n for n in names]
            steps = around.after(y)
            chain(after, steps, inner, value.name)
            value.type.tensor_type.ClearField("shape")
            value.type.tensor_type.elem_type = steps[-1].attributes.get("to", value.type.tensor_type.elem_type)
    if not before and not after:
        return None
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return Case(case.name, model, feeds, case.outputs)


def fits(value: ValueInfoProto, x: Any, around: Around) -> bool:
    if not value.type.HasField("tensor_type") or not isinstance(x, np.ndarray) or not x.size:
        return False
    return x.ndim >= around.min_rank and (not around.floats or x.dtype == np.float32)


# -- in the bodies of an If ------------------------------------------------------------------------------------


def in_branches(case: Case, *, given: bool) -> Case | None:
    """Both branches are the operator: the condition is `given`, or it is constant. None where nothing fits."""
    if not any(o.domain in ("", "ai.onnx") and o.version >= 13 for o in case.model.opset_import):
        return None
    model = ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    bodies = {f"{b}_branch": body(case.model.graph, b) for b in ("then", "else")}
    node = helper.make_node("If", ["condition"], [o.name for o in graph.output], **bodies)
    del graph.node[:]
    graph.node.append(node)
    condition = np.array(True)
    if given:
        graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    else:
        graph.initializer.append(numpy_helper.from_array(condition, "condition"))
    return Case(case.name, model, case.feeds | ({"condition": condition} if given else {}), case.outputs)


def body(graph: GraphProto, name: str) -> GraphProto:
    """A body that reads the inputs of `graph` from outside, with its own names for all else."""
    outside = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {""}
    inner = GraphProto()
    inner.CopyFrom(graph)
    inner.name = name
    del inner.input[:], inner.initializer[:], inner.value_info[:]
    for node in inner.node:
        for names in (node.input, node.output):
            names[:] = [n if n in outside else f"{name}_{n}" for n in names]
    for output in inner.output:
        output.name = f"{name}_{output.name}"
    return inner


# -- the tests -------------------------------------------------------------------------------------------------


def run(model: ModelProto, feeds: dict[str, Any]) -> list[Any]:
    # copies, because training BatchNormalization writes into what it is given
    copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in feeds.items()}
    found: list[Any] = plain_session(model).run(None, copies)
    return found


def same(a: Any, b: Any, half: bool) -> bool:
    """Returns whether results are equal up to rounding: in half precision by the order of nodes, of integers by one."""
    if a is None or isinstance(a, (str, dict)):
        return bool(a == b)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(lambda x, y: same(x, y, half), a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "OSUV" or (a.dtype.kind != "f" and not half):
        return bool((a == b).all())
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    error = np.abs(x[finite] - y[finite]).max(initial=0)
    if a.dtype.kind != "f":
        return bool(error <= 1)
    return bool(error <= (2e-2 if half else 1e-4) * (np.abs(x[finite]).max(initial=0) + 1e-6))


def differences(variants: Iterator[Case]) -> tuple[int, list[str]]:
    """(results compared, what is wrong)."""
    compared, wrong = 0, []
    for case in variants:
        try:
            expected = run(case.model, case.feeds)
        except Exception:  # the runtime's errors have no base of their own
            continue  # the runtime has no such operator, or not for these types
        model = from_proto(case.model)
        optimize_model(model, OptimizeOptions(level=3))
        if not model.version:
            continue  # nothing was changed
        compared += 1
        half = any(
            t.data_type in HALVES if isinstance(t, TensorProto) else t.type.tensor_type.elem_type in HALVES
            for t in (*case.model.graph.initializer, *case.model.graph.input)
        )
        try:
            found = run(write_model(model), case.feeds)
        except Exception as e:
            wrong.append(f"{case.name} ({', '.join(case.feeds)}): {e}")
            continue
        if not same(expected, found, half):
            wrong.append(f"{case.name} ({', '.join(case.feeds)}): differs")
    return compared, wrong


parts = pytest.mark.parametrize("part", range(4))  # for as many processes


@parts
def test_operators_with_constant_inputs(part: int) -> None:
    found = in_turns(0, min(TURNS, 4))[part::4]
    compared, wrong = differences(v for case in found for v in constant_inputs(case) if v is not None)
    assert not wrong
    assert compared > 125


def in_turns(turn: int, turns: int = TURNS) -> list[Case]:
    """Returns one case per turn of those with the same operators, at least one; written-out ones in any order."""
    alike: dict[object, list[Case]] = defaultdict(list)
    for case in cases():
        operators = [n.op_type for n in case.model.graph.node]
        alike[frozenset(operators) if is_written_out(case) else tuple(operators)].append(case)
    return [case for found in alike.values() for case in found[turn % min(turns, len(found)) :: turns]]


@pytest.mark.parametrize("around", AROUND)
def test_operators_between_others(around: str) -> None:
    turn = [*AROUND].index(around)
    variants = (surrounded(case, AROUND[around]) for case in in_turns(turn))
    compared, wrong = differences(v for v in variants if v is not None)
    assert not wrong
    assert compared > 40  # of an eighth


def test_every_operator_is_between_all_the_others() -> None:
    def operators(found: list[Case]) -> set[str]:
        return {n.op_type for case in found for n in case.model.graph.node}

    taken = [in_turns(turn) for turn in range(TURNS)]
    assert all(operators(found) == operators(cases()) for found in taken)
    assert {case.name for found in taken for case in found} == {case.name for case in cases()}


@parts
@pytest.mark.parametrize("given", [False, True], ids=["known", "given"])
def test_operators_in_branches(given: bool, part: int) -> None:
    found = in_turns(given)[part::4]
    plain = (case for case in found if not any(a.g.node for n in case.model.graph.node for a in n.attribute))
    compared, wrong = differences(v for case in plain if (v := in_branches(case, given=given)) is not None)
    assert not wrong
    assert compared > (12 if given else 50)


def test_a_difference_would_be_noticed() -> None:
    ones = np.ones(3, np.float32)
    assert same([ones], [ones + 1e-6], False)
    assert not same([ones], [ones * 1.01], False)
    assert not same([ones], [ones.astype(np.float64)], False)
    assert not same([np.array([1, 2])], [np.array([1, 3])], False)
    assert not same([ones], [ones * np.nan], False)
