"""From the place where a result parts from its original to the rewrites that can have made it so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.api import OptimizeOptions, optimize_model
from onnxopt.pipeline.instruments import Entry, Journal

if TYPE_CHECKING:
    from onnxopt.verification.records import Place, Side


def rewrites(source: str | Path, options: OptimizeOptions) -> list[Entry]:
    """Those of a run that is repeated, in order. Raises what the run raised."""
    journal = Journal(matches=True)
    optimize_model(options.load(source), options, (journal,))
    return journal.entries


def suspects(place: Place, entries: Sequence[Entry]) -> list[Entry]:
    """The rewrites of a run that happened at `place`, most likely first: those that did little else, and late.

    At first those whose anchor, or what they took or made, either model makes there, or only one of them reads; and
    those in the body of a node that is there. Then those that made what such a rewrite took; at last those that had
    nodes read another value, which agrees.
    """
    reads = [{name for side in sides for name in side.inputs} for sides in (place.a, place.b)]
    there = {place.value, *made(place.a), *made(place.b)}
    only_one_reads = (reads[0] ^ reads[1]) - there
    agreeing = only_one_reads.intersection(place.entries)
    classes = there | (only_one_reads - agreeing), set[str](), agreeing
    bodies = tuple(label for side in (*place.a, *place.b) for label in _bodies(place.scope, side))
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


def made(sides: Sequence[Side]) -> set[str]:
    """The values that nodes make."""
    return {name for side in sides for name in side.outputs}


def _bodies(scope: str, side: Side) -> list[str]:
    """How the paths of the scopes inside a node begin; of a function that it may call."""
    domain, _, name = side.op.replace("::", ".").rpartition(".")
    label = f' "{side.node}"' if side.node else ""
    inner = f"{scope} / {side.op}{label} / "
    return [inner, f"function {domain}::{name}"] if domain else [inner]
