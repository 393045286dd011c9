"""Regions of which leading axes are seen as one, or as several: Reshapes stand at their border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.record import record
from onnxopt.rewriting.axes import Passing, View
from onnxopt.rewriting.axis_runs import constant_target
from onnxopt.rewriting.relayout import Relayout

_QUANTIZERS: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})
_MOST_READERS: Final = 4  # of a Reshape, among which a quantizer is looked for


@record(frozen=True, eq=False)
class End:
    """Where a region ends: at a value that comes in, or at a reader of one that it makes.

    saved: nodes less. reshape: what is there, of `source`. target: of the Reshape that is there then, None where none
    is: sizes, or the part of a target that lists leading dims behind these. transpose: behind the Reshape (in front of
    it, where it is a reader), in the order `perm` then.
    """

    saved: int
    source: Value
    reshape: Node | None = None
    target: list[int] | tuple[int, ...] | None = None
    transpose: Node | None = None
    perm: tuple[int, ...] = ()


class Reshaped(Relayout):
    """Nodes, in order, with Reshapes at the border. `saved`: nodes less; `is_possible`: does a Reshape say each end?"""

    def __init__(self, graph: Graph, nodes: Iterable[Node], view: View, passing: Mapping[Node, Passing]) -> None:
        super().__init__(graph, nodes, view, passing)
        self.is_possible = True
        self.ends: dict[Value, End] = {}
        self.leaving: dict[Value, list[End]] = {}
        self.restored: dict[Value, list[int] | tuple[int, ...]] = {}
        self._look()
        self.all_ends = [*self.ends.values(), *(e for found in self.leaving.values() for e in found)]
        self.freed = {e.reshape for e in self.all_ends if e.reshape is not None and e.saved >= 0}
        self.saved = sum(e.saved for e in self.all_ends) - len(self.restored)

    def _look(self) -> None:
        for v in self.entering:
            end = self.enters(v)
            if end is None:
                self.is_possible = False
            else:
                self.ends[v] = end
        for v in self.made():
            outside = self.outside(v)
            if not outside and not v.is_output:
                continue
            ends = [self.leaves(v, u) for u in outside]
            if v.is_output or None in ends:
                target = self.restores(v)
                self.is_possible = self.is_possible and target is not None
                self.restored[v] = target or []
            self.leaving[v] = [e for e in ends if e is not None]

    # -- what is at the border -----------------------------------------------------------------------------------------

    def keeps(self, quantizer: Node | None) -> bool:
        """Does what is quantized, or was, stay beside its Reshape?"""
        return quantizer is not None and quantizer.op in _QUANTIZERS

    def enters(self, v: Value) -> End | None:
        """What is read in place of a value from outside; None where that cannot be said."""
        wanted, node = self.seen_dims(v), v.producer
        alone = not v.is_output and self.inside.issuperset(v.users)
        x = node.inputs[0] if node is not None and node.op in SAME_ORDER and node.graph is self.graph else None
        if x is not None:
            if self.keeps(x.producer) or x.producer in self.inside:
                return None
            if same(types.shape(x), wanted):
                return End(int(alone), x, node if alone else None)
            target = target_of(types.shape(x), wanted)
            if target is not None:
                return End(0 if alone else -1, x, node, target)
        target = target_of(types.shape(v), wanted)
        return None if target is None else End(-1, v, None, target)

    def leaves(self, v: Value, user: Node) -> End | None:
        """What becomes of a reader outside; None where it needs the value as it is."""
        is_reader = user.graph is self.graph and user.inputs[0] is v and v.users[user] == 1
        return self.leaves_by(v, user, self.seen_dims(v), None, ()) if is_reader and not user.has_references else None

    def leaves_by(
        self, v: Value, user: Node, dims: Shape | None, transpose: Node | None, perm: tuple[int, ...]
    ) -> End | None:
        """The same where a Reshape reads the value, or what a Transpose makes of it, which has these dims then."""
        if user.op not in SAME_ORDER or any(self.keeps(u) for u in islice(user.output.users, _MOST_READERS)):
            return None
        made, given = types.shape(user.output), user.input(1)
        if same(dims, made) and not (user.output.is_output and v.is_output):
            return End(1, v, user, None, transpose, perm)
        target = target_of(dims, made)
        if target is None and user.op == "Reshape" and given is not None and given.constant and given.array.all():
            target = given.array.reshape(-1).tolist()  # of what it reads this copies no dim
        return None if target is None else End(0, v, user, target, transpose, perm)

    def restores(self, v: Value) -> list[int] | tuple[int, ...] | None:
        """The target of a Reshape that makes the value as it was."""
        return target_of(self.seen_dims(v), types.shape(v))

    # -- doing it ------------------------------------------------------------------------------------------------------

    def turn(self, like: Node, x: Value, perm: Sequence[int], dims: Shape, before: Node) -> Value:
        value = self.new(like.output, dims)
        self.graph.insert(like.copy([x], [value]), before).set_attr("perm", list(perm))
        return value

    def before_transpose(self, end: End) -> tuple[Value, Shape | None]:
        """What the Transpose at an end read, and its dims then."""
        raise NotImplementedError

    def enter(self, v: Value, before: Node) -> Value:
        end = self.ends[v]
        x = end.source
        if end.target is not None:
            like, dims = (v, None) if end.transpose is None else self.before_transpose(end)
            x = self.new(like, dims)
            self.reshape(end.source, end.target, x, before)
        return x if end.transpose is None else self.turn(end.transpose, x, end.perm, self.seen_dims(v) or (), before)

    def hand_out(self, v: Value, new: Value) -> None:
        """A result of the graph keeps its name."""
        for end in self.leaving.get(v, ()):
            new = self._leave(new, end)
        if v in self.restored:
            self.graph.take_over(v, self.reshape(new, self.restored[v], None, v.producer))

    def _leave(self, new: Value, end: End) -> Value:
        """Returns what is `new` from then on."""
        reader, x = end.reshape, new
        assert reader is not None
        if end.transpose is not None:
            dims = self.seen_dims(end.source) or ()
            x = self.turn(end.transpose, new, end.perm, tuple(dims[i] for i in end.perm), reader)
        made = reader.output
        if end.target is not None:
            new_reader = self.reshape(x, end.target, None, reader)
            describe_as(new_reader.proto, reader.proto)
            self.graph.take_over(made, new_reader)
        else:
            read = made.replace_all_uses_with(x)
            new = read if x is new else new
        self.graph.remove(reader)
        if end.transpose is not None:
            self.graph.remove(end.transpose)
        return new


def same(dims: Shape | None, wanted: Shape | None) -> bool:
    """Are these the dims of as many elements that are wanted? One, where all others are known numbers, follows."""
    if dims is None or wanted is None or len(dims) != len(wanted):
        return False
    others = [d for d, w in zip(dims, wanted) if d == w is not None]
    return len(others) == len(dims) or (len(others) + 1 == len(dims) and all(isinstance(d, int) and d for d in others))


def target_of(dims: Shape | None, wanted: Shape | None) -> list[int] | None:
    """What a Reshape of `dims` is given for `wanted`, where that is constant."""
    return None if dims is None or wanted is None else constant_target(dims, wanted)
