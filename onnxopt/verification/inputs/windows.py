"""Sizes for coverage: several positions behind strides and windows, enough rows for channels that a Relu may mute.

Attention over a single position returns its value for any weights, and a kernel over a single pixel reads only the
centre tap: small sizes hide faults. A channel of a matrix product has a single number per row, and may be negative in
all of a few rows by chance. Images and sentences have more numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import ne
from typing import TYPE_CHECKING, Final, NamedTuple

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.startup.record import record
from onnxopt.verification.model.calls import UNKNOWN, Shape
from onnxopt.verification.model.dataflow import Backward, Forward
from onnxopt.verification.model.nodes import few, read
from onnxopt.verification.model.operators import AFFINE, MATRICES, MEASURING, WEIGHTS, WINDOWED, WINDOWS, having
from onnxopt.verification.model.shapes import shapes_of

if TYPE_CHECKING:
    from onnxopt.verification.inputs.plan import Plan


# -- windows ----------------------------------------------------------------------------------------------

_LEFT: Final = (2, 3, 4, 6)  # positions behind the last window: 2 x 3 and 4 x 2 for images, 4 and 6 for sequences
_PICTURE: Final = ((0, 1), (2, 0))  # indices into `_LEFT`, with height different from width
_SEQUENCE: Final = ((2,), (3,))
_MAX_WINDOW: Final = {1: 1 << 14, 2: 1 << 10}  # by number of axes; longer inputs take too long
_NEVER: Final = 1 << 20
_MAX_TAPS: Final = {1: 64, 2: 16}  # by number of axes: lengths up to which all taps of a padded window read data
_MAX_DISTANCE: Final = 32  # on the path from an input; later ones hardly change the choice
_TRIED: Final = 64  # sizes, on either side
_BEST: Final = 16
_MAX_ELEMENTS: Final = 16  # elements
_GLOBAL: Final = having("global")
_CHANGING: Final = having("resizes")
_CONVOLUTIONS: Final = WINDOWS & WEIGHTS.keys()
_FIRST_ONLY: Final = _CONVOLUTIONS | having("recurrent")  # further operands have independent lengths


@record(frozen=True)
class _Need:
    """Requirements on the length of a value."""

    sizes: tuple[int, ...] = _LEFT  # for each entry of `_LEFT`
    stride: int = 1  # the length should be a multiple
    reach: int = 1  # length for every tap of the windows to read data, not padding
    windows: bool = False  # a window occurs downstream
    # On the path: (stride, elements read beyond the first of each position); (0, factor) for growth.
    steps: tuple[tuple[int, int], ...] = ()

    def either(self, other: _Need) -> _Need:
        """Return the maximum of both needs."""
        sizes = tuple(map(max, self.sizes, other.sizes))
        stride, reach = max(self.stride, other.stride), max(self.reach, other.reach)
        steps = max(self.steps, other.steps, key=len)
        return _Need(sizes, stride, reach, self.windows or other.windows, steps)

    def behind(self, stride: int, more: int, reach: int = 1) -> _Need:
        """Return the need before a window.

        stride: distance of positions; more: elements read beyond the first of each position; reach: distance from
        padding.
        """
        found = (min((n - 1) * stride + 1 + more, _NEVER) for n in (*self.sizes, self.reach))
        *sizes, last = found
        steps = ((stride, more), *self.steps)[:_MAX_DISTANCE] if more or stride > 1 else self.steps
        return _Need(tuple(sizes), min(self.stride * stride, _NEVER), max(last, min(reach, _NEVER)), True, steps)

    def widened(self, times: int) -> _Need:
        """Return the need before growth by a factor."""
        *sizes, reach = (-(-n // times) for n in (*self.sizes, self.reach))
        steps = ((0, times), *self.steps)[:_MAX_DISTANCE]
        return _Need(tuple(sizes), max(self.stride // times, 1), reach, self.windows, steps)


_NO_NEED: Final = _Need()


def windowed(
    graph: GraphProto,
    shapes: Mapping[str, Sequence[int | str]],
    batches: Collection[str],
    functions: Iterable[FunctionProto] = (),
) -> list[dict[str, int]]:
    """Return two sets of sizes for dynamic dims covered by windows, then sizes that are no multiples of strides.

    The last may replace entries of the second set, and are not larger in total. shapes: of the inputs. [{}] if no
    windows.
    """
    sought = _Needs(functions)
    sought.walk(graph)
    needs = sought.facts
    found: list[dict[str, int]] = [{}, {}]
    leads: dict[str, _Need] = {}  # need with the largest stride over a dim
    groups: dict[tuple[str, ...], None] = {}
    for name, shape in shapes.items():
        need = needs.get(name)
        symbols = list(dict.fromkeys(d for d in (shape[1:] or shape) if isinstance(d, str)))
        symbols = [s for s in symbols if s not in batches]
        if need is None or not need.windows or not symbols:
            continue
        axes = min(len(symbols), 2)
        groups.update(dict.fromkeys([tuple(symbols)] if len(symbols) == 2 else [(s,) for s in symbols]))
        reach = min(need.reach, _MAX_TAPS[axes])
        for i, left in enumerate(_SEQUENCE if axes == 1 else _PICTURE):
            taken = {sizes[s] for sizes in found[:i] for s in symbols if s in sizes}
            for k, symbol in enumerate(symbols):
                size = _next_multiple(need.stride, max(need.sizes[left[k % axes]], reach), taken)
                taken = {size}
                if size <= _MAX_WINDOW[axes]:
                    found[i][symbol] = max(size, found[i].get(symbol, 0))
                    leads[symbol] = max(leads.get(symbol, _NO_NEED), need, key=lambda n: n.stride)
    return [*found, _ragged(groups, leads, found[1])] if all(found) else [{}]


def _next_multiple(stride: int, least: int, taken: Collection[int]) -> int:
    """Return the smallest multiple of a stride, from `least` on, that is not taken."""
    size = stride * -(-least // stride)
    while size in taken:
        size += stride
    return size


def _ragged(groups: Iterable[Sequence[str]], leads: Mapping[str, _Need], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes, together not larger than `sizes`, with different remainders at most strides."""
    found: dict[str, int] = {}
    for group in groups:
        if not sizes.keys() >= {*group} or not found.keys().isdisjoint(group):
            continue
        changes = [_changes(leads[s], sizes[s], len(group)) for s in group]
        most = math.prod(sizes[s] for s in group)
        fitting = [c for c in itertools.product(*changes) if math.prod(c) <= most and len({*c}) == len(c)]
        best = max(fitting, key=lambda c: (sum(known[n] for known, n in zip(changes, c)), math.prod(c)), default=())
        found.update((s, n) for s, n in zip(group, best) if n != sizes[s])
    return found


def _changes(need: _Need, size: int, axes: int) -> dict[int, int]:
    """Return {size near `size`: number of strides with a different remainder}, the best few."""
    known, about = _left_over(need, size), min(need.stride, _TRIED)
    least = max(need.sizes[0], min(need.reach, _MAX_TAPS[min(axes, 2)]))
    found = {n: sum(map(ne, _left_over(need, n), known)) for n in range(max(least, size - 2 * about), size + about)}
    return {n: found[n] for n in sorted(found, key=lambda n: (-found[n], abs(n - size)))[:_BEST]} | {size: 0}


def _left_over(need: _Need, size: int) -> list[bool]:
    """Return, by stride, whether elements remain behind the last window."""
    found = []
    for stride, more in need.steps:
        if stride > 1:
            found.append((size - more - 1) % stride != 0)
        size = -(-(size - more) // stride) if stride else size * more
    return found


class _Needs(Backward[_Need]):
    """Backward analysis of required lengths; a value without readers needs `_LEFT`."""

    def join(self, a: _Need, b: _Need) -> _Need:
        return a.either(b)

    def walk(self, graph: GraphProto) -> None:
        """Treat inputs of fixed sizes as weights of unknown numbers."""
        self.constants.update(_fixed(graph))
        super().walk(graph)

    def transfer(self, node: NodeProto, wanted: _Need | None) -> Iterator[tuple[str, _Need]]:
        kind, need = node.op_type, wanted or _NO_NEED
        if kind in MEASURING:
            return
        before = _before(node, need, self.constants) if kind in _CHANGING else need
        for name in node.input[:1] if kind in _FIRST_ONLY else node.input:
            if name and name not in self.constants:
                yield name, before


Given = Mapping[str, "AttributeProto"]
Constants = Mapping[str, "TensorProto"]


def _before(node: NodeProto, need: _Need, constants: Constants) -> _Need:
    """Return the need of a node's first input."""
    return _ASKING[node.op_type](node, need, {a.name: a for a in node.attribute}, constants)


def _blocks(node: NodeProto, need: _Need, given: Given, constants: Constants) -> _Need:
    size = max(given["blocksize"].i, 1) if "blocksize" in given else 1
    if node.op_type == "DepthToSpace":
        return need.widened(size)
    return need.behind(size, size - 1) if "blocksize" in given else need


def _stepped(node: NodeProto, need: _Need, given: Given, constants: Constants) -> _Need:
    names = node.input[4:5]
    step = max((abs(n) for name in names for n in _numbers(constants.get(name))), default=1)
    return need.behind(int(step), int(step) - 1) if step > 1 else need


def _transformed(node: NodeProto, need: _Need, given: Given, constants: Constants) -> _Need:
    step, length = (
        next(iter(_numbers(constants.get(name))), 0) for name in ([*node.input, "", "", ""][k] for k in (1, 3))
    )
    if not length and len(node.input) > 2 and node.input[2] in constants:
        length = math.prod(constants[node.input[2]].dims)
    return need.behind(int(step), max(int(length), int(step)) - 1) if step > 0 else need


def _window(node: NodeProto, need: _Need, given: Given, constants: Constants) -> _Need:
    kernel = list(given["kernel_shape"].ints) if "kernel_shape" in given else []
    at = WEIGHTS.get(node.op_type, (len(node.input),))[0]
    if not kernel and len(node.input) > at and node.input[at] in constants:
        kernel = list(constants[node.input[at]].dims[2:])
    axes = len(kernel)
    if not axes:
        return need
    strides, dilations, pads = (
        list(given[name].ints) if name in given and len(given[name].ints) == count else [default] * count
        for name, count, default in (("strides", axes, 1), ("dilations", axes, 1), ("pads", 2 * axes, 0))
    )
    wide = [(k - 1) * d for k, d in zip(kernel, dilations)]
    if "auto_pad" in given and given["auto_pad"].s.startswith(b"SAME"):
        pads = [-(-w // 2) for w in wide] * 2
    total = [pads[i] + pads[i + axes] for i in range(axes)]
    reach = min(max(pads), max(wide)) + 1
    more = max(0, *(w - p for w, p in zip(wide, total)))
    return need.behind(max(1, *strides), more, reach)


def _resized(node: NodeProto, need: _Need, given: Given, constants: Constants) -> _Need:
    scales = list(given["scales"].floats) if "scales" in given else []
    for name in node.input[1:3]:
        scales = scales or _numbers(constants.get(name))
    factors = [s for s in scales if 0 < s < _NEVER and s != 1]
    if not scales:
        return need.widened(2)  # the usual factor, if only sizes are given
    if not factors:
        return need
    largest = max(factors)
    return need.widened(max(round(largest), 1)) if largest > 1 else need.behind(max(round(1 / largest), 1), 0)


def _padded(node: NodeProto, need: _Need, given: Given, constants: Constants) -> _Need:
    pads = list(given["pads"].ints) if "pads" in given else []
    if len(node.input) > 1:
        pads = [int(n) for n in _numbers(constants.get(node.input[1]))]
    axes = len(pads) // 2
    total = max((pads[i] + pads[i + axes] for i in range(axes)), default=0)
    if total <= 0:
        return need
    # Further modes read the elements they repeat.
    least = max(pads) + 1 if "mode" in given and given["mode"].s != b"constant" else 1
    return _Need(
        tuple(max(n - total, least) for n in need.sizes),
        need.stride,
        max(need.reach, max(pads) + 1),
        need.windows,
        ((1, -total), *need.steps)[:_MAX_DISTANCE],
    )


_ASKING: Final[dict[str, Callable[[NodeProto, _Need, Given, Constants], _Need]]] = {
    **dict.fromkeys(WINDOWED, _window),
    **dict.fromkeys(_GLOBAL, lambda node, need, given, constants: _Need(windows=True)),
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "ConvTranspose": lambda node, need, given, constants: need.widened(
        max([1, *given["strides"].ints]) if "strides" in given else 1
    ),
    "Slice": _stepped,
    "Pad": _padded,
    "STFT": _transformed,
}


def _fixed(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for info in graph.input:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if all(dims):
            yield info.name, TensorProto(dims=dims)


def _numbers(tensor: TensorProto | None) -> list[float]:
    """Return the numbers of a small constant, else []."""
    return [] if tensor is None else few(tensor, _MAX_ELEMENTS, (tensor.INT64, tensor.INT32, tensor.FLOAT))


# -- dead channels ----------------------------------------------------------------------------------------

FLAT: Final = having("flat")
_SAME: Final = having("whole")
_BETWEEN: Final = _SAME | AFFINE | {"BatchNormalization"}
_POOLS: Final = having("pools")
_MAX_CHANNEL_DISTANCE: Final = 8  # nodes between a matrix product and the muting operator
_FEW_ROWS: Final = 12  # in all cases; with more, a channel is hardly ever muted in all


def muted(graph: GraphProto) -> list[str]:
    """Return the values between a matrix product and a muting operator in the main graph.

    Results of a node with bodies count if a body has such values.
    """
    found = _Muted()
    found.walk(graph)
    return list(found.found)


class _Chain(NamedTuple):
    """Values back to a matrix product."""

    values: tuple[str, ...] = ()  # connected by affine operators only
    pooled: bool = False  # moved from a pooled value


class _Muted(Forward[_Chain]):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def join(self, a: _Chain, b: _Chain) -> _Chain:
        return a if a.values else b

    def _bodies(
        self, node: NodeProto, bodies: Sequence[GraphProto], reads: Sequence[_Chain | None]
    ) -> Sequence[_Chain | None]:
        if any(map(muted, bodies)):
            self.found.update(dict.fromkeys(filter(None, node.output)))
        return [_Chain()] * len(node.output)

    def transfer(self, node: NodeProto, reads: Sequence[_Chain | None]) -> Sequence[_Chain | None]:
        """Follow the first computed operand."""
        kind = node.op_type
        if kind == "Constant" or not node.output:
            return [None] * len(node.output)
        before = next((r for r in reads if r is not None), _Chain())
        values = (
            (node.output[0], *before.values) if before.values and len(before.values) < _MAX_CHANNEL_DISTANCE else ()
        )
        if kind in FLAT and not node.domain:
            self.found.update(dict.fromkeys(values))
        if kind in MATRICES or (kind == "Conv" and before.pooled):  # squeeze and excitation has a single position
            made = _Chain((node.output[0],))
        else:
            made = _Chain(values if kind in _BETWEEN else (), kind in _POOLS or (before.pooled and kind in _SAME))
        return [made] * len(node.output)


def are_few(rows: Iterable[int]) -> bool:
    """Return whether a channel may be muted in all rows. `rows`: number in each case."""
    return sum(rows) < _FEW_ROWS


def may_hide(plan: Plan, sizes: Sequence[Mapping[str, int]]) -> bool:
    """Return whether decisions, or channels muted in few rows, may hide a difference. `sizes`: of dims, by case."""
    is_muted = bool(plan.muted) and are_few(max((d.get(s, 0) for s in plan.rows), default=0) for d in sizes)
    return bool(plan.decisions or plan.steps or plan.within or is_muted)


def least_rows(shape: Sequence[int]) -> int:
    """Return a lower bound of elements per channel, for any channel axis."""
    return math.prod(shape) // max(*shape, 1, 1)


def have_few_rows(model: ModelProto, values: Sequence[str], sizes: Sequence[Mapping[str, int]]) -> bool:
    """Return whether a value has few rows with the given sizes of dims in each case. Unknown dims count as 1."""
    known = shapes_of(read(model.graph), model.functions) if values else {}
    shapes = {name: found.shape for name in values if (found := known.get(name)) and UNKNOWN not in (found.shape or ())}
    if not all(shapes.get(name) for name in values):
        shapes = _inferred(model) | shapes

    def rows(name: str, known: Mapping[str, int]) -> int:
        dims = [known.get(d, 1) if isinstance(d, str) else d for d in shapes.get(name) or ()]
        return math.prod(dims[:1] if dims[2:] and {*dims[2:]} == {1} else dims[:-1])

    return any(are_few(rows(name, known) for known in sizes) for name in values)


def _inferred(model: ModelProto) -> dict[str, Shape | None]:
    """Return the shapes that onnx infers, which takes longer. Runs in this process."""
    from onnxopt.proto.inference import infer_shapes, inferable

    with contextlib.suppress(Exception):  # inference is no source of verdicts
        graph = infer_shapes(inferable(model)).graph
        infos = {i.name: i.type.tensor_type.shape.dim for i in (*graph.value_info, *graph.output)}
        return {name: tuple(d.dim_value or d.dim_param for d in dims) for name, dims in infos.items()}
    return {}
