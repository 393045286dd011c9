"""The model-wide table of value names: shadowing is illegal, so a new name must be new everywhere."""

from __future__ import annotations

from collections.abc import Iterator


class Names:
    """Counts how often each name is defined (sibling bodies may define the same one) and makes fresh ones."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def add(self, name: str) -> None:
        self._count[name] = self._count.get(name, 0) + 1

    def __contains__(self, name: str) -> bool:
        """Was it ever defined?"""
        return name in self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._count)

    def fresh(self, hint: str) -> str:
        """`hint` itself if free, else `hint_1`, `hint_2`, …; amortised constant time."""
        name, i = hint, self._next.get(hint, 0)
        while name in self._count:
            i += 1
            name = f"{hint}_{i}"
        self._next[hint] = i
        self._count[name] = 1
        return name
