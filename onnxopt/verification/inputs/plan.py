"""What the original file says of its inputs: everything a worker needs to make feeds without parsing the model again.

Made from the original's ModelProto by the parent, which has it anyway; plain data, so that the worker imports
nothing but numpy and a runtime.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from onnxopt.element_types import TYPES
from onnxopt.record import record
from onnxopt.verification.inputs.uses import FREE, INDEX, SIZE, UNKNOWN, Use, Uses
from onnxopt.verification.inputs.wide import LARGE_SIZE
from onnxopt.verification.model.operators import CUTTING
from onnxopt.verification.model.order import operator_names

if TYPE_CHECKING:
    from onnx import ModelProto

_COMPOSITE: Final = re.compile(r"\+|plus|total|sum|_and_", re.IGNORECASE)
_BATCH: Final = re.compile(r"batch|^[NnBb]$", re.IGNORECASE)
# Sizes for dynamic dims, tried in this order until the original runs: images and windows need larger ones.
_SIZES: Final = (2, 3, 4, 1, 5, 8, 16, 32, 64, 128, 224)
_LONG: Final = (512, 1600, 5200)  # windows over raw audio
_LONGER: Final = (64, 512)  # at least, where runtimes die of what is shorter than a window
_FITTING: Final = 6  # different sizes of what is given
_SMALL: Final = 1 << 12  # elements of all inputs
_BY_ROUNDING: Final = 1e-3  # of an edge, that was followed through other constants
NO_USE: Final = Use(INDEX, rows=(1,))
_FLOATS: Final = frozenset(t.name for t in TYPES if t.kind == "f" and t.is_arithmetic)
_INTEGERS: Final = frozenset(t.name for t in TYPES if t.kind in "iu" and t.bits >= 16)


@record(frozen=True)
class InputSpec:
    """One input. `kind` is a numpy dtype's name, "string", or "" where no values can be made (`why`).

    `shape` holds numbers and symbols. A sequence is fed as a list of two, or three.
    """

    name: str
    kind: str
    shape: tuple[int | str, ...] = ()
    sequence: bool = False
    bound: int | None = None  # integers stay below: they index a table of that size
    use: Use = NO_USE
    compared: tuple[int, ...] = ()  # integers that decide something: what takes one branch, then another
    why: str = ""

    @property
    def asks(self) -> bool:
        """Is there something that only wide values tell?"""
        if not self.use.asks or self.is_mask or self.kind in ("bool", "") or self._is_met:
            return False
        if self.kind in _INTEGERS or self.use.words or self.use.whole:
            return True
        return any(e != 0 or self.use.exact for e in self.use.edges)  # both sides of zero are met by any floats

    @property
    def is_levelled(self) -> bool:
        """Are there edges of which all its floats may be on one side, and be alike then?"""
        return self.kind in _FLOATS and self.use.levelled and not self.is_mask

    def meeting(self, other: Use) -> InputSpec:
        """With these edges, too, but for those that rounding made of its own; of integers, where they stay within what
        the first takes. A size, or a number of turns, may be any small one."""
        is_size = self.use.role == SIZE and self.kind in _INTEGERS
        if UNKNOWN in (self.use.role, other.role) or not (self.kind in _FLOATS or self._takes_others or is_size):
            return self
        new = [e for e in other.edges if not any(_is_near(e, own) for own in self.use.edges)]
        new = [e for e in new if 0 < e <= LARGE_SIZE] if is_size else new
        levelled, exact = self.use.levelled or other.levelled, self.use.exact or other.exact
        if not new and (is_size or (levelled, exact) == (self.use.levelled, self.use.exact)):
            return self
        return replace(self, use=replace(self.use, edges=(*self.use.edges, *new), levelled=levelled, exact=exact))

    @property
    def _takes_others(self) -> bool:
        """Is it known which integers the model takes? A size that nothing is compared with stays what it is."""
        return self.kind in _INTEGERS and (self.use.role == FREE or (self.use.role == INDEX and self.bound is not None))

    @property
    def _is_met(self) -> bool:
        """Is it a token of which each edge is fed in any case?"""
        token = self.use.role == INDEX and self.bound is not None
        return token and all(0 < e < (self.bound or 0) and e in self.compared for e in self.use.edges)

    @property
    def is_mask(self) -> bool:
        """Does it look like a mask: called so, used so, or a matrix of booleans?"""
        if self.kind in ("", "string") or self.sequence or not self.shape:
            return False
        return self.use.mask or "mask" in self.name.lower() or (self.kind == "bool" and len(self.shape) > 1)


@record
class Plan:
    """`overridable`: initializers that are also inputs, with their defaults. `conditions`: values that decide an If in
    the main graph."""

    inputs: list[InputSpec] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    overridable: dict[str, Any] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)
    hides: bool = False  # are there other parts that some data run and others do not?
    random: bool = False
    stateful: bool = False
    narrow: bool = False  # is there an input or output of a type that numpy does not have?
    cuts: bool = False  # is there an operator that looks the same until values are large?
    mutes: bool = False  # is there one that is zero for what a matrix makes of some rows, and of all of them by chance?
    decides: bool = False  # does an operator inside turn floats into what jumps?
    decisions: list[str] = field(default_factory=list)  # what becomes of it that is no float,
    steps: list[str] = field(default_factory=list)  # or steps;
    within: list[str] = field(default_factory=list)  # and what nodes make in whose bodies it may be either
    muted: list[str] = field(default_factory=list)  # what few rows hide
    bytes: int = 0  # of weights
    nodes: int = 0  # of the main graph
    addends: frozenset[str] = frozenset()  # symbols that outputs have sums of
    batches: frozenset[str] = frozenset()  # symbols that are the first dim of an input, and no other
    demanded: dict[str, int] = field(default_factory=dict)  # sizes that weights ask for
    baked: list[int] = field(default_factory=list)  # sizes that stand in the graph
    stride: int = 1  # a multiple of the steps in which elements are taken
    windows: list[dict[str, int]] = field(default_factory=list)  # sizes that leave positions behind all strides
    ragged: dict[str, int] = field(default_factory=dict)  # instead of the last of these: they leave something over
    other_sizes: list[int] = field(default_factory=list)  # at which one of two models does something else
    limits: tuple[int, ...] = ()  # those of them that cases reach
    least: int = 0  # of dims that are free to be longer: shorter ones have killed the original
    fixed: dict[str, int] = field(default_factory=dict)  # sizes that somebody gave to dims
    likely: list[dict[str, int]] = field(default_factory=list)  # sizes that fit those of inputs that are given

    @property
    def symbols(self) -> list[str]:
        return list(dict.fromkeys(d for i in self.inputs for d in i.shape if isinstance(d, str)))

    @property
    def flags(self) -> list[str]:
        """Inputs that are one boolean each."""
        every = (i for i in self.inputs if i.kind == "bool" and not i.sequence and not i.is_mask)
        return [i.name for i in every if all(d == 1 for d in i.shape)]

    @property
    def free(self) -> list[str]:
        """Symbols that may be of any length, as far as is known."""
        return [s for s in self.symbols if s not in self.demanded and not self.is_batch(s)]

    def lengthen(self) -> bool:
        """Have free dims longer from now on; False where there are none, or they have been long."""
        longer = next((n for n in _LONGER if n > self.least), 0) if self.free else 0
        self.least = longer or self.least
        return bool(longer)

    def is_batch(self, symbol: str) -> bool:
        if symbol in self.demanded:
            return False
        if len(symbol) == 1 and any(
            symbol in i.shape[1:] and _BATCH.search(f"{i.shape[0]}") and i.shape[0] != symbol for i in self.inputs
        ):
            return False  # N samples of a batch
        return _BATCH.search(symbol) is not None or (bool(self.addends or self.windows) and symbol in self.batches)

    @property
    def batch(self) -> list[str]:
        return [s for s in self.symbols if self.is_batch(s)]

    @property
    def rows(self) -> list[str]:
        """The batch; where none is called so, what inputs have as their first dim, and nowhere else."""
        shapes = [i.shape for i in self.inputs]
        inner = {d for shape in shapes for d in (shape[1:] if len(shape) > 1 else shape)}
        first = {shape[0] for shape in shapes if shape} - inner
        return self.batch or [s for s in self.symbols if s in first and s not in self.demanded]

    @property
    def apart(self) -> list[str]:
        """Symbols that may have any sizes, as far as is known: nothing asks for some, and none is a sum of others."""
        known = {*self.demanded, *(s for window in self.windows for s in window), *self._composite(self.symbols)}
        return [s for s in self.symbols if s not in known]

    def beside(
        self, other: ModelProto, followed: Uses | None = None, rows: Mapping[str, tuple[int, ...]] | None = None
    ) -> Plan:
        """The plan where what the second model does at edges of its own is seen: a bound that only it has is reached by
        numbers that the first asks nothing of, and what it compares with is fed. `followed`: its inputs, where that is
        known. `rows`: by input, those that differ of what it indexes."""
        followed = followed or Uses(other.graph, other.functions)
        found, numbers = followed.found, followed.compared()
        inputs = [i.meeting(found[i.name].use()) if i.name in found else i for i in self.inputs]
        more = {i.name: numbers.get(i.name, ()) for i in inputs if i._takes_others}
        inputs = [
            replace(
                i, compared=tuple(dict.fromkeys((*i.compared, *more.get(i.name, ()), *(rows or {}).get(i.name, ()))))
            )
            for i in inputs
        ]
        cuts = self.cuts or not CUTTING.isdisjoint(operator_names(other.graph.node))
        return replace(self, inputs=inputs, cuts=cuts)

    def gives_all(self, given: Collection[str]) -> bool:
        return bool(self.inputs) and all(i.name in given for i in self.inputs)

    def asks_wide(self, given: Collection[str]) -> bool:
        return any(i.asks for i in self.inputs if i.name not in given)

    def asks_sides(self, given: Collection[str]) -> bool:
        return any(i.is_levelled for i in self.inputs if i.name not in given)

    def asks_edges(self, given: Collection[str]) -> bool:
        asking = (i for i in self.inputs if i.asks and i.name not in given)
        return any(set(i.shape) <= {1} or (i.kind in _FLOATS and i.use.jumps) for i in asking)

    def is_small(self, size: int, most: int = 0) -> bool:
        """Are inputs few numbers, or at most so many, where all dynamic dims have this size?"""
        return not self.windows and self.elements(dict.fromkeys(self.symbols, size)) <= (most or _SMALL)

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Of all inputs, where dynamic dims have these sizes; 1 where they have none."""
        shapes = ([sizes.get(d, 1) if isinstance(d, str) else d for d in i.shape] for i in self.inputs)
        return sum(map(math.prod, shapes))

    def give(self, shapes: dict[str, tuple[int, ...]], dims: dict[str, int]) -> Plan:
        """The plan where these inputs are given, and say that dims have these sizes: the others are to fit them."""
        plan = replace(self, inputs=[replace(i, shape=shapes.get(i.name, i.shape)) for i in self.inputs])
        plan.fix(dims)
        if plan.symbols:
            plan.likely = list(plan._fitting([s for s in shapes.values() if s]))
        return plan

    def _fitting(self, shapes: Sequence[tuple[int, ...]]) -> Iterator[dict[str, int]]:
        """As long as what is given at the same place; or as another size there is, or two of them together."""
        like: dict[str, int] = {}
        for i in self.inputs:
            for k, symbol in ((k, d) for k, d in enumerate(i.shape) if isinstance(d, str)):
                near = [s[k] for s in shapes if len(s) == len(i.shape)] or [s[0] for s in shapes if not k] or [2]
                like.setdefault(symbol, near[0])
        yield like
        sizes = list(dict.fromkeys(n for s in shapes for n in s))[:_FITTING]
        sizes = sorted({*sizes, *(m + n for m, n in itertools.combinations(sizes, 2))}, reverse=True)
        free = [s for s in like if s not in self.batches and not self.is_batch(s)]
        composite = self._composite(free)
        for changed in (composite, free) if 0 < len(composite) < len(free) else (free,):
            for size in sizes:
                yield like | dict.fromkeys(changed, size)

    def fix(self, dims: dict[str, int]) -> None:
        """Give dynamic dims their sizes."""
        self.fixed = self.fixed | dims
        self.inputs = [
            replace(i, shape=tuple(dims.get(d, d) if isinstance(d, str) else d for d in i.shape)) for i in self.inputs
        ]

    def size_choices(self, sizes: Sequence[int] = ()) -> Iterator[dict[str, int]]:
        """Sizes of the dynamic dims, likely ones first; one empty choice for a static model."""
        demanded = {s: self.demanded[s] for s in self.symbols if s in self.demanded}
        free = self.free if self.least else ()
        choices = (choice | demanded for choice in self._choices(sizes))
        return (choice for choice in choices if all(choice[s] >= self.least for s in free))

    def _choices(self, sizes: Sequence[int]) -> Iterator[dict[str, int]]:
        symbols = self.symbols
        windows = [] if sizes else [w for all_ in self.windows if (w := {s: all_[s] for s in symbols if s in all_})]
        likely = [] if sizes else self.likely
        counts = (3,) if sizes else (3, 1)  # of a batch, at most
        sizes = sizes or (*_SIZES, *(n for n in self.baked if n not in _SIZES), *_LONG)
        if not symbols:
            yield {}
            return
        named = self._composite(symbols)
        composite = named or self._lone(symbols)
        batch = self.batch
        yield from likely
        for i, window in enumerate(windows):
            yield dict.fromkeys(symbols, 2 + i) | window
        for count in counts if batch else counts[:1]:
            for i, window in enumerate(windows):  # what goes with them may be as long
                yield dict.fromkeys(symbols, max(window.values())) | dict.fromkeys(batch, min(2 + i, count))
            for size in sizes:
                plain = {s: min(size, count) if s in batch else size for s in symbols}
                # total = past + 1 where one token is fed, past + sequence where as many are
                totals = (size + 1, 2 * size, size) if named else (size, size + 1, 2 * size)
                for total in totals if composite else (size,):
                    yield plain | {s: total for s in composite if s not in batch}
        for size in sizes:
            yield dict.fromkeys(symbols, size)
        single = [s for s in symbols if s in self.batches and s not in batch]
        for size in sizes if 0 < len(single) < len(symbols) else ():  # traced with one picture
            yield dict.fromkeys(symbols, size) | dict.fromkeys(single, 1)

    def _composite(self, symbols: Sequence[str]) -> list[str]:
        """Those that are sums of others by their names; or, where outputs have sums of symbols, those that are neither
        part of one nor a batch: a mask over all."""
        if named := [s for s in symbols if _COMPOSITE.search(s)]:
            return named
        return [s for s in symbols if s not in self.addends and not self.is_batch(s)] if self.addends else []

    def _lone(self, symbols: Sequence[str]) -> list[str]:
        """Those that only one input has, of integers that index nothing, as a mask does, beside a past of floats that
        it may cover, too."""
        if not any(i.kind in _FLOATS and len(i.shape) > 2 for i in self.inputs):
            return []
        whose = {s: [i for i in self.inputs if s in i.shape] for s in symbols if not self.is_batch(s)}
        alone = {s: found[0] for s, found in whose.items() if len(found) == 1 and len(whose) > 1}
        return [s for s, i in alone.items() if i.bound is None and i.kind in (*_INTEGERS, "bool")]


def _is_near(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= _BY_ROUNDING * max(abs(a), abs(b)) or (math.isnan(a) and math.isnan(b))
