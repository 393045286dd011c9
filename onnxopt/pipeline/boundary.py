"""Argument checks of the pass API: errors of a single line, with the correct call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from onnxopt.errors import UsageError
from onnxopt.graph import Graph, Model
from onnxopt.pipeline.base import Pass, PassInfo, check_fields
from onnxopt.pipeline.decorators import from_function
from onnxopt.pipeline.records import PipelineReport

_A_PASS: Final = "a pass is what get_pass(NAME)(), parse_pipeline(TEXT) or a function with @model_pass gives"


def as_passes(passes: Any, whose: str) -> tuple[Pass, ...]:
    """Return `passes` of the composite called `whose`. Raises UsageError for anything but passes."""
    if isinstance(passes, (Pass, str)) or callable(passes):
        raise UsageError(f"{whose} takes a list of passes, not {_said(passes)}", f"put it in brackets: {whose}([…])")
    if not isinstance(passes, Iterable):
        raise UsageError(f"{whose} takes a list of passes, not {_said(passes)}", _A_PASS)
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
    raise UsageError(f"{whose}: {_said(p)} is not a pass", _A_PASS)


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
    raise UsageError(f"the pass {p.name} takes a model, not {_said(model)}", hint)


def check_graph(graph: Any, whose: str) -> None:
    """Raise UsageError unless `graph` is a Graph; `whose` is the calling function."""
    if isinstance(graph, Graph):
        return
    hint = "model.graph is the main graph" if isinstance(graph, Model) else "onnxopt.load(PATH).graph is one"
    raise UsageError(f"{whose} takes a graph, not {_said(graph)}", hint)


def _check_info(p: Pass) -> None:
    if not isinstance(getattr(p, "info", None), PassInfo):
        name = type(p).__name__
        raise UsageError(f"the pass {name} has no `info`", 'write info = PassInfo("…") into the class')
    check_fields(type(p))


def _said(what: Any) -> str:
    if what is None or isinstance(what, str):
        return repr(what)
    if isinstance(what, Pass):
        return f"the one pass {what.name}"
    if isinstance(what, type):
        return f"the class {what.__name__}"
    name = type(what).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
