"""Stacked outputs of zero-trip Loops: empty, with a shape known only to inference.

A runtime uses the shape inferred for the body's result when loading, which differs between a piece and a model.
onnxruntime gives [0] for an unknown rank, and 0 for an unknown dim; the standard says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.model.order import bodies_of
from onnxopt.verification.programs.program import Program

if TYPE_CHECKING:
    from onnx import NodeProto

_ANY_COUNT: Final = (0,)


def are_as_empty(a: Any, b: Any, makers: Iterable[tuple[Program, str]]) -> bool:
    """Return whether two values are equal outputs of zero-trip loops: empty, of equal type, and of compatible shapes.

    makers: (program, name) of each value.
    """
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.size or b.size or a.dtype != b.dtype:
        return False
    x, y = a.shape, b.shape
    known = len(x) == len(y) and all(m == n or 0 in (m, n) for m, n in zip(x, y))
    return x[:1] == y[:1] == _ANY_COUNT and (known or _ANY_COUNT in (x, y)) and any(_is_stacked(*m) for m in makers)


def _is_stacked(program: Program, value: str) -> bool:
    i = program.maker.get(value)
    return i is not None and _loops(program.nodes[i])


def _loops(node: NodeProto) -> bool:
    return node.op_type == "Loop" or any(_loops(n) for body in bodies_of(node) for n in body.node[:])
