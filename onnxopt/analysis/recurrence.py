"""A Loop or Scan by its states: positions among operands and results, and dependencies."""

from __future__ import annotations

from typing import Self

from onnxopt.graph import Value
from onnxopt.graph.model import values_read
from onnxopt.graph.node import Node


class Recurrence:
    """A Loop or Scan. Body operands start with `first_in` non-states, body results with `first_out`, before the
    states."""

    def __init__(self, node: Node, states: int) -> None:
        self.node = node
        self.body = node.bodies["body"]
        self.states = states
        self.first_in, self.first_out = (2, 1) if node.op == "Loop" else (0, 0)

    @classmethod
    def of(cls, node: Node) -> Self | None:
        """Return the recurrence of a node, or None if it is malformed or must not be changed."""
        body = node.bodies.get("body")
        if body is None or body.skipped or node.has_references or node.graph is None:
            return None
        given = max(len(node.inputs), 2) if node.op == "Loop" else len(node.inputs)
        if node.op == "Loop":
            loop = cls(node, given - 2)
        elif node.graph.opset() >= 9:
            loop = cls(node, given - int(node.attr("num_scan_inputs", given)))
        else:
            return None
        least = loop.first_out + loop.states
        right = loop.states >= 0 and len(body.inputs) == given and len(body.outputs) >= least
        return loop if right and len(node.outputs) <= len(body.outputs) - loop.first_out else None

    def result(self, i: int) -> Value | None:
        """Return the i-th result of the node, states first."""
        return self.node.outputs[i] if i < len(self.node.outputs) else None

    def joined_along(self, i: int) -> int | None:
        """Return the axis along which a result is collected, or None if backwards."""
        if self.node.op == "Loop":
            return 0
        axes, directions = (self.node.attr(f"scan_output_{said}") or [] for said in ("axes", "directions"))
        at = i - self.states
        if at < len(directions) and directions[at]:
            return None
        return int(axes[at]) if at < len(axes) else 0

    def live(self, read: list[int]) -> set[int]:
        """Return the results in `read`, and the states needed for them or for side effects."""
        place = {v: i for i, v in enumerate(self.body.inputs[self.first_in : self.first_in + self.states])}
        live: set[int] = set()
        stack = [*self.body.outputs[: self.first_out], *(self.body.outputs[self.first_out + i] for i in read)]
        live.update(read)
        for node in self.body:
            if not self.body.is_pure(node):
                stack += values_read(node)
        seen: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in place:
                live.add(place[value])
                stack.append(self.body.outputs[self.first_out + place[value]])
            elif value.producer is not None and value.graph is self.body:
                stack += values_read(value.producer)
        return live
