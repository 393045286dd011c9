"""Row-wise work on [batch, tokens, features], done on the matrix [batch · tokens, features].

In a transformer everything between two attentions works on single tokens. On matrices, each MatMul + Add is a Gemm, and
the Reshapes at the borders merge with those of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.shapes.sizes import product
from onnxopt.analysis.shapes.sweep import as_dims
from onnxopt.analysis.shapes.symbolic import symbol
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.emission import describe_as
from onnxopt.graph.node import Node, array_of, present, producer, sole_reader
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import make_node
from onnxopt.rewriting.axes import To, View
from onnxopt.rewriting.regions import Region, connected, regions
from onnxopt.rewriting.relayout import End, Relayout

_LEAD: Final = 2  # leading dims (batch, tokens) for which onnxruntime fuses SkipLayerNormalization


class Rows(View):
    """All leading axes merged into a single axis."""

    def __init__(self, lead: Shape) -> None:
        super().__init__()
        self.lead = lead

    @cached_property
    def _rows(self) -> int | str | None:
        """Their product, named as inference names it, so that a Gemm is found in the same round."""
        sizes = [d if isinstance(d, int) else symbol(d) for d in self.lead if d is not None]
        return as_dims((product(sizes),))[0] if len(sizes) == len(self.lead) else None

    def has(self, dims: Shape) -> bool:
        return dims[:-1] == self.lead and isinstance(dims[-1], int)

    def dims(self, dims: Shape) -> Shape:
        return (self._rows, dims[-1]) if dims[:-1] == self.lead else super().dims(dims)

    def becomes(self, rank: int) -> tuple[To, int]:
        return (((0,),) * (rank - 1) + ((1,),)), 2


@register
@dataclass(eq=False, repr=False)
class FlattenRows(GraphPass):
    """Flattens regions of row-wise operators to matrices, if fewer nodes remain.

    Applies when: all values of a region have the same leading dims, and the products with bias (each a Gemm) and
    removed Reshapes outnumber the Reshapes needed at the borders.
    The option `normalizations` counts an Add before a LayerNormalization: onnxruntime fuses both in rank 3 as
    SkipLayerNormalization, which in some versions is slower than the two, and faster in others.
    Keeps: the shape of values with other readers. A Reshape restores a single unknown dim; several are listed, once for
    the region, by a Shape of an entering value.
    Not done: products of integers.
    """

    info = PassInfo(
        "flatten-rows", opt_level=2, after=("merge-chains",), before=("gemm-fusion",), ops=("MatMul", *SAME_ORDER)
    )
    normalizations: int = option(
        0, "so many Reshapes an Add with a LayerNormalization is worth, if of matrices; below zero: if of rank 3"
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not (graph.by_op.get("MatMul") or graph.by_op.get("Gemm")):
            return
        types.settle(graph.model)
        for found in regions(graph, (*SAME_ORDER, "MatMul"), _leading_dims, Rows):
            done = _flatten(graph, ctx, found, min(self.normalizations, 0))
            if done is False or (done is None and self.normalizations > 0):
                self._flatten_parts(graph, ctx, found)

    def _flatten_parts(self, graph: Graph, ctx: PassContext, found: Region[Shape]) -> None:
        """Flatten separately nodes connected only through common operands, such as queries and the residual of an
        attention; likewise parts with a normalization that pays for them."""
        parts = connected(dict.fromkeys(found.nodes, found.kind), Rows, found.passing, False)
        for part in parts if len(parts) > 1 or self.normalizations > 0 else ():
            _flatten(graph, ctx, part, self.normalizations)


def _flatten(graph: Graph, ctx: PassContext, found: Region[Shape], normalizations: int) -> bool | None:
    """Return True if done or impossible; False if gains do not cover the costs; None without gains."""
    region = _Rows(graph, found)
    if normalizations <= 0 and not region.may_gain():
        return None
    region.look()
    if normalizations and len(region.lead) == _LEAD:
        region.count_normalizations(normalizations)
    if not region.gains:
        return None
    if region.saved <= 0:
        ctx.decline("flattened", "it would not leave fewer nodes", repr(region.nodes[0]))
        return False
    if not region.is_possible:
        ctx.decline("flattened", "two unknown dims cannot be restored before opset 14", repr(region.nodes[0]))
    elif ctx.spend("flattened", at=region.nodes[-1]):
        region.carry_out()
    return True


def _leading_dims(node: Node) -> Shape | None:
    """Return the leading dims of a node's results if known and several, else None."""
    made = [types.dims_of(v) for v in node.outputs]
    lead = made[0][:-1] if made else ()
    if len(lead) < 2 or None in lead or not made[0][-1] or not types.dtype(node.output):
        return None
    return lead if all(dims[:-1] == lead and isinstance(dims[-1], int) for dims in made) else None


class _Rows(Relayout):
    """Nodes, in order, whose values all have the leading dims `lead`. `gains`: whether any node is saved."""

    suffix = "_rows"

    def __init__(self, graph: Graph, found: Region[Shape]) -> None:
        inside, self.lead = set(found.nodes), found.kind
        # Several unknown dims are listed by a Shape; before opset 14 a 0 among them would copy a dim.
        self.lists = sum(not isinstance(d, int) for d in self.lead) > 1 and graph.opset() >= 14
        nodes = [n for n in found.nodes if not _is_cheaper_outside(n, found.passing[n].seen, inside)]
        super().__init__(graph, nodes, found.view)
        self.targets: dict[tuple[int, ...], Value | None] = {}  # listed targets by dims behind the leading ones
        self.products = len({self._sum(n) for n in self.nodes if n.op == "MatMul"} - {None})

    def may_gain(self) -> bool:
        """Whether a product has a term, or an end has two movers, or one next to a matrix: others save no node."""
        before = [self.beside(v) for v in self.entering if self.is_alone(v)]
        ends = [(nodes, nodes[-1].operands[0]) for nodes in before if nodes]
        behind = [self.beside(v, u) for v, users in self.leaving.items() for u in users]
        ends += [(nodes, nodes[0].output) for nodes in behind if nodes]
        return self.products > 0 or any(len(nodes) > 1 or types.rank(v) in (None, 2) for nodes, v in ends)

    def look(self) -> None:
        """Collect the ends, and count each product with its term as a single node."""
        super().look()
        if self.targets:
            self.saved -= len(self.targets) + (1 if self.graph.opset() >= 15 else 2)
        self.saved += self.products
        self.gains = self.products > 0 or any(e.saved > 0 for e in self.all_ends)

    def count_normalizations(self, worth: int) -> None:
        """Count each Add before a LayerNormalization as `worth` Reshapes."""
        pairs = sum(n.op == "LayerNormalization" and producer(n.inputs[0], "Add") is not None for n in self.nodes)
        self.saved += worth * pairs
        self.gains = self.gains or worth * pairs > 0

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """For a Reshape to the leading dims and others, list several unknown leading dims."""
        end, n = super().leaves(v, user), len(self.lead)
        if end is not None or not self.lists or user.op != "Reshape" or user.graph is not self.graph:
            return end
        dims = types.dims_of(user.output)
        if user.inputs[0] is not v or array_of(user.input(1)) is None or dims[:n] != self.lead:
            return None
        return self._listed(user.output, dims[n:], 0)

    def restores(self, v: Value) -> End[Value] | None:
        """List several unknown leading dims."""
        listed = self._listed(v, types.dims_of(v)[-1:], -1) if self.lists and 0 not in self.lead else None
        return listed or super().restores(v)

    def _listed(self, result: Value, behind: Shape, saved: int) -> End[Value] | None:
        """Return the end where a Reshape to the listed leading dims and those `behind` makes a result."""
        known = tuple(d for d in behind if isinstance(d, int) and d)
        if len(known) < len(behind):
            return None

        def write(new: Value) -> Value:
            old = result.producer
            node = Node(make_node("Reshape", "", "", {"allowzero": 1}), [new, self.targets[known]], [None])
            if old is not None:
                describe_as(node.proto, old.proto)
            self.graph.take_over(result, self.graph.insert(node, old))
            if old is not None and old not in self.inside:
                self.graph.remove(old)
            return new

        self.targets.setdefault(known, None)
        return End(saved, write)

    def _sum(self, product: Node) -> Node | None:
        """Return the Add of a constant, or of rows as many as the product's, so that both become a Gemm; else None."""
        user = sole_reader(product.output, "Add")
        if user not in self.inside or types.dtype(product.output) not in FLOATS:
            return None
        if any(producer(v, "DequantizeLinear") for v in product.inputs):
            return None  # runtimes look for the MatMul of a quantized matrix
        term = next((v for v in present(user.inputs) if v is not product.output), None)
        fits = term is not None and (term.constant or types.same_shape(term, product.output))
        return user if fits else None

    def carry_out(self) -> None:
        """Insert the listed Reshape targets before all readers first."""
        if self.targets:
            self._list_targets()
        super().carry_out()

    def _list_targets(self) -> None:
        n, first = len(self.lead), self.nodes[0]
        source = self.operands[first][0]
        if self.graph.opset() >= 15:
            lead = self._list("Shape", [source], n, end=n)
        else:
            dims = self._list("Shape", [source], n + 1)
            bounds = [self.graph.constant(np.array([i], np.int64), f"{dims.name}_{i}", first) for i in (0, n)]
            lead = self._list("Slice", [dims, *bounds], n)
        for behind in self.targets:
            rest = self.graph.constant(np.array(behind, np.int64), f"{lead.name}_behind", first)
            self.targets[behind] = self._list("Concat", [lead, rest], n + len(behind), axis=0)

    def _list(self, op: str, inputs: list[Value], length: int, **attributes: int) -> Value:
        """Insert a node that computes a vector of sizes before the region. Returns the vector."""
        made = Value(self.graph.model.names.fresh(inputs[0].name, "_" + op.lower()), self.graph)
        made.dtype, made.shape = TensorProto.INT64, (length,)
        self.graph.insert(Node(make_node(op, "", "", attributes), [*inputs], [made]), self.nodes[0])
        return made


def _is_cheaper_outside(node: Node, operands: Sequence[Value], inside: set[Node]) -> bool:
    """Whether results need a Reshape each, being read only outside, while the operands' Reshapes are no more or needed
    anyway."""
    readers = {u for v in present(node.outputs) for u in v.users}
    if not inside.isdisjoint(readers) or any(u.op in SAME_ORDER for u in readers):
        return False
    if len(node.outputs) > len(operands):
        return True
    return all(v.producer not in inside and any(u in inside and u is not node for u in v.users) for v in operands)
