"""Rows and channels of a value, each beside its own range.

What a few roundings of float16 may change is most of a channel that is a few hundred times smaller than the others. So
it counts, too, whether a channel differs by far more than its own numbers round: where it does, the last bits of what
its piece reads have to do as much to this very channel. Of float32 it counts where an output is uneven so: beside one a
million times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.numbers.rounding import NOISE, allowed

_CRUDE: Final = 0.05  # of its own range: more than what a narrow type rounds by that can tell such numbers apart,
_FINE: Final = 1e-3  # of one of float32
_ROUNDINGS: Final = 4.0  # times what is allowed of the whole, of one that cannot
_PART: Final = 16  # elements: of fewer, a few samples of noise are no bound
_NARROW: Final = 2.0 * allowed(2.0**-23, 16.0)  # of its range, what is allowed of float32


class Channels:
    """Along each axis of B's value, by how much each row or channel of it differs from A's, where that is by much of
    its own range, and no sample of noise did as much."""

    def __init__(
        self, a: Any, b: Any, share: float, view: Callable[[Any], Any] | None = None, *, fine: bool = False
    ) -> None:
        """`share`: of the range of the whole, what may differ. `view`: how B holds A's values, if otherwise. `fine`:
        floats that are not narrow count, too."""
        self._view = view or (lambda value: value)
        a = self._view(a)
        crude = _CRUDE if share > _NARROW else _FINE
        counts = (fine or share > _NARROW) and _are_tensors(a, b)
        self._left = {axis: far for axis, far in _far(a, b, share, crude) if far.any()} if counts else {}

    @property
    def any(self) -> bool:
        return bool(self._left)

    def see(self, before: Any, after: Any) -> None:
        """What noise makes of a value of A."""
        if not self._left:
            return
        apart = _apart(self._view(before), self._view(after))
        for axis, far in list(self._left.items()):
            moved = NOISE * _largest(apart, axis)
            self._left[axis] = np.where(moved >= far, 0.0, far)
            if not self._left[axis].any():
                del self._left[axis]


def _are_tensors(a: Any, b: Any) -> bool:
    """Are they tensors of floats, of one shape?"""
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and element_kind(a) == element_kind(b) == "f"
        and a.shape == b.shape
        and a.size >= _PART
    )


def _far(a: Any, b: Any, share: float, crude: float) -> Iterator[tuple[int, Any]]:
    """(axis, how far each row is off, or 0 where that is little): smaller than what one rounding of the largest number
    is, nothing is looked at."""
    apart, sizes = _apart(a, b), _finite(np.abs(_wide(a)))
    if not apart.any():
        return
    crude, least = max(crude, _ROUNDINGS * share), share * float(sizes.max()) / _ROUNDINGS
    for axis in range(a.ndim):
        if a.size < _PART * a.shape[axis]:
            continue
        off, own = _largest(apart, axis), _largest(sizes, axis)
        yield axis, np.where(off > crude * np.maximum(own, least), off, 0.0)


def _apart(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return _finite(np.abs(_wide(a) - _wide(b)))


def _wide(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype.itemsize < 4 else value


def _finite(sizes: Any) -> Any:
    return np.nan_to_num(sizes, nan=0.0, posinf=0.0)


def _largest(sizes: Any, axis: int) -> Any:
    return sizes.max(tuple(k for k in range(sizes.ndim) if k != axis))
