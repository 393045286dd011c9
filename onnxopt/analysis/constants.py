"""Values that may become constant: pure nodes, equal contents, copies for many readers, and rejection by runtimes.

A runtime infers the whole model on loading, also code that never runs: an untaken branch, the body of a Loop without
iterations. An impossible computation there (a TopK of more than exists, a product of unequal sizes) is harmless as
long as the sizes are unknown. Outside of bodies an impossible computation is the model's own fault. Nodes with a wrong
inferred size are an exception: more knowledge of the operands leads to more wrong results, and downstream nodes are
rejected or get too little memory. Most models have neither, and nothing is rejected. For the rest `loading` decides;
that module is imported on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np
from onnx import TensorProto

from onnxopt.analysis import types
from onnxopt.analysis.kernels import Invalid, evaluate
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node, producer
from onnxopt.graph.schema import is_deterministic, is_known
from onnxopt.graph.value import Shape, Value
from onnxopt.operators import ARITHMETIC, CONTROL_FLOW, EXACT, PICKS, of_form
from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import Array, is_external, tensor_bytes

if TYPE_CHECKING:
    from onnxopt.analysis.loading import Loading


def kind_of_initializer(value: Value) -> str:
    """Return why an initializer is not constant; empty for other values."""
    if value.tensor is None:
        return ""
    return "an initializer that callers may override" if value.is_input else "an initializer that training changes"


# -- purity: a result that depends on the inputs only may be folded or shared ----------------------------------

# Quantization marks structure for runtimes; containers are no tensors; the rest is handled elsewhere.
_KEPT: Final = CONTROL_FLOW | (of_form("code") - {"QuantizeLinear"}) | {"Dropout"}


def _is_of_tensors(op: str) -> bool:
    """Whether an operator may be folded, and neither takes nor makes sequences and optionals."""
    return op not in _KEPT and (op == "ReverseSequence" or not ("Sequence" in op or "Optional" in op))


def is_computable(node: Node, opset: int) -> bool:
    """Whether a node computes tensors from its inputs only, deterministically. `opset`: of the node's domain."""
    op = node.op
    if node.bodies or not node.inputs or not _is_of_tensors(op) or not is_deterministic(op):
        return False
    if (op == "Identity" and node.output.is_output) or not is_known(op, opset) or node.has_references:
        return False
    # In training mode BatchNormalization uses batch statistics, and its running statistics are state.
    return not node.attr("training_mode", 0) or not any(node.used_outputs())


def may_train(node: Node) -> bool:
    """Whether a BatchNormalization or Dropout may be in training mode, declared differently across opsets."""
    if node.op not in ("BatchNormalization", "Dropout"):
        return False
    if node.graph is None or node.has_references:
        return True
    opset = node.graph.opset()
    if opset < 7:
        return not node.attr("is_test", 0)
    if node.op == "Dropout":
        mode = node.input(2)
        return mode is not None and not (mode.constant and not mode.array.any())
    return bool(node.attr("training_mode", 0)) if opset >= 14 else len(node.outputs) > 1


# -- copies for many readers: small files must not become large ------------------------------------------------

READ_BY_MANY: Final = "many others read the constant, and each would get its own"
READERS: Final = 8  # readers that may each have a copy of any size
_COPIES: Final = 1 << 22  # bytes of all copies for more readers
_MAX_DISTANCE: Final = 3  # nodes from a constant to the replaced node


def is_read_by_many(constant: Value, copy: int) -> bool:
    """Whether copies of `copy` bytes for each reader would be too much."""
    readers = len(constant.users)
    if readers <= READERS or copy * readers <= _COPIES or not constant.is_stored:
        return False
    return tensor_bytes(*constant.constant_type()) < 2 * copy  # far smaller results are no copies


def gives_way(constant: Value, copy: int, anchor: Node) -> bool:
    """Whether replacing `anchor` removes as much as a copy of `copy` bytes adds."""
    if not constant.is_stored or tensor_bytes(*constant.constant_type()) < copy:
        return False
    reader = constant.only_user
    for _ in range(_MAX_DISTANCE):
        if reader is None or reader is anchor:
            break
        reader = reader.output.only_user if len(reader.outputs) == 1 else None
    return reader is anchor


# -- equal contents, found in time linear in their size --------------------------------------------------------

T = TypeVar("T")

MAX_BYTES: Final = 1 << 26
_FIRST: Final = 16  # elements compared before the rest
_ARITHMETIC: Final = ARITHMETIC & EXACT
_MAX_PICKS: Final = 8  # nodes between a value and its constant
_SAMPLED: Final = 16
_SMALL_BYTES: Final = 256  # bytes
_SOME: Final = 1 << 14  # bytes; above, hashing is faster than comparing


class Contents:
    """Values by contents: equal type, dims and bytes.

    A value is decoded only if another has its type and dims, and hashed once, only if sampled bytes are equal, too.
    Never equal to others: strings, constants above `max_bytes`, external data (not read), and statistics of a
    BatchNormalization in training, updated by runtimes.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._asked: dict[Value, Value] = {}
        self._first: dict[Hashable, Value | None] = {}  # by key
        self._holders: dict[int, Value] = {}  # by id of the array, which several values may share

    def first_like(self, value: Value) -> Value:
        """Return the first queried value of equal contents, or `value` itself."""
        found = self._asked.get(value)
        if found is None:
            found = self._asked[value] = self._find(value) if self._comparable(value) else value
        return found

    def _find(self, value: Value) -> Value:
        array = value.held
        if array is not None:
            holder = self._holders.setdefault(id(array), value)
            if holder is not value and holder.held is array:
                return self._asked[holder]
        return first_like(value, self._first, (Value.constant_type, _sample, _digest))

    def _comparable(self, value: Value) -> bool:
        node, tensor = value.producer, value.tensor
        if not value.is_stored:
            return False  # a computed constant is merged with its node
        if node is not None and "value" in node.attributes:
            tensor = node.attributes["value"].t
        if tensor is not None and is_external(tensor):
            return False
        for user in value.users:
            if user._op == "BatchNormalization" and _updates(user, value):
                return False
        data_type, dims = value.constant_type()
        return data_type != TensorProto.STRING and tensor_bytes(data_type, dims) <= self.max_bytes


def _updates(node: Node, value: Value) -> bool:
    """Whether a BatchNormalization may train, and `value` is one of its statistics."""
    return value in node.inputs[3:] and may_train(node)


def first_like(item: T, seen: MutableMapping[Hashable, T | None], told: Sequence[Callable[[T], Hashable]]) -> T:
    """Return the first item in `seen` with equal keys, or `item` itself.

    `told`: key functions, cheap ones first; each is called once for an item, and only if all earlier keys are equal.
    """
    key: Hashable = ()
    first: T | None = item
    for i, tell in enumerate(told):
        key = key, tell(item)
        first = seen.setdefault(key, item)
        if first is item:
            break
        if first is not None and i + 1 < len(told):
            seen[key] = None  # from now on the next key decides
            seen[key, told[i + 1](first)] = first
    assert first is not None
    return first


def _sample(value: Value) -> bytes:
    """Return all bytes if few, else some at an odd stride, to sample different bytes of the elements."""
    array = value.glance()
    if array.nbytes <= _SMALL_BYTES:
        return array.tobytes()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat[:: flat.size // _SAMPLED | 1].tobytes()


def _digest(value: Value) -> bytes:
    size = tensor_bytes(*value.constant_type())
    if size <= _SMALL_BYTES:
        return b""  # the sample is complete
    return value.glance().tobytes() if size <= _SOME else value.digest()


def distinct(array: Array) -> Array:
    """Return the part of `array` held in memory: an axis with stride 0 gets size 1."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def is_repeated(array: Array) -> bool:
    """Whether memory holds at most a quarter of the elements. They need not be equal: see `one_element`."""
    return 4 * distinct(array).nbytes <= array.nbytes


def one_element(array: Array) -> Array | None:
    """Return the element (rank 0) with the bits of all elements of `array`; None if they differ, and for objects."""
    held = distinct(array)
    if not held.size or element_kind(held) == "S":
        return None
    if held.size > 1:  # compared as integers: rows of single bytes take ten times as long
        words = np.ascontiguousarray(held).reshape(-1).view(f"u{gcd(held.itemsize, 8)}").reshape(held.size, -1)
        for few in (words[:_FIRST], words):  # in most arrays the first elements differ
            if not (few == words[0]).all():
                return None
    first: Array = held[(0,) * held.ndim].reshape(())
    return first


def repeated(value: Value | None, *through: str) -> Array | None:
    """Return the element (rank 0) bitwise equal to all elements of a constant, of ConstantOfShape, of picks from these,
    or of a sum, difference, product or quotient; None if elements may differ.

    `through`: operators to look through beside picks, such as a Cast: the element has the type in front of them.
    """
    for _ in range(_MAX_PICKS):
        if value is None or value.constant:
            return None if value is None else one_element(value.glance())
        node = producer(value, "ConstantOfShape", *PICKS, *through, *_ARITHMETIC)
        if node is None or node.has_references:
            return None
        if node.op in _ARITHMETIC:
            return _computed(node)
        if node.op == "ConstantOfShape":
            return one_element(node.attr("value", np.zeros(1, np.float32)))
        value = node.inputs[0]
    return None


def _computed(node: Node) -> Array | None:
    """Return the element computed from constants, ConstantOfShape, and picks from these."""
    if any(producer(v, *_ARITHMETIC) is not None for v in node.inputs):
        return None
    numbers = [repeated(v) for v in node.operands]
    try:
        found = evaluate(node, numbers, node.scope.opset()) if all(n is not None for n in numbers) else None
    except Invalid:
        return None
    return found[0] if found is not None else None


# -- rejection by runtimes -------------------------------------------------------------------------------------

REFUSED: Final = "runtimes would refuse what comes of it: it may never run, or is not what they infer"
_LOADING: Final = "values that may be constant"


def is_refused(value: Value, given: Array | Value, readers: Iterable[Node] | None = None) -> bool:
    """Whether a runtime would reject the model with `given` for `value`, and does not now.

    `given` is a constant or another value; `readers` are checked (default: all), then downstream nodes while their
    inputs become more precise. Types are inferred on the way to a body. Computations on constants only are checked
    everywhere, since runtimes fold them on loading.
    """
    graph = value.graph
    if graph.owner is None and not graph.owners and not graph.by_op.get("PRelu"):
        return False
    loading = _loading(graph.model)
    return loading is not None and loading.is_refused(value, given, readers)


def is_told_more(value: Value, other: Value) -> bool:
    """Whether readers of `value` would be rejected with the more precise declared shape of the equal value `other`."""
    graph = value.graph.root
    if not graph.owners:
        return False
    loading = _loading(graph.model)
    return loading is not None and other in loading.annotated and is_refused(value, other)


def told(value: Value) -> Shape | None:
    """Return the sizes possibly known to runtimes of a value, permitted changes of this round included."""
    loading = _loading(value.graph.model)
    return types.shape(value) if loading is None else loading.told(value)


def divides_by_zero(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether any node, to be inserted into a body, divides integers by a constant with a zero."""
    if graph.owner is None:
        return False
    from onnxopt.analysis.loading import is_by_zero

    return any(is_by_zero(n, {}) for n in nodes if n.op in ("Div", "Mod"))


def _loading(model: Model) -> Loading | None:
    """Return the state of this round of passes; None if nothing in the model could be rejected."""
    if _LOADING in model.analyses:
        return cast("Loading | None", model.analyses[_LOADING])
    if not any(scope.owner is not None or scope.by_op.get("PRelu") for scope in model.scopes()):
        model.analyses[_LOADING] = None
        return None
    from onnxopt.analysis.loading import Loading

    begun = model.analyses[_LOADING] = Loading(model)
    return begun
