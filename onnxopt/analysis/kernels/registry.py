"""The kernel type and the registry of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from onnxopt.graph.node import Node
from onnxopt.proto.messages import Array

Inputs = Sequence[Array | None]
Kernel = Callable[[Node, Inputs, int], "list[Array] | None"]
KERNELS: Final[dict[str, Kernel]] = {}
NUMBERS: Final = "iufb"


class Invalid(Exception):
    """The operands are an error at run time; no runtime must run them (some crash)."""


def kernel(*ops: str) -> Callable[[Kernel], Kernel]:
    def add(function: Kernel) -> Kernel:
        for op in ops:
            KERNELS[op] = function
        return function

    return add


def axes_of(node: Node, inputs: Inputs, since: int, opset: int) -> list[int] | None:
    """Return `axes`, an input from opset `since` on and an attribute before."""
    if opset >= since:
        given = inputs[1] if len(inputs) > 1 else None
        return None if given is None else [int(a) for a in given.reshape(-1)]
    axes = node.attr("axes")
    return None if axes is None else list(axes)
