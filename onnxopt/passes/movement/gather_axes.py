"""Composition of chains that pick elements."""

from __future__ import annotations

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, either, one_of, rewrite, var
from onnxopt.rewriting.compositions import alone, composed
from onnxopt.rewriting.index_maps import MOVERS, PICKING, VIEWS


@rewrite(
    either(
        one_of(*PICKING)(one_of(*MOVERS)(var("x"), ..., name="inner", shared=True), ..., name="outer"),
        one_of(*VIEWS)(one_of(*PICKING)(var("x"), ..., name="inner", shared=True), ..., name="outer"),
    )
)
def pick_of_pick(m: Match, x: Value) -> Value:
    """f(g(x)) = Reshape(Transpose(Gather(Slice(Reshape(x, s), i:j), k), p), t), or less; f and g pick, or are views."""
    return composed(m)


@rewrite(one_of("Gather", "GatherND")(var("x"), const("index"), name="gather"))
def pick_of_all(m: Match, x: Value, index: Array) -> Value:
    """Gather(x, [0, 1, …, n - 1]) = x, or a Reshape; Gather(x, 0) = Squeeze(x); GatherND of one column = Gather."""
    dims, axis = m.shape(x) or (), int(m.gather.attr("axis", 0))
    m.require(
        m.gather.op == "GatherND" or dims[axis:][:1] == (index.size,),
        "the axis has more elements, or an unknown number",
    )
    return alone(m)


@register
class GatherAxes(RewritePass):
    """Composes chains of Gather, GatherND, Slice, Expand and Tile, with Reshapes and Transposes between them, to
    one Slice, one Gather for each axis, one Transpose, and one Reshape before and behind, each only if needed.

    Applies when: indices are constant, or computed along a single axis, and inner results have no other readers.
    PyTorch's exporters move an axis to the front, index it, and move it back: `x[:, i]`. `x[:, i, j]` becomes a Gather
    of both axes if adjacent, with constant indices. Further cases: rows and columns shifted between two Reshapes
    (Swin), and heads of keys and values repeated by Expand or Tile.
    """

    # After: identity picks are removed by then.
    info = PassInfo(
        "gather-axes",
        opt_level=1,
        after=("gather-grids", "merge-chains", "reshape-chains"),
        ops=("Expand", "Gather", "GatherND", "Slice", "Tile"),
    )
    rules = (pick_of_pick, pick_of_all)
