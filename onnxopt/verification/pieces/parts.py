"""Nodes that hold parts which may not run, or call functions that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.pieces.program import Program
    from onnxopt.verification.pieces.walk import Walk


def is_decided(program: Program, node: NodeProto) -> bool:
    """Do constants say what of it runs?"""
    deciding = [n for n in node.input[: {"If": 1, "Loop": 2}.get(node.op_type, 0)] if n]
    return bool(deciding) and all(name in program.fixed or program.is_constant(name) for name in deciding)


def runs(walk: Walk, node: NodeProto, body: str) -> bool:
    """Does this body of a node of A run in any case? What is given is A's own, so that in a body it is what its first
    turn has."""
    kind, reads = node.op_type, [*node.input, "", ""]
    every = range(len(walk.original.values))
    if kind == "If":
        return any(_is(_value(walk, reads[0], k), body == "then_branch") for k in every)
    if kind != "Loop":
        return True
    return any(all(not r or _is(_value(walk, r, k), True) for r in reads[:2]) for k in every)


def _value(walk: Walk, name: str, case: int) -> Any:
    """None where it is not known any more."""
    a = walk.a
    return a.constant(name) if a.is_constant(name) else walk.original.values[case].get(name)


def _is(value: Any, wanted: bool) -> bool:
    return value is not None and bool(np.all(np.asarray(value) > 0)) is wanted


def first_of(node: NodeProto) -> str:
    """What it makes first."""
    return next((o for o in node.output if o), "")


def called(node: NodeProto) -> str:
    """As paths of scopes write it."""
    return f'{node.op_type} "{node.name}"' if node.name else str(node.op_type)
