"""What a model says of the sizes and integers that it takes, besides the names of its dims."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.inputs.carried import CARRYING, Call, Shape, carried
from onnxopt.verification.model.constants import constants as held_by
from onnxopt.verification.model.constants import few
from onnxopt.verification.model.operators import STANDARD, WEIGHTS, having
from onnxopt.verification.model.order import bodies_of

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

_INNERMOST: Final = re.compile(r"\([^()]*\)")
_DEEPEST: Final = 16
_TARGETS: Final = having("target")
_SAME: Final = having("whole")
_MOST: Final = 12  # sizes
_LONGEST_STEP: Final = 16
_COMPARING: Final = {"Equal": 0, "Less": -1, "GreaterOrEqual": -1, "Greater": 1, "LessOrEqual": 1}
_NUMBERS: Final = (1, 6, 7, 11)  # of TensorProto.DataType: FLOAT, INT32, INT64, DOUBLE


def sums(graph: GraphProto) -> frozenset[str]:
    """Symbols of which an output's dim is the sum, as exporters write it: `past + new`; or `past + Max(0, new - 4)`,
    where a layer keeps no more than a window of it."""
    found = (_terms(d) for info in graph.output for d in _dims(info))
    return frozenset(t for terms in found if len(terms) > 1 for t in terms if re.fullmatch(r"\w+", t))


def _terms(dim: str) -> list[str]:
    """Of a sum; what stands in parentheses is none."""
    for _ in range(_DEEPEST):
        dim, count = _INNERMOST.subn("", dim)
        if not count:
            return dim.split(" + ")
    return []


def batches(graph: GraphProto) -> frozenset[str]:
    """Symbols that inputs have as their first dim, and nowhere else."""
    shapes = [_dims(i) for i in graph.input]
    first = {s[0] for s in shapes if len(s) > 1}
    return frozenset(first - {d for s in shapes for d in (s[1:] if len(s) > 1 else s)} - {""})


def baked(graph: GraphProto) -> list[int]:
    """Sizes that a trace has left: lengths of loops that it unrolled, and what stands in the targets of Reshape and
    Expand; the usual ones first."""
    constants = {t.name: t for t in graph.initializer}
    constants.update(held_by(graph.node))
    targets = {n.input[1] for n in graph.node if n.op_type in _TARGETS and len(n.input) > 1}
    for node in graph.node:
        if node.op_type == "Concat" and not targets.isdisjoint(node.output):
            targets.update(node.input)
    numbers = Counter(n for name in targets if name in constants for n in _small_integers(constants[name]))
    found = dict.fromkeys(n for counter in (_unrolled(graph, constants), numbers) for n, _ in counter.most_common())
    return [n for n in found if 1 < n <= 1 << 16][:_MOST]


def strides(graph: GraphProto) -> int:
    """What can be divided by the steps of all Slices; 1 where there are none, or it is large. Of as many elements
    and one more each takes the last, which no other length tells from an end before it."""
    constants = {t.name: t for t in graph.initializer}
    constants.update(held_by(graph.node))
    names = {n.input[4] for n in graph.node if n.op_type == "Slice" and len(n.input) > 4}
    steps = {abs(n) for name in names if name in constants for n in _small_integers(constants[name])}
    found = math.lcm(*(steps - {0}))
    return found if found <= _LONGEST_STEP else 1


def _unrolled(graph: GraphProto, constants: Mapping[str, TensorProto]) -> Counter[int]:
    """How many elements a trace has taken of a value one by one: by Gathers at 0, 1, 2, and so on."""
    taken: dict[str, set[int]] = {}
    for node in graph.node:
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[1] in constants:
            taken.setdefault(node.input[0], set()).update(_small_integers(constants[node.input[1]]))
    return Counter(len(places) for places in taken.values() if len(places) == max(places, default=-1) + 1)


def demanded(graph: GraphProto, given: Mapping[str, Sequence[int | str]]) -> dict[str, int]:
    """Sizes of symbols that weights and constant targets of Reshape ask for: channels of a Conv, rows of a matrix.
    Followed as far as what is read has sizes of an input; `given`: their shapes."""
    shapes: dict[str, Shape] = {name: tuple(shape) for name, shape in given.items()}
    tensors = {t.name: t for t in graph.initializer if t.name not in shapes}
    found: dict[int | str, int] = {}

    def integers(name: str) -> list[int] | None:
        return list(_small_integers(tensors[name])) or None if name in tensors else None

    shapes.update((name, tuple(t.dims)) for name, t in tensors.items())
    for node in (n for n in graph.node if n.output and n.domain in STANDARD):
        if node.op_type == "Constant":
            made = dict(held_by([node]))
            tensors.update(made)
            shapes.update((name, tuple(t.dims)) for name, t in made.items())
            continue
        if node.op_type in WEIGHTS:
            _ask(node, shapes, found)
        elif node.op_type == "Reshape" and len(node.input) > 1:
            _match(shapes.get(node.input[0], ()), integers(node.input[1]) or [], found)
        elif node.op_type in CARRYING and node.input:
            shape = carried(Call(node, [shapes.get(name) for name in node.input], integers))
            if shape is not None:
                shapes[node.output[0]] = shape
    return {symbol: size for symbol, size in found.items() if isinstance(symbol, str)}


def _ask(node: NodeProto, shapes: Mapping[str, Shape], found: dict[int | str, int]) -> None:
    """What its weight asks for."""
    at, mine, theirs = WEIGHTS[node.op_type]
    if len(node.input) <= at or node.input[0] not in shapes:
        return
    says = {a.name: a for a in node.attribute}
    if node.op_type == "Gemm":
        turned, theirs = (int(name in says and says[name].i != 0) for name in ("transA", "transB"))
        mine = 1 - turned
    weight, dims = shapes.get(node.input[at], ()), shapes[node.input[0]]
    if -len(weight) <= theirs < len(weight) and -len(dims) <= mine < len(dims):
        groups = says["group"].i if "group" in says and theirs == 1 else 1
        size = weight[theirs]
        if isinstance(size, int) and size > 0:  # else it is not known
            found.setdefault(dims[mine], size * groups)


def _match(dims: Shape, target: Sequence[int], found: dict[int | str, int]) -> None:
    """What a target asks for that has as many dims as what it is for, of which those that are known stay."""
    pairs = list(zip(dims, target))
    if len(dims) == len(target) and all(n > 0 and (isinstance(d, str) or d == n) for d, n in pairs):
        for d, n in pairs:
            found.setdefault(d, n)


def compared(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """Integers that inputs are compared with, and such as are on the other side: what takes one branch, then what takes
    another."""
    found: dict[str, list[int]] = {}
    _compare(graph, {i.name: i.name for i in graph.input}, {}, found)
    return {name: tuple(dict.fromkeys(numbers)) for name, numbers in found.items()}


def _compare(
    graph: GraphProto, origins: dict[str, str], constants: dict[str, TensorProto], found: dict[str, list[int]]
) -> None:
    constants.update((t.name, t) for t in graph.initializer)
    beyond: dict[str, list[int]] = {}
    for node in graph.node:
        kind = node.op_type
        if kind == "Constant":
            constants.update(held_by([node]))
        elif kind in _SAME and node.input[0] in origins:
            origins[node.output[0]] = origins[node.input[0]]
        elif kind in _COMPARING and len(node.input) == 2:
            for k, (name, other) in enumerate((node.input, reversed(node.input))):
                if name in origins and other in constants:
                    step = _COMPARING[kind] * (-1 if k else 1)
                    for number in _numbers(constants[other]):
                        found.setdefault(origins[name], []).extend((number, number + step)[: 2 if step else 1])
                        beyond.setdefault(origins[name], []).append(number - 1 if number > 0 else number + 1)
        for body in bodies_of(node):
            _compare(body, origins, constants, found)
    for name, numbers in beyond.items():
        found[name] += numbers


def _numbers(tensor: TensorProto) -> Iterable[int]:
    """Of a single integer, whatever its type: floats are compared with what Cast makes of integers."""
    return [int(n) for n in few(tensor, 1, _NUMBERS) if math.isfinite(n) and n == int(n)]


def _small_integers(tensor: TensorProto) -> Iterable[int]:
    return few(tensor, _MOST, (tensor.INT64,))


def _dims(info: ValueInfoProto) -> list[str]:
    return [d.dim_param for d in info.type.tensor_type.shape.dim]
