"""Decides whether a runtime would reject the model after a change, by inference of downstream nodes.

Runtimes are taken to know all facts that onnxopt knows, and all declared shapes, which may be wrong. They know less, so
a few changes are refused for which a runtime lacks a fact; only in code that never runs, since the facts are true.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from onnxopt.analysis import kernels, types
from onnxopt.analysis.inference import (
    DATA_UP_TO,
    Known,
    branch_results,
    differ,
    dims_of,
    has_to_agree,
    inferred,
    opset_of,
    with_numbers,
)
from onnxopt.analysis.shapes.sizes import listed_by
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, values_read
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.operators import CONTROL_FLOW
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import (
    Array,
    array_to_tensor,
    element_type,
    is_below_zero,
    tensor_bytes,
    tensor_to_array,
    tensor_type,
    tensor_type_proto,
)

_PICKS: Final = 4  # nodes from a Shape to a list of sizes
_MAX_OUTER_NODES: Final = 40  # nodes outside of bodies, which are many, inferred for changes of their operands


class Loading:
    """Knowledge assumed of a runtime in a round of passes, with the changes permitted so far, whose effects combine.

    `lost`: results of nodes that a runtime with this knowledge would reject, or infer wrongly, and of nodes upstream:
    the less a runtime knows of these the better. Values are noted, not nodes: rewrites replace nodes, and keep values.
    """

    def __init__(self, model: Model) -> None:
        types.update(model)
        scopes = list(model.scopes())
        order = [n for scope in scopes if scope.owner is None for n in _in_order(scope) if n.op != "Constant"]
        made = itertools.chain(*(scope.inputs for scope in scopes), *(node.results for node in order))
        self._facts = {v: types.shape(v) for v in made}  # passes may learn more in this round
        self._left = 1000 + 4 * len(order)  # nodes in bodies that may still be inferred for changes
        self._outer = _MAX_OUTER_NODES
        self.annotated = _annotated_shapes(scopes)
        self._known: dict[Value, Known] = {  # beyond the facts
            v: (tensor_type_proto(types.dtype(v), dims), None) for v, dims in self.annotated.items()
        }
        rejected, never = list[Node](), set[Value]()  # `never`: values of bodies that never run
        for node in filter(self._is_inferred, order):
            found = made_of(node, self._known)
            if _is_rejected(node, found, self._known) or not never.isdisjoint(node.operands):
                rejected.append(node)
                never.update(node.results if is_in_body(node) else ())
            self._known.update(self._new_knowledge(found or {}))
        self.lost = _upstream(rejected)

    def _is_inferred(self, node: Node) -> bool:
        return _may_be_rejected(node) or bool(node.bodies) or node.op == "Shape" or self._is_known_better(node)

    def is_refused(self, value: Value, given: Array | Value, readers: Iterable[Node] | None) -> bool:
        """See `constants.is_refused`."""
        if isinstance(given, Value) and given in self.lost:
            self.lost.add(value)  # `value` takes the place of `given`
        asked = dict.fromkeys(_takers(value) if readers is None else readers)
        if any(not self.lost.isdisjoint(node.outputs) for node in asked):
            return True
        if self._outer <= 0 and not any(map(_may_be_rejected, asked)):
            return False
        after = self._new_knowledge({value: self._knowledge_of(given)})
        if not after or self._is_rejected_downstream(asked, after):
            return bool(after)
        if readers is not None:  # other readers keep the old value
            del after[value]
        self._known.update(after)
        return False

    def told(self, value: Value) -> Shape | None:
        """Return the sizes possibly known to runtimes of a value, permitted changes included."""
        return self._facts[value] if value in self._facts and value not in self._known else dims_of(value, self._known)

    def _is_rejected_downstream(self, asked: dict[Node, None], after: dict[Value, Known]) -> bool:
        """Whether a node in `asked`, or downstream, is rejected with the knowledge `after`, which grows."""
        known = ChainMap(after, self._known)
        while asked:
            node = next(iter(asked))
            del asked[node]
            if _may_be_rejected(node):
                self._left -= 1
            elif self._outer > 0:
                self._outer -= 1
            else:
                continue
            made = made_of(node, known) if self._left > 0 else None
            if self._left <= 0 or _is_rejected(node, made, known):
                return True
            for v, told in self._new_knowledge(made or {}).items():
                if after.get(v) != told:
                    after[v] = told
                    asked.update(dict.fromkeys(_takers(v)))
        return False

    def _is_known_better(self, node: Node) -> bool:
        """Whether more than the facts is known of an operand, or everything of all operands."""
        return any(v in self._known for v in node.operands) or all(v.constant for v in node.operands)

    def _new_knowledge(self, found: Mapping[Value, Known]) -> dict[Value, Known]:
        """Return the part of `found` that is new, completed by earlier knowledge."""
        more = {}
        for v, (kind, data) in found.items():
            ours = self.told(v)
            dims = with_numbers(ours, tensor_type(kind)[1])
            told = tensor_type_proto(types.dtype(v), dims), data
            if (data is not None or dims != ours) and told != self._known.get(v):
                more[v] = told
        return more

    def _knowledge_of(self, given: Array | Value) -> Known:
        """Return everything known of a value or array; for picks from a Shape, the listed sizes."""
        listed = given if not isinstance(given, Value) or given.constant else self._listed(given, _PICKS)
        if listed is not None:
            return known_constant(listed)
        assert isinstance(given, Value)
        dims = with_numbers(self.told(given), types.shape(given))
        return tensor_type_proto(types.dtype(given), dims), None

    def _listed(self, value: Value, steps: int) -> Array | None:
        """Return the sizes held by a value, which may be new, followed through at most `steps` nodes."""
        node, found = value.producer, content(value, self._known)
        if found is not None or node is None or not steps or node.has_references or (types.rank(value) or 0) > 1:
            return found
        if node.op == "Shape":
            return part_of_shape(node, dims_of(node.operand(0), self._known))
        known = dict[Value, Known]()
        for v in node.operands:
            if (listed := self._listed(v, steps - 1)) is None:
                return None
            known[v] = known_constant(listed)
        return content(value, made_of(node, known) or {})


def _may_be_rejected(node: Node) -> bool:
    """Whether a node may never run, or may have a wrong inferred size."""
    return is_in_body(node) or has_to_agree(node) or node.op == "PRelu"


def _is_rejected(node: Node, made: Mapping[Value, Known] | None, known: Mapping[Value, Known]) -> bool:
    """Whether a runtime rejects a node that may never run, or infers wrong sizes. `made`: the inferred results.

    Constants are computed on loading wherever they are.
    """
    if not _may_be_rejected(node):
        if made is not None or any(content(v, known) is None for v in node.operands):
            return False
    if made is None:  # a node rejected with any operands is not the fault of a change
        return made_of(node, {v: type_alone(v) for v in values_read(node) if not v.constant}) is not None
    return is_misled(node, known)


def _takers(value: Value) -> list[Node]:
    """Return the readers of a value, and the If, Loop or Scan that outputs it."""
    owner = value.graph.owner if value.is_output else None
    return [*value.users, owner] if owner is not None and owner.op in CONTROL_FLOW else list(value.users)


def _upstream(nodes: Iterable[Node]) -> set[Value]:
    """Return the results of these nodes, and of all nodes they are computed from."""
    found: set[Value] = set()
    done: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in done:
            done.add(node)
            found.update(node.results)
            read = list(values_read(node))
            stack += [v.producer for v in read if v.producer is not None]
            stack += [v.graph.owner for v in read if v.is_input and v.graph.owner is not None]
    return found


def _in_order(scope: Graph) -> Iterator[Node]:
    """Yield nodes after their operands, and nodes of bodies before the owner."""
    for node in scope:
        for body in node.bodies.values():
            yield from _in_order(body)
        yield node


# -- declared sizes, which runtimes trust, though they may be wrong --------------------------------------------


def _annotated_shapes(scopes: Iterable[Graph]) -> dict[Value, Shape]:
    """Return declared shapes more precise than known ones; inputs of the main graph are taken as declared anyway."""
    found: dict[Value, Shape] = {}
    for scope in scopes:
        for v, dims in () if scope.is_function else _annotations(scope):
            known = with_numbers(types.shape(v), dims)
            if known is not None and known != types.shape(v):
                found[v] = known
    return found


def _annotations(scope: Graph) -> Iterator[tuple[Value, Shape | None]]:
    infos = list(zip(scope.outputs, scope.proto.output))
    if scope.owner is not None:
        infos += zip(scope.inputs, scope.proto.input)
    inside = {info.name: info for info in scope.proto.value_info}
    if inside:
        infos += [(v, inside[v.name]) for node in scope for v in node.results if v.name in inside]
    return ((v, tensor_type(info.type)[1]) for v, info in infos)


# -- inference of a node by a runtime --------------------------------------------------------------------------


def made_of(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return the knowledge of a runtime on a node's results; None if the node is rejected."""
    if _has_no_kernel(node, given):
        return None
    if node.op == "Shape":
        listed = part_of_shape(node, dims_of(node.operand(0), given))
        return {} if listed is None else {node.output: known_constant(listed)}
    arrays = known_operands(node, given)
    if arrays is not None and not node.has_references and kernels.result_bytes(node, arrays) <= DATA_UP_TO:
        try:
            results = kernels.evaluate(node, arrays, opset_of(node))
        except kernels.Invalid:
            return None
        if results is not None:
            return {v: known_constant(r) for v, r in zip(node.outputs, results) if v is not None}
    found = inferred(node, given)
    # Runtimes compute with negative sizes, and reject nodes of other sizes.
    return None if found and any(is_below_zero(kind) for kind, _ in found.values()) else found


def _has_no_kernel(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether onnxruntime rejects the node on computing its result ahead, regardless of inference."""
    if node.op in ("Div", "Mod"):
        return is_by_zero(node, given)
    if node.op in ("Resize", "Upsample"):
        scales = content(node.input(1 if opset_of(node) < 11 else 2), given)
        return scales is not None and bool((scales <= 0).any())
    return False


def is_by_zero(node: Node, given: Mapping[Value, Known]) -> bool:
    divisor = content(node.input(1), given)
    return divisor is not None and element_kind(divisor) in "iu" and not divisor.all()


def is_misled(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether a result is, or may be, larger than a runtime infers.

    A runtime infers a PRelu's result from its first input, though onnxruntime (not the standard) lets the slope be
    larger.
    For an If whose branches must agree it may use a branch never taken.
    """
    if has_to_agree(node):
        return _may_disagree(node, given)
    if node.op != "PRelu":
        return False
    x, slope = (dims_of(node.operand(i), given) for i in (0, 1))
    if x is None or slope is None:
        return False
    both = zip(reversed(x), reversed(slope))
    return len(slope) > len(x) or any(b != 1 and differ(a, b) for a, b in both)


def _may_disagree(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether a branch may output another size than a runtime infers for the If."""
    agreed = inferred(node, given) or {}
    return any(
        not _is_so(v, dims, given)
        for value, *branches in branch_results(node)
        if (dims := dims_of(value, agreed)) is not None
        for v in branches
    )


def _is_so(value: Value, dims: Shape, given: Mapping[Value, Known]) -> bool:
    """Whether a value certainly has the numbers in `dims`."""
    ours, theirs = types.shape(value), dims_of(value, given)
    known = ours if theirs is None else with_numbers(ours, theirs)
    return (
        known is not None and len(known) == len(dims) and all(a == b for a, b in zip(dims, known) if isinstance(a, int))
    )


# -- inferred types and known contents -------------------------------------------------------------------------


def is_in_body(node: Node) -> bool:
    return node.graph is not None and node.graph.owner is not None


def known_operands(node: Node, given: Mapping[Value, Known]) -> list[Array | None] | None:
    """Return the arrays of all operands, or None if any is unknown."""
    found = [None if v is None else content(v, given) for v in node.inputs]
    return None if any(v is not None and a is None for v, a in zip(node.inputs, found)) else found


def content(value: Value | None, given: Mapping[Value, Known]) -> Array | None:
    """Return the data of a value if known and small."""
    if value is None:
        return None
    if value in given:
        data = given[value][1]
        return None if data is None else tensor_to_array(data)
    small = value.constant and tensor_bytes(*value.constant_type()) <= DATA_UP_TO
    return value.array if small else None


def known_constant(given: Array | Value) -> Known:
    kind, dims = given.constant_type() if isinstance(given, Value) else (element_type(given), given.shape)
    if tensor_bytes(kind, dims) > DATA_UP_TO:
        return tensor_type_proto(kind, dims), None
    array = np.array(given.array if isinstance(given, Value) else given, order="C")
    return tensor_type_proto(kind, dims), array_to_tensor(array, "")


def type_alone(value: Value) -> Known:
    return tensor_type_proto(types.dtype(value), None), None


def part_of_shape(node: Node, dims: Shape | None) -> Array | None:
    """Return the sizes listed by a Shape node, or None if any is unknown."""
    if dims is None:
        return None
    part = dims[listed_by(node)]
    return np.array(part, np.int64) if all(isinstance(d, int) for d in part) else None
