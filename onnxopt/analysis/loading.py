"""Decides whether a runtime would reject the model after a change, by inference of downstream nodes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Final

from onnxopt.analysis import kernels, types
from onnxopt.analysis.inference import DATA_UP_TO, Known
from onnxopt.analysis.loading_types import (
    as_given,
    content,
    differ,
    dims_of,
    evaluate,
    given_out,
    has_to_agree,
    inferred,
    is_in_body,
    known_constant,
    known_operands,
    look_inside,
    of_any_shape,
    opset_of,
    part_of_shape,
    seen_by,
    with_numbers,
)
from onnxopt.analysis.types import NOTHING
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.operators import CONTROL_FLOW
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.inference import is_below_zero
from onnxopt.proto.messages import Array, tensor_type_proto

# -- inference of a node by a runtime --------------------------------------------------------------------------


def made_of(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return the knowledge of a runtime on a node's results; None if the node is rejected."""
    if _has_no_kernel(node, given):
        return None
    arrays = known_operands(node, given)
    if arrays is not None and not node.has_references and kernels.result_bytes(node, arrays) <= DATA_UP_TO:
        try:
            results = evaluate(node, arrays, opset_of(node))
        except kernels.Invalid:
            return None
        if results is not None:
            return {v: known_constant(r) for v, r in zip(node.outputs, results) if v is not None}
    return _made_by_rules(node, given)


def _made_by_rules(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """Return `made_of` a node that is inferred, not computed."""
    found = inferred(node, given)
    if found and any(is_below_zero(kind) for kind, _ in found.values()):
        return None  # runtimes compute with negative sizes, and reject what does not fit
    listed = _listed(node, given) if found and node.op == "Shape" else None
    return found if listed is None else {node.output: known_constant(listed)}


def _listed(shape: Node, given: Mapping[Value, Known]) -> Array | None:
    """Return the sizes listed by a Shape, if a runtime knows them."""
    x = shape.input(0)
    dims = dims_of(x, given) if x is not None and x in given else None
    return None if dims is None else part_of_shape(shape, dims)


def _has_no_kernel(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether onnxruntime rejects the node on computing it ahead, regardless of inference."""
    if node.op in ("Div", "Mod"):
        return is_by_zero(node, given)
    if node.op in ("Resize", "Upsample"):
        scales = content(node.input(1 if opset_of(node) < 11 else 2), given)
        return scales is not None and bool((scales <= 0).any())
    return False


def is_by_zero(node: Node, given: Mapping[Value, Known]) -> bool:
    divisor = content(node.input(1), given)
    return divisor is not None and element_kind(divisor) in "iu" and not divisor.all()


def is_misled(node: Node, given: Mapping[Value, Known] = NOTHING) -> bool:
    """Whether a result is, or may be, larger than a runtime infers.

    A runtime infers a PRelu's result from its first input, though onnxruntime (not the standard) lets the slope be
    larger.
    For an If whose branches must agree it may use a branch never taken.
    """
    if has_to_agree(node):
        return _may_disagree(node, given)
    if node.op != "PRelu":
        return False
    x, slope = (None if v is None else dims_of(v, given) for v in (node.input(0), node.input(1)))
    if x is None or slope is None:
        return bool(slope)
    both = zip(reversed(x), reversed(slope))
    return len(slope) > len(x) or any(b != 1 and differ(a, b) for a, b in both)


def _may_disagree(node: Node, given: Mapping[Value, Known]) -> bool:
    """Whether a branch may output another size than a runtime infers for the If."""
    agreed = inferred(node, given) or {}
    return any(
        not _is_so(v, dims, given)
        for value, *branches in given_out(node)
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


# -- rejection -------------------------------------------------------------------------------------------------

_MAX_OUTER_NODES: Final = 40  # nodes outside of bodies, which are many, re-inferred for their effect on bodies
_WARY: Final = 1000  # the same, if a body would be rejected
_NO_TYPE: Final[Known] = (tensor_type_proto(0, None), None)
_Made = dict[Value, Known] | None


def _is_turned_down(node: Node, old: _Made, new: _Made, given: Mapping[Value, Known]) -> bool:
    """Whether a node is rejected or misled that was not before, when `old` was known of its results."""
    if new is None and (old is not None or made_of(node, _unshaped(node)) is not None):
        return True  # also where `old` follows from facts that runtimes may not have
    return new != old and is_misled(node, given)


class Loading:
    """The changes already permitted in a round of passes, whose effects may combine."""

    def __init__(self, left: int) -> None:
        """`left`: number of nodes that may still be inferred."""
        self.left = left
        self._far = _MAX_OUTER_NODES  # the same for nodes outside of bodies
        self._wary = False
        self._known: dict[Value, Known] = {}  # permitted changes
        self.inside: dict[Value, Known] = {}  # what runtimes knew of values in bodies before
        self.may: dict[Value, Known] = {}  # what they may have known
        # Values that lead to bodies that would be rejected, or to nodes whose inferred sizes are wrong.
        self.watched: set[Value] = set()
        self.annotated: dict[Value, Shape] = {}  # declared shapes known to runtimes

    def is_refused(self, value: Value, given: Array | Value, readers: Iterable[Node] | None) -> bool:
        """See `constants.is_refused`."""
        if isinstance(given, Value) and given in self.watched:
            self.watched.add(value)  # it takes the place of `given`
        asked = dict.fromkeys(_takers(value) if readers is None else readers)
        constant = not isinstance(given, Value) or given.constant
        if not self._is_read_there(value, asked, constant=constant):
            return False
        before: dict[Value, Known] = {value: self._as_it_is(value)}
        # a value replaced by itself: by facts
        others = NOTHING if given is value else ChainMap(self._known, self.may, self.inside)
        after: dict[Value, Known] = {value: as_given(given, others)}
        if before == after:
            return False  # too large to be read, and no new size
        was = self._known.get(value)
        refused = self.refuses(asked, before, after)
        if refused:
            self.beware()
        elif readers is not None:  # other readers keep the old value
            del self._known[value]
            if was is not None:
                self._known[value] = was
        return refused

    def told(self, value: Value) -> Shape | None:
        """Return the sizes possibly known to runtimes of a value, permitted changes included."""
        return dims_of(value, ChainMap(self._known, self.may, self.inside))

    def beware(self) -> None:
        """Note that a body would be rejected: undecidable changes are now declined, and the limit is raised."""
        if not self._wary:
            self._wary, self._far = True, self._far + _WARY

    def refuses(self, asked: dict[Node, None], before: dict[Value, Known], after: dict[Value, Known]) -> bool:
        """Whether a node in `asked`, or downstream, accepts the knowledge `before` and rejects `after`."""
        told = ChainMap(after, self._known)
        then = ChainMap(after, self._known, self.may, self.inside)
        while asked and self.left > 0:
            node = next(iter(asked))
            del asked[node]
            outer = not is_in_body(node) and known_operands(node, then) is None
            if outer and not self._is_watched(node):
                continue
            if outer and self._far <= 0:
                return True
            self._far -= outer
            self.left -= 1
            old = made_of(node, ChainMap(before, self._known, seen_by(node, self.inside)))
            new = made_of(node, ChainMap(after, self._known, seen_by(node, ChainMap(self.may, self.inside))))
            if _is_turned_down(node, old, new, then):
                return True
            was_made = self._as_annotated(old)
            for v, known in self._as_annotated(new).items():
                was = was_made.get(v, _NO_TYPE)
                if known != was and told.get(v) != known:
                    before[v], after[v] = was, known
                    asked.update(dict.fromkeys(_takers(v)))
        if asked and self._wary:
            return True
        self._known.update(after)
        return False

    def _as_annotated(self, made: Mapping[Value, Known] | None) -> Mapping[Value, Known]:
        """Return the types of a node's results, completed by declared shapes."""
        if not made or self.annotated.keys().isdisjoint(made):
            return made or {}
        dims = {v: with_numbers(dims_of(v, made), self.annotated[v]) for v in made if v in self.annotated}
        return {**made, **{v: (tensor_type_proto(types.dtype(v), known), made[v][1]) for v, known in dims.items()}}

    def _is_watched(self, node: Node) -> bool:
        """Whether a node is in a body (and may never run), or leads to a body or to a misleading node."""
        if is_in_body(node) or has_to_agree(node):
            return True
        asks = self._far > 0 or self._wary
        return asks and not self.watched.isdisjoint(node.results)

    def _is_read_there(self, value: Value, readers: Iterable[Node], *, constant: bool) -> bool:
        """Whether a value, or a value computed only from it and constants, is read by a watched node."""
        known, stack = {value}, list(readers)
        while stack and self.left > 0:
            node = stack.pop()
            if self._is_watched(node):
                return True
            self.left -= 1
            if constant and all(v.constant or v in known for v in node.operands):
                new = set(node.results) - known
                known |= new
                stack += [user for v in new for user in v.users]
        return False

    def _as_it_is(self, value: Value) -> Known:
        """Return the inferred type of a value, without facts from other sources."""
        maker = value.producer
        if maker is None:
            return of_any_shape(value)
        self._look_before(maker)
        made = inferred(maker, ChainMap(self._known, seen_by(maker, self.inside)))
        return (made or {}).get(value) or of_any_shape(value)

    def _look_before(self, node: Node) -> None:
        """Infer what runtimes know of watched values upstream of a node, on demand."""
        stack, asked = [node], dict[Node, None]()
        while stack and len(asked) < _MAX_OUTER_NODES:
            last = stack[-1]
            before = [v.producer for v in last.operands if v in self.watched and v not in self.inside]
            makers = [maker for maker in before if maker is not None and maker not in asked]
            if makers and last not in asked:
                stack += makers
            elif (done := stack.pop()) is not node:
                look_inside([done], self.inside, self.annotated)
            asked[last] = None


def _takers(value: Value) -> list[Node]:
    """Return the readers of a value, and the If, Loop or Scan that outputs it."""
    owner = value.graph.owner if value.is_output else None
    return [*value.users, owner] if owner is not None and owner.op in CONTROL_FLOW else list(value.users)


def _unshaped(node: Node) -> dict[Value, Known]:
    return {v: of_any_shape(v) for v in node.operands if not v.constant}
