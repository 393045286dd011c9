"""Nodes added and removed by a pass without rules, in total or by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.graph.node import Node


class Known(NamedTuple):
    """Snapshot of a node: after removal the node has lost its scope and outputs. Text is made on demand."""

    node: Node
    scope: str
    made: tuple[str, ...]  # names of outputs, empty if absent

    @property
    def text(self) -> str:
        return self.node.described(self.made)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.made if name)


def known(node: Node, scope: str | None = None) -> Known:
    """Return the snapshot of a node. `scope`: its path, if already known."""
    made = tuple(["" if v is None else v.name for v in node.outputs])
    return Known(node, path(node) if scope is None else scope, made)


def all_known(model: Model) -> dict[Node, Known]:
    return {node: known(node, where) for scope in model.scopes() for where in (scope.path,) for node in scope}


def path(node: Node) -> str:
    return node.graph.path if node.graph is not None else ""


class Changes:
    """Changes of a model since construction; `before`: its nodes."""

    def __init__(self, model: Model, before: dict[Node, Known]) -> None:
        self._model = model
        self._before = before
        self._touched: list[Node] | None = None

    def watch(self) -> None:
        """Start a step for `step`. Requires that nothing else watches the model."""
        if self._touched is None and self._model.watch is None:
            self._before = dict(self._before)
            self._touched = []
            self._model.watch = self._touched.append

    def step(self) -> tuple[list[Known], list[Node]]:
        """Return (removed, made) since `watch`, or since the last step."""
        if self._touched is None:
            return [], []
        touched = list(dict.fromkeys(self._touched))
        self._touched.clear()
        gone = _with_bodies(n for n in touched if n.graph is None)
        removed = [self._before.pop(n) for n in gone if n in self._before]
        made = [n for n in touched if n.graph is not None and n not in self._before]
        self._before.update((n, known(n)) for n in made)
        return removed, made

    def rest(self) -> tuple[list[Known], list[Node]]:
        """Return (removed, made) not reported by any step."""
        now = dict.fromkeys(self._model.nodes())
        return [k for n, k in self._before.items() if n not in now], [n for n in now if n not in self._before]

    def close(self) -> None:
        if self._touched is not None:
            self._model.watch = None


def _with_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield removed nodes, and removed nodes of their bodies."""
    for node in nodes:
        yield node
        for body in node.bodies.values():
            yield from (inner for inner in body.walk() if inner.graph is None)
