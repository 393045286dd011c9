"""Unions of overlapping byte ranges of a file, since any number of tensors may share bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

File = TypeVar("File", bound=Hashable)
Range = tuple[File, int, int]  # (file, start, length)


def spans(ranges: Iterable[Range[File]]) -> dict[Range[File], tuple[int, int]]:
    """Return for each range the (start, end) of the union of all ranges connected to it by overlaps."""
    found: dict[Range[File], tuple[int, int]] = {}
    files: dict[File, set[tuple[int, int]]] = {}
    for file, start, length in ranges:
        files.setdefault(file, set()).add((start, length))
    for file, parts in files.items():
        together: list[tuple[int, int]] = []
        end = 0
        for start, length in sorted(parts):
            if together and start >= end:
                found.update(_spanned(file, together, end))
                together = []
            end = max(end, start + length) if together else start + length
            together.append((start, length))
        found.update(_spanned(file, together, end))
    return found


def _spanned(file: File, parts: list[tuple[int, int]], end: int) -> dict[Range[File], tuple[int, int]]:
    return {(file, start, length): (parts[0][0], end) for start, length in parts}
