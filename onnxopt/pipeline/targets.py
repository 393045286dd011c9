"""Targets: the intended uses of a result, in a context's order of preference.

A runtime with measured forms (docs/forms.md) has a version, `onnxruntime==1.32`; the default is the installed one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError, nearest
from onnxopt.pipeline.registry import all_passes, defined_passes, get_pass

if TYPE_CHECKING:
    from onnxopt.pipeline.base import Pass

ANY: Final = "any"
COMMON: Final = ("arm", "cpu", "cuda", "gpu", "npu", "x86")  # valid targets even without a pass for them
RUNTIME: Final = "onnxruntime"
_VERSION: Final = re.compile(r"(\d{1,9}\.\d{1,9})([.+a-z]\S*)?")  # the first two numbers count


def all_targets(*, plugins: bool = True) -> list[str]:
    """Return the valid target names: `any`, common ones, and targets of passes.

    Without `plugins` only loaded passes count.
    """
    passes = (*all_passes(plugins=plugins).values(), *defined_passes())
    return [ANY, *sorted({*COMMON, RUNTIME, *(target for cls in passes for target in cls.info.targets)} - {ANY})]


def targets_in(given: Any) -> tuple[str, ...]:
    """Return the targets of `"arm,npu"`, or of a sequence of names, without repeats, in order; a runtime with its
    version.

    Raises UsageError, with the nearest names, for an unknown target, and for a version without measurements.
    """
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"target is {given!r}, not a name or several", 'target="npu", or target=["arm", "npu"]')
    found = tuple(dict.fromkeys(_known(name.strip()) if name.strip() else "" for name in names))
    if not all(found) or not found:
        raise UsageError(f"target is {given!r}, which names none", "without a target a result is for any")
    versions = [name for name in found if name_of(name) == RUNTIME]
    if len(versions) > 1:
        raise UsageError(f"target names {' and '.join(versions)}", "a result is for one version: leave one of them out")
    return found


def name_of(target: str) -> str:
    """Return the target without its version."""
    return target.partition("==")[0]


def version_in(targets: Sequence[str]) -> str:
    """Return the runtime's version among the targets; empty if there is none."""
    return next((t.partition("==")[2] for t in targets if name_of(t) == RUNTIME), "")


def _known(name: str) -> str:
    runtime, separator, version = re.split("([^a-z0-9_-]|$)", name, maxsplit=1)
    if runtime == RUNTIME:
        return f"{RUNTIME}=={_version(name, separator + version)}"
    if name not in (ANY, *COMMON) and name not in all_targets(plugins=False):
        known = all_targets()
        if name not in known:
            hint = nearest(name, known, f"there are {', '.join(known)}; passes name theirs: PassInfo(targets=…)")
            raise UsageError(f"no target is called {name!r}", hint)
    return name


def _version(target: str, written: str) -> str:
    """Return `1.32` for `==1.32.0`, or the version of the installed onnxruntime."""
    from onnxopt.pipeline.measured import LOADS

    candidates = f"measured are {', '.join(LOADS)}"
    version, whose = written.removeprefix("==").strip(), target
    if not written:
        from onnxopt.runtime import version_of

        try:
            version = version_of(RUNTIME)
        except ImportError:
            raise UsageError(f"target {target}: none is installed", f"{candidates}: {RUNTIME}==VERSION") from None
        whose = f"{RUNTIME} {version}, which is installed"
    found = _VERSION.fullmatch(version)
    if found is None or (written and not written.startswith("==")):
        raise UsageError(f"target {target!r}: {written!r} is no version", f"{RUNTIME}==VERSION; {candidates}")
    if found[1] not in LOADS:
        raise UsageError(f"target {whose}: nothing of it was measured", f"{candidates}: {RUNTIME}==VERSION")
    return found[1]


def preferred_first(passes: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Return the pass names sorted by their targets' order of preference."""
    names = [name_of(target) for target in targets]
    return sorted(passes, key=lambda name: _place(get_pass(name).info.targets, names))


def _place(bound: Collection[str], targets: Sequence[str]) -> int:
    return 0 if ANY in bound else next((i for i, target in enumerate(targets) if target in bound), len(targets))


def idle_passes(p: Pass, targets: Sequence[str], disabled: Collection[str] = ()) -> tuple[dict[str, str], bool]:
    """Return ({pass without a run for these targets: reason}, whether any passes run)."""
    leaves = [leaf for leaf in _leaves(p) if leaf.name not in disabled]
    idle = {leaf.name: why for leaf in leaves if (why := leaf.info.not_for(targets))}
    return idle, any(leaf.name not in idle for leaf in leaves)


def _leaves(p: Pass) -> Iterator[Pass]:
    if not p.children:
        yield p
    for child in p.children:
        yield from _leaves(child)
