"""Which integers are surely those of their type: what runtimes compute wraps around, expressions do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onnx import TensorProto

from onnxopt.analysis.shapes.symbolic import Floor, Monomial, Size

LARGEST: Final = {TensorProto.INT32: (1 << 31) - 1, TensorProto.INT64: (1 << 63) - 1}
# What is taken of symbols, whose sizes nobody knows: a small multiple of one fits 32 bits (an index of TensorFlow), a
# product of two does not; in 64 bits a product of three fits if it counts elements of a tensor, which are there.
_ALONG_ONE_AXIS: Final = 1 << 24
_OF_ONE_TENSOR: Final = 1 << 40


def fits(size: Size, data_type: int, is_counted: Callable[[Monomial], bool]) -> bool:
    """Is it of the type, whatever the sizes of the symbols? `is_counted`: are these the dims of one tensor?"""
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
    """How many sizes are multiplied, in what a floor is of, too."""
    return sum(max(_degree(m) for m, _ in n.size.terms) if isinstance(n, Floor) else 1 for n in product)
