"""Tables: wrong rewrites found, by kind, place and model; right rewrites accused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from judging.records import ACCUSED, COUNTED, DEAD, EQUIVALENT, UNVERIFIED, Answer, Mutant

_COLUMNS = ("not run", "equivalent", "counted", "found %", "right node %", "named")


def header(title: str, width: int) -> str:
    return f"{title:{width}}  " + "  ".join(_COLUMNS)


def row(name: str, mutants: Sequence[Mutant], width: int) -> str:
    """`named`: the median of how many nodes a verdict names."""
    counted = [m for m in mutants if m.outcome == COUNTED]
    named = [m for m in counted if m.right is not None]
    cells = (
        f"{sum(m.outcome == DEAD for m in mutants):,}",
        f"{sum(m.outcome == EQUIVALENT for m in mutants):,}",
        f"{len(counted):,}",
        _percent(sum(m.found for m in counted), len(counted)),
        _percent(sum(m.right is True for m in named), len(named)),
        f"{median(m.named for m in named):g}" if named else "-",
    )
    return f"{name:{width}}  " + "  ".join(f"{cell:>{len(c)}}" for cell, c in zip(cells, _COLUMNS))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def table(title: str, mutants: Sequence[Mutant], group: Callable[[Mutant], str]) -> None:
    groups: dict[str, list[Mutant]] = {}
    for m in mutants:
        groups.setdefault(group(m), []).append(m)
    width = max(map(len, (title, *groups)))
    print(f"\n{header(title, width)}")
    for name in sorted(groups):
        print(row(name, groups[name], width))
    print(row("all", mutants, width))


def misses(mutants: Sequence[Mutant]) -> None:
    missed = [m for m in mutants if m.outcome == COUNTED and not m.found]
    misnamed = [m for m in mutants if m.right is False]
    hidden = sum(m.hidden for m in missed)
    print(
        f"\n{len(missed)} missed, {hidden} of them hidden from the usual inputs; {len(misnamed)} found at another node"
    )
    for m in sorted(missed + misnamed, key=lambda m: (m.found, m.kind, m.model)):
        print(f"{'elsewhere' if m.found else 'missed'}: {m.kind}: {m.model} -O{m.level} {m.op} `{m.node}`: {m.what}")
        where = " on other inputs" if m.hidden else ""
        print(f"    {m.change:.1e} of the range, {m.times:.3g} times the noise{where}; {m.status}: {m.message}")


def accusations(answers: Sequence[Answer]) -> None:
    kinds = dict.fromkeys(a.what for a in answers)
    width = max(map(len, ("right rewrites", *kinds)))
    print(f"\n{'right rewrites':{width}}  results  accused  not verified")
    for what in kinds:
        found = [a for a in answers if a.what == what]
        accused, unverified = (sum(a.status in s for a in found) for s in (ACCUSED, UNVERIFIED))
        print(f"{what:{width}}  {len(found):7,}  {accused:7,}  {unverified:12,}")
    for a in answers:
        if a.status in ACCUSED:
            times = "" if a.times is None else f" ({a.times:.2g} times the noise away from the original)"
            print(f"accused: {a.model} {a.what}: {a.message}{times}")
    silent = dict.fromkeys(a.model for a in answers if a.status in UNVERIFIED)
    for model in silent:
        whats = [a for a in answers if a.model == model and a.status in UNVERIFIED]
        print(f"{whats[0].status}: {model} {', '.join(a.what for a in whats)}: {whats[0].message[:160]}")
