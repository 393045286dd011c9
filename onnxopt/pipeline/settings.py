"""Checks of a context's settings: types, and known names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onnxopt.arguments import all_in, check_whole, kind, names_in
from onnxopt.errors import UsageError
from onnxopt.pipeline.base import check_level
from onnxopt.pipeline.instrument import Instrument
from onnxopt.pipeline.registry import check_names, check_rules, current_name

if TYPE_CHECKING:
    from onnxopt.pipeline.context import PassContext


def check_settings(ctx: PassContext) -> None:
    """Normalize names in the settings. Raises UsageError for invalid settings, with the nearest names."""
    check_level(ctx.opt_level)
    ctx.targets = ("any",)
    if ctx.target != "any":
        from onnxopt.pipeline.targets import name_of, targets_in

        targets = targets_in(ctx.target)
        ctx.targets, ctx.target = tuple(map(name_of, targets)), ",".join(targets)
    if not isinstance(ctx.config, Mapping):
        raise UsageError(f"config is {kind(ctx.config)}, not a dict", 'config={"constant-folding.max-bytes": 1024}')
    if ctx.trace is not None and not callable(ctx.trace):
        raise UsageError(f"trace is {kind(ctx.trace)}, not a function", "trace(model, info, is_before)")
    if ctx.max_rewrites is not None:
        check_whole("max_rewrites", ctx.max_rewrites, "None is without end")
    if ctx.allow_domains is not None:
        names_in(ctx.allow_domains, "allow_domains")
    ctx.required_pass = frozenset(map(current_name, names_in(ctx.required_pass, "required_pass")))
    ctx.disabled_pass = frozenset(map(current_name, names_in(ctx.disabled_pass, "disabled_pass")))
    ctx.disabled_rule = frozenset(names_in(ctx.disabled_rule, "disabled_rule"))
    check_names(ctx.required_pass, "required_pass")
    check_names(ctx.disabled_pass, "disabled_pass")
    check_rules(ctx.disabled_rule, "disabled_rule")
    if isinstance(ctx.instruments, Instrument):
        raise UsageError("instruments is one instrument, not a list", f"instruments=[{kind(ctx.instruments)}(…)]")
    for i in all_in(ctx.instruments, "instruments", "instruments"):
        if isinstance(i, type):
            raise UsageError(f"instruments: {i.__name__} is a class", f"{i.__name__}(…) makes an instrument of it")
        if not isinstance(i, Instrument):
            raise UsageError(f"instruments: {kind(i)} is not an instrument", "derive its class from onnxopt.Instrument")
