"""The model-wide table of value names. Shadowing is illegal, so a new name must be new in every scope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Names:
    """All names ever defined in the model (sibling bodies may share a name), and the source of fresh names.

    A name derived from a derived name goes back to the original stem; otherwise names would grow with every rewrite.
    """

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}  # name: the stem it was derived from, or None
        self._next: dict[str, int] = {}

    def update(self, names: Iterable[str]) -> None:
        known: dict[str, str | None] = dict.fromkeys(names)
        if self._known:
            self._known.update({name: None for name in known if name not in self._known})
        else:
            self._known = known

    def __contains__(self, name: str) -> bool:
        """Whether the name was ever defined."""
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def fresh(self, hint: str, ending: str = "") -> str:
        """Return `hint` + `ending` if free, otherwise with `_1`, `_2`, … appended. Amortized constant time."""
        known = self._known
        stem = known.get(hint) or hint
        name = base = stem + ending
        if name in known:
            i = self._next.get(base, 0)
            while name in known:
                i += 1
                name = f"{base}_{i}"
            if i > 1:  # most stems need no counter
                self._next[base] = i
        known[name] = stem if name != stem else None
        return name
