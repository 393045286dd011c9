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

from onnx import GraphProto, NodeProto

from onnxopt.verification.model.nodes import bodies_of, ordered, value_of
from onnxopt.verification.model.operators import AFFINE, MATRICES, MEASURING, WEIGHTS, WINDOWED, WINDOWS, having
from onnxopt.verification.model.shapes import Call, Shape

# -- windows ----------------------------------------------------------------------------------------------

_LEFT: Final = (2, 3, 4, 6)  # positions behind the last window: 2 x 3 and 4 x 2 for images, 4 and 6 for sequences
_PICTURE: Final = ((0, 1), (2, 0))  # indices into `_LEFT`, with height different from width
_SEQUENCE: Final = ((2,), (3,))
_PLACES: Final = ((), _SEQUENCE, _PICTURE)  # by number of axes
_MAX_WINDOW: Final = {1: 1 << 14, 2: 1 << 10}  # by number of axes; longer inputs take too long
_NEVER: Final = 1 << 20
_MAX_TAPS: Final = {1: 64, 2: 16}  # by number of axes: lengths up to which all taps of a padded window read data
_MAX_PATHS: Final = 16  # to a value
_TRIED: Final = 128  # smaller sizes
_GLOBAL: Final = having("global")
_FIRST_ONLY: Final = (WINDOWS & WEIGHTS.keys()) | having("recurrent")  # further operands have independent lengths


class Step(NamedTuple):
    """Nodes that make an element for each position of a window."""

    stride: int = 1  # distance of positions
    more: int = 0  # elements read beyond the first of each position, less the padding
    growth: int = 1  # factor of the length
    reach: int = 1  # distance from padding
    least: int = 1  # length that can be mirrored


_PLAIN: Final = Step()


class Path(NamedTuple):
    """The windows between an input and a value."""

    start: str  # name of the input
    steps: tuple[Step, ...] = (_PLAIN,)  # plain ones first, last and between others
    windows: bool = False  # any window

    @property
    def kind(self) -> tuple[object, ...]:
        """The start, and the strides and growth of the steps; a single path of a kind is followed."""
        return self.start, *((step.stride, step.growth) for step in self.steps)

    def then(self, step: Step) -> Path:
        """Return the path extended by a step."""
        if step == _PLAIN:
            return self
        *before, last = self.steps
        steps = [step, _PLAIN]
        if step.stride == step.growth == 1:
            reach, least = (max(was, last.more + n) for was, n in zip(last[3:], step[3:]))
            steps, last = [], Step(more=last.more + step.more, reach=reach, least=least)
        is_window = step.growth == 1 and step.more >= 0
        return Path(self.start, (*before, last, *steps), self.windows or is_window)

    @property
    def need(self) -> _Need:
        """The requirements on the length of the input."""
        return functools.reduce(_Need.before, reversed(self.steps), _Need())


class _Need(NamedTuple):
    """Requirements on the length of a value."""

    stride: int = 1  # the length should be a multiple
    sizes: tuple[int, ...] = _LEFT  # for each entry of `_LEFT`
    reach: int = 1  # length for every tap of the windows to read data, not padding

    def before(self, step: Step) -> _Need:
        """Return the need before a step."""
        numbers = [-(-((n - 1) * step.stride + 1 + step.more) // step.growth) for n in (*self.sizes, self.reach)]
        *sizes, reach = (min(max(n, step.least), _NEVER) for n in numbers)
        stride = max(min(self.stride * step.stride, _NEVER) // step.growth, 1)
        return _Need(stride, tuple(sizes), max(reach, min(step.reach, _NEVER)))


_Lead = tuple[_Need, Path, list[str]]  # of an input: the need, the path of the largest, and the dims


def paths_after(call: Call, numbers: Callable[[str], Sequence[float]]) -> frozenset[Path]:
    """Return the paths to the results of a node. `numbers`: returns the elements of a small constant."""
    kind = call.node.op_type
    if kind in MEASURING:
        return frozenset()
    before = frozenset[Path]().union(*(k.paths for k in (call.known[:1] if kind in _FIRST_ONLY else call.known)))
    if kind in _GLOBAL or kind in WINDOWED:  # a single pixel is a window, too
        before = frozenset(path._replace(windows=True) for path in before)
    if kind in ("Resize", "Upsample"):
        return joined(path.then(_resized(call, numbers)) for path in before)
    return joined(path.then(_STEPS[kind](call)) for path in before) if kind in _STEPS else before


def joined(paths: Iterable[Path]) -> frozenset[Path]:
    """Return the paths; the largest of those with the same strides."""
    found = {path.kind: path for path in sorted(paths)}
    return frozenset(sorted(found.values(), key=lambda path: (-len(path.steps), path))[:_MAX_PATHS])


def windowed(
    paths: Collection[Path], shapes: Mapping[str, Sequence[int | str]], batches: Collection[str], divisor: int = 1
) -> list[dict[str, int]]:
    """Return two sets of sizes for dynamic dims covered by windows, then sizes that are no multiples of strides.

    The last may replace entries of the second set, and are not larger in total. paths: to the outputs; shapes: of the
    inputs; divisor: of sizes, whose remainder pads. [{}] without windows.
    """
    found: list[dict[str, int]] = [{}, {}]
    leads: dict[str, _Lead] = {}  # of the largest stride over a dim
    for name, shape in shapes.items():
        mine = [path for path in paths if path.start == name]
        symbols = [s for s in dict.fromkeys(shape[1:] or shape) if isinstance(s, str) and s not in batches]
        lead = need, *_ = *_neediest(mine, name), symbols
        for i, left in enumerate(_PLACES[min(len(symbols), 2) if any(path.windows for path in mine) else 0]):
            taken = {sizes[s] for sizes in found[:i] for s in symbols if s in sizes}
            for symbol, size in _covered(need, symbols, left, taken):
                found[i][symbol] = max(size, found[i].get(symbol, 0))
                leads[symbol] = max(leads.get(symbol, lead), lead, key=lambda known: known[0].stride)
    return [*found, _ragged(leads, found[1], divisor)] if all(found) else [{}]


def _covered(need: _Need, symbols: list[str], left: Sequence[int], taken: set[int]) -> Iterator[tuple[str, int]]:
    """Yield (dim, size covered by windows), each unlike `taken` or the preceding size. `left`: positions, by axis."""
    axes = len(left)
    for k, symbol in enumerate(symbols):
        size = _next_multiple(need, need.sizes[left[k % axes]], axes, taken)
        taken = {size}
        if size <= _MAX_WINDOW[axes]:
            yield symbol, size


def _neediest(paths: Sequence[Path], name: str) -> tuple[_Need, Path]:
    """Return the need of all paths from an input, and the path of the largest."""
    every = [(path.need, len(path.steps), path) for path in paths] or [(_Need(), 0, Path(name))]
    strides, sizes, reaches = zip(*(need for need, *_ in every))
    return _Need(max(strides), tuple(map(max, zip(*sizes))), max(reaches)), max(every)[-1]


def _next_multiple(need: _Need, least: int, axes: int, taken: Collection[int]) -> int:
    """Return the smallest multiple of the stride, from `least` and the reach on, that is not taken."""
    size = need.stride * -(-max(least, min(need.reach, _MAX_TAPS[axes])) // need.stride)
    while size in taken:
        size += need.stride
    return size


def _ragged(leads: Mapping[str, _Lead], sizes: Mapping[str, int], divisor: int) -> dict[str, int]:
    """Return sizes, for each input together not larger, with different remainders at most strides, and distinct."""
    found = dict(sizes)
    for symbol, size in sizes.items():
        need, path, beside = leads[symbol]
        others = [found[s] for s in beside if s != symbol and s in found]
        most = math.prod(sizes.get(s, 1) for s in beside) // math.prod(others)
        least = max(need.sizes[0], min(need.reach, _MAX_TAPS[min(len(beside), 2)]), size - _TRIED)
        tried = [n for n in range(least, most + 1) if n not in others]
        found[symbol] = _most_changed(path, size, tried, divisor)
    return {symbol: n for symbol, n in found.items() if n != sizes[symbol]}


def _most_changed(path: Path, size: int, tried: Sequence[int], divisor: int) -> int:
    """Return the size with different remainders at most strides, and at the divisor; `size` if none differ."""
    known = _left_over(path, size)
    changes = {n: sum(map(ne, _left_over(path, n), known)) + (size % divisor == 0 != n % divisor) for n in tried}
    best = max(changes, key=lambda n: (changes[n], -abs(n - size * 3 // 4)), default=size)  # a next dim has room
    return best if changes.get(best) else size


def _left_over(path: Path, size: int) -> list[bool]:
    """Return, by stride, whether elements remain behind the last window."""
    found = []
    for step in path.steps:
        size = size * step.growth - step.more
        if step.stride > 1:
            found.append((size - 1) % step.stride != 0)
        size = -(-size // step.stride)
    return found


def _stepped(call: Call) -> Step:
    step = max(map(abs, call.integers(4, "steps") or ()), default=1)
    return Step(step, step - 1)


def _transformed(call: Call) -> Step:
    """Return the step of an STFT, with the length of the frame or of the window."""
    step, length = (next(iter(call.integers(k, "") or ()), 0) for k in (1, 3))
    window = (call.shapes[2] or ()) if call.is_given(2, "") else ()
    lengths = [length, *(d for d in window if isinstance(d, int)), step]
    return Step(step, max(lengths) - 1) if step > 0 else _PLAIN


def _window(call: Call) -> Step:
    kernel = call.ints("kernel_shape") or _kernel(call)
    axes = len(kernel)
    strides, dilations = (call.ints(name) or [1] * axes for name in ("strides", "dilations"))
    wide = [(k - 1) * d for k, d in zip(kernel, dilations)]
    pads = _pads(call, wide) or [0] * 2 * axes
    more = max((w - before - after for w, before, after in zip(wide, pads, pads[axes:])), default=0)
    reach = min(max(pads, default=0), max(wide, default=0)) + 1
    return Step(max(1, *strides, 1), max(0, more), reach=reach)


def _pads(call: Call, wide: Sequence[int]) -> Sequence[int]:
    """Return the pads of a window, () if none are given. `wide`: length of the dilated window less one, by axis."""
    if value_of(call.node, "auto_pad", "").startswith("SAME"):
        return [-(-w // 2) for w in wide] * 2
    return call.ints("pads")


def _kernel(call: Call) -> Sequence[int]:
    """Return the sizes of a window by the weight; () if unknown."""
    at = WEIGHTS.get(call.node.op_type, (len(call.shapes),))[0]
    weight = (call.shapes[at] or ())[2:] if at < len(call.shapes) else ()
    known = [k for k in weight if isinstance(k, int) and k > 0]
    return known if len(known) == len(weight) else ()


def _resized(call: Call, numbers: Callable[[str], Sequence[float]]) -> Step:
    """Return the step of a Resize by its scales, given by the attribute or an operand; usual are only sizes."""
    scales: Sequence[float] = value_of(call.node, "scales", [])
    for name in call.node.input[1:3]:
        scales = scales or numbers(name)
    largest = max((s for s in scales if 0 < s < _NEVER and s != 1), default=1 if scales else 2)
    return Step(growth=max(round(largest), 1)) if largest > 1 else Step(max(round(1 / largest), 1))


def _blocks(call: Call) -> Step:
    size = max(call.number("blocksize") or 1, 1)
    return Step(growth=size) if call.node.op_type == "DepthToSpace" else Step(size, size - 1)


def _padded(call: Call) -> Step:
    pads = call.integers(1, "pads") or ()
    total = max(map(sum, zip(pads, pads[len(pads) // 2 :])), default=0)
    if total <= 0:
        return Step()
    copies = value_of(call.node, "mode", "constant") != "constant"
    return Step(more=-total, reach=max(pads) + 1, least=max(pads) + 1 if copies else 1)


_STEPS: Final[dict[str, Callable[[Call], Step]]] = {
    **dict.fromkeys(WINDOWED, _window),
    "ConvTranspose": lambda call: Step(growth=max([1, *call.ints("strides")])),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
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
    found: dict[str, None] = {}
    chains: dict[str, list[str]] = {}  # by computed value: values back to a matrix product
    pooled = set[str]()
    for node in (n for n in ordered(graph.node) if n.op_type != "Constant" and n.output):
        kind, first = node.op_type, next((name for name in node.input if name in chains), "")
        if any(map(muted, bodies_of(node))):
            found.update(dict.fromkeys(filter(None, node.output)))
        chain = _chain(node, chains.get(first, []), is_pooled=first in pooled)
        if kind in _POOLS or (kind in _SAME and first in pooled):
            pooled.update(node.output)
        if kind in FLAT and not node.domain:
            found |= dict.fromkeys(chain)
        chains.update(dict.fromkeys(filter(None, node.output), [] if kind in FLAT else chain))
    return list(found)


def _chain(node: NodeProto, before: list[str], *, is_pooled: bool) -> list[str]:
    """Return the values back to a matrix product; [] without a product. `before`: those of the first operand."""
    if node.op_type in MATRICES or (node.op_type == "Conv" and is_pooled):
        return [node.output[0]]
    goes_on = before and node.op_type in _BETWEEN | FLAT and len(before) < _MAX_CHANNEL_DISTANCE
    return [node.output[0], *before] if goes_on else []


def are_few(rows: Iterable[int]) -> bool:
    """Return whether a channel may be muted in all rows. `rows`: number in each case."""
    return sum(rows) < _FEW_ROWS


def least_rows(shape: Sequence[int]) -> int:
    """Return a lower bound of elements per channel, for any channel axis."""
    return math.prod(shape) // max(*shape, 1, 1)


def has_few_rows(shape: Shape, sizes: Sequence[Mapping[str, int]]) -> bool:
    """Return whether a value has few rows with the given sizes of dims in each case. Unknown dims count as 1."""

    def rows(known: Mapping[str, int]) -> int:
        dims = [known.get(d, 1) if isinstance(d, str) else max(d, 1) for d in shape]
        return math.prod(dims[:1] if dims[2:] and {*dims[2:]} == {1} else dims[:-1])

    return are_few(map(rows, sizes))
