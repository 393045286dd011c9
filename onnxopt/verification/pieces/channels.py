"""Rows and channels of a value, each compared relative to its own range.

In float16, a few roundings of the whole range exceed a channel a few hundred times smaller. A value therefore also
differs if a channel differs far beyond the rounding of its own elements, unless noise of last bits changes the same
channel as much. For float32, channels are compared if an output is uneven: beside a channel a million times larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.numbers.rounding import NOISE, allowed

_CRUDE: Final = 0.05  # relative to the channel; more than the rounding of a narrow type that can represent its elements
_FINE: Final = 1e-3  # for float32
_ROUNDINGS: Final = 4.0  # times the tolerance of the whole, for types that cannot
_PART: Final = 16  # elements; with fewer, a few samples of noise are no bound
_NARROW: Final = 2.0 * allowed(2.0**-23, 16.0)  # relative tolerance of float32


class Channels:
    """Rows and channels of B's value that differ from A's by much of their own range, unexplained by noise so far."""

    def __init__(
        self, a: Any, b: Any, share: float, view: Callable[[Any], Any] | None = None, *, fine: bool = False
    ) -> None:
        """Compare two values.

        share: tolerance relative to the whole range; view: maps A's layout to B's; fine: examine float32 too, not only
        narrow types.
        """
        self._view = view or (lambda value: value)
        a = self._view(a)
        crude = _CRUDE if share > _NARROW else _FINE
        counts = (fine or share > _NARROW) and _are_tensors(a, b)
        self._left = {axis: far for axis, far in _far(a, b, share, crude) if far.any()} if counts else {}

    @property
    def any(self) -> bool:
        """Whether any row or channel differs, unexplained by noise."""
        return bool(self._left)

    def see(self, before: Any, after: Any) -> None:
        """Remove channels that noise changes as much. `before`, `after`: A's value without and with noise."""
        if not self._left:
            return
        apart = _apart(self._view(before), self._view(after))
        for axis, far in list(self._left.items()):
            moved = NOISE * _largest(apart, axis)
            self._left[axis] = np.where(moved >= far, 0.0, far)
            if not self._left[axis].any():
                del self._left[axis]


def _are_tensors(a: Any, b: Any) -> bool:
    """Return whether both are float tensors of equal shape with enough elements."""
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and element_kind(a) == element_kind(b) == "f"
        and a.shape == b.shape
        and a.size >= _PART
    )


def _far(a: Any, b: Any, share: float, crude: float) -> Iterator[tuple[int, Any]]:
    """Yield (axis, difference of each row, 0 if small).

    Rows smaller than a rounding of the largest element are ignored.
    """
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
