"""Every input: the files of the folder, and the command run there. Inputs depend on the seed only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.altered import altered
from tests.hostile.bases import NAMES, base
from tests.hostile.calls import CHEAP, COSTLY, WRONG
from tests.hostile.damaged import changed, deep, odd_fields, truncated
from tests.hostile.made import made
from tests.hostile.many import many
from tests.hostile.places import at_places
from tests.hostile.promise import HERE, Call

_COSTLY = 0.1  # share of calls that start further processes


@dataclass(frozen=True)
class Input:
    name: str
    call: Call
    fill: Callable[[Path], None]  # called with the folder in which the command runs

    def lay(self, folder: Path) -> None:
        """Fill `folder` with files of others, and a folder of its own with the input."""
        here = folder / HERE
        (here / ".github").mkdir(parents=True)
        for name in ("Makefile", f"{HERE}/Makefile", f"{HERE}/.github/ci.yml", f"{HERE}/out.onnx.data"):
            (folder / name).write_text("somebody else's")
        (here / "good.onnx").write_bytes(base("chain").SerializeToString())
        (here / "w.bin").write_bytes(bytes(64))
        self.fill(here)


def _file(data: bytes) -> Callable[[Path], None]:
    def fill(here: Path) -> None:
        (here / "m.onnx").write_bytes(data)

    return fill


def inputs(seed: int = 0, changes: int = 900, alterations: int = 2400) -> Iterator[Input]:
    """Yield every input. `changes` and `alterations` of them are random changes of good models."""
    rng = random.Random(seed)

    def call() -> Call:
        return rng.choice(COSTLY if rng.random() < _COSTLY else CHEAP)

    def each(name: str, fill: Callable[[Path], None], count: int = 1) -> Iterator[Input]:
        for i in range(count):
            yield Input(f"{name} #{i}", call(), fill)

    for name in NAMES:
        cuts = list(truncated(base(name).SerializeToString()))
        for data in rng.sample(cuts, min(len(cuts), 60)):
            yield from each(f"{name} cut at {len(data)}", _file(data))
    for i in range(changes):
        name = rng.choice(NAMES)
        data = (changed if i % 3 else odd_fields)(base(name).SerializeToString(), rng)
        yield from each(f"{name} changed, {i}", _file(data))
    for i in range(alterations):
        name = rng.choice(NAMES)
        yield from each(f"{name} altered, {i}", _file(altered(base(name), rng).SerializeToString()))
    for name, data in deep():
        yield from each(name, _file(data))
    for name, data in made():
        yield from each(name, _file(data), 2)
    for name, fill in at_places():
        yield from each(name, fill, 3)
    for name, fill in many():
        yield from each(name, fill, 2)
    for i, wrong in enumerate(WRONG):
        yield Input(f"call {i}: {' '.join(wrong.args)[:60]}", wrong, _file(base("chain").SerializeToString()))
