"""Correspondence between values and nodes of B and A."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.model.dependence import draws, draws_of
from onnxopt.verification.model.functions import domain_of, operator_of
from onnxopt.verification.model.operators import having
from onnxopt.verification.model.order import inside
from onnxopt.verification.numbers.narrow import int32_values
from onnxopt.verification.pieces.value_numbers import same_bytes, since
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.rounded import name_in_file

if TYPE_CHECKING:
    from onnx import NodeProto

_WHOLE: Final = having("whole") | {"Concat"}


class Pairs:
    """Correspondence of values.

    A name in B that extends a name of A (`add` and `add_rows`) is a guess, which must agree when run like any pair.
    """

    def __init__(self, a: Program, b: Program, outputs: Sequence[tuple[str, str]] | None = None) -> None:
        """Match values by name. `outputs`: corresponding outputs (A, B); by default, in order."""
        self.a, self.b = a, b
        self.outputs = list(zip(a.outputs, b.outputs)) if outputs is None else outputs
        # {value of B: corresponding value of A}, mostly of equal names.
        self.of = {name: name for name in b.maker if name in a.maker}
        if b.is_body:  # outputs of a body correspond under any names
            self.of |= {y: x for x, y in self.outputs if x in a.maker and y in b.maker}
        taken = set(self.of.values())
        for name in b.maker:
            if name not in self.of and name == name_in_file(name) and (guess := self._stem(name, taken)):
                self.of[name] = guess
                taken.add(guess)
        self.by_original = {original: name for name, original in self.of.items()}
        # Values of B in int32 in place of A's int64; readers of these are not the same in both.
        self.int32 = int32_values(a.graph, b.graph)
        if kinds := b.skeleton.kinds:
            types = ((y, a.skeleton.kinds.get(x), kinds.get(y)) for y, x in self.of.items())
            self.int32 |= {y for y, *both in types if both == ["tensor(int64)", "tensor(int32)"]}
        self._equal: dict[str, bool] = {}
        self._same: dict[tuple[int, int], bool] = {}  # by (node of A, node of B)

    def _stem(self, name: str, taken: set[str]) -> str:
        while "_" in name:
            name = name.rpartition("_")[0]
            if name in self.a.maker:
                return "" if name in taken else name
        return ""

    def made_from(self, names: list[str]) -> Iterator[str]:
        """Yield the values of B that correspond to values of A."""
        return (self.by_original[name] for name in names if name in self.by_original)

    @functools.cached_property
    def drawing(self) -> set[int]:
        """Nodes of B that draw from elements, replaced by a draw of A with the same name."""
        alike = {operand.result for operand in self.b.skeleton.operands.values()}
        return {i for i, node in enumerate(self.b.nodes) if alike and draws_of(node) and node.output[0] in alike}

    def is_same(self, value: str) -> bool:
        """Return whether equal nodes make a value of B and A, from operands with equal names and equal constants."""
        if self.of[value] != value:
            return False
        nodes = self.a.maker[value], self.b.maker[value]
        if nodes not in self._same:
            self._same[nodes] = self._are_same(*nodes)
        return self._same[nodes]

    def _are_same(self, j: int, i: int) -> bool:
        x, y = self.a.nodes[j], self.b.nodes[i]
        if not self._means_the_same(y):
            return False
        if operator_of(x) != operator_of(y) or x.input[:] != y.input[:] or x.output[:] != y.output[:]:
            return False
        if self.a.reads[j] != self.b.reads[i] or _attributes(x) != _attributes(y):
            return False
        return all(self._is_equal(name) for name in self.b.reads[i])

    def hands_on(self, value: str) -> bool:
        """Return whether equal nodes move all operands unchanged.

        Such a node compensates nothing, and beside large numbers, small ones may be arbitrary.
        """
        return self.b.nodes[self.b.maker[value]].op_type in _WHOLE and self.is_same(value)

    def _means_the_same(self, node: NodeProto) -> bool:
        """Return whether a node's operators, including bodies, have the same version and functions in both."""
        a, b = self.a.skeleton, self.b.skeleton
        for n in inside([node]):
            if not self._is_as_old(n):
                return False
        return a.functions.texts([node]) == b.functions.texts([node])

    def _is_as_old(self, node: NodeProto) -> bool:
        """Return whether an operator's definition dates from the same version in both.

        New versions of random operators only added types, and their draws correspond by name.
        """
        domain = domain_of(node.domain)
        x, y = (p.skeleton.versions.get(domain) for p in (self.a, self.b))
        if x == y or x is None or y is None:
            return x == y
        return draws(node) or since(node.op_type, domain, x) == since(node.op_type, domain, y)

    def _is_equal(self, name: str) -> bool:
        """Return whether a name is computed in both, or an equal constant in both."""
        a, b = self.a, self.b
        if name in self.int32:
            return False
        constant = a.is_constant(name)
        if constant != b.is_constant(name):
            return False
        if not constant:
            return (name in a.maker) == (name in b.maker)
        if name not in self._equal:
            self._equal[name] = name in a.constants and name in b.constants and self._same_constant(name)
        return self._equal[name]

    def _same_constant(self, name: str) -> bool:
        x, y = self.a.constants[name], self.b.constants[name]
        if x.data_type != y.data_type or x.dims[:] != y.dims[:]:
            return False
        places = [self.a.skeleton.place(x), self.b.skeleton.place(y)]
        if places[0] is not None and places[0] == places[1]:
            return True
        if x.data_type == x.STRING:
            return list(x.string_data) == list(y.string_data)
        return same_bytes(_bytes(self.a, name), _bytes(self.b, name))


def _attributes(node: Any) -> list[bytes]:
    return sorted(a.SerializeToString(deterministic=True) for a in node.attribute)


def _bytes(program: Program, name: str) -> Any:
    where = program.skeleton.place(program.constants[name])
    if where is not None:
        return np.frombuffer(where.bytes(), np.uint8)
    return np.ascontiguousarray(program.constant(name)).reshape(-1).view(np.uint8)
