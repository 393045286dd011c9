"""Axes of nodes, views of axes, and nodes rewritten to work on values in a view.

A view maps each axis of a value to a list of new axes. A node passes through a view if each axis it works along becomes
a single axis, and each axis it finds by position keeps the position. Only axis numbers in the node change then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import known_order
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import BROADCASTING, broadcasts
from onnxopt.operators.operands import AXES, AxisRule
from onnxopt.proto.messages import tensor_bytes
from onnxopt.rewriting.index_maps import Seen, inverse
from onnxopt.rewriting.index_plans import Step
from onnxopt.rewriting.rule import listed_axes

_SHARED_BYTES: Final = 1 << 16  # bytes: larger constants with several readers are not copied
_MOST_FORMS: Final = 1 << 12  # entries: operands of few different dims
_NO_AXES: Final = frozenset[int]()
_Facts = tuple[Shape | None, bool]  # dims of a value, and whether it is constant
_FACTS: Final[Callable[[Value], _Facts]] = attrgetter("shape", "constant")
# Forms of an operand in a view. Unchanged: still broadcast correctly. Made anew: a constant rewritten for the view.
_SEEN, _UNCHANGED, _MADE_ANEW = "seen", "unchanged", "made anew"
To = tuple[tuple[int, ...], ...]  # for each axis the axes it becomes, in order
Made = tuple[int | None, ...]  # for each axis of the results its operand axis, or None for an axis from another operand


class Axes(NamedTuple):
    """Axes of a node. `rank`: of the first operand, or of the result where operands are broadcast or joined.

    data: the operands with these axes, aligned at the last axis.
    along: the axes along which elements depend on one another, named by an attribute or operand.
    last: number of trailing axes found by position.
    follows: whether the node broadcasts its operands.
    """

    rank: int
    data: tuple[Value, ...]
    along: frozenset[int]
    last: int
    made: Made
    follows: bool = False


class Passing(NamedTuple):
    """A node with a form in a view. seen: operands read in the view; made_anew: constants to rewrite for the view."""

    axes: Axes
    seen: list[Value]
    made_anew: list[Value]


class Place(NamedTuple):
    """The axes of a value in a view: `to` maps each axis to new axes, of `rank` in total.

    alone: axes mapped to a single axis and shared with none; fixed: those at the same position, counted from the end.
    """

    to: To
    rank: int
    alone: frozenset[int]
    fixed: frozenset[int]


class View:
    """A mapping from axes to new axes, for certain values."""

    lead: Shape = ()  # sizes of the axes that one becomes

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def seen(self, rank: int, back: bool) -> Seen:
        """Return the view of a value of this rank as a step of an index map."""
        to, wide, *_ = self.at(rank)
        return Seen(to, wide, self.lead, back)

    def steps(self, dims: Shape, back: bool) -> list[Step] | None:
        """Return the operators for a value of these dims without an index map, or None."""
        return None

    def has(self, dims: Shape) -> bool:
        """Return whether the view covers values of these dims."""
        raise NotImplementedError

    def becomes(self, rank: int) -> tuple[To, int]:
        """Return (new axes for each axis, new rank) for a value of this rank."""
        raise NotImplementedError

    def at(self, rank: int) -> Place:
        """Return the `Place` for values of this rank, cached."""
        place = self._places.get(rank)
        if place is None:
            to, wide = self.becomes(rank)
            every = [*chain.from_iterable(to)]
            alone = frozenset(i for i, axes in enumerate(to) if len(axes) == 1 and every.count(axes[0]) == 1)
            fixed = frozenset(i for i in alone if to[i][0] - wide == i - rank)
            place = self._places[rank] = Place(to, wide, alone, fixed)
        return place

    def dims(self, dims: Shape) -> Shape:
        """Return the dims in the view of a value of these dims; a new axis has size 1."""
        to, rank, *_ = self.at(len(dims))
        found: list[int | str | None] = [1] * rank
        for d, axes in zip(dims, to):
            if len(axes) == 1:
                before = found[axes[0]]
                both = isinstance(before, int) and isinstance(d, int)
                found[axes[0]] = d if before == 1 else before * d if both else None  # type: ignore[operator]
        return tuple(found)

    def keeps(self, made: Made, rank: int) -> bool:
        """Return whether a result is in the view. `made`: for each of its axes the operand axis, of `rank` axes."""
        return made == tuple(range(rank))


class Turned(View):
    """The axes in another order: axis k is former axis order[k]."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = tuple(order)

    def steps(self, dims: Shape, back: bool) -> list[Step] | None:
        wide = [i for i in self.order if dims[i] != 1] if self.has(dims) else []
        if wide == sorted(wide):  # axes of one element move without a Transpose
            return None
        return [Step("Transpose", (), {"perm": [*(inverse(self.order) if back else self.order)]})]

    def has(self, dims: Shape) -> bool:
        return len(dims) == len(self.order)

    def becomes(self, rank: int) -> tuple[To, int]:
        return tuple((i,) for i in inverse(self.order)), rank

    def dims(self, dims: Shape) -> Shape:
        return tuple([dims[i] for i in self.order])

    def keeps(self, made: Made, rank: int) -> bool:
        """A result with fewer axes stays outside the view, and must have its axes in order."""
        if len(made) == rank:
            return super().keeps(made, rank)
        left = [self.at(rank).to[i][0] for i in made if i is not None]
        return len(left) == len(made) < rank and left == sorted(left)


class AnyOrder(Turned):
    """An order without fixed axes: a node that passes through this view passes through any order of which its result
    permits."""

    def __init__(self, rank: int) -> None:
        super().__init__([*range(1, rank), 0])

    def keeps(self, made: Made, rank: int) -> bool:
        return None not in made if len(made) < rank else View.keeps(self, made, rank)


class LeadingOrder(AnyOrder):
    """An order of all axes but the last."""

    def __init__(self, rank: int) -> None:
        Turned.__init__(self, [*range(1, rank - 1), *range(min(rank - 1, 1)), rank - 1])


class _Ones(View):
    def __init__(self, rank: int, axes: Sequence[int]) -> None:
        super().__init__()
        self.rank, self.axes = rank, axes


class WithOnes(_Ones):
    """With additional axes of size 1 at positions `axes`."""

    def has(self, dims: Shape) -> bool:
        return len(dims) == self.rank

    def becomes(self, rank: int) -> tuple[To, int]:
        wide = rank + len(self.axes)
        return tuple((i,) for i in range(wide) if i not in self.axes), wide


class WithoutOnes(_Ones):
    """Without `axes`, all of size 1."""

    def has(self, dims: Shape) -> bool:
        return len(dims) == self.rank and all(dims[a] == 1 for a in self.axes)

    def becomes(self, rank: int) -> tuple[To, int]:
        left = [i for i in range(rank) if i not in self.axes]
        return tuple((left.index(i),) if i in left else () for i in range(rank)), len(left)


def axes_of(node: Node) -> Axes | None:
    """Return the axes of a node, kept until it changes; None if its operator is not in the table, or they are
    unknown."""
    if node.graph is None:
        return None
    model = node.graph.model
    if node in model.axes:
        when, kept = model.axes[node]
        if node not in model.marked or when >= model.marked[node]:
            known: Axes = kept
            return known
    found = _find_axes(node, node.graph)
    if found is not None:
        model.axes[node] = model.clock, found
    return found


def _is_elementwise(op: str, others: Sequence[Value], graph: Graph) -> bool:
    """Return whether the other operands broadcast; bounds of Clip have one element."""
    is_broadcast = op not in BROADCASTING or graph.opset() >= 7
    return is_broadcast and (op != "Clip" or all(types.shape(v) in ((), (1,)) for v in others))


def _find_axes(node: Node, graph: Graph) -> Axes | None:
    op, operands, rule = node.op, node.operands, AXES.get(node.op)
    if rule is None or not node.inputs or not node.outputs or None in node.outputs or node.has_references:
        return None
    rank = types.rank(node.outputs[0] if rule.everything else node.inputs[0])
    if rank is None:
        return None
    data, others = (operands, []) if rule.everything else (operands[:1], operands[1:])
    if not data or data[0] in others or (len(node.outputs) > 1 and op not in ("Split", "TopK")):
        return None
    if rule.along == "-":  # most nodes
        if not _is_elementwise(op, others, graph):
            return None
        follows = broadcasts(op, graph.opset())
        return Axes(rank, tuple(dict.fromkeys(data)), _NO_AXES, 0, tuple(range(rank)), follows)
    along = _along(node, rank, rule)
    if along is None or op == "MatMul":
        return None if along is None else _axes_of_product(node, rank, along)
    return _axes_along(node, graph, rank, along, data, others)


def _axes_along(
    node: Node, graph: Graph, rank: int, along: frozenset[int], data: Sequence[Value], others: Sequence[Value]
) -> Axes | None:
    """Return the axes of a node that works along some of them; None if one has no number, or another operand has more
    axes than are found by position."""
    rule = AXES[node.op]
    last = int(rule.operand) if rule.named == "last" else 0
    if rule.named == "from" or graph.opset() <= rule.joined_up_to:
        last, along = rank - min(along), _NO_AXES
        if any(types.rank(v) not in range(last + 1) for v in others):
            return None
    made = _made(node, rank, rule, along) if last <= rank else None
    return None if made is None else Axes(rank, tuple(dict.fromkeys(data)), along, last, made)


def _axes_of_product(product: Node, rank: int, along: frozenset[int]) -> Axes | None:
    """Return the axes of a MatMul; None for a vector. A matrix is shared by all rows."""
    ranks = [types.rank(v) or 0 for v in product.operands]
    if min(ranks) < 2:
        return None
    same = tuple(range(rank))
    if ranks[-1] == 2 < rank:
        return Axes(rank, (product.operands[0],), along, 1, same)
    return Axes(rank, tuple(dict.fromkeys(product.operands)), along, 2, same)


def _along(node: Node, rank: int, rule: AxisRule) -> frozenset[int] | None:
    """Return the axes named by an attribute or operand, or None if unknown."""
    found: Sequence[int] | None = ()
    if rule.along in ("axis", "from:axis"):
        found = [int(node.attr("axis"))]
    elif rule.named in ("axes", "axis"):
        found = listed_axes(node, int(rule.operand)) or None
    elif rule.named == "pads":
        found = _padded_axes(node, rank)
    elif rule.named == "scale":
        found = _scaled_axes(node)
    return None if found is None or any(not -rank <= a < rank for a in found) else frozenset(a % rank for a in found)


def _padded_axes(pad: Node, rank: int) -> list[int] | None:
    """Return the axes that a Pad pads; None if unknown, or listed by an operand."""
    pads = listed_axes(pad) if pad.input(3) is None else None
    return [i for i in range(rank) if pads[i] or pads[i + rank]] if pads and len(pads) == 2 * rank else None


def _scaled_axes(node: Node) -> Sequence[int] | None:
    """Return the axis of a scale for each slice, none for one scale; None for blocks, which have all axes."""
    scale = node.input(1)
    dims = types.shape(scale) if scale is not None else None
    if dims in ((), (1,)):
        return ()
    is_vector = dims is not None and len(dims) == 1 and node.graph is not None and node.graph.opset() >= 13
    return [int(node.attr("axis"))] if is_vector else None


def _made(node: Node, rank: int, rule: AxisRule, along: frozenset[int]) -> Made | None:
    every = tuple(range(rank))
    if node.op == "Transpose":
        return known_order(node, rank)
    if rule.along == "axes:1" and not node.keeps_dims:
        return tuple(i for i in every if i not in along)
    if node.op == "Gather":
        index = types.rank(node.inputs[1]) if node.inputs[1] is not None else None
        at = min(along)
        if index == 1:
            return every
        return None if index is None else (*every[:at], *(None,) * index, *every[at + 1 :])
    return every


def passes(node: Node, view: View) -> Passing | None:
    """Return how a node passes through a view; None if it does not, or reads no value in the view."""
    a = axes_of(node)
    if a is None:
        return None
    given = tuple(map(_FACTS, a.data))
    for dims, is_constant in given:
        if dims is None or is_constant:
            given = tuple([(types.shape(v), v.constant) for v in a.data])
            break
    forms = _forms(view, node.op, a.rank, a[2:], given)
    if forms is None:
        return None
    seen = [v for v, form in zip(a.data, forms) if form == _SEEN]
    made_anew = [v for v, form in zip(a.data, forms) if form == _MADE_ANEW] if _MADE_ANEW in forms else []
    return Passing(a, seen, made_anew) if not made_anew or all(map(_may_be_made_anew, made_anew)) else None


@lru_cache(_MOST_FORMS)
def _forms(
    view: View, op: str, rank: int, kind: tuple[frozenset[int], int, Made, bool], given: tuple[_Facts, ...]
) -> Sequence[str | None] | None:
    """Return the forms in a view of operands, `given` as (dims, is constant); None if one has none, or none is moved.
    Repeated layers and later rounds ask the same."""
    place, (along, last, made, may_follow) = view.at(rank), kind
    if not place.alone.issuperset(along) or not place.fixed.issuperset(range(rank - last, rank)):
        return None
    if not view.keeps(made, rank):
        return None
    forms = [_form(dims, is_constant, rank, view, may_follow, op) for dims, is_constant in given]
    is_moved = _SEEN in forms or (_MADE_ANEW in forms and not may_follow)
    return forms if is_moved and None not in forms else None


def _form(dims: Shape | None, is_constant: bool, rank: int, view: View, may_follow: bool, op: str) -> str | None:
    """Return the form in which a node, which broadcasts its operands if these `may_follow`, reads an operand in the
    view; None if there is none."""
    if dims is None:
        return None
    is_turned = isinstance(view, Turned)
    full = len(dims) == rank and view.has(dims)
    if full and not is_constant and not is_turned:
        return _SEEN
    place, own = view.at(rank), {i for i, d in enumerate(dims, rank - len(dims)) if d != 1}
    if (may_follow or op == "MatMul") and len(dims) <= place.rank and place.fixed.issuperset(own):
        return _UNCHANGED  # the operand broadcasts as before
    if may_follow and not is_turned and _is_in_view(dims, rank, view):
        return _UNCHANGED
    if not is_constant:
        return _SEEN if full else None
    is_known = full and all(isinstance(d, int) for d in view.dims(dims))
    return _MADE_ANEW if is_known or (may_follow and place.alone.issuperset(own)) else None


def _is_in_view(dims: Shape, rank: int, view: View) -> bool:
    """Return whether a value, with leading axes that broadcasting adds, has its own dims in the view."""
    broadcast = (1,) * (rank - len(dims)) + dims
    return len(dims) < rank and view.has(broadcast) and view.dims(broadcast) == dims


def _may_be_made_anew(v: Value) -> bool:
    """Return whether a constant may be copied: small, or stored for a single reader."""
    return tensor_bytes(*v.constant_type()) <= _SHARED_BYTES or (v.is_stored and len(v.users) == 1)
