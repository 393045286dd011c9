"""Which sizes of what an operator reads are sizes of what it makes, by operator: for sizes that weights ask for.

A shape is a tuple of numbers and of symbols of a model's inputs; `UNKNOWN` stands for any other size. None: nothing is
known of the result, not even how many axes it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from onnxopt.verification.model.operators import having

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

Shape: TypeAlias = "tuple[int | str, ...]"
UNKNOWN: Final = -1
_KEEPING: Final = having("like")
_BATCH_AND_CHANNELS: Final = 2  # axes in front, before those of a picture or of time


class Call:
    """A node, with the shapes of what it reads (as far as they are known), and integers that are constant."""

    def __init__(
        self, node: NodeProto, shapes: Sequence[Shape | None], integers: Callable[[str], Sequence[int] | None]
    ) -> None:
        self.node, self.shapes, self._integers = node, shapes, integers
        self._says: Mapping[str, AttributeProto] = {a.name: a for a in node.attribute}

    @property
    def first(self) -> Shape:
        return self.shapes[0] or ()

    def is_given(self, at: int, name: str) -> bool:
        """Is there such an operand, or as older opsets write it, such an attribute?"""
        return name in self._says or bool(len(self.node.input) > at and self.node.input[at])

    def integers(self, at: int, name: str) -> Sequence[int] | None:
        """What it holds, if that is constant."""
        if name in self._says:
            return list(self._says[name].ints)
        return self._integers(self.node.input[at]) if self.is_given(at, name) else None

    def axes(self, at: int, rank: int) -> list[int] | None:
        """Of a result of so many axes."""
        found = self.integers(at, "axes")
        if found is None or not all(-rank <= a < rank for a in found):
            return None
        return [a % rank for a in found]

    def number(self, name: str) -> int | None:
        return self._says[name].i if name in self._says else None


def carried(call: Call) -> Shape | None:
    """The shape of the first result, of an operator that carries some."""
    op = call.node.op_type
    if op in _KEEPING:
        return call.shapes[0]
    return _RULES[op](call) if op in _OF_SEVERAL or call.shapes[0] is not None else None


def _transpose(call: Call) -> Shape | None:
    perm = call.integers(len(call.node.input), "perm")
    if perm is None or sorted(perm) != list(range(len(call.first))):
        return None
    return tuple(call.first[i] for i in perm)


def _pad(call: Call) -> Shape | None:
    """Computed ones are those of a window, which batch and channels do not have."""
    rank = len(call.first)
    axes = call.axes(3, rank) if call.is_given(3, "axes") else list(range(rank))
    pads = call.integers(1, "pads")
    if axes is None:
        return None
    if pads is None and not call.is_given(3, "axes") and rank > _BATCH_AND_CHANNELS:
        axes = axes[_BATCH_AND_CHANNELS:]
    elif pads is not None and len(pads) == 2 * len(axes):
        axes = [a for a, *sides in zip(axes, pads, pads[len(axes) :]) if any(sides)]
    return _without(call.first, axes)


def _slice(call: Call) -> Shape | None:
    starts = call.integers(1, "starts")
    if call.is_given(3, "axes"):
        axes = call.axes(3, len(call.first))
    else:
        axes = list(range(len(starts))) if starts is not None else None
    return None if axes is None else _without(call.first, axes)


def _unsqueeze(call: Call) -> Shape | None:
    count = len(call.integers(1, "axes") or ())
    axes = call.axes(1, len(call.first) + count)
    if not axes or len({*axes}) < count:
        return None
    dims = iter(call.first)
    return tuple(1 if a in axes else next(dims) for a in range(len(call.first) + count))


def _squeeze(call: Call) -> Shape | None:
    axes = call.axes(1, len(call.first))
    return tuple(d for a, d in enumerate(call.first) if a not in axes) if axes else None


def _concat(call: Call) -> Shape | None:
    shapes = [s for s in call.shapes if s is not None]
    axis = call.number("axis")
    if axis is None or not shapes or len({*map(len, shapes)}) > 1 or not -len(shapes[0]) <= axis < len(shapes[0]):
        return None
    met = tuple(_same(dims) for dims in zip(*shapes))
    return _without(met, [axis % len(met)])


def _same(dims: Sequence[int | str]) -> int | str:
    """Of sizes that are all the same: a number, if there is one."""
    known = [d for d in dims if d != UNKNOWN]
    return next((d for d in known if isinstance(d, int)), known[0] if known else UNKNOWN)


def _broadcast(call: Call) -> Shape | None:
    if None in call.shapes:
        return None
    shapes = [s for s in call.shapes if s is not None]
    rank = max(map(len, shapes))
    return tuple(_met(dims) for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes)))


def _met(dims: Sequence[int | str]) -> int | str:
    """Of sizes that may be one, too: the number that is not; a symbol only if nothing else may be longer."""
    found = {d for d in dims if d != 1}
    numbers = [d for d in found if isinstance(d, int) and d != UNKNOWN]
    return numbers[0] if numbers else found.pop() if len(found) == 1 else 1 if not found else UNKNOWN


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(UNKNOWN if a in axes else d for a, d in enumerate(shape))


_BROADCAST: Final = having("broadcast")
_OF_SEVERAL: Final = _BROADCAST | {"Concat"}
_RULES: Final[dict[str, Callable[[Call], Shape | None]]] = {
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    **dict.fromkeys(_BROADCAST, _broadcast),
    "Concat": _concat,
}
CARRYING: Final = _KEEPING | _RULES.keys()
