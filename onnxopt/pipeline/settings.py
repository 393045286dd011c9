"""The settings of a context: of their types, and with names that exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from onnxopt.errors import UsageError
from onnxopt.pipeline.base import check_level
from onnxopt.pipeline.instrument import Instrument
from onnxopt.pipeline.registry import check_names, check_rules

if TYPE_CHECKING:
    from onnxopt.pipeline.context import PassContext


def check_settings(ctx: PassContext) -> None:
    """Bring names into their form. Raises UsageError for what is no setting, with the names that are near."""
    check_level(ctx.opt_level)
    ctx.targets = ("any",)
    if ctx.target != "any":
        from onnxopt.pipeline.targets import targets_in

        ctx.targets = targets_in(ctx.target)
        ctx.target = ",".join(ctx.targets)
    if not isinstance(ctx.config, Mapping):
        raise UsageError(f"config is {_kind(ctx.config)}, not a dict", 'config={"constant-folding.max-bytes": 1024}')
    if ctx.trace is not None and not callable(ctx.trace):
        raise UsageError(f"trace is {_kind(ctx.trace)}, not a function", "trace(model, info, is_before)")
    if isinstance(ctx.max_rewrites, bool) or not isinstance(ctx.max_rewrites, int | None):
        raise UsageError(f"max_rewrites is {ctx.max_rewrites!r}, not a number", "None is without end")
    ctx.required_pass = frozenset(n.replace("_", "-") for n in names_in(ctx.required_pass, "required_pass"))
    ctx.disabled_pass = frozenset(n.replace("_", "-") for n in names_in(ctx.disabled_pass, "disabled_pass"))
    ctx.disabled_rule = frozenset(names_in(ctx.disabled_rule, "disabled_rule"))
    check_names(ctx.required_pass, "required_pass")
    check_names(ctx.disabled_pass, "disabled_pass")
    check_rules(ctx.disabled_rule, "disabled_rule")
    if isinstance(ctx.instruments, Instrument):
        raise UsageError("instruments is one instrument, not a list", f"instruments=[{_kind(ctx.instruments)}(…)]")
    for i in _all(ctx.instruments, "instruments", "instruments"):
        if isinstance(i, type):
            raise UsageError(f"instruments: {i.__name__} is a class", f"{i.__name__}(…) makes an instrument of it")
        if not isinstance(i, Instrument):
            raise UsageError(
                f"instruments: {_kind(i)} is not an instrument", "derive its class from onnxopt.Instrument"
            )


def names_in(given: Any, setting: str) -> Collection[str]:
    """What is given for `setting`. Raises UsageError for what is no list of names: text is one of letters."""
    given = () if given is None else given
    for name in _all(given, setting, "names"):
        if not isinstance(name, str):
            hint = f"a pass is named by its text: {name.info.name!r}" if hasattr(name, "info") else f'{setting}=["…"]'
            raise UsageError(f"{setting}: {_kind(name)} is not a name", hint)
    names: Collection[str] = given
    return names


def _all(given: Any, setting: str, what: str) -> Collection[Any]:
    if isinstance(given, str):
        raise UsageError(f"{setting} is {given!r}, not a list of {what}", f"{setting}=[{given!r}]")
    if not isinstance(given, Collection):
        raise UsageError(f"{setting} is {_kind(given)}, not a list of {what}", f"{setting}=[…]")
    return given


def _kind(what: Any) -> str:
    return "None" if what is None else type(what).__name__
