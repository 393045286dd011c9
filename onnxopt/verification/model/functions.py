"""Functions of a model: which nodes call which, and what the functions contain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, KeysView
from typing import TYPE_CHECKING

from onnxopt.proto.functions import copy_given_out, refuse_explosion
from onnxopt.verification.model.order import bodies_of, inside

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

Name = tuple[str, str]  # domain and name


class Functions:
    """The functions of a model."""

    def __init__(self, model: ModelProto) -> None:
        self._all: list[FunctionProto] = list(model.functions)
        self._places: dict[Name, list[int]] = {}
        for i, f in enumerate(self._all):
            self._places.setdefault((domain_of(f.domain), _named(f.name, f.overload)), []).append(i)
        self._calls: dict[int, set[int]] = {}  # {index: functions called}, computed on demand
        self._texts: dict[int, bytes] = {}

    @property
    def names(self) -> KeysView[Name]:
        """The (domain, name) of the functions."""
        return self._places.keys()

    def of(self, node: NodeProto) -> FunctionProto | None:
        """Return the function called by a node, else None."""
        places = self._places.get(operator_of(node)) if self._places else None
        return self._all[places[0]] if places else None

    def needed(self, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
        """Return the functions called by nodes, directly or indirectly, in the model's order."""
        return [self._all[i] for i in self._needed(nodes)]

    def texts(self, nodes: Iterable[NodeProto]) -> set[bytes]:
        """Return the serialized functions called by nodes, directly or indirectly."""
        return {self._text(i) for i in self._needed(nodes)}

    def _text(self, i: int) -> bytes:
        if i not in self._texts:
            self._texts[i] = self._all[i].SerializeToString(deterministic=True)
        return self._texts[i]

    def _needed(self, nodes: Iterable[NodeProto]) -> list[int]:
        if not self._places:
            return []
        stack = list(self._called(nodes))
        found = set(stack)
        while stack:
            i = stack.pop()
            if i not in self._calls:
                self._calls[i] = self._called(self._all[i].node)
            new = self._calls[i] - found
            found |= new
            stack += new
        return sorted(found)

    def _called(self, nodes: Iterable[NodeProto]) -> set[int]:
        return {i for node in inside(nodes) for i in self._places.get(operator_of(node), ())}

    def holding(self, is_one: Callable[[NodeProto], bool]) -> set[Name]:
        """Return the functions with a node that satisfies `is_one`, directly or in called functions."""
        callers: dict[Name, list[Name]] = {}
        stack: list[Name] = []
        for name, places in self._places.items():
            for node in inside(n for i in places for n in self._all[i].node):
                callers.setdefault(operator_of(node), []).append(name)
                if is_one(node):
                    stack.append(name)
        found = set(stack)
        while stack:
            new = set(callers.get(stack.pop(), ())) - found
            found |= new
            stack += new
        return found


def operator_of(node: NodeProto) -> Name:
    """Return (domain, name) of the operator or function of a node."""
    return domain_of(node.domain), _named(node.op_type, node.overload)


def _named(name: str, overload: str) -> str:
    """Return a function's name with overload, the runtimes' key."""
    return f"{name}:{overload}" if overload else name


def domain_of(name: str) -> str:
    """Return a domain's canonical name. The standard domain has two, used interchangeably."""
    return "" if name == "ai.onnx" else name


def is_part(node: NodeProto) -> bool:
    """Return whether a node has a body that may not run."""
    return node.op_type in ("If", "Loop")


def holds(node: NodeProto, is_one: Callable[[NodeProto], bool], functions: Collection[Name]) -> bool:
    """Return whether a node, or a node in its bodies, satisfies `is_one` or calls one of `functions`."""
    return any(is_one(n) or (bool(functions) and operator_of(n) in functions) for n in inside([node]))


def calls_or_holds(node: NodeProto, is_one: Callable[[NodeProto], bool], functions: Collection[Name]) -> bool:
    """Return whether a node calls one of `functions`, or a node in its bodies satisfies `is_one`."""
    if functions and operator_of(node) in functions:
        return True
    return any(holds(n, is_one, functions) for body in bodies_of(node) for n in body.node)


def may_hide(node: NodeProto, functions: Collection[Name]) -> bool:
    """Return whether a node has a part that may not run, or calls a function in `functions`."""
    return holds(node, is_part, functions)


def inline(model: ModelProto) -> None:
    """Inline all calls of functions in place, if onnx's inliner preserves the model's meaning.

    The inliner drops default values of attributes, and keeps functions of a different opset.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    if not functions:
        return
    for node in inside((*model.graph.node, *(n for f in model.functions for n in f.node))):
        called = functions.get((node.domain, node.op_type, node.overload))
        if called is None:
            continue
        given = {a.name for a in node.attribute}
        if not given.issuperset(called.attribute):
            return
        node.attribute.extend(a for a in called.attribute_proto if a.name not in given)
    with contextlib.suppress(Exception):  # the calls stay
        from onnx.inliner import inline_local_functions

        refuse_explosion(model, "")
        copy_given_out(model)
        model.CopyFrom(inline_local_functions(model, False))
