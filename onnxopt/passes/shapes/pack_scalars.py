"""Numbers computed separately, then joined, computed as a vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node, arrays_of, present, producer
from onnxopt.operators import EXACT
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.proto.element_types import INTEGERS
from onnxopt.proto.messages import attribute_bytes
from onnxopt.rewriting.parts import insert_new
from onnxopt.rewriting.replace import remove_dead
from onnxopt.rewriting.rule import listed_axes

_OF_INTEGERS: Final = frozenset({"Max", "Min"})  # of 0.0 and -0.0 kernels may return either
_MAX_ROW: Final = 16  # numbers in a run
_DEEP: Final = 64  # operators in a chain
_BROADCASTING: Final = 8  # first opset in which Max and Min broadcast; the others from 7 on


@register
class PackScalars(GraphPass):
    """Concat([f(a)], [f(b)]) = f([a, b]): superword-level parallelism (Larsen and Amarasinghe, PLDI 2000).

    Applies when: consecutive joined numbers, or vectors of one element, are computed equally and elementwise, from
    constants, the same numbers, or elements of the same vector; and fewer nodes are left. Exporters compute height and
    width separately if a border or size depends on them.
    Keeps: single numbers with other readers.
    """

    # After: elements of a Shape are picked by Gathers.
    info = PassInfo("pack-scalars", opt_level=1, after=("merge-chains", "index-chains"), ops=("Concat",))

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < _BROADCASTING:
            return
        for concat in list(graph.by_op.get("Concat", ())):
            packing = _Packing(graph, concat)
            if not packing.runs:
                continue
            why = "it would not leave fewer nodes" if packing.saved < 1 else ""
            if ctx.spend("packed", at=concat, unless=why):
                packing.carry_out()


@dataclass(eq=False, repr=False)
class _Vector:
    """A form of several numbers: a single value for all, constants, picked elements, or an operator on vectors."""

    numbers: tuple[Value, ...]
    single: Value | None = None
    operands: tuple[_Vector, ...] = ()
    picked: Value | None = None  # the vector they are picked from

    @property
    def nodes(self) -> list[Node]:
        """The replaced nodes."""
        made = [v.producer for v in self.numbers] if self.operands or self.picked is not None else []
        return [node for node in made if node is not None]


class _Packing:
    """How the inputs of a Concat can be computed as vectors. `runs`: consecutive numbers, by first input."""

    def __init__(self, graph: Graph, concat: Node) -> None:
        self._graph, self._concat = graph, concat
        self._known: dict[tuple[Value, ...], _Vector | None] = {}
        self._order: list[_Vector] = []  # operands before their vector
        self.runs: dict[int, _Vector] = {}
        if concat.attr("axis") not in (0, -1):  # not for a reference attribute, either
            return
        numbers = [self._number(v) for v in concat.inputs]
        i = 0
        while i < len(numbers):
            run = self._longest_run(numbers[i : i + _MAX_ROW])
            if run is not None:
                self.runs[i] = run
            i += len(run.numbers) if run is not None else 1

    def _longest_run(self, numbers: Sequence[Value | None]) -> _Vector | None:
        """Return the longest vector of the first numbers, at least two, that takes the place of nodes."""
        row = present([*takewhile(lambda v: v is not None, numbers)])
        runs = (self._vector(row[:n], _DEEP) for n in range(len(row), 1, -1))
        return next((run for run in runs if run is not None and run.nodes), None)

    def _number(self, part: Value | None) -> Value | None:
        """Return the number in a part of one element: the operand of its Unsqueeze, or the part itself."""
        node = producer(part)
        if part is None or node is None or part.constant or node.graph is not self._graph:
            return None
        if node.op == "Unsqueeze" and listed_axes(node) in ([0], [-1]):
            return node.inputs[0]
        return part if types.shape(part) == (1,) else None

    def _vector(self, given: Iterable[Value], depth: int) -> _Vector | None:
        numbers = tuple(given)
        if numbers not in self._known:
            found = self._known[numbers] = self._found(numbers, depth) if depth else None
            if found is not None:
                self._order.append(found)
        return self._known[numbers]

    def _found(self, numbers: tuple[Value, ...], depth: int) -> _Vector | None:
        first = numbers[0]
        kinds = {(types.shape(v), types.dtype(v)) for v in numbers}
        if types.shape(first) not in ((), (1,)) or len(kinds) > 1:
            return None
        if all(v is first for v in numbers):
            return _Vector(numbers, single=first)
        if all(v.constant for v in numbers):
            return _Vector(numbers)
        made = self._alike(numbers)
        if not made:
            return None
        return _picked(numbers, made) if made[0].op == "Gather" else self._computed(numbers, made, depth)

    def _alike(self, numbers: tuple[Value, ...]) -> list[Node]:
        """Return the producers of the numbers: equal calls of an operator that works on vectors, too; else none."""
        made = [n for n in map(producer, numbers) if n is not None and n.graph is self._graph and len(n.outputs) == 1]
        if len(made) < len(numbers) or len({n.op for n in made}) > 1:
            return []
        op, of_integers = made[0].op, types.dtype(numbers[0]) in INTEGERS
        may_pack = op in EXACT or op == "Gather" or (op in _OF_INTEGERS and of_integers)
        return made if may_pack and len({attribute_bytes(n.proto) for n in made}) == 1 else []

    def _computed(self, numbers: tuple[Value, ...], made: list[Node], depth: int) -> _Vector | None:
        """Return the operator `made` on vectors of its operands."""
        if len({len(n.inputs) for n in made}) > 1:
            return None
        operands = list[_Vector]()
        for column in zip(*(n.inputs for n in made)):
            operand = self._vector(present(column), depth - 1) if None not in column else None
            if operand is None:
                return None
            operands.append(operand)
        return _Vector(numbers, operands=tuple(operands)) if any(o.single is None for o in operands) else None

    def _needed(self) -> list[_Vector]:
        """Return all vectors needed for the runs, each before its operands."""
        found, wanted = list[_Vector](), set(self.runs.values())
        for vector in reversed(self._order):
            if vector in wanted:
                found.append(vector)
                wanted.update(vector.operands)
        return found

    def _parts(self, i: int, run: _Vector) -> list[Value]:
        """Return the inputs of the Concat in a run."""
        return present(self._concat.inputs[i : i + len(run.numbers)])

    @property
    def saved(self) -> int:
        needed = [v for v in self._needed() if v.nodes]
        gone: set[Node] = {self._concat}
        for i, run in self.runs.items():
            gone.update(v.producer for v in self._parts(i, run) if v.producer is not None and v.only_user)
        for node in (n for vector in needed for n in vector.nodes):
            if not node.output.is_output and gone.issuperset(node.output.users):
                gone.add(node)
        return len(gone) - 1 - len(needed)

    def carry_out(self) -> None:
        concat, made = self._concat, dict[_Vector, Value]()
        for vector in reversed(self._needed()):
            made[vector] = self._make(vector, made)
        dead: dict[Node, None] = {}
        for i, run in sorted(self.runs.items(), reverse=True):
            parts = self._parts(i, run)
            dead.update((v.producer, None) for v in parts if v.producer is not None)
            for k in range(i + len(parts) - 1, i, -1):
                concat.remove_input(k)
            concat.set_input(i, made[run])
        for node in dead:
            remove_dead(node)

    def _make(self, vector: _Vector, made: dict[_Vector, Value]) -> Value:
        if vector.single is not None:
            return vector.single
        graph, first = self._graph, vector.numbers[0]
        if not vector.nodes:
            return graph.constant(np.hstack([v.array for v in vector.numbers]), first.name, self._concat)
        inputs: list[Value | None] = [made[o] for o in vector.operands]
        if vector.picked is not None:
            array = np.hstack(arrays_of(n.inputs[1] for n in vector.nodes) or [])
            inputs = [vector.picked, graph.constant(array, f"{first.name}_indices", self._concat)]
        return insert_new(graph, vector.nodes[0].copy(inputs, []), first, self._concat)


def _picked(numbers: tuple[Value, ...], made: list[Node]) -> _Vector | None:
    """Return elements of one vector, at constant indices of one type."""
    x = made[0].input(0)
    if x is None or types.rank(x) != 1 or any(n.input(0) is not x for n in made):
        return None
    indices = arrays_of(n.input(1) for n in made)
    return _Vector(numbers, picked=x) if indices is not None and len({i.dtype for i in indices}) == 1 else None
