"""Passes that change nodes but not the links between them (Paddle Lite's StmtPass)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from onnxopt.errors import PassError
from onnxopt.graph import Graph, Model
from onnxopt.graph.node import Node
from onnxopt.pipeline.base import GraphPass
from onnxopt.pipeline.context import PassContext

Links = tuple[Node | None, tuple[object, ...], tuple[object, ...]]


class StmtPass(GraphPass):
    """Changes the state of nodes: attributes, operators, names, metadata. Override `run_node`, `run_graph` or `run`.

    Nodes, their order, inputs and outputs must stay the same: PassError otherwise.
    """

    kind: ClassVar[str] = "stmt"

    def promise(self, model: Model) -> Callable[[], None]:
        before = {scope: list(_links(scope)) for scope in model.scopes()}

        def check() -> None:
            for scope in {**before, **dict.fromkeys(model.scopes())}:
                was, now = before.get(scope, []), list(_links(scope))
                for old, new in zip([*was, None], [*now, None]):
                    if old != new:
                        raise PassError(
                            f"{model.name}: {scope.path}: the StmtPass {self.name} changed what reads what: "
                            f"{_shown(old)} became {_shown(new)}",
                            "make it a GraphPass if it is meant to",
                        )

        return check

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in graph:
            self.run_node(node, ctx)

    def run_node(self, node: Node, ctx: PassContext) -> None:
        """Change the state of `node`; called for each node."""
        raise NotImplementedError(f"{type(self).__name__} has no run_node(self, node, ctx)")


def _links(scope: Graph) -> Iterator[Links]:
    yield from ((node, tuple(node.inputs), tuple(node.outputs)) for node in scope)
    yield None, tuple(scope.inputs), tuple(scope.outputs)


def _shown(links: Links | None) -> str:
    if links is None or links[0] is None:
        return "the end"
    node, inputs, _ = links
    names = ", ".join(str(v) if v is not None else "_" for v in inputs)
    return f"{node!r} ({names})"
