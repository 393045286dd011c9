"""Work on [batch, tokens, features] row by row is work on the matrix [batch · tokens, features].

In a transformer everything between two attentions treats tokens one by one. Done on matrices, each MatMul + Add is one
Gemm, and the Reshapes at the ends merge with those that attention has anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.element_types import FLOATS
from onnxopt.graph import Graph, Shape, Value
from onnxopt.graph.node import Node
from onnxopt.operators.axes import AXES
from onnxopt.pipeline import GraphPass, PassContext, PassInfo, register
from onnxopt.protos import make_node
from onnxopt.rewriting.axes import Rows
from onnxopt.rewriting.relayout import Region, Relayout, connected, regions


@register
class FlattenRows(GraphPass):
    """Regions of nodes that treat rows one by one work on matrices, where that leaves fewer nodes.

    Applies when: all values of a region have the same leading dims; the products with a bias in it, each of which
    is one node as Gemm, and the Reshapes from and to matrices outnumber those that are needed at its ends.
    Keeps: the shape of values that are read elsewhere. A Reshape restores one unknown dim; more are listed, once for
    the whole region, by a Shape of what enters it.
    Not done: products of integers.
    """

    info = PassInfo(
        "flatten-rows", opt_level=2, after=("merge-chains",), before=("gemm-fusion",), ops=("MatMul", "Gemm")
    )

    def run_graph(self, graph: Graph, ctx: PassContext) -> None:
        if graph.is_function or graph.opset() < 7 or not (graph.by_op.get("MatMul") or graph.by_op.get("Gemm")):
            return
        types.settle(graph.model)
        for found in regions(graph, _leading_dims, Rows):
            if _flatten(graph, ctx, found) is False:
                # Nodes that hang together only by what they read, as queries do with what is added to the attention's
                # result, may be made rows or stay each.
                parts = connected(dict.fromkeys(found.nodes, found.kind), found.passing, False)
                for part in parts if len(parts) > 1 else ():
                    _flatten(graph, ctx, part)


def _flatten(graph: Graph, ctx: PassContext, found: Region[Shape]) -> bool | None:
    """False where something would be gained, but not as much as it costs."""
    region = _Rows(graph, found)
    gain = region.gain()
    if not gain:
        return None
    if region.cost() >= gain:
        ctx.decline("flattened", "it would not leave fewer nodes", repr(region.nodes[0]))
        return False
    if not region.can_restore and any(region.leaving()):
        ctx.decline("flattened", "two unknown dims cannot be restored before opset 14", repr(region.nodes[0]))
    elif ctx.spend("flattened", at=region.nodes[-1]):
        region.carry_out()
    return None


def _leading_dims(node: Node) -> Shape | None:
    """The leading dims of what the node makes, if these are known, and there are several."""
    made = node.outputs[0] if node.outputs else None
    dims = types.shape(made) if made is not None and node.op in AXES else None
    if made is None or dims is None or len(dims) < 3 or None in dims[:-1] or 0 in dims[-1:] or not types.dtype(made):
        return None
    lead, shapes = dims[:-1], [types.shape(v) for v in node.outputs if v is not None]
    if not all(d is not None and d[:-1] == lead and isinstance(d[-1], int) for d in shapes):
        return None
    return lead


class _Rows(Relayout):
    """Nodes, in order, whose values all have the leading dims `lead`."""

    suffix = "_rows"

    def __init__(self, graph: Graph, found: Region[Shape]) -> None:
        inside, self.lead = set(found.nodes), found.kind
        # Two results that are read elsewhere alone would need a Reshape each, what they are made of one.
        nodes = [n for n in found.nodes if n.op != "TopK" or _is_read_by(n, inside)]
        super().__init__(graph, nodes, Rows(self.lead), found.passing)
        unknown = sum(not isinstance(d, int) for d in self.lead)
        # Several are listed, as a Shape says; one of them may be 0, which before opset 14 copies another.
        self.can_restore = 0 not in self.lead and (unknown <= 1 or graph.opset() >= 14)
        self.lists = unknown > 1 and self.can_restore
        self.targets: dict[tuple[int, ...], Value] = {}  # by what is behind the leading dims

    # -- does it pay? ------------------------------------------------------------------------------------

    def gain(self) -> int:
        """Nodes that go: the Add of each product with a bias, and Reshapes (or Flattens) from and to matrices."""
        products = sum(self._is_biased(n) for n in self.nodes if n.op == "MatMul")
        entering = [v.producer for v in self.entering if self._was_matrix(v)]
        ends = (u for v in self.made() for u in self.outside(v) if _makes_rows(u, v))
        outer = [*entering, *(_only_reader(_only_reader(u)) for u in ends)]
        if not products and not self.cost() and all(map(self._is_of_rows, outer)):
            return 0
        return products + len(outer)

    def _was_matrix(self, v: Value) -> bool:
        """Does nobody else read the Reshape that made these rows of a matrix of the same width?"""
        if v.producer is None or v.producer.op != "Reshape" or v.is_output or not self.inside.issuperset(v.users):
            return False
        source = v.producer.inputs[0]
        dims = types.shape(source) if source is not None else None
        return dims is not None and len(dims) == 2 and dims[1] == _last(v)

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

    def leaving(self) -> Iterator[Value]:
        """What is read outside in its shape: by anything but what may as well be a Reshape of the matrix."""
        for v in self.made():
            outside = self.outside(v)
            if v.is_output or any(_target(u, v) is None and self._behind(u, v) is None for u in outside):
                yield v

    def _behind(self, user: Node, value: Value) -> tuple[int, ...] | None:
        """What is behind the leading dims in what a Reshape of `value` makes, if its target would list these."""
        if not self.lists or user.op != "Reshape" or user.graph is not value.graph or user.inputs[0] is not value:
            return None
        given, dims, n = user.input(1), types.shape(user.output), len(self.lead)
        if given is None or not given.constant or dims is None or dims[:n] != self.lead or 0 in dims:
            return None
        behind = tuple(d for d in dims[n:] if isinstance(d, int))
        return behind if len(behind) == len(dims) - n else None

    def _listed(self) -> list[tuple[int, ...]]:
        """What the targets have behind the leading dims, where these are listed."""
        if not self.lists:
            return []
        readers = ((u, v) for v in self.made() for u in self.outside(v) if _target(u, v) is None)
        found = [self._behind(u, v) for u, v in readers]
        return list(dict.fromkeys([*(b for b in found if b is not None), *((_last(v),) for v in self.leaving())]))

    def cost(self) -> int:
        """Reshapes at the ends, and what lists their targets. Behind a Reshape that nothing else reads, another one
        costs nothing."""
        entering = sum(
            v.producer is None or v.producer.op != "Reshape" or v.is_output or not self.inside.issuperset(v.users)
            for v in self.entering
        )
        listed = len(self._listed())
        listed += (1 if self.graph.opset() >= 15 else 2) if listed else 0
        return entering + sum(1 for _ in self.leaving()) + listed

    # -- doing it ----------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        self.targets = self._list_targets()
        super().carry_out()

    def _list_targets(self) -> dict[tuple[int, ...], Value]:
        """In front of all that reads them."""
        wanted, n, first = self._listed(), len(self.lead), self.nodes[0]
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

    def enter(self, v: Value, before: Node) -> Value:
        """What was a matrix is read as that at once: other passes may see in the Reshape between what they know."""
        source = v.producer.inputs[0] if v.producer is not None and self._was_matrix(v) else None
        if source is not None:
            return source
        result = self.new(v)
        self.reshape(v, [-1, _last(v)], result, before)
        return result

    def hand_out(self, v: Value, new: Value) -> None:
        """Reshapes outside read the matrix, Flattens and Unsqueezes become such; any other reader gets the value in
        its shape."""
        node, graph = v.producer, self.graph
        assert node is not None
        for user in self.outside(v):
            target = _target(user, v)
            if target is not None and user.op in ("Flatten", "Unsqueeze"):
                graph.take_over(user.output, self.reshape(new, target, None, user))
                graph.remove(user)
            elif target is not None:
                user.set_input(0, new)
                if user.inputs[1] is not None and user.inputs[1].array.tolist() != target:
                    user.set_input(1, graph.constant(np.array(target, np.int64), f"{v.name}_shape", user))
            elif (behind := self._behind(user, v)) is not None:
                user.set_input(0, new)
                user.set_input(1, self.targets[behind])
                user.set_attr("allowzero", 1)
        if v.is_output or self.outside(v):
            if self.lists:
                restored = Node(make_node("Reshape", "", "", {"allowzero": 1}), [new, self.targets[_last(v),]], [None])
                graph.take_over(v, graph.insert(restored, node))
            else:
                dims = [d if isinstance(d, int) else -1 for d in self.lead]
                graph.take_over(v, self.reshape(new, [*dims, _last(v)], None, node))


def _only_reader(node: Node | None) -> Node | None:
    """What reads the result of `node`, if it is one node."""
    return node.output.only_user if node is not None and len(node.outputs) == 1 else None


def _is_read_by(node: Node, nodes: set[Node]) -> bool:
    return any(u in nodes for v in node.outputs if v is not None for u in v.users)


def _last(value: Value) -> int:
    dims = types.shape(value)
    assert dims is not None and isinstance(dims[-1], int)
    return dims[-1]


def _makes_rows(user: Node, value: Value) -> bool:
    target = _target(user, value)
    return target is not None and len(target) == 2 and target[1] == _last(value)


def _target(user: Node, value: Value) -> list[int] | None:
    """With what target a Reshape, Flatten or Unsqueeze of `value` may as well be a Reshape of the matrix; None if there
    is none.

    Zeros copy dims of what is read, and Flatten joins them: what it makes is written out, the one unknown dim as -1.
    """
    if (
        user.op not in ("Flatten", "Reshape", "Unsqueeze")
        or user.graph is not value.graph
        or user.inputs[0] is not value
    ):
        return None
    if user.op == "Reshape":
        shape = user.input(1)
        if shape is None or not shape.constant:
            return None
        given: list[int] = shape.array.reshape(-1).tolist()
        if 0 not in given:
            return given
    dims = types.shape(user.output)
    if dims is None or 0 in dims:
        return None
    target = [d if isinstance(d, int) else -1 for d in dims]
    return target if target.count(-1) <= 1 else None
