"""Types and shapes of a model's values, as far as its shape arithmetic says them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Model, Value
from onnxopt.pipeline import PassContext, execute, parse_pipeline

# What computes shapes, and nothing that changes which values there are.
_SHAPES: Final = (
    "fixpoint(lift-constants,canonicalize,shape-arithmetic,elim-identity,neutral-operands,constant-folding,"
    "inline-branches)"
)


def settle_shapes(model: Model, again: Callable[[], Model]) -> None:
    """Give the values of `model` the types and shapes they have in a copy, which `again` makes, once its shape
    arithmetic is constant: inference alone does not see through it. A value keeps its name, and what has the name its
    shape."""
    import onnxopt.passes  # noqa: F401 - registers them

    types.update(model)
    if all(types.static_shape(v) is not None for node in model.nodes() for v in node.outputs if v is not None):
        return
    folded = again()
    execute(parse_pipeline(_SHAPES), folded, PassContext(opt_level=1))
    types.update(folded)
    known: dict[str, Value] = {}
    for scope in folded.scopes():
        known |= scope.initializers
        known |= {v.name: v for node in scope for v in node.outputs if v is not None}
    for node in model.nodes():
        for v in node.outputs:
            same = known.get(v.name) if v is not None else None
            if v is None or same is None:
                continue
            shape = types.shape(same)
            if shape is not None and types.static_shape(v) is None:
                v.dtype, v.shape = types.dtype(same), shape
