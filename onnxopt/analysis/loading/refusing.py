"""Would a runtime refuse what a pass is about to do? What comes after it is asked, as long as more is known of it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Final

from onnxopt.analysis import types
from onnxopt.analysis.loading.annotations import with_numbers
from onnxopt.analysis.loading.known import (
    as_given,
    dims_of,
    has_to_agree,
    inferred,
    is_in_body,
    look_inside,
    of_any_shape,
    operands,
    seen_by,
)
from onnxopt.analysis.loading.made import is_misled, made_of
from onnxopt.analysis.types import NOTHING, Known
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.operators import CONTROL_FLOW
from onnxopt.protos import Array, tensor_type_proto

_FAR: Final = 40  # nodes outside of bodies, which are many, of which it is asked what they tell these,
_WARY: Final = 1000  # and so many where one would be refused
_NOTHING: Final[Known] = (tensor_type_proto(0, None), None)


class Loading:
    """What one round of passes was told it may do, which may meet."""

    def __init__(self, left: int) -> None:
        """`left`: how often it may still ask."""
        self.left = left
        self._far = _FAR  # and so often of what is in no body
        self._wary = False
        self._known: dict[Value, Known] = {}  # what it was told of values
        self.inside: dict[Value, Known] = {}  # what runtimes knew before of values in bodies,
        self.may: dict[Value, Known] = {}  # and what they may have known
        # From which a body that would refuse what is so learns more, or what is inferred otherwise than it is.
        self.watched: set[Value] = set()
        self.annotated: dict[Value, Shape] = {}  # what they know because the file says so

    def is_refused(self, value: Value, given: Array | Value, readers: Iterable[Node] | None) -> bool:
        """See `analysis.refusal`."""
        if isinstance(given, Value) and given in self.watched:
            self.watched.add(value)  # which takes its place
        asked = dict.fromkeys(_takers(value) if readers is None else readers)
        constant = not isinstance(given, Value) or given.constant
        if not self._is_read_there(value, asked, constant=constant):
            return False
        before: dict[Value, Known] = {value: self._as_it_is(value)}
        others = NOTHING if given is value else ChainMap(self._known, self.may, self.inside)  # itself: by our facts
        after: dict[Value, Known] = {value: as_given(given, others)}
        if before == after:
            return False  # it is too large to be looked at, and nobody learns a size
        was = self._known.get(value)
        refused = self.refuses(asked, before, after)
        if refused:
            self.beware()
        elif readers is not None:  # others read it as it is
            del self._known[value]
            if was is not None:
                self._known[value] = was
        return refused

    def told(self, value: Value) -> Shape | None:
        """The sizes that runtimes may know of it, by what was asked in this round, too."""
        return dims_of(value, ChainMap(self._known, self.may, self.inside))

    def beware(self) -> None:
        """There is a body that would be refused: what cannot be asked any more is not done, and more can be asked."""
        if not self._wary:
            self._wary, self._far = True, self._far + _WARY

    def refuses(self, asked: dict[Node, None], before: dict[Value, Known], after: dict[Value, Known]) -> bool:
        """Does one of these nodes, or what comes after them, refuse what is known then, and not what is known now?"""
        told = ChainMap(after, self._known)
        then = ChainMap(after, self._known, self.may, self.inside)
        while asked and self.left > 0:
            node = next(iter(asked))
            del asked[node]
            if not is_in_body(node) and operands(node, then) is None:
                if not self._is_watched(node):
                    continue
                if self._far <= 0:
                    return True
                self._far -= 1
            self.left -= 1
            old = made_of(node, ChainMap(before, self._known, seen_by(node, self.inside)))
            new = made_of(node, ChainMap(after, self._known, seen_by(node, ChainMap(self.may, self.inside))))
            if new is None and (old is not None or made_of(node, _unshaped(node)) is not None):
                return True  # also where `old` follows from what we know, and runtimes may not
            if new != old and is_misled(node, then):
                return True
            for v, known in self._as_annotated(new).items():
                was = self._as_annotated(old).get(v, _NOTHING)
                if known != was and told.get(v) != known:
                    before[v], after[v] = was, known
                    asked.update(dict.fromkeys(_takers(v)))
        if asked and self._wary:
            return True
        self._known.update(after)
        return False

    def _as_annotated(self, made: Mapping[Value, Known] | None) -> Mapping[Value, Known]:
        """What a node makes, with what the file says of it besides."""
        if not made or self.annotated.keys().isdisjoint(made):
            return made or {}
        dims = {v: with_numbers(dims_of(v, made), self.annotated[v]) for v in made if v in self.annotated}
        return {**made, **{v: (tensor_type_proto(types.dtype(v), known), made[v][1]) for v, known in dims.items()}}

    def _is_watched(self, node: Node) -> bool:
        """Is it in a body, which may never run, or does it lead there, or to what misleads a runtime?"""
        if is_in_body(node) or has_to_agree(node):
            return True
        asks = self._far > 0 or self._wary
        return asks and not self.watched.isdisjoint(v for v in node.outputs if v is not None)

    def _is_read_there(self, value: Value, readers: Iterable[Node], *, constant: bool) -> bool:
        """Is it, or if it is to be `constant` what is made of it and others only, read by what is watched?"""
        known, stack = {value}, list(readers)
        while stack and self.left > 0:
            node = stack.pop()
            if self._is_watched(node):
                return True
            self.left -= 1
            if constant and all(v is None or v.constant or v in known for v in node.inputs):
                new = {v for v in node.outputs if v is not None} - known
                known |= new
                stack += [user for v in new for user in v.users]
        return False

    def _as_it_is(self, value: Value) -> Known:
        """What inference says of it, and nothing that is known otherwise."""
        maker = value.producer
        if maker is None:
            return of_any_shape(value)
        self._look_before(maker)
        made = inferred(maker, ChainMap(self._known, seen_by(maker, self.inside)))
        return (made or {}).get(value) or of_any_shape(value)

    def _look_before(self, node: Node) -> None:
        """Ask what runtimes know of what leads to a node, as far as it is watched: of most nobody has to know."""
        stack, asked = [node], dict[Node, None]()
        while stack and len(asked) < _FAR:
            last = stack[-1]
            open_values = (v for v in last.inputs if v in self.watched and v not in self.inside)
            makers = [m for v in open_values if v is not None and (m := v.producer) is not None and m not in asked]
            if makers and last not in asked:
                asked[last] = None
                stack += makers
                continue
            asked[last] = None
            stack.pop()
            if last is not node:
                look_inside([last], self.inside, self.annotated)


def _takers(value: Value) -> list[Node]:
    """What reads it, and the If, Loop or Scan that it is given out to."""
    owner = value.graph.owner if value.is_output else None
    return [*value.users, owner] if owner is not None and owner.op in CONTROL_FLOW else list(value.users)


def _unshaped(node: Node) -> dict[Value, Known]:
    return {v: of_any_shape(v) for v in node.inputs if v is not None and not v.constant}
