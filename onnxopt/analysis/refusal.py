"""Which values must not become constant: those as which runtimes would refuse the model.

A runtime infers all of a model when it loads it, also what never runs: a branch that is not taken, the body of a Loop
without trips. What such a body computes may be impossible, as long as nobody knows: a TopK of more than there is, a
product of matrices that do not fit. What is in no body runs always: what is impossible there is the model's own fault.
But for what is computed otherwise than it is inferred: the more is known of what such a node reads, the more is
inferred that is not so, and what comes of it is refused, or given too little memory.

Most models have neither, and all is well. Of the others `loading/` answers, which is not imported before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from onnxopt.analysis import types
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.protos import Array

if TYPE_CHECKING:
    from onnxopt.analysis.loading.refusing import Loading

REFUSED: Final = "runtimes would refuse what comes of it: it may never run, or is not what they infer"
_LOADING: Final = "values that may be constant"


def is_refused(value: Value, given: Array | Value, readers: Iterable[Node] | None = None) -> bool:
    """Would a runtime that is given this constant, or other value, for `value` refuse the model, and does it not now?

    Its `readers` are asked (all, if none are named), and what comes after them for as long as more is known of it, by
    inference where it leads to a body, and everywhere what is made of constants only, which runtimes compute when they
    load a model.
    """
    graph = value.graph
    loading = _loading(graph.model)
    if loading is None or (graph.owner is None and not graph.owners and not loading.watched):
        return False
    return loading.is_refused(value, given, readers)


def is_told_more(value: Value, other: Value) -> bool:
    """Does the file say more of `other`, which is the same, and would a runtime refuse the model if what reads `value`
    read that?"""
    graph = value.graph.root
    if not graph.owners:
        return False
    loading = _loading(graph.model)
    return loading is not None and other in loading.annotated and is_refused(value, other)


def told(value: Value) -> Shape | None:
    """The sizes that runtimes may know of it, by what was asked in this round, too."""
    loading = _loading(value.graph.model)
    return types.shape(value) if loading is None else loading.told(value)


def look_ahead(model: Model) -> None:
    """To be called before more is learnt than runtimes infer: what leads to bodies is what they do not know yet."""
    _loading(model)


def divides_by_zero(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Does one of these nodes, which are to be in a body, divide integers by a constant that is zero somewhere?"""
    if graph.owner is None:
        return False
    from onnxopt.analysis.loading.made import is_by_zero

    return any(is_by_zero(n, {}) for n in nodes if n.op in ("Div", "Mod"))


def _loading(model: Model) -> Loading | None:
    """Of this round of passes; None of a model that has nothing which could be refused."""
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
