"""Values that must not become constant, since runtimes would then reject the model.

A runtime infers the whole model on loading, also code that never runs: an untaken branch, the body of a Loop without
iterations. An impossible computation there (a TopK of more than exists, a product of unequal sizes) is harmless as long
as the sizes are unknown. Outside of bodies an impossible computation is the model's own fault.

Nodes with a wrong inferred size are an exception: more knowledge of the operands leads to more wrong results, and
downstream nodes are rejected or get too little memory.

Most models have neither, and nothing is rejected. For the rest `loading/` decides; it is imported on demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.proto.messages import Array

if TYPE_CHECKING:
    from onnxopt.analysis.loading.refusing import Loading

REFUSED: Final = "runtimes would refuse what comes of it: it may never run, or is not what they infer"
_LOADING: Final = "values that may be constant"


def is_refused(value: Value, given: Array | Value, readers: Iterable[Node] | None = None) -> bool:
    """Whether a runtime would reject the model with `given` for `value`, and does not now.

    `given` is a constant or another value; `readers` are checked (default: all), then downstream nodes while their
    inputs become more precise. Types are inferred on the way to a body. Computations on constants only are checked
    everywhere, since runtimes fold them on loading.
    """
    graph = value.graph
    loading = _loading(graph.model)
    if loading is None or (graph.owner is None and not graph.owners and not loading.watched):
        return False
    return loading.is_refused(value, given, readers)


def is_told_more(value: Value, other: Value) -> bool:
    """Whether readers of `value` would be rejected with the more precise declared shape of the equal value `other`."""
    graph = value.graph.root
    if not graph.owners:
        return False
    loading = _loading(graph.model)
    return loading is not None and other in loading.annotated and is_refused(value, other)


def told(value: Value) -> Shape | None:
    """Return the sizes possibly known to runtimes of a value, permitted changes of this round included."""
    loading = _loading(value.graph.model)
    return types.shape(value) if loading is None else loading.told(value)


def look_ahead(model: Model) -> None:
    """Record the present knowledge of runtimes, before onnxopt learns more."""
    _loading(model)


def divides_by_zero(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether any node, to be inserted into a body, divides integers by a constant with a zero."""
    if graph.owner is None:
        return False
    from onnxopt.analysis.loading.made import is_by_zero

    return any(is_by_zero(n, {}) for n in nodes if n.op in ("Div", "Mod"))


def _loading(model: Model) -> Loading | None:
    """Return the state of this round of passes; None if nothing in the model could be rejected."""
    if _LOADING in model.analyses:
        return cast("Loading | None", model.analyses[_LOADING])
    if not any(scope.owner is not None or scope.by_op.get("PRelu") for scope in model.scopes()):
        model.analyses[_LOADING] = None
        return None
    from onnxopt.analysis.loading.refusing import Loading
    from onnxopt.analysis.loading.watching import watch

    begun = model.analyses[_LOADING] = Loading(1000 + 4 * model.node_count())
    watch(model, begun)
    return begun
