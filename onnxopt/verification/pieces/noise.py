"""What the last bits of a piece's inputs and weights do to its results."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Final

from onnxopt.verification.draws import Draws
from onnxopt.verification.pieces.paths import is_coarse
from onnxopt.verification.pieces.runner import Failed, Runner
from onnxopt.verification.pieces.stream import Stream
from onnxopt.verification.rounding import Difference, difference, last_bit, worst

_SEEDS: Final = 4  # samples; the weights change every other time, for that takes a new session


def noise_of(
    runner: Runner, original: Stream, wanted: Sequence[str], cuts: Collection[str], seed: int, dtype: str = ""
) -> dict[str, list[Difference]]:
    """How values change, in each case; without those in whose pieces something is drawn at random.

    Their pieces start from `cuts`, as far as these are known still. `dtype`: the last bits of a narrower type.
    """
    program = runner.program
    here = {v for v in cuts if all(v in known for known in original.values)}
    wanted = [v for v in wanted if program.random.isdisjoint(program.cone([v], here))]
    nodes = program.cone(wanted, here)
    if not nodes or any(r not in here for r in program.entries(nodes, here)):
        return {}
    fed = {r: original.types[r] for i in nodes for r in program.reads[i] if r in here}
    largest = {v: [Difference() for _ in original.values] for v in wanted}
    for k in range(_SEEDS):
        rng = Draws(seed, k)
        try:
            if not k % 2:
                opened = runner.open(nodes, fed, wanted, functools.partial(last_bit, rng=rng, dtype=dtype))
            for i, known in enumerate(original.values):
                results = opened.run({r: last_bit(known[r], rng, dtype) for r in fed})
                for v in wanted:
                    largest[v][i] = worst(
                        [largest[v][i], difference(known[v], results[v], coarse=is_coarse(original.types[v]))]
                    )
        except Failed:  # the model does not take what is a bit larger: of that noise nothing is known
            continue
    return largest
