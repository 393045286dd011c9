"""Einsum, written out as products of matrices."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from onnx import NodeProto

from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.conversion.boundaries import before
from onnxopt.conversion.call import Call, Unsayable
from onnxopt.operators.operands import Equation, Letters, read_equation

Operand: TypeAlias = tuple[str, Letters]  # name and axes of a value


@before(12, "Einsum")
def _einsum(call: Call) -> list[NodeProto]:
    """Einsum(x, y) = Transpose(ReduceSum(MatMul(x', y'))), where x' and y' have the axes in one order."""
    names = [call.input(i) for i in range(len(call.node.input))]
    equation = read_equation(call.attr("equation"), [call.rank(i) for i in range(len(names))])
    if equation is None or equation.has_diagonal:
        raise Unsayable(f"the equation {call.attr('equation')} is not said by other operators")
    steps, result = _Steps(call, equation), equation.result
    found, *others = zip(names, equation.terms)
    for i, other in enumerate(others):
        found = steps.product(found, other, {*result}.union(*equation.terms[i + 2 :]))
    x, letters = steps.summed(found, result)
    call.op("Transpose", x, perm=[letters.index(c) for c in result], name=call.made[0])
    return call.op.nodes


class _Steps:
    """The nodes of one Einsum. `_sizes`: the sizes of each letter's axes, None for an unknown size."""

    def __init__(self, call: Call, equation: Equation) -> None:
        self._op = call.op
        self._sizes: dict[str, set[Size | None]] = {}
        for name, letters in zip(call.node.input, equation.terms):
            for letter, size in zip(letters, call.known.sizes(name) or [None] * len(letters)):
                self._sizes.setdefault(letter, set()).add(size)

    def product(self, x: Operand, y: Operand, kept: Collection[str]) -> Operand:
        """Return the product of two operands, summed over all axes but the `kept` letters."""
        x, y = self.summed(x, {*kept, *y[1]}), self.summed(y, {*kept, *x[1]})
        both = [c for c in x[1] if c in y[1]]
        row = [c for c in x[1] if c not in both][-1:]
        column = [c for c in y[1] if c not in both][-1:]
        inner = [c for c in both if c not in kept and self._is_one_size(c)][-1:]
        outer = [c for c in dict.fromkeys(x[1] + y[1]) if c not in row + column + inner]
        row, column, inner = row or [""], column or [""], inner or [""]
        made = self._op("MatMul", self._ordered(x, outer + row + inner), self._ordered(y, outer + inner + column))
        return self.summed((made, (*outer, *row, *column)), kept)

    def _is_one_size(self, letter: str) -> bool:
        """Return whether all axes of this letter have the same known size: MatMul repeats no axis of one element."""
        return len(self._sizes[letter]) == 1 and None not in self._sizes[letter]

    def summed(self, x: Operand, kept: Collection[str]) -> Operand:
        """Return the sum over all axes but the `kept` letters."""
        name, letters = x
        axes = [i for i, c in enumerate(letters) if c not in kept]
        left = tuple(c for c in letters if c in kept)
        return (self._op("ReduceSum", name, axes=axes, keepdims=0), left) if axes else x

    def _ordered(self, x: Operand, order: list[str]) -> str:
        """Return the value with the axes in this order; letters that the value lacks get an axis of one element."""
        name, letters = x
        perm = [letters.index(c) for c in order if c in letters]
        if perm != sorted(perm):
            name = self._op("Transpose", name, perm=perm)
        axes = [i for i, c in enumerate(order) if c not in letters]
        return self._op("Unsqueeze", name, axes=axes) if axes else name
