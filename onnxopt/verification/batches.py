"""Independence test for samples of a freed batch dim: a number in the original, a symbol in the result.

The result runs once on twice the size, the original on each half; each part of an output must equal the original's
output for the same half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from onnxopt.verification import DIFFERENT
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.job import BATCHES
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.records import JudgedCase, OutputRecord

ALIKE: Final = "both halves of the batch are the same"
Feeds: TypeAlias = "dict[str, Any]"
Dims: TypeAlias = "Mapping[str, Sequence[int | str | None]]"
Run: TypeAlias = "Callable[[Feeds], Sequence[Any]]"
Measure: TypeAlias = "Callable[[str, Any, Any], OutputRecord]"


def freed(plan: Plan, dims: Dims, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return {symbol: {input name: axis}} for freed dims of inputs.

    A freed dim is a symbol of `names` in the result (`dims`), and a number in the original (`plan`).
    """
    found: dict[str, dict[str, int]] = {}
    for i in plan.inputs:
        for axis, (was, dim) in enumerate(zip(i.shape, dims.get(i.name, ()))):
            if isinstance(was, int) and dim in names and isinstance(dim, str):
                found.setdefault(dim, {})[i.name] = axis
    return found


def other_feeds(feeds: Feeds, axes: Mapping[str, int], known: Iterable[Feeds], seed: int) -> Iterator[Feeds]:
    """Yield feeds with different values for the inputs in `axes`: from the `known` cases, then a permutation."""
    rng = Draws(seed)

    def shuffled(v: Any) -> Any:
        return np.asarray(v).reshape(-1)[np.argsort(rng.uniform((np.size(v),)))].reshape(np.shape(v))

    tried = [*known, {name: shuffled(v) if name in axes else v for name, v in feeds.items()}]
    for other in tried:
        values = {name: other[name] if name in axes else v for name, v in feeds.items()}
        if all(np.shape(values[n]) == np.shape(feeds[n]) for n in axes) and any(
            not np.array_equal(values[n], feeds[n]) for n in axes
        ):
            yield values


def compared(
    name: str,
    axes: Mapping[str, int],
    halves: Sequence[tuple[Feeds, Sequence[Any]]],
    outputs: Sequence[str],
    run: Run,
    measure: Measure,
) -> JudgedCase:
    """Run the result on both halves joined, and return the case with every output compared per half.

    halves: (feeds, outputs) of the original for each half; run: runs the result. An error of the result gives
    DIFFERENT.
    """
    (first, _), (second, _) = halves
    whole = {n: np.concatenate([v, second[n]], axes[n]) if n in axes else v for n, v in first.items()}
    record = JudgedCase(BATCHES, {name: max(whole[n].shape[axis] for n, axis in axes.items())})
    try:
        results = run(whole)
    except Exception as e:
        from onnxopt.verification.run import blame_system, reason

        blame_system(e)
        record.status, record.note = DIFFERENT, f"at {_sizes(record)} the result fails: {reason(e)}"
        return record
    for output, a, b, result in zip(outputs, halves[0][1], halves[1][1], results, strict=True):
        parts = _parts(np.shape(a), result)
        record.outputs += [measure(output, x, part) for x, part in zip((a, b), parts)]
    if wrong := next((o for o in record.outputs if not o.ok), None):
        record.status = DIFFERENT
        why = wrong.note or f"it differs by {wrong.max_rel:.2g} of its range"
        record.note = f"at {_sizes(record)} output `{wrong.name}` is not what each part of the batch gives alone: {why}"
    return record


def _sizes(record: JudgedCase) -> str:
    return ", ".join(f"{name}={size}" for name, size in record.dims.items())


def _parts(shape: Sequence[int], result: Any) -> list[Any]:
    """Return the halves of an output along the only doubled axis; the whole output twice if no axis is doubled."""
    grown = [i for i, (a, b) in enumerate(zip(shape, np.shape(result))) if b == 2 * a and a]
    if len(shape) == np.ndim(result) and len(grown) == 1:
        return np.split(result, 2, grown[0])
    return [result, result]
