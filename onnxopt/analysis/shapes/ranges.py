"""Overflow of integers computed from sizes: runtimes wrap around, symbolic expressions do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onnx import TensorProto

from onnxopt.analysis.shapes.symbolic import Floor, Monomial, Size

LARGEST: Final = {TensorProto.INT32: (1 << 31) - 1, TensorProto.INT64: (1 << 63) - 1}
# Assumed bounds of symbols: a small multiple of a size fits 32 bits (index arithmetic of TensorFlow), a product of two
# does not. In 64 bits a product of three fits if it counts elements of an existing tensor.
_ALONG_ONE_AXIS: Final = 1 << 24
_OF_ONE_TENSOR: Final = 1 << 40


def fits(size: Size, data_type: int, is_counted: Callable[[Monomial], bool]) -> bool:
    """Whether a size fits the type for all symbols. `is_counted`: whether symbols are dims of a single tensor."""
    largest = LARGEST.get(data_type)
    if largest is None:
        return False
    if isinstance(size, int):
        return -largest - 1 <= size <= largest
    if sum(abs(c) * _ALONG_ONE_AXIS ** _degree(m) for m, c in size.terms) <= largest:
        return True
    return sum(abs(c) * _reach(m, is_counted) for m, c in size.terms) <= largest


def _reach(product: Monomial, is_counted: Callable[[Monomial], bool]) -> int:
    reach: int = _ALONG_ONE_AXIS ** _degree(product)
    return _OF_ONE_TENSOR if reach > _OF_ONE_TENSOR and is_counted(product) else reach


def _degree(product: Monomial) -> int:
    """Return the number of multiplied sizes, also inside a floor."""
    return sum(max(_degree(m) for m, _ in n.size.terms) if isinstance(n, Floor) else 1 for n in product)
