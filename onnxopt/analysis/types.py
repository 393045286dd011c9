"""Element types and shapes of values on demand: known facts, else inference.

A fact (`Value.dtype`, `Value.shape`) stays true, since a rewrite keeps the contents of surviving values. Facts become
more precise: when an Unsqueeze or Shape becomes constant, inference replaces a symbol by a number. Readers of the
value are marked as changed (`learn`).

Inference runs when a rule queries a value without facts, at most once between two calls of `refresh_allowed`: cost
stays linear. Each round of passes begins with all facts (`settle`), so the result equals that of a second run. Types of
nodes just made by a pass, outside the graph, are inferred from their inputs, operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxopt.graph.dims import is_invented
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Dim, Shape, Value


def learn(value: Value, dims: Shape, asked: bool = False, renamed: bool = False) -> None:
    """Set the shape of `value` to `dims`, which must be true and at least as precise as the known shape.

    Readers are marked if `dims` is more precise; for an unknown shape only if it was `asked` for before; also if a size
    is `renamed` to a symbol not known to be equal before.
    """
    known, value.shape = value.shape, dims
    if asked if known is None else renamed or any(map(_is_more_precise, dims, known)):
        model = value.graph.model
        model.learnt += 1
        for user in value.users:
            model.mark(user)


def _is_more_precise(new: Dim, known: Dim) -> bool:
    """Whether `new` is more precise: a number before a symbol, an input's symbol before an invented one."""
    return new != known and (known is None or isinstance(new, int) or (is_invented(known) and not is_invented(new)))


def infer(model: Model) -> None:
    """Infer the types of values of the main graph and its bodies."""
    from onnxopt.analysis.facts import infer_facts

    infer_facts(model)


def dtype(value: Value | None) -> int:
    """Return the ONNX element type; 0 if unknown (or not a tensor), and without a value."""
    if value is None:
        return 0
    if value.constant:
        return value.constant_type()[0]
    if not value.dtype:
        _find_out(value)
    return value.dtype


def shape(value: Value | None) -> Shape | None:
    """Return dims: int, symbol (equal symbols are equal sizes) or None; None for unknown rank, and without a value."""
    if value is None:
        return None
    if value.constant:
        return value.constant_type()[1]
    if value.shape is None:
        _find_out(value)
    return value.shape


def dims_of(value: Value | None) -> Shape:
    """Return the dims of an operand; none for an absent one, or for unknown rank."""
    return shape(value) or ()


def full_shape(value: Value | None) -> Shape | None:
    """Return the shape if no dim is unknown, else None."""
    dims = shape(value)
    return None if dims is None or None in dims else dims


def length_of(value: Value | None, axis: int) -> int | None:
    """Return the number of elements along an axis; None if unknown."""
    dims = dims_of(value)
    length = dims[axis] if -len(dims) <= axis < len(dims) else None
    # In code that never runs, an axis may be missing, or a size negative.
    return length if isinstance(length, int) and length >= 0 else None


def rank(value: Value | None) -> int | None:
    dims = shape(value)
    return None if dims is None else len(dims)


def static_shape(value: Value | None) -> tuple[int, ...] | None:
    """Return the shape if every dim is a number, else None."""
    dims = shape(value)
    sizes = tuple(d for d in dims or () if isinstance(d, int))
    return sizes if dims is not None and len(sizes) == len(dims) else None


def same_shape(a: Value, b: Value) -> bool:
    """Whether the shapes are proven equal: all dims are equal numbers or symbols."""
    x, y = shape(a), shape(b)
    return x is not None and x == y and None not in x


def foresee(nodes: Iterable[Node], values: Sequence[Value]) -> list[tuple[int, Shape | None]]:
    """Return (element type, shape) of each value, from facts known now; `nodes`, in order, are not in the graph yet.

    Stores no facts, so that a check does not influence later decisions.
    """
    made = [v for node in nodes for v in node.results]
    before = [(v.dtype, v.shape, v.unasked) for v in made]
    models = {v.graph.model for v in values}
    flags = [(model, model.inference_allowed, model.is_vague) for model in models]
    for model in models:
        model.inference_allowed = False
    found = []
    for v in values:
        if v.producer is not None and v.producer.graph is None:
            found.append((dtype(v), shape(v)))
        else:
            found.append((v.known_dtype, v.known_shape))
    for v, (kind, dims, unasked) in zip(made, before):
        v.dtype, v.shape, v.unasked = kind, dims, unasked
    for model, allowed, vague in flags:
        model.inference_allowed, model.is_vague = allowed, vague
    return found


def refresh_allowed(model: Model) -> None:
    """Allow the next query without facts to run inference again, if the model changed."""
    model.inference_allowed = True
    model.analyses.clear()


def update(model: Model) -> None:
    """Run inference again if the model changed: symbols may have become numbers."""
    if model.inferred_version != model.version:
        infer(model)
        model.inferred_version = model.version


def settle(model: Model) -> None:
    """Run inference again if more may be known now; else allow it for the next query without facts."""
    model.inference_allowed = True
    if model.is_vague:
        update(model)


def is_open(value: Value) -> bool:
    """Whether the rank or a dim is known neither as a number nor by a name of the file."""
    dims = shape(value)
    return dims is None or any(d is None or is_invented(d) for d in dims)


def _find_out(value: Value) -> None:
    """Infer a value: through the graph, or for a new node by the operator alone."""
    node, model = value.producer, value.graph.model
    is_made = node is not None and node.graph is None
    if not is_made and model.inference_allowed and model.inferred_version != model.version:
        model.inference_allowed = False
        update(model)
    if value.unasked and value.shape is None:
        _infer_made(value)


def _infer_made(value: Value) -> None:
    """Infer the type of a value made by a pass, and of its operands, each once."""
    from onnxopt.analysis.facts import infer_new

    stack = [value]
    while stack:
        asked = stack[-1]
        node = asked.producer
        waiting = [v for v in node.operands if v.unasked and v is not asked] if node is not None else []
        first, asked.unasked = asked.unasked, False
        if waiting and first:
            stack += waiting
            continue
        stack.pop()
        if node is not None and node.op != "Constant" and (not asked.dtype or asked.shape is None):
            infer_new(node)
