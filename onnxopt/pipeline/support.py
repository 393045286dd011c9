"""What a backend can run: a question asked of every node, and ways to combine the answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from onnxopt.graph.node import Node


@runtime_checkable
class NodeSupport(Protocol):
    """Anything with `is_node_supported`."""

    def is_node_supported(self, node: Node) -> bool: ...


Support = NodeSupport | Callable[[Node], bool]


class OperatorSupport:
    """Supports the nodes that call one of `ops`: qualified names, `Conv` or `com.microsoft::Gelu`.

    Override `is_node_supported` to look at attributes, types or shapes as well.
    """

    def __init__(self, ops: Iterable[str] = ()) -> None:
        if isinstance(ops, str):
            raise TypeError(f"OperatorSupport takes a collection of operators, not the string {ops!r}")
        self.ops = frozenset(op.removeprefix("ai.onnx::") for op in ops)

    def is_node_supported(self, node: Node) -> bool:
        """Does the backend run this call? Asked of nodes in bodies, too."""
        return node.op in self.ops


class _Combined:
    def __init__(self, decide: Callable[[Iterable[bool]], bool], supports: tuple[Support, ...]) -> None:
        self._decide = decide
        self._predicates = [predicate(s) for s in supports]

    def is_node_supported(self, node: Node) -> bool:
        return self._decide(p(node) for p in self._predicates)


def chain(*supports: Support) -> NodeSupport:
    """Supports what all of `supports` do; asked in order, up to the first that does not."""
    return _Combined(all, supports)


def any_chain(*supports: Support) -> NodeSupport:
    """Supports what one of `supports` does; asked in order, up to the first that does."""
    return _Combined(any, supports)


def predicate(support: Support) -> Callable[[Node], bool]:
    """`support` as a plain function. Raises TypeError for what is neither a support nor callable."""
    if isinstance(support, type):
        raise TypeError(f"{support.__name__} is a class: {support.__name__}(…) makes a support of it")
    asked = support.is_node_supported if isinstance(support, NodeSupport) else support
    if not callable(asked):
        raise TypeError(f"{support!r} has no method is_node_supported and is not a function of a node")
    try:
        inspect.signature(asked).bind(None)
    except TypeError:
        name = getattr(asked, "__qualname__", repr(support))
        raise TypeError(f"{name} is called with one node, and nothing else: is_node_supported(self, node)") from None
    except ValueError:  # a function in C does not say what it takes
        pass
    return asked
