"""Sizes for coverage: several positions behind strides and windows, enough rows for channels that a Relu may mute.

Attention over a single position returns its value for any weights, and a kernel over a single pixel reads only the
centre tap: small sizes hide faults. A channel of a matrix product has a single number per row, and may be negative in
all of a few rows by chance. Images and sentences have more numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import ne
from typing import Final, NamedTuple

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.verification.model.dataflow import MAX_CALL_DEPTH
from onnxopt.verification.model.nodes import bodies_of, constants, few, ordered
from onnxopt.verification.model.operators import AFFINE, MATRICES, MEASURING, WEIGHTS, WINDOWED, WINDOWS, having
from onnxopt.verification.model.shapes import MAX_SIZES, Call, Known, shapes_of

# -- windows ----------------------------------------------------------------------------------------------

_LEFT: Final = (2, 3, 4, 6)  # positions behind the last window: 2 x 3 and 4 x 2 for images, 4 and 6 for sequences
_PICTURE: Final = ((0, 1), (2, 0))  # indices into `_LEFT`, with height different from width
_SEQUENCE: Final = ((2,), (3,))
_PLACES: Final = ((), _SEQUENCE, _PICTURE)  # by number of axes
_MAX_WINDOW: Final = {1: 1 << 14, 2: 1 << 10}  # by number of axes; longer inputs take too long
_NEVER: Final = 1 << 20
_MAX_TAPS: Final = {1: 64, 2: 16}  # by number of axes: lengths up to which all taps of a padded window read data
_MAX_DISTANCE: Final = 32  # on the path from an input; later ones hardly change the choice
_TRIED: Final = 128  # smaller sizes
_GLOBAL: Final = having("global")
_FIRST_ONLY: Final = (WINDOWS & WEIGHTS.keys()) | having("recurrent")  # further operands have independent lengths


class _Need(NamedTuple):
    """Requirements on the length of a value."""

    sizes: tuple[int, ...] = _LEFT  # for each entry of `_LEFT`
    stride: int = 1  # the length should be a multiple
    reach: int = 1  # length for every tap of the windows to read data, not padding
    windows: bool = False  # a window occurs downstream
    steps: tuple[tuple[int, int, int], ...] = ()  # on the path: arguments of `before`

    def joined(self, other: _Need) -> _Need:
        """Return the need of the readers of either."""
        sizes, steps = tuple(map(max, self.sizes, other.sizes)), max(self.steps, other.steps, key=len)
        more = max(self.stride, other.stride), max(self.reach, other.reach), self.windows or other.windows
        return _Need(sizes, *more, steps)

    def before(self, stride: int = 1, more: int = 0, growth: int = 1, reach: int = 1) -> _Need:
        """Return the need before a node that makes an element for each position of a window.

        stride: distance of positions; more: elements read beyond the first of each position, less the padding; growth:
        factor of the length; reach: distance from padding.
        """
        sizes = [max(-(-((n - 1) * stride + 1 + more) // growth), 1) for n in (*self.sizes, self.reach)]
        *least, last = (min(n, _NEVER) for n in sizes)
        step = (stride, more, growth)
        return _Need(
            tuple(least),
            max(min(self.stride * stride, _NEVER) // growth, 1),
            max(last, min(reach, _NEVER)),
            self.windows or (growth == 1 and more >= 0),
            self.steps if step == (1, 0, 1) else (step, *self.steps)[:_MAX_DISTANCE],
        )


def windowed(
    graph: GraphProto,
    shapes: Mapping[str, Sequence[int | str]],
    batches: Collection[str],
    functions: Iterable[FunctionProto] = (),
) -> list[dict[str, int]]:
    """Return two sets of sizes for dynamic dims covered by windows, then sizes that are no multiples of strides.

    The last may replace entries of the second set, and are not larger in total. shapes: of the inputs. [{}] without
    windows.
    """
    sought = _Needs(functions)
    sought.walk(graph)
    found: list[dict[str, int]] = [{}, {}]
    leads: dict[str, tuple[_Need, list[str]]] = {}  # need with the largest stride over a dim, dims of its input
    for name, shape in shapes.items():
        need = sought.facts.get(name, _Need())
        symbols = _lengths(shape, batches)
        axes = min(len(symbols), 2) if need.windows else 0
        for i, left in enumerate(_PLACES[axes]):
            taken = {sizes[s] for sizes in found[:i] for s in symbols if s in sizes}
            for k, symbol in enumerate(symbols):
                size = _next_multiple(need, need.sizes[left[k % axes]], axes, taken)
                taken = {size}
                if size <= _MAX_WINDOW[axes]:
                    found[i][symbol] = max(size, found[i].get(symbol, 0))
                    leads[symbol] = max(
                        leads.get(symbol, (_Need(), symbols)), (need, symbols), key=lambda n: n[0].stride
                    )
    return [*found, _ragged(leads, found[1])] if all(found) else [{}]


def _lengths(shape: Sequence[int | str], batches: Collection[str]) -> list[str]:
    """Return the symbols of a shape behind the batch."""
    return [s for s in dict.fromkeys(shape[1:] or shape) if isinstance(s, str) and s not in batches]


def _next_multiple(need: _Need, least: int, axes: int, taken: Collection[int]) -> int:
    """Return the smallest multiple of the stride, from `least` and the reach on, that is not taken."""
    size = need.stride * -(-max(least, min(need.reach, _MAX_TAPS[axes])) // need.stride)
    while size in taken:
        size += need.stride
    return size


def _ragged(leads: Mapping[str, tuple[_Need, list[str]]], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes, for each input together not larger, with different remainders at most strides, and distinct."""
    found = dict(sizes)
    for symbol, size in sizes.items():
        need, beside = leads[symbol]
        others = [found[s] for s in beside if s != symbol and s in found]
        most = math.prod(sizes.get(s, 1) for s in beside) // math.prod(others)
        least = max(need.sizes[0], min(need.reach, _MAX_TAPS[min(len(beside), 2)]), size - _TRIED)
        found[symbol] = _most_changed(need, size, [n for n in range(least, most + 1) if n not in others])
    return {symbol: n for symbol, n in found.items() if n != sizes[symbol]}


def _most_changed(need: _Need, size: int, tried: Sequence[int]) -> int:
    """Return the size with different remainders at most strides; `size` if none differ."""
    known = _left_over(need, size)
    changes = {n: sum(map(ne, _left_over(need, n), known)) for n in tried}
    best = max(changes, key=lambda n: (changes[n], -abs(n - size * 3 // 4)), default=size)  # a next dim has room
    return best if changes.get(best) else size


def _left_over(need: _Need, size: int) -> list[bool]:
    """Return, by stride, whether elements remain behind the last window."""
    found = []
    for stride, more, growth in need.steps:
        size = size * growth - more
        if stride > 1:
            found.append((size - 1) % stride != 0)
        size = -(-size // stride)
    return found


class _Needs:
    """Backward analysis of required lengths; a value without readers needs `_LEFT`."""

    def __init__(self, functions: Iterable[FunctionProto], depth: int = 0) -> None:
        self.facts: dict[str, _Need] = {}  # by value
        self.constants: dict[str, TensorProto] = {}
        self._functions, self._depth = {(f.domain, f.name): f for f in functions}, depth

    def walk(self, graph: GraphProto) -> None:
        """Analyse a graph or body. Inputs of fixed sizes are weights of unknown numbers."""
        shapes = ((i.name, [d.dim_value for d in i.type.tensor_type.shape.dim]) for i in graph.input)
        self.constants.update((name, TensorProto(dims=dims)) for name, dims in shapes if all(dims))
        self.constants.update((t.name, t) for t in graph.initializer)
        self.constants.update(constants(graph.node))
        self.follow(graph.node)

    def follow(self, nodes: Sequence[NodeProto]) -> None:
        """Analyse nodes, in reverse topological order."""
        for node in reversed(ordered(nodes)):
            need = functools.reduce(_Need.joined, [self.facts[o] for o in node.output if o in self.facts] or [_Need()])
            for body in bodies_of(node):
                self.facts.update((o.name, need) for o in body.output)
                self.walk(body)
            function = self._functions.get((node.domain, node.op_type)) if self._depth < MAX_CALL_DEPTH else None
            for name, fact in self._call(function, node) if function is not None else self._before(node, need):
                self.facts[name] = self.facts.get(name, fact).joined(fact)

    def _call(self, function: FunctionProto, node: NodeProto) -> Iterator[tuple[str, _Need]]:
        inner, given = _Needs(self._functions.values(), self._depth + 1), dict(zip(function.input, node.input))
        inner.constants.update((f, self.constants[name]) for f, name in given.items() if name in self.constants)
        inner.facts.update((f, self.facts[o]) for f, o in zip(function.output, node.output) if o in self.facts)
        inner.follow(function.node)
        yield from (
            (name, inner.facts[f]) for f, name in given.items() if f in inner.facts and f not in inner.constants
        )

    def _before(self, node: NodeProto, need: _Need) -> Iterator[tuple[str, _Need]]:
        """Yield (operand, need). `need`: of the results."""
        kind = node.op_type
        if kind in MEASURING:
            return
        if kind in _RULES:
            need = _RULES[kind](Call(node, [*map(self._known, node.input)], self._numbers), need)
        for name in node.input[:1] if kind in _FIRST_ONLY else node.input:
            if name and name not in self.constants:
                yield name, need

    def _known(self, name: str) -> Known:
        return Known(tuple(self.constants[name].dims)) if name in self.constants else Known()

    def _numbers(self, name: str) -> list[int]:
        tensor = self.constants.get(name)
        return few(tensor, MAX_SIZES, (tensor.INT64, tensor.INT32, tensor.FLOAT)) if tensor is not None else []


def _blocks(call: Call, need: _Need) -> _Need:
    size = max(call.number("blocksize") or 1, 1)
    return need.before(growth=size) if call.node.op_type == "DepthToSpace" else need.before(size, size - 1)


def _stepped(call: Call, need: _Need) -> _Need:
    step = max(map(abs, call.integers(4, "steps") or ()), default=1)
    return need.before(step, step - 1) if step > 1 else need


def _transformed(call: Call, need: _Need) -> _Need:
    step, length = (next(iter(call.integers(k, "") or ()), 0) for k in (1, 3))
    length = length or math.prod(map(int, call.shapes[2] or ())) if call.is_given(2, "") else length
    return need.before(step, max(length, step) - 1) if step > 0 else need


def _window(call: Call, need: _Need) -> _Need:
    kernel = _kernel(call)
    axes = len(kernel)
    if not axes:
        return need
    strides, dilations = (_given(call, name, [1] * axes) for name in ("strides", "dilations"))
    pads = _given(call, "pads", [0] * 2 * axes)
    wide = [(int(k) - 1) * d for k, d in zip(kernel, dilations)]
    if any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in call.node.attribute):
        pads = [-(-w // 2) for w in wide] * 2
    more = max(0, *(w - before - after for w, before, after in zip(wide, pads, pads[axes:])))
    return need.before(max(1, *strides), more, reach=min(max(pads), max(wide)) + 1)


def _kernel(call: Call) -> Sequence[int | str]:
    """Return the sizes of a window, by the attribute or the weight."""
    at = WEIGHTS.get(call.node.op_type, (len(call.shapes),))[0]
    weight = (call.shapes[at] or ())[2:] if at < len(call.shapes) else ()
    return call.integers(len(call.node.input), "kernel_shape") or weight


def _given(call: Call, name: str, default: Sequence[int]) -> Sequence[int]:
    """Return the integers of an attribute; the default if they are missing, or of another length."""
    found = call.integers(len(call.node.input), name)
    return found if found and len(found) == len(default) else default


def _scales(call: Call) -> list[float]:
    """Return the known scales of a Resize, by the attribute or an operand."""
    scales = next((list(a.floats) for a in call.node.attribute if a.name == "scales"), [])
    for at in (1, 2):
        scales = scales or list(call.integers(at, "") or ())
    return scales


def _resized(call: Call, need: _Need) -> _Need:
    scales = _scales(call)
    largest = max((s for s in scales if 0 < s < _NEVER and s != 1), default=0 if scales else 2)  # usual: only sizes
    if largest > 1:
        return need.before(growth=max(round(largest), 1))
    return need.before(max(round(1 / largest), 1)) if largest else need


def _padded(call: Call, need: _Need) -> _Need:
    pads = call.integers(1, "pads") or ()
    axes = len(pads) // 2
    total = max((before + after for before, after in zip(pads, pads[axes:])), default=0)
    if total <= 0:
        return need
    made, reach = need.before(more=-total), max(need.reach, max(pads) + 1)
    copies = any(a.name == "mode" and a.s != b"constant" for a in call.node.attribute)
    least = max(pads) + 1 if copies else 1  # the elements that are copied
    return made._replace(sizes=tuple(max(n, least) for n in made.sizes), reach=reach)


_RULES: Final[dict[str, Callable[[Call, _Need], _Need]]] = {
    **dict.fromkeys(WINDOWED, _window),
    **dict.fromkeys(_GLOBAL, lambda call, need: _Need(windows=True)),
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "ConvTranspose": lambda call, need: need.before(
        growth=max([1, *(call.integers(len(call.node.input), "strides") or ())])
    ),
    "Slice": _stepped,
    "Pad": _padded,
    "STFT": _transformed,
}


# -- dead channels ----------------------------------------------------------------------------------------

FLAT: Final = having("flat")
_SAME: Final = having("whole")
_BETWEEN: Final = _SAME | AFFINE | {"BatchNormalization"}
_POOLS: Final = having("pools")
_MAX_CHANNEL_DISTANCE: Final = 8  # nodes between a matrix product and the muting operator
_FEW_ROWS: Final = 12  # in all cases; with more, a channel is hardly ever muted in all


def muted(graph: GraphProto) -> list[str]:
    """Return the values from a matrix product to a muting operator in the main graph, each the first computed operand.

    Results of a node with bodies count if a body has such values. Squeeze and excitation has a single position: a
    convolution of pooled values is a matrix product.
    """
    nodes = [n for n in graph.node if n.op_type != "Constant" and n.output]
    makers = _makers(nodes)
    found: dict[str, None] = {}
    for node in nodes:
        if any(map(muted, bodies_of(node))):
            found.update(dict.fromkeys(filter(None, node.output)))
        if node.op_type in FLAT and not node.domain:
            found |= dict.fromkeys(n.output[0] for n in _after_product(node, makers))
    return list(found)


def _makers(nodes: Iterable[NodeProto]) -> dict[str, NodeProto]:
    return {o: n for n in nodes for o in n.output if o}


def _after_product(node: NodeProto, makers: Mapping[str, NodeProto]) -> list[NodeProto]:
    """Return the nodes from a muting operator back to a matrix product; none without a product."""
    *_, last = chain = _back(node, makers, _BETWEEN)
    is_pooled = last.op_type == "Conv" and _back(last, makers, _SAME)[-1].op_type in _POOLS
    return chain if last.op_type in MATRICES or is_pooled else []


def _back(node: NodeProto, makers: Mapping[str, NodeProto], through: Collection[str]) -> list[NodeProto]:
    """Return the nodes from `node` back to the first of an operator not in `through`."""
    found = [node]
    while len(found) <= _MAX_CHANNEL_DISTANCE and (len(found) == 1 or found[-1].op_type in through):
        before = next((makers[name] for name in found[-1].input if name in makers), None)
        if before is None:
            break
        found.append(before)
    return found


def are_few(rows: Iterable[int]) -> bool:
    """Return whether a channel may be muted in all rows. `rows`: number in each case."""
    return sum(rows) < _FEW_ROWS


def least_rows(shape: Sequence[int]) -> int:
    """Return a lower bound of elements per channel, for any channel axis."""
    return math.prod(shape) // max(*shape, 1, 1)


def have_few_rows(model: ModelProto, values: Sequence[str], sizes: Sequence[Mapping[str, int]]) -> bool:
    """Return whether a value has few rows with the given sizes of dims in each case. Unknown dims count as 1."""
    facts = shapes_of(model.graph, model.functions) if values else {}

    def rows(name: str, known: Mapping[str, int]) -> int:
        shape = facts.get(name, Known()).shape or ()
        dims = [known.get(d, 1) if isinstance(d, str) else max(d, 1) for d in shape]
        return math.prod(dims[:1] if dims[2:] and {*dims[2:]} == {1} else dims[:-1])

    return any(are_few(rows(name, known) for known in sizes) for name in values)
