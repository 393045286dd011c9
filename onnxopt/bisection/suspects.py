"""Rewrites that may have caused a fault, from its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.pipeline.journal import Entry
from onnxopt.verification import Verification

if TYPE_CHECKING:
    from onnxopt.verification.records import Place, Side

NARROWING: Final = "convert-dtype"


def suspected(place: Place, entries: Sequence[Entry]) -> list[Entry]:
    """Return the rewrites at a place, most likely first: few further effects, and late.

    First: rewrites with an anchor, removed or made value made at the place, or read by only one model; and rewrites in
    bodies of nodes there. Then: rewrites that made operands of the first. Last: rewrites that replaced an operand by a
    different, agreeing value.
    """
    reads = [{name for side in sides for name in side.inputs} for sides in (place.a, place.b)]
    there = {place.value, *made(place.a), *made(place.b)}
    only_one_reads = (reads[0] ^ reads[1]) - there
    agreeing = only_one_reads.intersection(place.entries)
    classes = there | (only_one_reads - agreeing), set[str](), agreeing
    bodies = _bodies(place)
    found: list[tuple[int, float, Entry]] = []
    for entry in reversed(entries):
        names = {entry.value, *entry.taken, *entry.outputs} - {""}
        if not entry.fuel:
            continue
        if f"{entry.scope} / ".startswith(bodies):
            found.append((0, 0.0, entry))
        elif f"{place.scope} / ".startswith(f"{entry.scope} / "):
            rank = next((i for i, inside in enumerate(classes) if names & inside), None)
            if rank is not None:
                found.append((rank, len(names.difference(*classes)) / len(names), entry))
                classes[1].update(entry.taken)
    return [entry for *_, entry in sorted(found, key=lambda f: f[:2])]


def explain(places: Sequence[Place], entries: Sequence[Entry]) -> None:
    """Set `rewrites` of each place to the rewrites at the place."""
    for place, narrowed in zip(places, narrowings(places, entries)):
        place.rewrites = [str(entry) for entry in ([narrowed] if narrowed else suspected(place, entries))]


def narrowings(places: Sequence[Place], entries: Sequence[Entry]) -> list[Entry | None]:
    """Return, by place, the rewrite that narrowed the value's type, else None.

    Only for places where the type cannot hold the original's values.
    """
    known = {(e.scope, e.value): e for e in entries if e.pass_name == NARROWING and e.fuel}
    found: list[Entry | None] = []
    for place in places:
        makers = [side.outputs for side in (*place.b, *place.a) if place.value in side.outputs] if place.beyond else []
        there = (known.get((place.scope, outputs[0])) for outputs in makers)
        found.append(next(filter(None, there), None))
    return found


def made(sides: Sequence[Side]) -> set[str]:
    """Return the values made by nodes."""
    return {name for side in sides for name in side.outputs}


def goes_wrong(verdict: Verification, place: Place) -> bool:
    """Return whether a result is refused with a fault at `place`, or at an unknown place."""
    if not verdict.is_refused:
        return False
    return not verdict.places or any(_same(place, other) for other in verdict.places)


def _same(place: Place, other: Place) -> bool:
    """Return whether two places concern the same part of the original, perhaps of different extent."""
    if place.scope != other.scope:
        return any(f"{x.scope} / ".startswith(_bodies(y)) for x, y in ((place, other), (other, place)))
    return bool({place.value, *made(place.a)} & {other.value, *made(other.a)})


def _bodies(place: Place) -> tuple[str, ...]:
    """Return prefixes of scope paths inside a place's nodes, and of functions called."""
    found: list[str] = []
    for side in (*place.a, *place.b):
        domain, _, name = side.op.replace("::", ".").rpartition(".")
        label = f' "{side.node}"' if side.node else ""
        found.append(f"{place.scope} / {side.op}{label} / ")
        if domain:
            found.append(f"function {domain}::{name}")
    return tuple(found)
