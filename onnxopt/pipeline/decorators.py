"""Passes from functions: keyword-only parameters are the options."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any, Self, overload

from onnxopt.errors import PassError, UsageError
from onnxopt.graph import Model
from onnxopt.pipeline.base import GraphPass, ModelPass, Pass, PassInfo, option
from onnxopt.pipeline.records import PipelineReport
from onnxopt.plaintext import an

PassFunction = Callable[..., Any]


class FunctionPass(Pass):
    """A pass made from a function: `f(model)` runs it, `f(option=…)` returns the pass with the option."""

    @overload  # type: ignore[override]
    def __call__(self, /, **options: Any) -> Self: ...
    @overload
    def __call__(self, model: Model, /, **options: Any) -> PipelineReport: ...
    def __call__(self, model: Any = ..., /, **options: Any) -> Any:
        p = dataclasses.replace(self, **options) if options else self
        return p if model is ... else Pass.__call__(p, model)


class FunctionModelPass(FunctionPass, ModelPass):
    """Made by `model_pass`."""


class FunctionGraphPass(FunctionPass, GraphPass):
    """Made by `graph_pass`."""


@overload
def model_pass(function: PassFunction, /) -> FunctionModelPass: ...
@overload
def model_pass(opt_level: int = 1, *, name: str = "", **info: Any) -> Callable[[PassFunction], FunctionModelPass]: ...
def model_pass(opt_level: Any = 1, *, name: str = "", **info: Any) -> Any:
    """Make `f(model, ctx, *, option=default)` a ModelPass. `info`: further fields of PassInfo.

    The decorated name is the pass: `f(model)` runs it, `f(option=…)` returns it with other options. For an option with
    help the default is `option(default, help)`. Raises TypeError for a function of another form, or without a
    docstring, the pass's manual page.
    """
    return _decorated(FunctionModelPass, opt_level, name, info)


@overload
def graph_pass(function: PassFunction, /) -> FunctionGraphPass: ...
@overload
def graph_pass(opt_level: int = 1, *, name: str = "", **info: Any) -> Callable[[PassFunction], FunctionGraphPass]: ...
def graph_pass(opt_level: Any = 1, *, name: str = "", **info: Any) -> Any:
    """Make `f(graph, ctx, *, option=default)` a GraphPass, run for every scope. See `model_pass`."""
    return _decorated(FunctionGraphPass, opt_level, name, info)


def from_function(function: PassFunction) -> FunctionModelPass:
    """Return a plain function `f(model)` or `f(model, ctx)` as a pass of level 0."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        takes = 2
    else:
        takes = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if takes not in (1, 2):
        raise UsageError(f"{function.__name__} takes {takes} arguments", "a pass takes a model, and may take a context")

    def run(model: Model, ctx: Any) -> Any:
        return function(model, ctx) if takes == 2 else function(model)

    run.__doc__ = function.__doc__ or f"The function {function.__name__}."
    run.__name__, run.__qualname__, run.__module__ = function.__name__, function.__qualname__, function.__module__
    pass_: FunctionModelPass = _make(FunctionModelPass, run, PassInfo(_name(function), 0))
    return pass_


def _decorated(base: type[Any], opt_level: Any, name: str, info: dict[str, Any]) -> Any:
    """Return the pass if the decorator is used without arguments, else a decorator."""
    if callable(opt_level):
        return _make(base, opt_level, PassInfo(_name(opt_level)))
    return lambda function: _make(base, function, PassInfo(name or _name(function), opt_level, **info))


def _name(function: PassFunction) -> str:
    return function.__name__.strip("<>_").replace("_", "-")


def _make(base: type[Any], function: PassFunction, info: PassInfo) -> Any:
    if isinstance(function, type):
        raise TypeError(f"{function.__name__} is a class: derive it from {base.__mro__[2].__name__} instead")
    parameters = list(inspect.signature(function).parameters.values())
    options = parameters[2:]
    if len(parameters) < 2 or any(p.kind is not p.KEYWORD_ONLY or p.default is p.empty for p in options):
        raise TypeError(f"{function.__name__}: a pass takes a model or graph, a context, and options after a *")
    if not function.__doc__ and sys.flags.optimize < 2:  # python -OO drops docstrings
        raise TypeError(f"{function.__name__}: a pass says in its docstring what it does")
    fields = [
        (p.name, Any, p.default if isinstance(p.default, dataclasses.Field) else option(p.default, "")) for p in options
    ]

    def run(self: Pass, subject: Any, ctx: Any) -> None:
        returned = function(subject, ctx, **{f[0]: getattr(self, f[0]) for f in fields})
        if returned is not None and returned is not subject:
            raise PassError(
                f"{function.__name__} returned {an(type(returned).__name__)}, which nobody reads",
                "a pass changes what it is given in place and returns nothing",
            )

    namespace = {
        "info": info,
        "run" if issubclass(base, ModelPass) else "run_graph": run,
        "__name__": function.__name__,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    cls = dataclasses.make_dataclass(function.__name__, fields, bases=(base,), namespace=namespace, frozen=True)
    cls.__module__ = function.__module__
    return cls()
