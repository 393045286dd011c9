"""Cones of influence: the nodes of A and B between cutpoints and a value.

Also collects breakpoints: numbers at which an operator's behaviour changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from onnx import NodeProto, TensorProto

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.model.nodes import bodies_of, constants, inside, int_of, numbers, value_of
from onnxopt.verification.model.operators import having
from onnxopt.verification.model.ranges import ANY, Range, breakpoints
from onnxopt.verification.pieces.replay import Replay
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.runner import Opened

MAX_NODES: Final = 200  # of a probed cone: larger numbers mean nothing behind more nodes
EPSILON: Final = 1e-3  # addends up to this size are epsilons
_FOLLOWED_SHARE: Final = 1e-3  # relative; of a breakpoint propagated through different constants
_MAX_POINTS: Final = 8
_MAX_BREAKPOINT: Final = 1e30
_NO_NUMBER: Final = 1e35  # stands for NaN, beyond all breakpoints
_OVERFLOWS: Final = {"Exp": (88.0,), "Log": (0.0,)}  # limits of float32
_NORMALIZATIONS: Final = having("normalizes")
# Ends of 8- and 16-bit integers, by TensorProto.DataType.
_ENDS: Final = {2: (0.0, 255.0), 3: (-128.0, 127.0), 4: (0.0, 65535.0), 5: (-32768.0, 32767.0)}


@dataclass(eq=False, repr=False)
class Cone:
    """The cone of a value of B and its counterpart in A."""

    walk: Walk
    value: str  # in B
    original: str  # the value in A
    fed: Collection[str]  # cutpoints, by B's names
    fed_of_a: Collection[str]  # cutpoints, by A's names
    nodes: list[int]  # of A
    entries: list[str]  # values read by A's nodes
    both: frozenset[str]  # entries also read by B's nodes
    asked: list[str]  # values made by A's nodes and read by B's
    _kept: list[Opened] = field(default_factory=list)  # B's nodes, once loaded

    @classmethod
    def of(cls, walk: Walk, value: str, behind: Collection[str] = ()) -> Cone | None:
        """Return the cone of a value, starting from all cutpoints except `behind`.

        An entry of A's nodes alone that depends on a value read by B's nodes alone is computed too. None if too long,
        random, or with entries that are no tensors or were released.
        """
        a, of = walk.a, walk.pairs.of
        original, fed, fed_of_a = of[value], walk.fed, walk.fed_of_a
        if behind:
            fed, fed_of_a = fed.difference(behind), fed_of_a.difference({of.get(v, v) for v in behind})
        entries = a.entries(a.cone([original], fed_of_a, MAX_NODES + 1), fed_of_a)
        read = {of.get(e, e) for e in walk.b.entries(walk.b.cone([value], fed), fed)}
        asked = read.difference(entries)
        nodes = a.cone([original, *asked], fed_of_a, MAX_NODES + 1)
        entries = a.entries(nodes, fed_of_a.difference(asked))
        if len(nodes) > MAX_NODES or not a.random.isdisjoint(nodes) or not asked <= a.maker.keys():
            return None
        if contrary := a.behind(asked, (), max(nodes, default=0)).intersection(entries) - read:
            return cls.of(walk, value, {*behind, *walk.pairs.made_from([*contrary])})
        if any(len(tensors(walk, name)) < len(walk.original.values) for name in entries):
            return None
        return cls(walk, value, original, fed, fed_of_a, nodes, entries, frozenset(read - asked), sorted(asked))

    @cached_property
    def opened(self) -> Opened:
        """A's nodes, loaded for all samples of all cases. Raises Failed."""
        types = self.walk.original.types
        return self.walk.runner.open(self.nodes, {e: types[e] for e in self.entries}, [*self.asked, self.original])

    def results(self, replay: Replay) -> list[Any]:
        """Return B's values on the samples of a replay. Raises Failed; Refused for missing kernels."""
        return replay.run([self.value], self.fed, self._kept)[self.value]

    def range(self, name: str) -> Range:
        """Return the possible numbers of an entry."""
        return self.walk.a.ranges.get(name, ANY)

    def possible(self, name: str, values: Any) -> Any:
        """Return floats clipped to the entry's range: numbers impossible in any run prove nothing."""
        if element_kind(values) != "f" or name not in self.walk.a.ranges:
            return values
        with np.errstate(over="ignore"):  # a bound may exceed the type
            return self.range(name).cut(values)


def tensors(walk: Walk, name: str) -> list[Any]:
    """Return the tensors of a value of A still in memory, by case."""
    return [v for known in walk.original.values if isinstance(v := known.get(name), np.ndarray)]


def made_of(
    program: Program, values: Collection[str], cuts: Collection[str], hands_on: Collection[str] = ()
) -> tuple[set[str], list[str]]:
    """Return (handed, made).

    handed: results of operators in `hands_on` that read only `values`, each other and constants. made: the next `cuts`
    that depend on `values` or `handed`.
    """
    handed, depending, found = {*values}, {*values}, list[str]()
    for node, reads in zip(program.nodes, program.reads):
        if depending.isdisjoint(reads):
            continue
        is_handed = node.op_type in hands_on and program.are_known(reads, handed)
        made = [*filter(None, node.output)]
        found += [output for output in made if output in cuts]
        handed.update(made if is_handed else ())
        depending.update(output for output in made if is_handed or output not in cuts)
    return handed.difference(values), found


def outputs_behind(walk: Walk, values: Iterable[str]) -> list[str]:
    """Return the outputs, by A's names, that depend on any of these values of B."""
    nodes = {walk.b.maker[v] for v in values}
    return [x for x, y in walk.pairs.outputs if nodes and not nodes.isdisjoint(walk.b.cone([y], ()))]


# -- breakpoints -----------------------------------------------------------------------------------------


class Breakpoints:
    """Breakpoints of a program's operators. `epsilons`: include epsilons added to a variance."""

    def __init__(self, program: Program, *, epsilons: bool = False) -> None:
        self._program, self._epsilons = program, epsilons
        every = list(inside(program.nodes))
        held = {t.name: t for n in every for b in bodies_of(n) for t in b.initializer}
        self._held: dict[str, TensorProto] = held | program.constants | dict(constants(every))

    def of(self, nodes: Iterable[int]) -> list[float]:
        """Return the sorted breakpoints of nodes and their bodies."""
        return sorted({n for node in inside(self._program.at(nodes)) for n in self._of(node)})

    def _of(self, node: NodeProto) -> Iterator[float]:
        for k in range(len(node.input)):
            points = breakpoints(node, k, self._numbers)
            yield from np.nan_to_num(points, nan=_NO_NUMBER) if self._epsilons else filter(math.isfinite, points)
        if self._epsilons:
            yield from self._negligible(node)

    def _negligible(self, node: NodeProto) -> Iterable[float]:
        """Return the epsilons of a node, and the numbers from which its results overflow."""
        if node.op_type == "Add":
            added = (found for name in node.input if len(found := self._numbers(name)) == 1)  # biases are no epsilons
            return (n for (n,) in added if 0 < n <= EPSILON)
        if node.op_type in _NORMALIZATIONS:
            return (value_of(node, "epsilon", 1e-5),)
        return _OVERFLOWS.get(node.op_type, ())

    def _numbers(self, name: str) -> list[float]:
        return numbers(self._held[name]) if name in self._held else []


def integer_ends(nodes: Iterable[NodeProto]) -> list[float]:
    """Return the sorted bounds of narrow integer types in Casts."""
    types = (int_of(n, "to") for n in nodes if n.op_type == "Cast")
    return sorted({n for to in types for n in _ENDS.get(to, ())})


def only_in_one(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return the numbers of each list without a close number in the second."""
    every = ((n, others) for some, others in ((x, y), (y, x)) for n in some)
    return [n for n, others in every if np.abs(np.subtract(others, n)).min(initial=np.inf) > _FOLLOWED_SHARE * abs(n)]


def between(points: Sequence[float], every: Sequence[float]) -> list[float]:
    """Return numbers between each of `points` and its neighbours in `every`, and beyond the ends."""
    if not every:
        return []
    ends = [1.25 * every[0] - 0.5, *every, 1.25 * every[-1] + 0.5]
    found = {(x + y) / 2 for x, n, y in zip(ends, every, ends[2:]) if n in points for x, y in ((x, n), (n, y))}
    return sorted(n for n in found if abs(n) < _MAX_BREAKPOINT)[:_MAX_POINTS]
