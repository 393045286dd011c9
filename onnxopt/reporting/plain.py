"""The report of an optimization as plain lines, for pipes and logs, unwrapped for grep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from onnxopt.plaintext import cleaned, counted
from onnxopt.reporting import verdict as judged

# Passes whose repeated declines concern a whole backbone. A convolution without normalization behind is ordinary (a
# residual connection, a Gelu), unless the user can change the model.
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


def reasons(passes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, str, str, int]]:
    """Yield (pass, rule, reason, example, count) for each reason for which rules declined."""
    for p in passes:
        for rule, record in p["rules"].items():
            yield from ((p["name"], rule, why, d["example"], d["count"]) for why, d in record["declined"].items())


def kept_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the large parts of a model kept by a guard, from `api.Report.to_dict()`: told without `-v` as well."""
    for p in report["pipeline"]["passes"]:
        if p["name"] in _FOLDS:
            yield from _unfolded(p)
        elif p["name"] == "convert-dtype":
            yield from _still_float32(p)


def _unfolded(p: dict[str, Any]) -> Iterator[str]:
    for name, rule, reason, example, count in reasons([p]):
        if count >= _MIN_COUNT and not _is_ordinary(name, reason):
            yield f"kept: {rule} declined {count:,} times: {reason}, for example {example}{_remedy(reason)}"


def _still_float32(p: dict[str, Any]) -> Iterator[str]:
    for _, rule, reason, example, count in reasons([p]):
        remedy = _REMEDIES.get(reason) or _remedy(reason)
        if remedy and (count >= _MIN_COUNT or not p["rules"][rule]["hits"]):
            stay = f"{counted(count, 'node')} stay{'s' if count == 1 else ''} float32"
            yield f"kept: {stay}: {reason}, for example {example}{remedy}"
    weights = [reason for _, _, reason, _, _ in reasons([p]) if reason.startswith("`")]
    yield from (f"kept: {reason}" for reason in weights[:_MAX_WEIGHTS])
    if len(weights) > _MAX_WEIGHTS:
        yield f"kept: and {counted(len(weights) - _MAX_WEIGHTS, 'more weight')} (-v)"


def _is_ordinary(name: str, reason: str) -> bool:
    return not reason.endswith(_OVERRIDABLE) and (name == "conv-add-folding" or reason.endswith(_COMPUTED))


def _remedy(reason: str) -> str:
    return "; --freeze-initializers, if nobody overrides it" if reason.endswith(_OVERRIDABLE) else ""


_MAX_NAMES: Final = 3  # names in a line


def lines(report: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Yield the lines of the report `Report.to_dict()`."""
    report = cleaned(report)
    yield from details(report, verbose)
    if not verbose:
        yield from kept_lines(report)
    yield from warnings(report)
    yield summary(report)
    found = report.get("verification")
    if found is not None and verbose:
        yield from (f"{what}: {text}" for what, text in judged.figures(found))
    yield from verdict(report, verbose)


def _pass(p: dict[str, Any], verbose: int) -> Iterator[str]:
    hits = pass_hits(p)
    if hits or p["nodes"] or (verbose and declines(p)):
        saved = f" {change(-p['bytes']):>11}" if verbose else ""
        done = f"{hits:>8,} {'rewrite ' if hits == 1 else 'rewrites'} {_nodes(-p['nodes'], 8)}"
        yield f"  {p['name']:24} {done}{saved} {p['seconds'] * 1e3:>8,.0f} ms"
    elif figures := statistics(p):
        yield f"  {p['name']:24} counted {', '.join(f'{n:,} {what}' for what, n in figures.items())}"


def details(report: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Yield the rewrites of the passes, without the result."""
    for p in report["pipeline"]["passes"]:
        yield from _pass(p, verbose)
        if verbose:
            yield from (f"    {line}" for name, rule in p["rules"].items() for line in _rule(name, rule))
    yield from (f"  {line}" for line in without_work(report["pipeline"], verbose))
    yield from on_request(report, verbose)


def _rule(name: str, rule: dict[str, Any]) -> Iterator[str]:
    """Yield the number of rewrites of a rule, and the reasons for declining."""
    if rule["hits"]:
        removed = f" ({_nodes(-rule['nodes']).rstrip()})" if rule["nodes"] else ""
        yield f"{name}: {rule['hits']:,}{removed}"
    yield from declined({"name": "", "rules": {name: rule}})


def declined(p: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each reason for which a rule of a pass declined."""
    for _, rule, why, example, count in reasons([p]):
        yield f"{rule} declined {counted(count, 'time')}: {why}, for example {example}"


def on_request(report: dict[str, Any], verbose: int) -> Iterator[str]:
    """Yield the changes on request: for the target, of dims, and of element types."""
    yield from choices(report, verbose)
    if report.get("freed_dims"):
        yield f"dynamic: {', '.join(f'{name}, was {size}' for name, size in report['freed_dims'].items())}"
    if report.get("fixed_dims"):
        yield f"fixed: {', '.join(f'{name} = {size}' for name, size in report['fixed_dims'].items())}"
    yield from int64_left(report, verbose)


def int64_left(report: dict[str, Any], verbose: int = 0) -> Iterator[str]:
    """Yield the number of int64 values before and after `--int32`, and the reasons; with `verbose` each value too."""
    found = report.get("int64")
    if not found:
        return
    more = "" if verbose or not found["left"] else " (-v names them)"
    yield f"int64: {found['before']:,} → {counted(found['after'], 'value')}{more}"
    whys: dict[str, list[dict[str, Any]]] = {}
    for value in found["left"]:
        whys.setdefault(value["why"], []).append(value)
    for why, values in sorted(whys.items(), key=lambda item: -len(item[1])):
        yield f"  {len(values):,}: {why}{_most_common(v['what'] for v in values)}"
        yield from (f"    `{v['value']}`: {v['node'] or 'no node reads this value'}" for v in values if verbose)


def choices(report: dict[str, Any], verbose: int) -> Iterator[str]:
    """Yield the choices for a target; with `verbose` a line with the reason for each."""
    found = report.get("choices") or []
    if found:
        yield f"target {report['target']}: {', '.join(choice['what'] for choice in found)}"
    for choice in found if verbose else ():
        yield f"  {choice['what']}: {choice['why']}"


def _nodes(change: int, width: int = 0) -> str:
    return f"{change:>+{width},} {'node ' if abs(change) == 1 else 'nodes'}"


def warnings(report: dict[str, Any]) -> list[str]:
    """Return warnings about unusual parts of the model or run."""
    found = [*report["pipeline"]["warnings"]]
    if count := report.get("brought_in"):
        found.append(f"{counted(count, 'small tensor')} of data files went into the model, where runtimes read sizes")
    return [f"! {text}" for text in found]


def pass_hits(p: dict[str, Any]) -> int:
    return sum(rule["hits"] for rule in p["rules"].values()) if p.get("changed", True) else 0


def declines(p: dict[str, Any]) -> bool:
    """Return whether a pattern of this pass matched, and a guard declined."""
    return any(rule["declined"] for rule in p["rules"].values())


_OPERATORS: Final = 2  # verbosity


def _most_common(names: Iterable[str]) -> str:
    named = [f"{name} {n}" for name, n in Counter(filter(None, names)).most_common()]
    return f" ({_few(named)})" if named else ""


def without_work(pipeline: dict[str, Any], verbose: int) -> list[str]:
    """Return lines of passes without rewrites or skipped, by reason; from `-vv` on with missing operators."""
    found: dict[str, list[str]] = {}
    if verbose:
        idle = [p for p in pipeline["passes"] if not (pass_hits(p) or p["nodes"] or statistics(p) or declines(p))]
        found["found nothing"] = [p["name"] for p in idle]
    for name, why in did_not_run(pipeline, verbose).items():
        if verbose < _OPERATORS and why.startswith("the model has no"):
            why = "the model has none of their operators"
        found.setdefault(f"did not run ({why})", []).append(name)
    return [f"{why}: {', '.join(names)}" for why, names in found.items() if names]


def did_not_run(pipeline: dict[str, Any], verbose: int) -> dict[str, str]:
    """Return the skipped passes with reasons; without `verbose` only passes with a missing requirement."""
    skipped = pipeline.get("skipped", {}).items()
    return {name: why for name, why in skipped if verbose or why.startswith("requires ")}


def statistics(p: dict[str, Any]) -> dict[str, int]:
    """Return the counts of an analysis pass."""
    return {} if p.get("changed", True) else {what: rule["hits"] for what, rule in p["rules"].items() if rule["hits"]}


def summary(report: dict[str, Any]) -> str:
    """Return `out.onnx: 222 → 100 nodes (-55%), 13.6 MiB → 13.3 MiB, 0.46 s`, with the data files."""
    before, after = report["pipeline"]["nodes_before"], report["pipeline"]["nodes_after"]
    nodes = nodes_change(before, after)
    if before == after and not report["changed"]:
        nodes += ", unchanged"
    sizes = f"{size(report['bytes_before'])} → {size(report['bytes_after'])}{data(report)}"
    return f"{report['destination'] or report['source']}: {nodes}, {sizes}, {report['seconds']:.2f} s"


def nodes_change(before: int, after: int) -> str:
    """Return `222 → 100 nodes (-55%)`."""
    nodes = counted(after, "node")
    share = f" ({(after - before) / before:+.0%})" if before else ""
    return nodes if before == after else f"{before:,} → {nodes}{share}"


def data(report: dict[str, Any]) -> str:
    """Return `, data in out.onnx.3f2a9c1b8d04.data`, the data file of the result; mostly empty."""
    names = report.get("data") or []
    return f", data in {_few(names)}" if names else ""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def verdict(report: dict[str, Any], verbose: int = 0) -> list[str]:
    """Return the lines of the verification."""
    found = report.get("verification")
    if found is None:
        if report["changed"]:
            return ["! not verified: --no-verify"]
        if report["pipeline"]["nodes_before"] != report["pipeline"]["nodes_after"]:
            return ["nothing else to do"]
        if report["rolled_back"]:
            return ["nothing was changed: what was to be done makes the result wrong, and was left out"]
        same = report["bytes_before"] == report["bytes_after"]
        return [f"nothing to do: {'the bytes are the same' if same else 'no node and no weight is new'}"]
    return [*judged.lines(found, verbose)]


def left_out(rolled_back: Sequence[dict[str, Any]], *, matched: bool = False) -> list[str]:
    """Return the lines of `rolled_back`, one for all values with the same reason; `matched`: with the nodes."""
    lines: list[str] = []
    wide: dict[str, list[str]] = {}
    for r in rolled_back:
        name = f"`{r['value']}`"
        is_wide = r["pass_text"].partition("{")[0] == "convert-dtype" and r["value"]
        if is_wide and r["message"].startswith(f"{name} "):
            wide.setdefault(r["message"].removeprefix(f"{name} "), []).append(name)
            continue
        lines.append(f"value {name} stays float32: {r['message']}" if is_wide else _left_out(r))
        if matched:
            lines += [f"  {r['scope']}: {line}" for line in r["match"]]
    for why, names in wide.items():
        values, each = f"value {names[0]} stays", "it"
        if len(names) > 1:
            values, each = f"{len(names):,} values stay", f"each of {_few(names)}"
        lines.append(f"{values} float32: {each} {why}")
    return lines


def _left_out(r: dict[str, Any]) -> str:
    what = f"rule {r['rule']}" if r["rule"] else f"pass {r['pass_text']}"
    if r["value"]:
        what += f" at value `{r['value']}`"
    elif r["rule"]:
        what += f" of pass {r['pass_text']}"
    return f"{what} was left out, {r['fault']}: {r['message']}"


def change(n: int, show: Callable[[int], str] | None = None) -> str:
    """Return a difference with a sign, by default in bytes: -1.2 KiB; empty for no difference."""
    return "" if not n else ("-" if n < 0 else "+") + (show or size)(abs(n))


def size(n: float) -> str:
    """Return bytes in a readable unit: 13.6 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"
