"""Equal computations on all parts of a Split, joined in the same order, computed on the whole."""

from __future__ import annotations

from onnxopt.analysis import types
from onnxopt.graph import Graph, Value
from onnxopt.graph.node import Node
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.rewriting.parts import Plan, hoist, parts_of, plan_hoist


@register
class PackParts(GraphPass):
    """Concat(f(a), f(b)) = f(x), where a, b = Split(x).

    Applies when: all parts pass through equal elementwise operators, beside equal numbers if any, to a Concat along the
    axis, in order, and nothing else reads the values between. Coordinates of points are scaled in this way.
    Behind a Split whose parts are not joined again, merge-parallel does the same.
    """

    # After: Slices have become a Split, and axes are added before it.
    info = PassInfo(
        "pack-parts", opt_level=2, after=("slices-to-split", "axes-before-split", "axes-first"), ops=("Split",)
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.opset() < 7:
            return  # attributes name the broadcast axes
        for split in list(graph.by_op.get("Split", ())):
            plans = _plans_to_concat(split)
            if plans and ctx.spend("packed", at=split):
                for plan in plans:
                    split = hoist(plan, split)


def _plans_to_concat(split: Node) -> list[Plan]:
    """Return the plans of the operators between all parts and a Concat of their results in order; none without a
    Concat."""
    plans: list[Plan] = []
    parts, axis, sizes = parts_of(split)
    while (plan := plan_hoist(parts, axis, sizes)) is not None and _is_one_for_all(plan):
        plans.append(plan)
        parts, axis, sizes = [n.output for n in plan.followers], plan.axis, plan.sizes
        concat, rank = parts[0].only_user, types.rank(parts[0])
        if concat is not None and concat.op == "Concat" and concat.inputs == parts and not concat.has_references:
            joins = concat.graph is split.graph and rank is not None and (concat.attr("axis") - axis) % rank == 0
            return plans if joins else []
    return []


def _is_one_for_all(plan: Plan) -> bool:
    """Whether an operator is elementwise, and reads at most one number, the same for all parts."""
    arrays = [v.array if isinstance(v, Value) else v for v in plan.operands]
    return not plan.attributes and all(a.size == 1 for a in arrays)
