"""Warnings and hints about an optimization, besides its report: parts left out, and requests without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import OnnxOptError, UsageError, few
from onnxopt.optimizer.options import OptimizeOptions

if TYPE_CHECKING:
    from onnxopt.optimizer.results import Report, RolledBack

_MAX_SITES: Final = 3  # in a hint


def remarks(report: Report, options: OptimizeOptions, plugins: Sequence[str] = ()) -> list[str]:
    """Return warnings with their details, and hints. `plugins`: loaded files and modules."""
    return [*_unknown(options, report), *_idle(plugins, options), *_rolled_back(report.rolled_back)]


def not_for_target(options: OptimizeOptions) -> list[str]:
    """Return warnings for named passes idle on the target. Raises UsageError if no pass runs."""
    from onnxopt.pipeline import get_pass
    from onnxopt.pipeline.settings import idle_passes

    ctx = options.context()
    idle, others = idle_passes(options.passes(), ctx.targets, ctx.disabled_pass)
    told = "; ".join(f"{name} {why}" for name, why in idle.items())
    if idle and not others:
        target = get_pass(next(iter(idle))).info.targets[0]
        raise UsageError(f"no pass runs: {told}", f"--target {target}, if that is what the result is for")
    return [f"warning: a pass does not run: {told}"] if idle else []


def _rolled_back(rolled_back: Sequence[RolledBack]) -> Iterator[str]:
    if not rolled_back:
        return
    import shlex

    from onnxopt.reporting.plain import left_out

    for line in left_out([asdict(r) for r in rolled_back], matched=True):
        yield line if line.startswith(" ") else f"warning: {line}"
    without = shlex.quote(",".join(str(r.site or r.name) for r in rolled_back))
    disable = f"--disable {without} leaves it out at once, " if len(rolled_back) <= _MAX_SITES else ""
    more = f"{disable}--strict makes this an error, `onnxopt bisect` shows the smallest part"
    yield f"hint: {_whom_to_tell(rolled_back)}{more}"


def _whom_to_tell(rolled_back: Sequence[RolledBack]) -> str:
    """Return advice about wrong rewrites: a plugin's are its author's to correct."""
    if all(r.name == "convert-dtype" for r in rolled_back):  # a narrower type may be insufficient, which is no bug
        return ""
    from onnxopt.pipeline.registry import get_pass, origin

    try:
        homes = {origin(get_pass(re.split("[{(]", r.pass_text)[0])) for r in rolled_back}
    except OnnxOptError:  # an unnamed combination of passes
        return "report it; "
    return "report it; " if "onnxopt" in homes else f"correct it in {few(sorted(homes))}; "


def _unknown(options: OptimizeOptions, report: Report) -> Iterator[str]:
    """Yield warnings for matches in --disable that did not occur."""
    for site in options.sites():
        if site not in report.pipeline.left_out:
            yield f"warning: --disable {site}: there was nothing to leave out"


def _idle(plugins: Sequence[str], options: OptimizeOptions) -> Iterator[str]:
    """Yield warnings for loaded plugins without a running pass: a pass must be registered and requested.

    A plugin may also only declare references.
    """
    if not plugins:
        return
    from onnxopt.pipeline.registry import registered_by
    from onnxopt.verification.references import DECLARED

    names = registered_by(plugins)
    if not names and {reference.by for reference in DECLARED.values()} & {Path(plugin).name for plugin in plugins}:
        return
    asked = " ".join((*options.extra, options.pipeline or "")).replace("_", "-")
    if not names:
        yield f"warning: --plugin {few(plugins)}: no pass is registered there; @register above it does that"
    elif not any(name in asked for name in names):
        yield f"warning: --plugin {few(plugins)}: {few(names)} did not run; --with {names[0]} adds it"
