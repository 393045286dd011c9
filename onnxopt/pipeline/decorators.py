"""A pass from a function: its keyword-only parameters are the pass's options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from onnxopt.pipeline.base import GraphPass, ModelPass, Pass, PassInfo, option

PassFunction = Callable[..., None]


def model_pass(opt_level: int = 1, *, name: str = "", **info: Any) -> Callable[[PassFunction], type[ModelPass]]:
    """Make `f(model, ctx, *, option=default)` a ModelPass. `info`: the other fields of PassInfo.

    An option's help comes from `option(default, help)` in place of the plain default. Raises TypeError for a
    function of another form, or without a docstring, which is the pass's manual page.
    """
    return lambda function: _make(ModelPass, "run", function, name, opt_level, info)


def graph_pass(opt_level: int = 1, *, name: str = "", **info: Any) -> Callable[[PassFunction], type[GraphPass]]:
    """Make `f(graph, ctx, *, option=default)` a GraphPass, run for every scope. See `model_pass`."""
    return lambda function: _make(GraphPass, "run_graph", function, name, opt_level, info)


def _make(base: type[Any], method: str, function: PassFunction, name: str, level: int, info: dict[str, Any]) -> Any:
    parameters = list(inspect.signature(function).parameters.values())
    options = parameters[2:]
    if len(parameters) < 2 or any(p.kind is not p.KEYWORD_ONLY or p.default is p.empty for p in options):
        raise TypeError(f"{function.__name__}: a pass takes a model or graph, a context, and options after a *")
    if not function.__doc__:
        raise TypeError(f"{function.__name__}: a pass says in its docstring what it does")
    fields = [
        (p.name, Any, p.default if isinstance(p.default, dataclasses.Field) else option(p.default, "")) for p in options
    ]

    def run(self: Pass, subject: Any, ctx: Any) -> None:
        function(subject, ctx, **{f[0]: getattr(self, f[0]) for f in fields})

    namespace = {
        "info": PassInfo(name or function.__name__.replace("_", "-"), level, **info),
        method: run,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    cls = dataclasses.make_dataclass(function.__name__, fields, bases=(base,), namespace=namespace, frozen=True)
    cls.__module__ = function.__module__
    return cls
