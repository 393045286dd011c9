"""Count the contents of a model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxopt.api.files import model_file, name_of
from onnxopt.graph.dims import specialise
from onnxopt.io import blaming, load

if TYPE_CHECKING:
    from onnxopt.analysis.stats import ModelStats
    from onnxopt.api.files import AnyModel
    from onnxopt.graph import Model


def stats(
    model: AnyModel,
    *,
    work: bool = False,
    top: int = 0,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ModelStats:
    """Operators, nodes, initializers, parameters and bytes of a model file or a ModelProto.

    `work`: also MACs, FLOPs and memory of a run, with the `top` nodes by work, for dynamic inputs of sizes `dims` (by
    symbol) and `shapes` (by input). Raises ModelError for an unreadable model, UsageError for unknown names.
    """
    from onnxopt.analysis.stats import model_stats, model_work
    from onnxopt.conversion.shape_refinement import settle_shapes

    with model_file(model) as source, blaming(source):
        measured = load(source, stored=True)
        counted = replace(model_stats(measured), path=name_of(source))
        if not work:
            return counted

        def loaded() -> Model:
            again = load(source, inline_functions=True, stored=True)
            specialise(again, dims or {}, shapes or {})
            return again

        if measured.functions or dims or shapes:
            measured = loaded()
        settle_shapes(measured, loaded)
        return replace(counted, work=model_work(measured, top))
