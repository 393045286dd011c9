"""Work on [batch, tokens, features] row by row is work on the matrix [batch · tokens, features].

In a transformer everything between two attentions treats tokens one by one. Done on matrices, each MatMul + Add is one
Gemm, and the Reshapes at the ends merge with those that attention has anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.element_types import FLOATS
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators import SAME_ORDER
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, option, register
from onnxopt.protos import make_node
from onnxopt.record import record
from onnxopt.rewriting.axes import Rows
from onnxopt.rewriting.borders import Reshaped
from onnxopt.rewriting.relayout import End, Region, connected, regions

_LEAD: Final = 2  # leading dims of what onnxruntime makes SkipLayerNormalization of: batch and tokens


@register
@record(frozen=True)
class FlattenRows(GraphPass):
    """Regions of nodes that treat rows one by one work on matrices, where that leaves fewer nodes.

    Applies when: all values of a region have the same leading dims; the products with a bias in it, each of which
    is one node as Gemm, and the Reshapes from and to matrices outnumber those that are needed at its ends.
    With the option `normalizations` also where that leaves more nodes, or not where it leaves fewer, for the sake of an
    Add in front of a LayerNormalization: of rank 3 onnxruntime makes SkipLayerNormalization of the two, which takes
    longer than they do in some versions, and less in others.
    Keeps: the shape of values that are read elsewhere. A Reshape restores one unknown dim; more are listed, once for
    the whole region, by a Shape of what enters it.
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
                # Nodes that hang together only by what they read, as queries do with what is added to the attention's
                # result, may be made rows or stay each; so may those with a normalization that pays for them.
                parts = connected(dict.fromkeys(found.nodes, found.kind), found.passing, False)
                for part in parts if len(parts) > 1 or self.normalizations > 0 else ():
                    _flatten(graph, ctx, part, self.normalizations)


def _flatten(graph: Graph, ctx: PassContext, found: Region[Shape], normalizations: int) -> bool | None:
    """True where it is done, or cannot be; False where something would be gained, but not as much as it costs."""
    region = _Rows(graph, found, ctx.opt_level > 2 and "merge-parallel" not in ctx.disabled_pass)
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
    """The leading dims of what the node makes, if these are known, and there are several."""
    lead: Shape | None = None
    for v in node.outputs:
        dims = types.shape(v) if v is not None else None
        if v is None or dims is None or len(dims) < 3 or not isinstance(dims[-1], int) or lead not in (None, dims[:-1]):
            return None
        if lead is None and (None in dims[:-1] or not dims[-1] or not types.dtype(v)):
            return None
        lead = dims[:-1]
    return lead


class _Rows(Reshaped):
    """Nodes, in order, whose values all have the leading dims `lead`. `gains`: does anything go?"""

    suffix = "_rows"

    def __init__(self, graph: Graph, found: Region[Shape], are_merged: bool) -> None:
        """`are_merged`: are three products of one value one, here or there?"""
        inside, self.lead = set(found.nodes), found.kind
        # Several unknown dims are listed, as a Shape says; one of them may be 0, which before opset 14 copies another.
        self.lists = sum(not isinstance(d, int) for d in self.lead) > 1 and graph.opset() >= 14
        nodes = [n for n in found.nodes if not _is_cheaper_outside(n, found.passing[n].seen, inside)]
        super().__init__(graph, nodes, Rows(self.lead), found.passing)
        self.look()
        self.listed = list(dict.fromkeys(e.target for e in self.all_ends if isinstance(e.target, tuple)))
        self.targets: dict[tuple[int, ...], Value] = {}  # by what is behind the leading dims
        if self.listed:
            self.saved -= len(self.listed) + (1 if graph.opset() >= 15 else 2)
        costs = self.listed or not self.is_possible or any(e.saved < 0 for e in self.all_ends)
        biased = Counter(n.inputs[0] for n in self.nodes if n.op == "MatMul" and self._is_biased(n))
        products = sum(1 if are_merged and k > 2 else k for k in biased.values())
        self.saved += products  # each is one node with its bias
        outer = [e.node for e in self.ends.values() if e.saved > 0]
        outer += [_only_reader(_only_reader(e.node)) for e in self.all_ends[len(self.ends) :] if e.saved > 0]
        self.gains = bool(products or (outer and (costs or not all(map(self._is_of_rows, outer)))))

    def count_normalizations(self, worth: int) -> None:
        """Have each Add in front of a LayerNormalization be worth so many Reshapes."""
        self.saved += worth * self.normalized_sums
        self.gains = self.gains or worth * self.normalized_sums > 0

    def keeps(self, quantizer: Node | None) -> bool:
        return False

    def leaves(self, v: Value, user: Node) -> End[Value] | None:
        """A Reshape to the leading dims and more has these listed, where several are unknown."""
        end = super().leaves(v, user)
        if end is not None or not self.lists or user.op != "Reshape" or user.graph is not self.graph:
            return end
        given, dims, n = user.input(1), types.shape(user.output), len(self.lead)
        if user.inputs[0] is not v or given is None or not given.constant or dims is None or dims[:n] != self.lead:
            return None
        behind = tuple(d for d in dims[n:] if isinstance(d, int) and d)
        if len(behind) < len(dims) - n:
            return None
        return End(0, lambda new: self.read_by(user, new, behind, new), target=behind)

    def restores(self, v: Value, readers: list[Node]) -> End[Value] | None:
        """Where several dims are unknown, they are listed."""
        last = (types.shape(v) or ())[-1]
        if self.lists and 0 not in self.lead and isinstance(last, int):
            return self.restored_by(v, (last,))
        return super().restores(v, readers)

    def target(self, sizes: Sequence[int], hint: str, before: Node | None) -> Value:
        return self.targets[sizes] if isinstance(sizes, tuple) else super().target(sizes, hint, before)

    def _is_of_rows(self, outer: Node | None) -> bool:
        """Is it the Reshape behind a product of rows, which as a product of all leading dims (`gemm-fusion`) is a node
        less, too?"""
        if outer is None or outer.op != "Reshape" or outer.inputs[0] is None:
            return False
        product = outer.inputs[0].producer
        if product is None or product.op not in ("Gemm", "MatMul") or _only_reader(product) is not outer:
            return False
        given, w = product.inputs[:2]
        inner = given.producer if given is not None else None
        x = inner.inputs[0] if inner is not None and inner.op == "Reshape" and _only_reader(inner) is product else None
        if x is None or w is None or not w.constant or (x.producer is not None and x.producer.op == "Reshape"):
            return False
        plain = product.op == "MatMul" or (
            product.attr("alpha") == product.attr("beta") == 1
            and not product.attr("transA")
            and (not product.attr("transB") or w.only_user is product)
        )
        return plain and all(
            len(dims := types.shape(v) or ()) > 2 and dims[:-1] == self.lead for v in (x, outer.output)
        )

    def _is_biased(self, product: Node) -> bool:
        """Is the product's only reader an Add of a constant, with which it is a Gemm?"""
        user = product.output.only_user
        if user is None or user.op != "Add" or user not in self.inside or types.dtype(product.output) not in FLOATS:
            return False
        return any(v is not None and v.constant for v in user.inputs)

    def carry_out(self) -> None:
        self.targets = self._list_targets()
        super().carry_out()

    def _list_targets(self) -> dict[tuple[int, ...], Value]:
        """In front of all that reads them."""
        wanted, n, first = self.listed, len(self.lead), self.nodes[0]
        if not wanted:
            return {}
        source = self.operands[first][0]
        if self.graph.opset() >= 15:
            lead = self._list("Shape", [source], n, end=n)
        else:
            dims = self._list("Shape", [source], n + 1)
            bounds = [self.graph.constant(np.array([i], np.int64), f"{dims.name}_{i}", first) for i in (0, n)]
            lead = self._list("Slice", [dims, *bounds], n)
        targets = {}
        for behind in wanted:
            rest = self.graph.constant(np.array(behind, np.int64), f"{lead.name}_behind", first)
            targets[behind] = self._list("Concat", [lead, rest], n + len(behind), axis=0)
        return targets

    def _list(self, op: str, inputs: list[Value], length: int, **attributes: int) -> Value:
        """A vector of sizes, in front of the region."""
        made = Value(self.graph.model.names.fresh(inputs[0].name, "_" + op.lower()), self.graph)
        made.dtype, made.shape = TensorProto.INT64, (length,)
        self.graph.insert(Node(make_node(op, "", "", attributes), [*inputs], [made]), self.nodes[0])
        return made


def _only_reader(node: Node | None) -> Node | None:
    """What reads the result of `node`, if it is one node."""
    return node.output.only_user if node is not None and len(node.outputs) == 1 else None


def _is_cheaper_outside(node: Node, operands: Sequence[Value], inside: set[Node]) -> bool:
    """Would results that are read outside alone, not by a Reshape, each need a Reshape, where what they are made of
    needs one, or needs it anyway for others?"""
    readers = {u for v in node.outputs if v is not None for u in v.users}
    if not inside.isdisjoint(readers) or any(u.op in SAME_ORDER for u in readers):
        return False
    if len(node.outputs) > len(operands):
        return True
    return all(v.producer not in inside and any(u in inside and u is not node for u in v.users) for v in operands)
