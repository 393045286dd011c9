"""Passes made from functions and names, and argument checks of the pass API."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, Self, overload

from onnxopt.errors import PassError, UsageError
from onnxopt.graph import Graph, Model
from onnxopt.pipeline.base import GraphPass, ModelPass, Pass, PassInfo, check_fields, option
from onnxopt.pipeline.records import PipelineReport
from onnxopt.pipeline.registry import get_pass
from onnxopt.plaintext import an

PassFunction = Callable[..., Any]


class FunctionPass(Pass):
    """A pass made from a function: `f(model)` runs it, `f(option=…)` returns the pass with the option."""

    @overload  # type: ignore[override]
    def __call__(self, /, **options: Any) -> Self: ...
    @overload
    def __call__(self, model: Model, /, **options: Any) -> PipelineReport: ...
    def __call__(self, model: Any = ..., /, **options: Any) -> Any:
        p = self.with_options(**options) if options else self
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
    """Return a pass of the class `base` that calls `function`; keyword-only parameters are its options."""
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


class LazyPass(Pass):
    """Placeholder in a pipeline for the pass `name`, imported only for models with an operator in `ops` (not empty)."""

    def __init__(self, name: str, opt_level: int, ops: tuple[str, ...]) -> None:
        object.__setattr__(self, "info", PassInfo(name, opt_level, ops=ops))

    @cached_property
    def imported(self) -> Pass:
        """The pass without options; the same object in all rounds, for fast lookup as a key."""
        return get_pass(self.name)()

    @property
    def is_imported(self) -> bool:
        """Whether the pass was imported before."""
        return "imported" in vars(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyPass) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


# -- arguments: errors of a single line, with the correct call ----------------------------------------------------

_A_PASS: Final = "a pass is what get_pass(NAME)(), parse_pipeline(TEXT) or a function with @model_pass gives"


def as_passes(passes: Any, whose: str) -> tuple[Pass, ...]:
    """Return `passes` of the composite called `whose`. Raises UsageError for anything but passes."""
    if isinstance(passes, (Pass, str)) or callable(passes):
        raise UsageError(f"{whose} takes a list of passes, not {_shown(passes)}", f"put it in brackets: {whose}([…])")
    if not isinstance(passes, Iterable):
        raise UsageError(f"{whose} takes a list of passes, not {_shown(passes)}", _A_PASS)
    return tuple(as_pass(p, whose) for p in passes)


def as_pass(p: Any, whose: str) -> Pass:
    """Return a pass; a plain function `f(model)` or `f(model, ctx)` becomes a pass of level 0."""
    if isinstance(p, Pass):
        _check_info(p)
        return p
    if isinstance(p, type) and issubclass(p, Pass):
        raise UsageError(f"{whose}: {p.__name__} is a class, not a pass", f"{p.__name__}() makes a pass of it")
    if isinstance(p, str):
        raise UsageError(f"{whose}: {p!r} is text, not a pass", f"get_pass({p!r})(), or parse_pipeline({p!r})")
    if inspect.isfunction(p) or inspect.ismethod(p):
        return from_function(p)
    raise UsageError(f"{whose}: {_shown(p)} is not a pass", _A_PASS)


def check_model(model: Any, p: Pass) -> None:
    """Raise UsageError unless `model` is a Model."""
    _check_info(p)
    if isinstance(model, Model):
        return
    hint = "onnxopt.load(PATH) gives one, onnxopt.read_model(PROTO) another"
    if isinstance(model, PipelineReport):
        hint = "a pass changes the model in place and returns a report: go on with the model itself"
    elif isinstance(model, str):
        hint = f"onnxopt.load({model!r}) gives one"
    elif hasattr(model, "SerializeToString"):
        hint = "onnxopt.read_model(PROTO) makes one of a ModelProto, onnxopt.write_model(MODEL) the proto again"
    elif isinstance(model, Graph):
        hint = "give the model that the graph is of: a graph pass runs on each of its graphs"
    raise UsageError(f"the pass {p.name} takes a model, not {_shown(model)}", hint)


def check_graph(graph: Any, whose: str) -> None:
    """Raise UsageError unless `graph` is a Graph; `whose` is the calling function."""
    if isinstance(graph, Graph):
        return
    hint = "model.graph is the main graph" if isinstance(graph, Model) else "onnxopt.load(PATH).graph is one"
    raise UsageError(f"{whose} takes a graph, not {_shown(graph)}", hint)


def _check_info(p: Pass) -> None:
    if not isinstance(getattr(p, "info", None), PassInfo):
        name = type(p).__name__
        raise UsageError(f"the pass {name} has no `info`", 'write info = PassInfo("…") into the class')
    if not isinstance(p, LazyPass):  # of a pass that is registered, and was checked
        check_fields(type(p))


def _shown(what: Any) -> str:
    if what is None or isinstance(what, str):
        return repr(what)
    if isinstance(what, Pass):
        return f"the one pass {what.name}"
    if isinstance(what, type):
        return f"the class {what.__name__}"
    return an(type(what).__name__)
