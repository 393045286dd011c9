"""The model-wide table of value names: shadowing is illegal, so a new name must be new everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Names:
    """Knows each name that was ever defined (sibling bodies may define the same one), and makes fresh ones.

    What is made from a made name goes back to the one that was given, else names grow with every rewrite.
    """

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}  # and of each name made, what it was made from
        self._next: dict[str, int] = {}

    def update(self, names: Iterable[str]) -> None:
        known: dict[str, str | None] = dict.fromkeys(names)
        if self._known:
            self._known.update({name: None for name in known if name not in self._known})
        else:
            self._known = known

    def __contains__(self, name: str) -> bool:
        """Was it ever defined?"""
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def fresh(self, hint: str, ending: str = "") -> str:
        """`hint` and `ending` if free, else with `_1`, `_2`, … behind; amortised constant time."""
        known = self._known
        stem = known.get(hint) or hint
        name = base = stem + ending
        if name in known:
            i = self._next.get(base, 0)
            while name in known:
                i += 1
                name = f"{base}_{i}"
            if i > 1:  # most are asked for once
                self._next[base] = i
        known[name] = stem if name != stem else None
        return name
