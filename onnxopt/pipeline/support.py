"""Backend capabilities: predicates on nodes, and combinations of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from onnxopt.graph.node import Node


@runtime_checkable
class NodeSupport(Protocol):
    """Any object with `is_node_supported`."""

    def is_node_supported(self, node: Node) -> bool: ...


Support = NodeSupport | Callable[[Node], bool]


class OperatorSupport:
    """Supports the nodes that call an operator in `ops`: qualified names, `Conv` or `com.microsoft::Gelu`.

    Override `is_node_supported` to check attributes, types or shapes as well.
    """

    def __init__(self, ops: Iterable[str] = ()) -> None:
        if isinstance(ops, str):
            raise TypeError(f"OperatorSupport takes a collection of operators, not the string {ops!r}")
        self.ops = frozenset(op.removeprefix("ai.onnx::") for op in ops)

    def is_node_supported(self, node: Node) -> bool:
        """Whether the backend runs this call. Called for nodes in bodies, too."""
        return node.op in self.ops


class _Combined:
    def __init__(self, decide: Callable[[Iterable[bool]], bool], supports: tuple[Support, ...]) -> None:
        self._decide = decide
        self._predicates = [predicate(s) for s in supports]

    def is_node_supported(self, node: Node) -> bool:
        return self._decide(p(node) for p in self._predicates)


def chain(*supports: Support) -> NodeSupport:
    """Return a support for nodes accepted by all `supports`, evaluated in order until the first rejection."""
    return _Combined(all, supports)


def any_chain(*supports: Support) -> NodeSupport:
    """Return a support for nodes accepted by any of `supports`, evaluated in order until the first acceptance."""
    return _Combined(any, supports)


def predicate(support: Support) -> Callable[[Node], bool]:
    """Return `support` as a plain function. Raises TypeError unless it is a support or callable."""
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
    except ValueError:  # C functions may have no signature
        pass
    return asked
