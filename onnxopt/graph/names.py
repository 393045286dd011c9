"""The model-wide table of value names: shadowing is illegal, so a new name must be new everywhere."""

from __future__ import annotations

from collections.abc import Iterator


class Names:
    """Counts how often each name is defined (sibling bodies may define the same one) and makes fresh ones.

    What is made from a made name goes back to the one that was given, else names grow with every rewrite.
    """

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._stem: dict[str, str] = {}  # of each name made: what it was made from

    def add(self, name: str) -> None:
        self._count[name] = self._count.get(name, 0) + 1

    def __contains__(self, name: str) -> bool:
        """Was it ever defined?"""
        return name in self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._count)

    def fresh(self, hint: str, ending: str = "") -> str:
        """`hint` and `ending` if free, else with `_1`, `_2`, … behind; amortised constant time."""
        stem = self._stem.get(hint, hint) if ending or hint in self._count else hint
        base = stem + ending
        name, i = base, self._next.get(base, 0)
        while name in self._count:
            i += 1
            name = f"{base}_{i}"
        self._next[base] = i
        self._count[name] = 1
        if name != stem:
            self._stem[name] = stem
        return name
