"""Plan of the original's inputs: all that a worker needs to make feeds without parsing the model.

Plain data, made by the parent or by the worker.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from onnx import ModelProto

from onnxopt.proto.element_types import TYPES
from onnxopt.verification.inputs.uses import FREE, INDEX, SIZE, UNKNOWN, Use, Uses
from onnxopt.verification.model.nodes import operator_names
from onnxopt.verification.model.operators import CUTTING

_COMPOSITE: Final = r"(?i)\+|plus|total|sum|_and_"
_BATCH: Final = r"(?i)batch|^[nb]$"
# Sizes of dynamic dims, tried in this order until the original runs; images and windows need larger sizes.
_CANDIDATE_SIZES: Final = (2, 3, 4, 1, 5, 8, 16, 32, 64, 128, 224)
_AUDIO_SIZES: Final = (512, 1600, 5200)  # windows over raw audio
_LONGER: Final = (64, 512)  # minimum sizes after the runtime died of inputs shorter than a window
_FITTING: Final = 6  # different sizes of given inputs
_MAX_SMALL: Final = 1 << 12  # elements of all inputs
_BY_ROUNDING: Final = 1e-3  # relative to a breakpoint propagated through different constants
LARGE_SIZE: Final = 64  # of a dim or trip count
NO_USE: Final = Use(INDEX, rows=(1,))
_FLOAT_NAMES: Final = frozenset(t.name for t in TYPES if t.kind == "f" and t.is_arithmetic)
_WIDE_INTEGERS: Final = frozenset(t.name for t in TYPES if t.kind in "iu" and t.bits >= 16)


@dataclass(frozen=True)
class InputSpec:
    """An input. A sequence is fed as a list of two or three elements."""

    name: str
    kind: str  # name of a numpy dtype, "string", or "" if no values can be made
    shape: tuple[int | str, ...] = ()  # numbers and symbols
    sequence: bool = False
    bound: int | None = None  # exclusive bound of integers: size of the indexed table
    use: Use = field(default_factory=lambda: NO_USE)
    compared: tuple[int, ...] = ()  # comparands: first selecting a branch, then the opposite branch
    why: str = ""  # reason that no values can be made
    int32: bool = False  # all numbers of an int64 input fit in int32

    def sized(self, dims: Mapping[str, int]) -> list[int]:
        """Return the shape for sizes of dynamic dims (default 1)."""
        return [dims.get(d, 1) if isinstance(d, str) else d for d in self.shape]

    @property
    def asks(self) -> bool:
        """Whether wide values prove more than small values."""
        if not self.use.asks or self.is_mask or self.kind in ("bool", "") or self._is_met:
            return False
        if self.kind in _WIDE_INTEGERS or self.use.words or self.use.whole:
            return True
        return any(e != 0 or self.use.exact for e in self.use.edges)  # any floats lie on both sides of zero

    @property
    def _is_met(self) -> bool:
        """Whether all breakpoints are comparands of a token id, which gets these in any case."""
        return self._is_token and all(0 < e < (self.bound or 0) and e in self.compared for e in self.use.edges)

    @property
    def asks_edges(self) -> bool:
        """Whether exact breakpoints, or a second wide number, prove more."""
        return self.asks and (set(self.shape) <= {1} or (self.kind in _FLOAT_NAMES and self.use.jumps))

    @property
    def is_levelled(self) -> bool:
        """Whether all floats may lie on the same side of a levelling breakpoint."""
        return self.kind in _FLOAT_NAMES and self.use.levelled and not self.is_mask

    @property
    def _is_size(self) -> bool:
        return self.use.role == SIZE and self.kind in _WIDE_INTEGERS

    def meeting(self, other: Use) -> InputSpec:
        """Return the spec with breakpoints of a second use, except those equal up to rounding.

        Integers stay within the accepted range. A size or trip count may be any small number.
        """
        is_met = self.kind in _FLOAT_NAMES or self._takes_others or self._is_size
        if UNKNOWN in (self.use.role, other.role) or not is_met:
            return self
        edges = *self.use.edges, *self._new_edges(other)
        levelled, exact = self.use.levelled | other.levelled, self.use.exact | other.exact
        use = self.use if self._is_size else replace(self.use, levelled=levelled, exact=exact)
        return replace(self, use=replace(use, edges=edges))

    def _new_edges(self, other: Use) -> list[float]:
        new = [e for e in other.edges if not any(_is_near(e, own) for own in self.use.edges)]
        return [e for e in new if not self._is_size or 0 < e <= LARGE_SIZE]

    @property
    def _takes_others(self) -> bool:
        """Whether the accepted integers are known. A size without comparands stays unchanged."""
        return self.kind in _WIDE_INTEGERS and (self.use.role == FREE or self._is_token)

    @property
    def _is_token(self) -> bool:
        """Whether the input indexes an axis of known size."""
        return self.use.role == INDEX and self.bound is not None

    @property
    def is_mask(self) -> bool:
        """Whether the input looks like a mask: by name, by use, or as a boolean matrix."""
        if self.kind in ("", "string") or self.sequence or not self.shape:
            return False
        return self.use.mask or "mask" in self.name.lower() or (self.kind == "bool" and len(self.shape) > 1)


@dataclass(repr=False)
class Plan:
    """The inputs of a model, and properties that influence cases."""

    inputs: list[InputSpec] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of all inputs, including overridable initializers
    overridable: dict[str, Any] = field(default_factory=dict)  # initializers that are also inputs, with default values
    hides: bool = False  # some part may not run, depending on data
    random: bool = False  # draws random numbers
    stateful: bool = False  # runs change weights
    normalizes: bool = False  # has a BatchNormalization: folded into weights, it rounds them anew
    narrow: bool = False  # an input or output has a type unknown to numpy
    cuts: bool = False  # has an operator that only changes large values
    mutes: bool = False  # has a Relu after a matrix product, which may mute a channel in all rows by chance
    decides: bool = False  # has a decision on floats
    muted: list[str] = field(default_factory=list)  # values a Relu may mute in few rows
    rare: list[str] = field(default_factory=list)  # results of operators with settings for rare numbers
    bytes: int = 0  # of weights
    nodes: int = 0  # in the main graph
    addends: frozenset[str] = frozenset()  # symbols in sums of output dims
    demanded: dict[str, int] = field(default_factory=dict)  # sizes required by weights
    traced: dict[str, int] = field(default_factory=dict)  # sizes that tracing left in place of dims
    baked: list[int] = field(default_factory=list)  # sizes present in the graph
    stride: int = 1  # common multiple of slice steps
    windows: list[dict[str, int]] = field(default_factory=list)  # sizes that leave positions behind all strides
    # Instead of the last entry of `windows`: no multiples of strides.
    ragged: dict[str, int] = field(default_factory=dict)
    # {size at which the two models differ: dims involved, "?" for unknown dims}.
    other_sizes: dict[int, frozenset[str]] = field(default_factory=dict)
    limits: tuple[int, ...] = ()  # those that cases try
    least: int = 0  # minimum of free dims: shorter ones killed the original
    fixed: dict[str, int] = field(default_factory=dict)  # sizes given for dims
    likely: list[dict[str, int]] = field(default_factory=list)  # sizes fitting those of given inputs

    def reaches(self, dims: Mapping[str, int], size: int) -> bool:
        """Return whether sizes of dynamic dims reach a size at which the two models differ.

        One dim involved has to; if they are unknown, all dims.
        """
        free = {s: n for s, n in dims.items() if s not in self.fixed}
        named = [free[s] for s in self.other_sizes[size] if s in free]
        return max(named, default=0) >= size or min(free.values(), default=0) >= size

    def hold_int32(self) -> None:
        """Limit 64-bit integer inputs to 32-bit numbers, as one of the two models accepts no others."""
        self.inputs = [replace(i, int32=True) if i.kind == "int64" else i for i in self.inputs]

    @property
    def symbols(self) -> list[str]:
        """The symbols in shapes of inputs."""
        return list(dict.fromkeys(d for i in self.inputs for d in i.shape if isinstance(d, str)))

    @property
    def flags(self) -> list[str]:
        """Inputs that are single booleans."""
        every = (i for i in self.inputs if i.kind == "bool" and not i.sequence and not i.is_mask)
        return [i.name for i in every if {*i.shape} <= {1}]

    @property
    def free(self) -> list[str]:
        """Symbols of any length, as far as known."""
        return [s for s in self.symbols if s not in self.demanded and not self.is_batch(s)]

    def lengthen(self) -> bool:
        """Raise the minimum of free dims. Returns False if there are none, or already at the maximum."""
        longer = next((n for n in _LONGER if n > self.least), 0) if self.free else 0
        self.least = longer or self.least
        return bool(longer)

    def is_batch(self, symbol: str) -> bool:
        """Return whether a symbol looks like a batch, by name or position."""
        if symbol in self.demanded or self._counts_samples(symbol):
            return False
        return re.search(_BATCH, symbol) is not None or (bool(self.addends or self.windows) and symbol in self.batches)

    def _counts_samples(self, symbol: str) -> bool:
        """Return whether a symbol of a single letter stands behind a batch, for N samples each."""
        return len(symbol) == 1 and any(
            symbol in i.shape[1:] and re.search(_BATCH, f"{i.shape[0]}") and i.shape[0] != symbol for i in self.inputs
        )

    @property
    def batch(self) -> list[str]:
        """The symbols that look like batches."""
        return [s for s in self.symbols if self.is_batch(s)]

    @property
    def batches(self) -> list[str]:
        """The symbols that occur only as first dims of inputs."""
        inner = {d for i in self.inputs for d in (i.shape[1:] or i.shape)}
        return [s for s in self.symbols if s not in inner]

    @property
    def rows(self) -> list[str]:
        """The batch; without one, symbols that occur only as first dims."""
        return self.batch or [s for s in self.batches if s not in self.demanded]

    @property
    def apart(self) -> list[str]:
        """Symbols of any size, as far as known: neither required nor sums."""
        known = {*self.demanded, *itertools.chain(*self.windows), *self._composite(self.symbols)}
        return [s for s in self.symbols if s not in known]

    def beside(
        self, other: ModelProto, followed: Uses | None = None, rows: Mapping[str, tuple[int, ...]] | None = None
    ) -> Plan:
        """Return the plan extended by breakpoints and comparands of a second model.

        followed: uses of the second model's inputs, if known; rows: by input, indices of differing table rows.
        """
        found = (followed or Uses(other.graph, other.functions)).found
        inputs = [i.meeting(found[i.name]) if i.name in found else i for i in self.inputs]
        for k, i in enumerate(inputs):
            theirs = found[i.name].decisive if i._takes_others else ()
            compared = dict.fromkeys((*i.compared, *theirs, *(rows or {}).get(i.name, ())))
            inputs[k] = replace(i, compared=tuple(compared))
        cuts = self.cuts or not CUTTING.isdisjoint(operator_names(other.graph.node))
        return replace(self, inputs=inputs, cuts=cuts)

    def gives_all(self, given: Collection[str]) -> bool:
        """Return whether values are given for all inputs."""
        return bool(self.inputs) and not self.left(given)

    def left(self, given: Collection[str]) -> list[InputSpec]:
        """Return the inputs without given values."""
        return [i for i in self.inputs if i.name not in given]

    def is_small(self, size: int, most: int = 0) -> bool:
        """Return whether inputs have at most `most` (default 4096) elements, with `size` for all dynamic dims."""
        return not self.windows and self.elements(dict.fromkeys(self.symbols, size)) <= (most or _MAX_SMALL)

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Return the elements of all inputs for sizes of dynamic dims (default 1)."""
        return sum(math.prod(i.sized(sizes)) for i in self.inputs)

    def bound(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of dynamic dims fixed by given values."""
        given = ((i, inputs[i.name].shape) for i in self.inputs if hasattr(inputs.get(i.name), "shape"))
        pairs = (pair for i, shape in given if len(shape) == len(i.shape) for pair in zip(i.shape, shape))
        return {d: size for d, size in pairs if isinstance(d, str)}

    def give(self, inputs: Mapping[str, Any]) -> Plan:
        """Return the plan with these inputs given, and their sizes fixed; the remaining inputs should fit."""
        shapes = {name: getattr(value, "shape", ()) for name, value in inputs.items()}
        plan = replace(self, inputs=[replace(i, shape=shapes.get(i.name, i.shape)) for i in self.inputs])
        plan.fix(self.bound(inputs))
        if inputs and plan.symbols:
            plan.likely = list(plan._fitting([*filter(None, shapes.values())]))
        return plan

    def _fitting(self, shapes: Sequence[tuple[int, ...]]) -> Iterator[dict[str, int]]:
        """Yield sizes of given inputs at the same position, then further sizes, and sums of two."""
        like = self._likened(shapes)
        yield like
        sizes = list(dict.fromkeys(itertools.chain(*shapes)))[:_FITTING]
        sizes = sorted({*sizes, *(m + n for m, n in itertools.combinations(sizes, 2))}, reverse=True)
        free = [s for s in like if s not in self.batches and not self.is_batch(s)]
        yield from (like | dict.fromkeys(free, size) for size in sizes)

    def _likened(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each dynamic dim as of given inputs at the same position."""
        like: dict[str, int] = {}
        for k, symbol, rank in ((k, d, len(i.shape)) for i in self.inputs for k, d in enumerate(i.shape)):
            if isinstance(symbol, str):
                like.setdefault(symbol, _size_at(k, rank, shapes))
        return like

    def fix(self, dims: dict[str, int]) -> None:
        """Fix sizes of dynamic dims."""
        self.fixed = self.fixed | dims
        for k, i in enumerate(self.inputs):
            self.inputs[k] = replace(i, shape=tuple(dims.get(d, d) if isinstance(d, str) else d for d in i.shape))

    def size_choices(self, sizes: Sequence[int] = ()) -> Iterator[dict[str, int]]:
        """Yield sizes of the dynamic dims, likely ones first; a single empty choice for a static model."""
        symbols = self.symbols
        demanded = {s: self.demanded[s] for s in symbols if s in self.demanded}
        free = self.free if self.least else ()
        choices = itertools.chain(() if sizes else self.likely, self._choices(symbols, sizes)) if symbols else [{}]
        every = (choice | demanded for choice in choices)
        return (choice for choice in every if all(choice[s] >= self.least for s in free))

    def _choices(self, symbols: Sequence[str], sizes: Sequence[int]) -> Iterator[dict[str, int]]:
        """Yield choices of the sizes; without, of windows and traced sizes, and of all usual sizes."""
        usual = (*dict.fromkeys((*_CANDIDATE_SIZES, *self.baked)), *_AUDIO_SIZES)
        yield from self._with_sums(symbols, sizes, 3) if sizes else self._without_sizes(symbols, usual)
        sizes = sizes or usual
        yield from (dict.fromkeys(symbols, size) for size in sizes)
        single = [s for s in symbols if s in self.batches and s not in self.batch]
        if 0 < len(single) < len(symbols):  # traced with a single image
            yield from (dict.fromkeys(symbols, size) | dict.fromkeys(single, 1) for size in sizes)

    def _without_sizes(self, symbols: Sequence[str], usual: Sequence[int]) -> Iterator[dict[str, int]]:
        """Yield choices of windows and traced sizes, and of the `usual` sizes."""
        windows = [*filter(None, ({s: w[s] for s in w.keys() & {*symbols}} for w in self.windows))]
        yield from (dict.fromkeys(symbols, 2 + i) | window for i, window in enumerate(windows))
        traced = {s: self.traced[s] for s in self.traced.keys() & {*symbols}}
        for count in (3, 1) if self.batch else (3,):  # maxima of a batch
            for i, window in enumerate(windows):  # dims beside the windows may be equally long
                yield dict.fromkeys(symbols, max(window.values())) | dict.fromkeys(self.batch, min(2 + i, count))
            with_sums = self._with_sums(symbols, usual, count)
            yield next(with_sums)
            if traced:
                yield dict.fromkeys(symbols, 3) | traced
            yield from with_sums

    def _with_sums(self, symbols: Sequence[str], sizes: Sequence[int], count: int) -> Iterator[dict[str, int]]:
        """Yield equal sizes of all dims except sums and a batch, which is at most `count`."""
        named = self._composite(symbols)
        composite = named or self._lone(symbols)
        # total = past + 1 for a single token, past + sequence for several
        sums = (((1, 1), (2, 0), (1, 0)) if named else ((1, 0), (1, 1), (2, 0))) if composite else ((1, 0),)
        for size, (times, more) in itertools.product(sizes, sums):
            totals = dict.fromkeys(composite, times * size + more)
            yield dict.fromkeys(symbols, size) | totals | dict.fromkeys(self.batch, min(size, count))

    def _composite(self, symbols: Sequence[str]) -> list[str]:
        """Return symbols that are sums by name.

        Else, if outputs have sums of symbols, returns symbols neither in a sum nor a batch (a mask over all).
        """
        if named := [s for s in symbols if re.search(_COMPOSITE, s)]:
            return named
        return [s for s in symbols if s not in self.addends and not self.is_batch(s)] if self.addends else []

    def _lone(self, symbols: Sequence[str]) -> list[str]:
        """Return symbols of a single integer input that indexes nothing, like a mask, beside a past of floats."""
        whose = {s: [i for i in self.inputs if s in i.shape] for s in symbols if not self.is_batch(s)}
        if len(whose) < 2 or not any(i.kind in _FLOAT_NAMES and len(i.shape) > 2 for i in self.inputs):
            return []
        alone = ((s, found[0]) for s, found in whose.items() if len(found) == 1)
        return [s for s, i in alone if i.bound is None and i.kind in (*_WIDE_INTEGERS, "bool")]


def _size_at(k: int, rank: int, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the size at a position in shapes of a rank, else the first size of any shape, else 2."""
    near = [s[k] for s in shapes if len(s) == rank] or [s[0] for s in shapes if not k] or [2]
    return near[0]


def _is_near(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= _BY_ROUNDING * max(abs(a), abs(b)) or (math.isnan(a) and math.isnan(b))
