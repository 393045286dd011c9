"""The order of a scope's nodes: a doubly linked list with insertion and removal in constant time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxopt.graph.node import Node


class Order:
    def __init__(self) -> None:
        self.first: Node | None = None
        self.last: Node | None = None

    def __iter__(self) -> Iterator[Node]:
        """Yield the nodes in order; nodes may be inserted, and the current node removed, while iterating."""
        node = self.first
        while node is not None:
            following = node.next
            yield node
            node = following if node.graph is None else node.next

    def __reversed__(self) -> Iterator[Node]:
        """Yield the nodes from last to first, under the same conditions."""
        node = self.last
        while node is not None:
            following = node.prev
            yield node
            node = following if node.graph is None else node.prev

    def arrange(self, nodes: Sequence[Node]) -> None:
        """Put the same nodes into the order given."""
        self.first = self.last = None
        for node in nodes:
            self._put(node, None)

    def _put(self, node: Node, before: Node | None) -> None:
        """Link a node before another node of the scope, or at the end."""
        preceding = before.prev if before is not None else self.last
        node.prev, node.next = preceding, before
        if preceding is None:
            self.first = node
        else:
            preceding.next = node
        if before is None:
            self.last = node
        else:
            before.prev = node

    def _take_out(self, node: Node) -> None:
        if node.prev is None:
            self.first = node.next
        else:
            node.prev.next = node.next
        if node.next is None:
            self.last = node.prev
        else:
            node.next.prev = node.prev
