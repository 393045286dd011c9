"""From compared outputs to a verdict in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxopt.verification.compare import Evidence, proves_nothing
from onnxopt.verification.records import CaseRecord, Verification


def conclude(
    verdict: Verification,
    records: Sequence[CaseRecord],
    weak: Sequence[str] = (),
    *,
    sizes: bool = True,
    refused: str = "",
) -> None:
    """Fill in status, message and worst output of a `verdict` on `records`.

    `weak`: why the cases prove little. `sizes`: name the dynamic dims. `refused`: why onnxruntime could not be used.
    """
    outputs = [(c, o) for c in records for o in c.outputs]
    verdict.exact = all(o.ok and not o.max_abs for _, o in outputs)
    worst = max(outputs, key=lambda pair: (not pair[1].ok, pair[1].max_rel), default=None)
    if worst is not None:
        case, output = worst
        verdict.worst, verdict.worst_rel = output.name, output.max_rel
        if not output.ok:
            dims = ", ".join(f"{k}={v}" for k, v in case.dims.items()) if sizes else ""
            verdict.status = "different"
            verdict.message = f"output `{output.name}` {output.note}" + (f" ({dims})" if dims else "")
            return
    text = (
        "bit for bit the same"
        if verdict.exact
        else f"largest difference {verdict.worst_rel:.1e} of the range of `{verdict.worst}`"
    )
    text += f", {len(records)} case{'s' if len(records) != 1 else ''}"
    dims = "; ".join(dict.fromkeys(" ".join(f"{k}={v}" for k, v in c.dims.items()) for c in records if c.dims))
    verdict.status, verdict.message = "equal", text + (f" ({dims})" if dims and sizes else "")
    if refused:
        verdict.message += f", by the reference evaluator (onnxruntime: {refused})"
    if weak:
        verdict.status = "inconclusive"
        verdict.message += f"; but {'; '.join(weak[:3])}" + (f"; and {len(weak) - 3} more" if len(weak) > 3 else "")


def weaknesses(outputs: Mapping[str, Sequence[Evidence | None]], branches: Mapping[str, set[bool]]) -> list[str]:
    """Why cases prove little: outputs that say nothing in any of them, branches that none took."""
    weak = [f"output `{name}` {why}" for name, found in outputs.items() if (why := proves_nothing(found))]
    weak += [
        f"the {'else' if True in taken else 'then'} branch on `{name}` was never taken"
        for name, taken in branches.items()
        if len(taken) < 2
    ]
    return weak
