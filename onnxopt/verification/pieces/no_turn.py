"""What a Loop stacks that makes no turn: nothing, in a shape that only inference knows.

A runtime gives what it was told of the body's result when it loaded the model: in a piece it is told less, or in the
other model more. Where it knows no rank it makes [0], and where it knows no dim it makes that 0 (onnxruntime; the
standard does not say).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.model.order import bodies_of
from onnxopt.verification.programs.program import Program

if TYPE_CHECKING:
    from onnx import NodeProto

_UNKNOWN: Final = (0,)


def are_as_empty(a: Any, b: Any, makers: Iterable[tuple[Program, str]]) -> bool:
    """Are both of them nothing, of one type and of shapes that agree as far as they are known, and made by a loop of
    no turn? `makers`: of each, the program and what it is called there."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.size or b.size or a.dtype != b.dtype:
        return False
    x, y = a.shape, b.shape
    known = len(x) == len(y) and all(m == n or 0 in (m, n) for m, n in zip(x, y))
    return x[:1] == y[:1] == _UNKNOWN and (known or _UNKNOWN in (x, y)) and any(_is_stacked(*m) for m in makers)


def _is_stacked(program: Program, value: str) -> bool:
    i = program.maker.get(value)
    return i is not None and _loops(program.nodes[i])


def _loops(node: NodeProto) -> bool:
    return node.op_type == "Loop" or any(_loops(n) for body in bodies_of(node) for n in body.node[:])
