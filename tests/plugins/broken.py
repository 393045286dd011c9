"""Deliberately broken passes, for what has to find and survive them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxopt.graph import Graph, Value
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, RewritePass, option, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, op, rewrite, var


@rewrite(op.Mul(var("x"), const("k")))
def wrong_for_negative_factors(m: Match, x: Value, k: Array) -> Value:
    """x * k = x / (1 / |k|), which is wrong where k is negative."""
    m.require(k.size > 1, "one number")
    return m.op.Div(x, m.const(1 / np.abs(k), like=k))


@rewrite(op.Mul(var("x"), const("k")))
def wrong_after_sin(m: Match, x: Value, k: Array) -> Value:
    """x * k = x / |k|, which is wrong, and done behind a Sin only."""
    m.require(x.producer is not None and x.producer.op == "Sin", "not behind a Sin")
    return m.op.Div(x, m.const(np.abs(k), like=k))


@rewrite(op.Softsign(var("x")))
def unloadable_softsign(m: Match, x: Value) -> Value:
    """softsign(x) = blocks of the image x, which nobody loads where x is a matrix."""
    return m.op.DepthToSpace(x, blocksize=2)


@rewrite(op.Sigmoid(op.Neg(var("x")), name="sigmoid"))
def crashes_at_sigmoid(m: Match, x: Value) -> Value:
    """Sigmoid(-x) = 1 / 0."""
    raise ZeroDivisionError("by design")


@register
class WrongRule(RewritePass):
    """Some of its rewrites change the result."""

    info = PassInfo("wrong-rule", opt_level=2)
    rules = (wrong_for_negative_factors,)


@register
class UnloadableRule(RewritePass):
    """What it makes no runtime loads."""

    info = PassInfo("unloadable-rule", opt_level=2)
    rules = (unloadable_softsign,)


@register
class SinRule(RewritePass):
    """Wrong, but only behind a Sin."""

    info = PassInfo("sin-rule", opt_level=2)
    rules = (wrong_after_sin,)


@register
class CrashingRule(RewritePass):
    """Fails at Sigmoid(Neg(x))."""

    info = PassInfo("crashing-rule", opt_level=2)
    rules = (crashes_at_sigmoid,)


@register
@dataclass(frozen=True)
class WrongPass(GraphPass):
    """Takes the first Tanh out, as if it were nothing."""

    info = PassInfo("wrong-pass", opt_level=2)
    keep: int = option(0, "how many to leave alone")

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in list(graph.by_op.get("Tanh", ()))[self.keep :]:
            source = node.inputs[0]
            if source is not None and ctx.spend("taken out"):
                node.output.replace_all_uses_with(source)
                graph.remove(node)


@register
class WrongAt(GraphPass):
    """Takes each Abs out, which is wrong where something is negative; says which."""

    info = PassInfo("wrong-at", opt_level=2)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        for node in list(graph.by_op.get("Abs", ())):
            source = node.inputs[0]
            if source is not None and ctx.spend("taken out", at=node):
                node.output.replace_all_uses_with(source)
                graph.remove(node)


@register
class BreaksNames(GraphPass):
    """The last node of each body reads what nothing defines."""

    info = PassInfo("breaks-names", opt_level=2)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        last = graph.last
        if graph.owner is not None and last is not None and all(v is None or v.name != "gone" for v in last.inputs):
            last.set_input(0, Value("gone", graph))


@register
class BreaksInterface(GraphPass):
    """The first output of the model has another type."""

    info = PassInfo("breaks-interface", opt_level=2)

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.owner is None and not graph.is_function:
            kind = graph.proto.output[0].type.tensor_type
            if kind.elem_type != 11:
                kind.elem_type = 11
                graph.model.version += 1
