"""Two steps of the same kind become one."""

from __future__ import annotations

from dataclasses import dataclass

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.rewriting import Match, op, rewrite, var


@rewrite(op.Concat(var("first"), ..., name="outer"))
def concat_of_concat(m: Match, first: Value) -> Value:
    """Concat(Concat(a, b), c) = Concat(a, b, c), along the same axis."""
    inputs: list[Value | None] = []
    axis = m.outer.attr("axis")
    flattened = 0
    for v in m.outer.inputs:
        inner = v.producer if v is not None else None
        if (
            inner is not None
            and inner.op == "Concat"
            and v is not None
            and v.only_user is m.outer
            and inner.graph is m.graph
            and v.users[m.outer] == 1
            and inner.attr("axis") == axis
            and not inner.has_references
        ):
            inputs += inner.inputs
            flattened += 1
        else:
            inputs.append(v)
    if not flattened:
        m.skip()
    result: Value = m.op.Concat(*inputs, like=m.outer)
    return result


@register
@dataclass(frozen=True)
class MergeChains(RewritePass):
    """Concat(Concat(a, b), c) = Concat(a, b, c).

    Applies when: both go along the same axis, and nobody else reads the inner result.
    """

    info = PassInfo("merge-chains", opt_level=1)
    rules = (concat_of_concat,)
