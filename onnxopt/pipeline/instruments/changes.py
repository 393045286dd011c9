"""Which nodes came and went while a pass ran that does not tell by rules, as a whole or step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.graph.node import Node


class Known(NamedTuple):
    """A node as it was: once it is removed it does not know any more where it was and what it made. Of most it is never
    asked for, so words are made when they are."""

    node: Node
    scope: str
    made: tuple[str, ...]  # empty where an output is left out

    @property
    def text(self) -> str:
        return self.node.described(self.made)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name in self.made if name)


def known(node: Node, scope: str | None = None) -> Known:
    """`scope`: its path, if it is known already."""
    made = tuple(["" if v is None else v.name for v in node.outputs])
    return Known(node, path(node) if scope is None else scope, made)


def all_known(model: Model) -> dict[Node, Known]:
    return {node: known(node, where) for scope in model.scopes() for where in (scope.path,) for node in scope}


def path(node: Node) -> str:
    return node.graph.path if node.graph is not None else ""


class Changes:
    """Those of a model whose nodes were `before`, from when it is made."""

    def __init__(self, model: Model, before: dict[Node, Known]) -> None:
        self._model = model
        self._before = before
        self._touched: list[Node] | None = None

    def watch(self) -> None:
        """A step begins that `step` will ask for. Nobody else may be watching the model."""
        if self._touched is None and self._model.watch is None:
            self._before = dict(self._before)
            self._touched = []
            self._model.watch = self._touched.append

    def step(self) -> tuple[list[Known], list[Node]]:
        """(removed, made) since `watch`, or since the last step."""
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
        """(removed, made) that no step told."""
        now = dict.fromkeys(self._model.nodes())
        return [k for n, k in self._before.items() if n not in now], [n for n in now if n not in self._before]

    def close(self) -> None:
        if self._touched is not None:
            self._model.watch = None


def _with_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """Removed nodes, and what went with them."""
    for node in nodes:
        yield node
        for body in node.bodies.values():
            yield from (inner for inner in body.walk() if inner.graph is None)
