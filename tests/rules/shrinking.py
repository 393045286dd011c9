"""Reduces a model with a fault: `python -m tests.rules.shrinking RULE NUMBER` prints it in the form of a case."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx.printer
from onnx import GraphProto, ModelProto, helper, numpy_helper

from onnxopt.proto.messages import body_graphs
from tests.cases.mutations import value_types
from tests.cases.surroundings import say_anew
from tests.rules.apart import Apart
from tests.rules.campaign import how
from tests.rules.instances import Instance, draw, subject
from tests.rules.judging import Outcome
from tests.rules.tensors import drop_unread

Step = Callable[[ModelProto], bool]  # False where there is nothing to change
PATIENCE = 2000  # models


def shrunk(model: ModelProto, fails: Callable[[ModelProto], bool]) -> ModelProto:
    """Returns the smallest model that still fails, found by single removals."""
    left, found = PATIENCE, True
    while found:
        found = False
        for smaller in _smaller(model):
            left -= 1
            if left < 0:
                return model
            if fails(smaller):
                model, found = smaller, True
                break
    return model


def _smaller(model: ModelProto) -> Iterator[ModelProto]:
    for step in _steps(model):
        copy = ModelProto()
        copy.CopyFrom(model)
        try:
            if not step(copy):
                continue
            _tidy(copy)
        except (ValueError, IndexError, KeyError, TypeError):
            continue
        if copy != model:
            yield copy


def _tidy(model: ModelProto) -> None:
    """Without nodes, weights and inputs that lead to no output."""
    graph = model.graph
    while True:
        read = {i for g in _scopes(graph) for n in g.node for i in n.input} | {o.name for o in graph.output}
        read |= {o.name for g in _scopes(graph) for o in g.output}
        kept = [n for n in graph.node if any(o in read for o in n.output)]
        if len(kept) == len(graph.node):
            break
        del graph.node[:]
        graph.node.extend(kept)
    drop_unread(model)
    given = [i for i in graph.input if i.name in read]
    del graph.input[:]
    graph.input.extend(given)
    drop_unread(model)
    del graph.value_info[:]


def _scopes(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for _, body in body_graphs(node):
            yield from _scopes(body)


def _steps(model: ModelProto) -> Iterator[Step]:
    """From what leaves out most."""
    graph = model.graph
    for i in range(len(graph.output) if len(graph.output) > 1 else 0):
        yield lambda m, i=i: m.graph.output.pop(i) is not None  # type: ignore[misc]
    for i in reversed(range(len(graph.node))):
        yield lambda m, i=i: _cut(m, i)  # type: ignore[misc]
    for i in range(len(graph.node)):
        for k in range(len(graph.node[i].input)):
            yield lambda m, i=i, k=k: _pass_on(m, i, k)  # type: ignore[misc]
    for i in range(len(graph.node)):
        yield lambda m, i=i: _end_at(m, i)  # type: ignore[misc]
    for i, t in enumerate(graph.initializer):
        if t.name in {v.name for v in graph.input}:
            yield lambda m, n=t.name: _not_an_input(m, n)  # type: ignore[misc]
        yield lambda m, i=i: _fed(m, i)  # type: ignore[misc]
    for i, node in enumerate(graph.node):
        for k in range(len(node.attribute)):
            yield lambda m, i=i, k=k: m.graph.node[i].attribute.pop(k) is not None  # type: ignore[misc]
        if len(node.input) > 1:
            yield lambda m, i=i: m.graph.node[i].input.pop() is not None  # type: ignore[misc]
    sizes = {d.dim_value for v in graph.input for d in v.type.tensor_type.shape.dim if d.dim_value > 1}
    for n in sorted(sizes, reverse=True):
        for smaller in (1, n - 1):
            yield lambda m, n=n, s=smaller: _resize(m, n, s)  # type: ignore[misc]
    for v in range(len(graph.input)):
        for k, d in enumerate(graph.input[v].type.tensor_type.shape.dim):
            if d.dim_param:
                yield lambda m, v=v, k=k: _number(m, v, k)  # type: ignore[misc]
            elif d.dim_value > 1:
                yield lambda m, v=v, k=k: _one(m, v, k)  # type: ignore[misc]
    for i, t in enumerate(graph.initializer):
        if np.prod(t.dims) > 1:
            yield lambda m, i=i: _alike(m, i)  # type: ignore[misc]


def _cut(model: ModelProto, i: int) -> bool:
    """What a node makes is given."""
    types = value_types(model)
    node = model.graph.node[i]
    for name in node.output:
        if name in types:
            model.graph.input.append(onnx.ValueInfoProto(name=name, type=types[name]))
    if {o.name for o in model.graph.output} & set(node.output):
        return False
    del model.graph.node[i]
    return True


def _pass_on(model: ModelProto, i: int, k: int) -> bool:
    """Let readers of a node read its operand."""
    node = model.graph.node[i]
    old, new = node.output[0], node.input[k]
    if not new or old in {o.name for o in model.graph.output}:
        return False
    for other in model.graph.node:
        other.input[:] = [new if n == old else n for n in other.input]
    say_anew(model)
    return True


def _end_at(model: ModelProto, i: int) -> bool:
    """The result of a node is the only output."""
    node, types = model.graph.node[i], value_types(model)
    if [o.name for o in model.graph.output] == [node.output[0]] or node.output[0] not in types:
        return False
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=node.output[0], type=types[node.output[0]]))
    return True


def _not_an_input(model: ModelProto, name: str) -> bool:
    kept = [v for v in model.graph.input if v.name != name]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return True


def _fed(model: ModelProto, i: int) -> bool:
    """A constant of floats is an input."""
    t = model.graph.initializer[i]
    if t.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        return False
    model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    del model.graph.initializer[i]
    return True


def _resize(model: ModelProto, before: int, after: int) -> bool:
    for v in model.graph.input:
        for d in v.type.tensor_type.shape.dim:
            if d.dim_value == before:
                d.dim_value = after
    for t in model.graph.initializer:
        array = numpy_helper.to_array(t)
        if array.dtype == np.int64 and array.ndim <= 1:
            array = np.where(array == before, after, array)
        else:
            for axis, n in enumerate(array.shape):
                if n == before:
                    array = np.take(array, np.arange(after), axis)
        t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), t.name))
    say_anew(model)
    return True


def _number(model: ModelProto, v: int, k: int) -> bool:
    model.graph.input[v].type.tensor_type.shape.dim[k].dim_value = 2
    say_anew(model)
    return True


def _one(model: ModelProto, v: int, k: int) -> bool:
    model.graph.input[v].type.tensor_type.shape.dim[k].dim_value = 1
    say_anew(model)
    return True


def _alike(model: ModelProto, i: int) -> bool:
    """All numbers of a constant are its first."""
    t = model.graph.initializer[i]
    array = numpy_helper.to_array(t)
    if (array == array.reshape(-1)[0]).all() or array.dtype == np.int64:
        return False
    t.CopyFrom(numpy_helper.from_array(np.full_like(array, array.reshape(-1)[0]), t.name))
    return True


def smallest(instance: Instance, kind: str, seed: int, apart: Apart) -> Instance:
    """Of which the outcome is of the same kind."""

    def fails(model: ModelProto) -> bool:
        outcome = examined(apart, dataclasses.replace(found, model=model), seed)
        return kind in (outcome.kind, *outcome.limits) and not outcome.left_out

    found = instance
    if found.folded:
        plain = dataclasses.replace(instance, folded=False)
        outcome = examined(apart, plain, seed)
        found = plain if kind in (outcome.kind, *outcome.limits) else found
    return dataclasses.replace(found, model=shrunk(instance.model, fails))


def examined(apart: Apart, instance: Instance, seed: int) -> Outcome:
    return apart.examine(instance.model, *subject(instance.rule), **how(instance, seed))


def as_case(instance: Instance, outcome: Outcome, number: int) -> str:
    """As a case is written, with what was seen."""
    folded = "".join(f"{p}, " for p in (*(["constant-folding"] if instance.folded else []), *instance.before))
    text = onnx.printer.to_text(instance.model)
    ranges = "".join(f"# feed: {n} {a} {b}\n" for n, (a, b) in instance.ranges.items() if n in text)
    said = outcome.fault or "; ".join(f"{k}: {v}" for k, v in outcome.limits.items())
    return (
        f"# {instance.rule} {number}: {said[:400]}\n# pass: {folded}{subject(instance.rule)[0]}\n"
        f"# expect: {instance.rule}={outcome.fired}\n{ranges}{text}"
    )


def main() -> None:
    name, (number, *step) = sys.argv[1], map(int, sys.argv[2].split("."))
    instance = draw(name, number, *step)
    if instance is None:
        sys.exit(f"{name} {number}: nothing fires")
    with Apart() as apart:
        outcome = examined(apart, instance, number)
        if not outcome.fault:
            other = dataclasses.replace(instance, folded=not instance.folded)
            if (found := examined(apart, other, number)).fault:
                instance, outcome = other, found
        kind = sys.argv[3] if len(sys.argv) > 3 else outcome.kind or next(iter(outcome.limits), "")
        print(f"# {' → '.join(instance.history)}")
        if kind:
            instance = smallest(instance, kind, number, apart)
            outcome = examined(apart, instance, number)
        print(as_case(instance, outcome, number))
        if outcome.result:
            print("# the result:\n" + onnx.printer.to_text(ModelProto.FromString(outcome.result)))


__all__ = ["as_case", "shrunk", "smallest"]

if __name__ == "__main__":
    main()
