"""Which values must not become constant: those as which runtimes would refuse the model.

A runtime infers all of a model when it loads it, also what never runs: a branch that is not taken, the body of a Loop
without trips. What such a body computes may be impossible, as long as nobody knows: a TopK of more than there is, a
product of matrices that do not fit. What is in no body runs always: what is impossible there is the model's own fault.
But for what is computed otherwise than it is inferred: the more is known of what such a node reads, the more is
inferred that is not so, and what comes of it is refused, or given too little memory.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import field
from typing import Final

from onnx import TensorProto

from onnxopt.analysis import kernels, types
from onnxopt.analysis.loading import (
    as_given,
    content,
    declared,
    dims_of,
    evaluate,
    given_out,
    has_to_agree,
    inferred,
    is_in_body,
    known_constant,
    look_further,
    look_inside,
    of_any_shape,
    operands,
    opset_of,
    part_of_shape,
    seen_by,
)
from onnxopt.analysis.sayings import said, with_numbers
from onnxopt.analysis.types import DATA_UP_TO, NOTHING, Known
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Shape, Value
from onnxopt.inferring import is_below_zero
from onnxopt.protos import Array, tensor_type_proto
from onnxopt.record import record

REFUSED: Final = "runtimes would refuse what comes of it: it may never run, or is not what they infer"
_EARLIER: Final = "values that may be constant"
_FAR: Final = 40  # nodes outside of bodies, which are many, of which it is asked what they tell these,
_WARY: Final = 1000  # and so many where one would be refused
_OWNERS: Final = ("If", "Loop", "Scan")
_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_NOTHING: Final[Known] = (tensor_type_proto(0, None), None)


@record
class _Earlier:
    """What the same round of passes was told it may do, which may meet, and how much it may still ask, in all and of
    what is in no body. `inside`: what runtimes knew before of values in bodies, `may`: and what they may have known.
    `watched`: values from which a body that would refuse what is so learns more, or what is inferred otherwise than it
    is. `said`: what they know of values because the file says so."""

    left: int
    far: int = _FAR
    wary: bool = False
    known: dict[Value, Known] = field(default_factory=dict)
    inside: dict[Value, Known] = field(default_factory=dict)
    may: dict[Value, Known] = field(default_factory=dict)
    watched: set[Value] = field(default_factory=set)
    said: dict[Value, Shape] = field(default_factory=dict)


def is_refused(value: Value, given: Array | Value, readers: Iterable[Node] | None = None) -> bool:
    """Would a runtime that is given this constant, or other value, for `value` refuse the model, and does it not now?

    Its `readers` are asked (all, if none are named), and what comes after them for as long as more is known of it, by
    inference where it leads to a body, and everywhere what is made of constants only, which runtimes compute when they
    load a model.
    """
    graph = value.graph
    earlier = _earlier(graph.model)
    if graph.owner is None and not graph.owners and not earlier.watched:
        return False
    if isinstance(given, Value) and given in earlier.watched:
        earlier.watched.add(value)  # which takes its place
    asked = dict.fromkeys(_takers(value) if readers is None else readers)
    constant = not isinstance(given, Value) or given.constant
    if not _is_read_there(value, asked, earlier, constant=constant):
        return False
    before: dict[Value, Known] = {value: _as_it_is(value, earlier)}
    others = NOTHING if given is value else ChainMap(earlier.known, earlier.may, earlier.inside)  # itself: by our facts
    after: dict[Value, Known] = {value: as_given(given, others)}
    if before == after:
        return False  # it is too large to be looked at, and nobody learns a size
    was = earlier.known.get(value)
    refused = _refuses(asked, before, after, earlier)
    if refused:
        _beware(earlier)
    elif readers is not None:  # others read it as it is
        del earlier.known[value]
        if was is not None:
            earlier.known[value] = was
    return refused


def is_told_more(value: Value, other: Value) -> bool:
    """Does the file say more of `other`, which is the same, and would a runtime refuse the model if what reads `value`
    read that?"""
    graph = value.graph.root
    return bool(graph.owners) and other in _earlier(graph.model).said and is_refused(value, other)


def _beware(earlier: _Earlier) -> None:
    """There is a body that would be refused: what cannot be asked any more is not done, and more can be asked."""
    if not earlier.wary:
        earlier.wary, earlier.far = True, earlier.far + _WARY


def _refuses(asked: dict[Node, None], before: dict[Value, Known], after: dict[Value, Known], earlier: _Earlier) -> bool:
    """Does one of these nodes, or what comes after them, refuse what is known then, and not what is known now?"""
    told = ChainMap(after, earlier.known)
    then = ChainMap(after, earlier.known, earlier.may, earlier.inside)
    while asked and earlier.left > 0:
        node = next(iter(asked))
        del asked[node]
        if not is_in_body(node) and operands(node, then) is None:
            if not _is_watched(node, earlier):
                continue
            if earlier.far <= 0:
                return True
            earlier.far -= 1
        earlier.left -= 1
        old = _made(node, ChainMap(before, earlier.known, seen_by(node, earlier.inside)))
        new = _made(node, ChainMap(after, earlier.known, seen_by(node, ChainMap(earlier.may, earlier.inside))))
        if new is None and (old is not None or _made(node, _unshaped(node)) is not None):
            return True  # also where `old` follows from what we know, and runtimes may not
        if new != old and _is_misled(node, then):
            return True
        for v, known in _as_said(new, earlier).items():
            was = _as_said(old, earlier).get(v, _NOTHING)
            if known != was and told.get(v) != known:
                before[v], after[v] = was, known
                asked.update(dict.fromkeys(_takers(v)))
    if asked and earlier.wary:
        return True
    earlier.known.update(after)
    return False


def _as_said(made: Mapping[Value, Known] | None, earlier: _Earlier) -> Mapping[Value, Known]:
    """What a node makes, with what the file says of it besides."""
    if not made or earlier.said.keys().isdisjoint(made):
        return made or {}
    dims = {v: with_numbers(dims_of(v, made), earlier.said[v]) for v in made if v in earlier.said}
    return {**made, **{v: (tensor_type_proto(types.dtype(v), known), made[v][1]) for v, known in dims.items()}}


def _takers(value: Value) -> list[Node]:
    """What reads it, and the If, Loop or Scan that it is given out to."""
    owner = value.graph.owner if value.is_output else None
    return [*value.users, owner] if owner is not None and owner.op in _OWNERS else list(value.users)


def told(value: Value) -> Shape | None:
    """The sizes that runtimes may know of it, by what was asked in this round, too."""
    earlier = _earlier(value.graph.model)
    return dims_of(value, ChainMap(earlier.known, earlier.may, earlier.inside))


def look_ahead(model: Model) -> None:
    """To be called before more is learnt than runtimes infer: what leads to bodies is what they do not know yet."""
    _earlier(model)


def divides_by_zero(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Does one of these nodes, which are to be in a body, divide integers by a constant that is zero somewhere?"""
    return graph.owner is not None and any(_is_by_zero(n, {}) for n in nodes if n.op in ("Div", "Mod"))


def _earlier(model: Model) -> _Earlier:
    known = model.analyses.get(_EARLIER)
    if known is None:
        known = model.analyses[_EARLIER] = _Earlier(1000 + 4 * model.node_count())
        _watch(model, known)
    assert isinstance(known, _Earlier)
    return known


def _watch(model: Model, earlier: _Earlier) -> None:
    """Find what leads to bodies that would refuse what is so, and to what runtimes infer otherwise than it is. Values
    stay where nodes are made anew."""
    scopes = [scope for scope in model.scopes() if scope.owner is not None]
    misled = [n for scope in model.scopes() for n in scope.by_op.get("PRelu", ()) if _is_misled(n)]
    if not scopes and not misled:
        return
    order = [n for scope in model.scopes() if scope.owner is None for n in _in_order(scope)]
    bodies = [n for n in order if is_in_body(n)]
    read = {v for n in bodies for v in n.inputs if v is not None and v.graph.owner is None and not v.constant}
    earlier.watched = {v for n in misled for v in n.outputs if v is not None}
    _watch_before(misled, earlier.watched, lambda v: True)
    refused = _refuses(
        dict.fromkeys(n for n in bodies if not read.isdisjoint(n.inputs)),
        {v: of_any_shape(v) for v in read},
        {v: as_given(v) for v in read},
        _Earlier(earlier.left),
    )
    if refused:
        _beware(earlier)
    earlier.said = said(model.scopes()) if bodies else {}
    all_matter = refused or _leads_there(earlier.said, read, bodies)
    leads = (lambda v: True) if all_matter else _tells_more
    read = read if all_matter else {v for v in read if types.is_open(v)}
    earlier.watched |= read
    _watch_before([v.producer for v in read if v.producer is not None], earlier.watched, leads)
    leading = [n for n in model.graph if not earlier.watched.isdisjoint(n.outputs)]
    # If it is refused, what we know of all these matters: from where on runtimes do not. Or what they are told.
    makers = leading if all_matter else [v.producer for v in read if v.producer is not None]
    for scope in scopes:
        if scope.owner is not None and scope.owner.op == "Loop":
            earlier.inside.update(declared(scope))
    inside = earlier.inside
    inside.update((v, (tensor_type_proto(types.dtype(v), dims), None)) for v, dims in earlier.said.items())
    look_inside(_those(order, makers, bodies), inside, earlier.said)
    look_further(_those(order, leading, bodies), earlier.may, inside)


def _in_order(scope: Graph) -> Iterator[Node]:
    """None before what it reads, and those of its bodies before it."""
    for node in scope:
        for body in node.bodies.values():
            yield from _in_order(body)
        yield node


def _those(order: Iterable[Node], *chosen: Iterable[Node]) -> list[Node]:
    wanted = set().union(*chosen)
    return [n for n in order if n in wanted]


def _leads_there(said: Mapping[Value, Shape], read: Set[Value], bodies: Iterable[Node]) -> bool:
    """Is something said of a value in these bodies, or of one that leads to what they `read`?"""
    if not said:
        return False
    leading = {v for n in bodies for v in n.outputs if v is not None} | read
    _watch_before([v.producer for v in read if v.producer is not None], leading, lambda v: True)
    return not leading.isdisjoint(said)


def _watch_before(nodes: list[Node], watched: set[Value], leads: Callable[[Value], bool]) -> None:
    """Watch what these nodes are made of, as far as it leads on."""
    stack = list(nodes)
    while stack:
        more = {v for v in stack.pop().inputs if v is not None and v not in watched and leads(v)}
        watched |= more
        stack += [v.producer for v in more if v.producer is not None]


def _tells_more(value: Value) -> bool:
    """May a runtime learn more by it than we know? Not of what comes of floats whose sizes are known, as it is open to
    us, too; but of a list of them, which may hold sizes."""
    return types.dtype(value) not in _FLOATS or types.is_open(value) or types.rank(value) == 1


def _is_misled(node: Node, given: Mapping[Value, Known] = NOTHING) -> bool:
    """Is what it makes larger than what a runtime infers, or may it be? Of a PRelu that is what it reads first, and the
    slope may be larger, if onnxruntime is asked: the standard has no such PRelu. Of an If whose branches have to agree
    it is what is said of any, as of a branch that never runs."""
    if has_to_agree(node):
        return _may_disagree(node, given)
    if node.op != "PRelu":
        return False
    x, slope = (None if v is None else dims_of(v, given) for v in (node.input(0), node.input(1)))
    if x is None or slope is None:
        return bool(slope)
    both = zip(reversed(x), reversed(slope))
    return len(slope) > len(x) or any(isinstance(a, int) and isinstance(b, int) and 1 != b != a for a, b in both)


def _may_disagree(node: Node, given: Mapping[Value, Known]) -> bool:
    """May a branch give out another size than a runtime infers of an If?"""
    agreed = inferred(node, given) or {}
    return any(
        not _is_so(v, dims, given)
        for value, *branches in given_out(node)
        if (dims := dims_of(value, agreed)) is not None
        for v in branches
    )


def _is_so(value: Value, dims: Shape, given: Mapping[Value, Known]) -> bool:
    """Has it surely these sizes, as far as they are numbers?"""
    ours, theirs = types.shape(value), dims_of(value, given)
    known = ours if theirs is None else with_numbers(ours, theirs)
    return (
        known is not None and len(known) == len(dims) and all(a == b for a, b in zip(dims, known) if isinstance(a, int))
    )


def _is_watched(node: Node, earlier: _Earlier) -> bool:
    """Is it in a body, which may never run, or does it lead there, or to what misleads a runtime?"""
    if is_in_body(node) or has_to_agree(node):
        return True
    asks = earlier.far > 0 or earlier.wary
    return asks and not earlier.watched.isdisjoint(v for v in node.outputs if v is not None)


def _is_read_there(value: Value, readers: Iterable[Node], earlier: _Earlier, *, constant: bool) -> bool:
    """Is it, or if it is to be `constant` what is made of it and others only, read by what is watched?"""
    known, stack = {value}, list(readers)
    while stack and earlier.left > 0:
        node = stack.pop()
        if _is_watched(node, earlier):
            return True
        earlier.left -= 1
        if constant and all(v is None or v.constant or v in known for v in node.inputs):
            new = {v for v in node.outputs if v is not None} - known
            known |= new
            stack += [user for v in new for user in v.users]
    return False


def _unshaped(node: Node) -> dict[Value, Known]:
    return {v: of_any_shape(v) for v in node.inputs if v is not None and not v.constant}


def _look_before(node: Node, earlier: _Earlier) -> None:
    """Ask what runtimes know of what leads to a node, as far as it is watched: of most nobody has to know."""
    stack, asked = [node], dict[Node, None]()
    while stack and len(asked) < _FAR:
        last = stack[-1]
        open_values = (v for v in last.inputs if v in earlier.watched and v not in earlier.inside)
        makers = [m for v in open_values if v is not None and (m := v.producer) is not None and m not in asked]
        if makers and last not in asked:
            asked[last] = None
            stack += makers
            continue
        asked[last] = None
        stack.pop()
        if last is not node:
            look_inside([last], earlier.inside, earlier.said)


def _as_it_is(value: Value, earlier: _Earlier) -> Known:
    """What inference says of it, and nothing that is known otherwise."""
    maker = value.producer
    if maker is None:
        return of_any_shape(value)
    _look_before(maker, earlier)
    made = inferred(maker, ChainMap(earlier.known, seen_by(maker, earlier.inside)))
    return (made or {}).get(value) or of_any_shape(value)


def _made(node: Node, given: Mapping[Value, Known]) -> dict[Value, Known] | None:
    """What is known of its results; None if it is refused."""
    if _has_no_kernel(node, given):
        return None
    arrays = operands(node, given)
    if arrays is not None and not node.has_references and kernels.result_bytes(node, arrays) <= DATA_UP_TO:
        try:
            results = evaluate(node, arrays, opset_of(node))
        except kernels.Invalid:
            return None
        if results is not None:
            return {v: known_constant(r) for v, r in zip(node.outputs, results) if v is not None}
    found = inferred(node, given)
    if found and any(is_below_zero(kind) for kind, _ in found.values()):
        return None  # runtimes calculate with such a size, and refuse what does not fit it
    x = node.input(0)
    if found and node.op == "Shape" and x is not None and x in given:  # runtimes know what it lists
        dims = dims_of(x, given)
        part = None if dims is None else part_of_shape(node, dims)
        if part is not None:
            return {node.output: known_constant(part)}
    return found


def _has_no_kernel(node: Node, given: Mapping[Value, Known]) -> bool:
    """Does onnxruntime refuse it as soon as it is to compute it, whatever inference says?"""
    if node.op in ("Div", "Mod"):
        return _is_by_zero(node, given)
    if node.op in ("Resize", "Upsample"):
        scales = content(node.input(1 if opset_of(node) < 11 else 2), given)
        return scales is not None and bool((scales <= 0).any())
    return False


def _is_by_zero(node: Node, given: Mapping[Value, Known]) -> bool:
    divisor = content(node.input(1), given)
    return divisor is not None and divisor.dtype.kind in "iu" and not divisor.all()
