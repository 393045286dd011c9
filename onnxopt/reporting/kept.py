"""Large parts of a model kept by a guard: reported without `-v` as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from onnxopt.plaintext import counted

# Passes whose rules decline what is worth folding, time after time: of a whole backbone, then. What stays behind a
# convolution that is no normalization is ordinary (a residual connection, a Gelu), unless it can be helped.
_FOLDS: Final = ("conv-bn-folding", "conv-add-folding")
_COMPUTED: Final = " is not constant"
_OVERRIDABLE: Final = " callers may override"
_REMEDIES: Final = {
    "the standard does not have it in this type": "; a newer opset may (--target-opset)",
    "types inside its function are unknown": "; --inline-functions puts the body in place of the call",
    "which types this operator takes is not known": "; Casts stand around it, unless a plugin replaces it",
}
_MIN_COUNT: Final = 8
_MAX_WEIGHTS: Final = 3  # weights that are named


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Of `api.Report.to_dict()`."""
    for p in report["pipeline"]["passes"]:
        if p["name"] in _FOLDS:
            for name, rule in p["rules"].items():
                for reason, (example, count) in _declined(rule):
                    if count >= _MIN_COUNT and not _is_ordinary(p["name"], reason):
                        yield f"kept: {name} declined {count:,} times: {reason}, for example {example}{_remedy(reason)}"
        elif p["name"] == "convert-dtype":
            for rule in p["rules"].values():
                for reason, (example, count) in _declined(rule):
                    remedy = _REMEDIES.get(reason) or _remedy(reason)
                    if remedy and (count >= _MIN_COUNT or not rule["hits"]):
                        stay = f"{counted(count, 'node')} stay{'s' if count == 1 else ''} float32"
                        yield f"kept: {stay}: {reason}, for example {example}{remedy}"
            weights = [reason for rule in p["rules"].values() for reason in rule["declined"] if reason.startswith("`")]
            yield from (f"kept: {reason}" for reason in weights[:_MAX_WEIGHTS])
            if len(weights) > _MAX_WEIGHTS:
                yield f"kept: and {counted(len(weights) - _MAX_WEIGHTS, 'more weight')} (-v)"


def _declined(rule: dict[str, Any]) -> Iterator[tuple[str, tuple[str, int]]]:
    return ((reason, (d["example"], d["count"])) for reason, d in rule["declined"].items())


def _is_ordinary(name: str, reason: str) -> bool:
    return not reason.endswith(_OVERRIDABLE) and (name == "conv-add-folding" or reason.endswith(_COMPUTED))


def _remedy(reason: str) -> str:
    return "; --freeze-initializers, if nobody overrides it" if reason.endswith(_OVERRIDABLE) else ""
