"""Breakpoints of the nodes of a program: numbers at which an operator changes what it does."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.coverage.samplers import EPSILON
from onnxopt.verification.model.breakpoints import breakpoints
from onnxopt.verification.model.constants import constants, numbers
from onnxopt.verification.model.order import bodies_of, inside

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

    from onnxopt.verification.programs.program import Program

_NEAR: Final = 1e-3  # of a breakpoint, that was followed through other constants
_MAX_POINTS: Final = 8
_LARGEST: Final = 1e30
_NORMALIZATIONS: Final = ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization")
# Ends of integers of 8 and 16 bits, by TensorProto.DataType.
_ENDS: Final = {2: (0.0, 255.0), 3: (-128.0, 127.0), 4: (0.0, 65535.0), 5: (-32768.0, 32767.0)}


class Breakpoints:
    """Those of one program, by node. `epsilons`: what is added to a variance is one, too."""

    def __init__(self, program: Program, *, epsilons: bool = False) -> None:
        self._program = program
        self._epsilons = epsilons
        every = list(inside(program.nodes))
        self._held: dict[str, TensorProto] = {t.name: t for n in every for b in bodies_of(n) for t in b.initializer}
        self._held |= program.constants
        self._held.update(constants(every))

    def of(self, nodes: Iterable[int]) -> list[float]:
        """Of these nodes and their bodies, each once, in order."""
        return sorted({n for i in nodes for node in inside([self._program.nodes[i]]) for n in self._of(node)})

    def all(self) -> list[float]:
        return self.of(range(len(self._program.nodes)))

    def _of(self, node: NodeProto) -> Iterator[float]:
        for k in range(len(node.input)):
            yield from (n for n in breakpoints(node, k, self._numbers) if math.isfinite(n))
        if self._epsilons and node.op_type == "Add":
            yield from (n for name in node.input for n in self._numbers(name) if 0 < n <= EPSILON)
        elif self._epsilons and node.op_type in _NORMALIZATIONS:
            yield next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)

    def _numbers(self, name: str) -> list[float]:
        return numbers(self._held[name]) if name in self._held else []


def integer_ends(nodes: Iterable[NodeProto]) -> list[float]:
    """The least and largest of the narrow integers that these nodes cast to, each once, in order."""
    types = (next((a.i for a in n.attribute if a.name == "to"), 0) for n in nodes if n.op_type == "Cast")
    return sorted({n for to in types for n in _ENDS.get(to, ())})


def only_in_one(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """The numbers of each list that are not near any of the other."""
    return _only(x, y) + _only(y, x)


def _only(x: Sequence[float], y: Sequence[float]) -> list[float]:
    near = ((n, y[max(bisect_left(y, n) - 1, 0) : bisect_left(y, n) + 1]) for n in x)
    return [n for n, others in near if not any(abs(n - o) <= _NEAR * abs(n) for o in others)]


def between(points: Sequence[float], every: Sequence[float]) -> list[float]:
    """What is between each of these breakpoints and the next of all there are, or beyond the last."""
    if not every:
        return []
    ends = [1.25 * every[0] - 0.5, *every, 1.25 * every[-1] + 0.5]
    found = {(x + y) / 2 for x, n, y in zip(ends, every, ends[2:]) if n in points for x, y in ((x, n), (n, y))}
    return sorted(n for n in found if abs(n) < _LARGEST)[:_MAX_POINTS]
