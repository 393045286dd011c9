"""Results of a Where on concatenated integer vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxopt.analysis.shapes.symbolic import Size
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value

if TYPE_CHECKING:
    from onnxopt.analysis.shapes.sweep import ShapeData

Part = tuple[Value, list[Size | None]]  # (value, its contents)


def chosen_parts(s: ShapeData, where: Node, content: Sequence[Size | None]) -> list[Value | list[int]] | None:
    """Return the parts of a Where's result, in order: numbers, and values taken from concatenated operands.

    None if further elements are needed.
    """
    joined = [v.producer for v in where.inputs[1:] if v is not None and v.producer is not None]
    there: dict[int, list[Part]] = {}
    for node in joined:
        if node.op == "Concat":
            _place(s, node, there)
    found: list[Value | list[int]] = []
    at = 0
    while at < len(content):
        element = content[at]
        if isinstance(element, int):
            if found and isinstance(found[-1], list):
                found[-1].append(element)
            else:
                found.append([element])
            at += 1
            continue
        part = next((p for p in there.get(at, ()) if None not in p[1] and _stands_at(p, at, content)), None)
        if part is None:
            return None
        found.append(part[0])
        at += len(part[1])
    return found


def _place(s: ShapeData, concat: Node, there: dict[int, list[Part]]) -> None:
    """Add the start offsets of a Concat's parts, as far as their lengths are known."""
    at = 0
    for v in concat.inputs:
        held = s.content(v)
        if v is None or held is None or held.ndim != 1:
            return
        if held.size:
            there.setdefault(at, []).append((v, held.tolist()))
        at += held.size


def _stands_at(part: Part, at: int, content: Sequence[Size | None]) -> bool:
    return list(content[at : at + len(part[1])]) == part[1]
