"""The named cases of `onnxopt verify`: what each feeds, which a model has, and the sizes to try for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from onnxopt.element_types import element_kind
from onnxopt.errors import UsageError
from onnxopt.record import record
from onnxopt.verification.inputs.plan import Plan


@record(frozen=True)
class Recipe:
    """How to make the inputs of one case.

    `values`: ones, zeros, random (normally distributed), another (the same, other ones), uniform, extremes, or wide,
    edges, below and above (`wide.py`). `rows`: many, of small models that decide upon floats. `size`: of every dynamic
    dim; `other`: other sizes than before, where the model takes them. `mask`: how masks are filled: ones, right
    (padding at the end), left, one (a single token). `override`: other values for initializers that are also inputs.
    `tame`: nothing is tried that the original may not take. `beyond`: dims are as large as this one of the plan's
    `limits`, from 1 on; `batch`: those of batches alone. `single`: batches are of one. `flags`: which of the inputs
    that are one boolean each are not as in other cases, by a pattern (`turned_flags`), from 1 on. `longer`: all else is
    much larger than before, if that is little. `proves`: False where few numbers, or such as are all alike, agree with
    too much: what differs is wrong then, and what agrees says nothing, nor is a part seen that no other case reaches.
    """

    name: str
    values: str = "random"
    size: int | None = None
    mask: str = ""
    override: bool = False
    other: bool = False
    tame: bool = False
    beyond: int = 0
    batch: bool = False
    single: bool = False
    rows: bool = False
    longer: bool = False
    flags: int = 0
    proves: bool = True

    @property
    def drawn(self) -> bool:
        """Are its values random, and not some that it is named for?"""
        return self.values in ("random", "another", "uniform")

    @property
    def wide(self) -> bool:
        """Is it tried, and left out where the original does not take it?"""
        return self.values in ("wide", "edges") or self.on_one_side

    @property
    def on_one_side(self) -> bool:
        """Are they all on one side of what an operator does something else at?"""
        return self.values in ("below", "above")

    def is_bold(self, plan: Plan) -> bool:
        """Is something tried first that the original may not take?"""
        ragged = bool(plan.ragged) and (self.other or bool(self.size) or self.values == "extremes")
        apart = (len(plan.symbols) > 1 or plan.stride > 1) and (self.other or self.values == "extremes")
        return not self.tame and (ragged or apart or self.is_daring(plan))

    def is_daring(self, plan: Plan) -> bool:
        """Are these values: sequences of another length, or other integers for initializers?"""
        if self.tame:
            return False
        longer = self.values in ("uniform", "extremes") and any(i.sequence for i in plan.inputs)
        return longer or (self.override and any(element_kind(v) in "iub" for v in plan.overridable.values()))

    def amplified(self, plan: Plan) -> bool:
        """Are some floats larger, because something inside cuts off what is large?"""
        return self.values == "uniform" and plan.cuts


FLAGS: Final = tuple(Recipe("flags" if k == 1 else f"flags-{k}", flags=k) for k in range(1, 7))
RECIPES: Final = {
    r.name: r
    for r in (
        Recipe("random"),
        Recipe("ones", "ones", proves=False),  # what multiplies agrees with what adds,
        Recipe("zeros", "zeros", proves=False),  # or with any factor
        Recipe("extremes", "extremes"),
        Recipe("wide", "wide"),
        Recipe("edges", "edges"),
        Recipe("below", "below"),
        Recipe("above", "above"),
        Recipe("dynamic-1", size=1),
        Recipe("dynamic-2", size=2),
        Recipe("dynamic-3", size=3),
        *(Recipe("beyond" if k == 1 else f"beyond-{k}", beyond=k) for k in range(1, 4)),
        *(Recipe("beyond-batch" if k == 1 else f"beyond-batch-{k}", beyond=k, batch=True) for k in range(1, 3)),
        Recipe("mask-ones", mask="ones"),
        Recipe("mask-right", mask="right"),
        Recipe("mask-left", mask="left"),
        Recipe("mask-one", mask="one"),
        Recipe("overrides", override=True),
        *FLAGS,
        Recipe("uniform", "uniform", other=True),  # as the optimizer's own second case
    )
}
SINGLE: Final = Recipe("batch of one", single=True, proves=False)
LONGER: Final = Recipe("longer", longer=True)  # where outputs say nothing: of a word, or a blink of sound
ROWS: Final = Recipe("more of each channel", "another", rows=True)  # where one is next to nothing beside the others
# What the optimizer checks its results with.
OWN: Final = (
    Recipe("case 1"),
    Recipe("case 2", "uniform", other=True),
    Recipe("wide", "wide"),
    Recipe("edges", "edges"),
    Recipe("below", "below"),
    Recipe("above", "above"),
    Recipe("other values for overridable initializers", override=True),
    *FLAGS,
    SINGLE,
)
# And with these, where something was not seen in any of those: they may show it, and do not excuse it.
FURTHER: Final = (
    *(replace(RECIPES[name], proves=False) for name in ("zeros", "ones", "extremes")),
    Recipe("more rows", "another", rows=True, proves=False),
)
# And with these, for numbers that only one of the two models has.
OF_BOTH: Final = (
    *(r for r in RECIPES.values() if r.beyond),
    *(replace(RECIPES[name], name=f"{name}, of both") for name in ("wide", "edges", "below", "above")),
)
GROUPS: Final = {
    "all": tuple(RECIPES),
    "dynamic": tuple(name for name, r in RECIPES.items() if r.size),
    "masks": tuple(name for name, r in RECIPES.items() if r.mask),
}
_THREE: Final = 3  # flags, of which the first two digits tell only any two apart
_MASKED_LENGTH: Final = 4  # long enough for padding on either side to be told apart
_MANY: Final = 16  # of small inputs: numbers enough to meet several edges
_ROWS: Final = 64  # of models with so few
_MOST_ROWS: Final = 512  # where that is all that is left to try,
_NUMBERS: Final = 1 << 15  # of so many numbers
_WORK: Final = 1 << 36  # bytes of weights, each time one is read
_LITTLE: Final = 1 << 20  # bytes of weights
_FIRST: Final = 1 << 28  # elements of all inputs, before any sizes are known to be taken,
_FURTHER: Final = 1 << 24  # and then, unless those have as many
_BRIEF: Final = 1 << 18  # elements of longer inputs,
_FACTORS: Final = (64, 16, 4)  # times as long
_ATTEMPTS: Final = 12  # to find other sizes
_LARGER: Final = 16  # times the sizes, or elements, that the original is known to take


def choose(names: Sequence[str]) -> list[Recipe]:
    """The recipes of these cases and groups, each once, in their order. Raises UsageError for an unknown name."""
    found: dict[str, Recipe] = {}
    for name in names:
        if name not in RECIPES and name not in GROUPS:
            raise UsageError(f"there is no case {name!r}", f"cases: {', '.join(RECIPES)}; groups: {', '.join(GROUPS)}")
        found.update((n, RECIPES[n]) for n in GROUPS.get(name, (name,)))
    return list(found.values())


def missing(recipe: Recipe, plan: Plan, given: Collection[str] = ()) -> str:
    """Why the model has no such case, where these inputs are given; empty where it has."""
    if why := next((why for lacks, why in _LACKING if lacks(recipe, plan, given)), ""):
        return why
    if recipe.override or recipe.name == "random" or not plan.gives_all(given):
        return ""
    return "" if recipe == OWN[0] else "all inputs are given"


def _has_no_batch_beyond(recipe: Recipe, plan: Plan) -> bool:
    return recipe.batch and (not plan.batch or _is_light(plan, plan.limits[recipe.beyond - 1]))


_LACKING: Final[tuple[tuple[Callable[[Recipe, Plan, Collection[str]], bool], str], ...]] = (
    (lambda r, plan, _: bool(r.size) and not plan.symbols, "the model has no dynamic dims"),
    (lambda r, plan, _: r.single and not plan.batch, "the model has no batch that is dynamic"),
    (
        lambda r, plan, _: bool(r.beyond) and not (plan.symbols and len(plan.limits) >= r.beyond),
        "there is no size, or no other, at which only one of the models does something else",
    ),
    (
        lambda r, plan, _: _has_no_batch_beyond(r, plan),
        "the model has no batch that is dynamic, or all dims are as large in another case",
    ),
    (
        lambda r, plan, _: bool(r.mask) and not any(i.is_mask for i in plan.inputs),
        "the model has no input that looks like a mask",
    ),
    (lambda r, plan, _: r.override and not plan.overridable, "the model has no initializers that are also inputs"),
    (lambda r, plan, _: (r.values != "random" or r.other) and not plan.inputs, "the model has no inputs"),
    (
        lambda r, plan, given: bool(r.flags) and not turned_flags(r, plan, given),
        "the model has no two inputs that are one boolean each, or other cases tell all of them apart",
    ),
    (
        lambda r, plan, given: r.on_one_side and not plan.asks_sides(given),
        "nothing asks for values that are all on one side",
    ),
    (
        lambda r, plan, given: r.wide and not r.on_one_side and not plan.asks_wide(given),
        "nothing asks for wide values",
    ),
    (lambda r, plan, given: r.values == "edges" and not plan.asks_edges(given), "nothing asks for other wide values"),
)


def turned_flags(recipe: Recipe, plan: Plan, given: Collection[str] = ()) -> list[str]:
    """The inputs that are one boolean each, and are turned round: by a digit of their place, as a binary number, and in
    the next case the others. So of any two there are cases in which either alone is turned. Of three, the first and
    then the others follow: that is all there is. None where the places of those that are not given have no such
    digit."""
    flags = [f for f in plan.flags if f not in given]
    digit, rest = divmod(recipe.flags - 1, 2)
    if len(flags) == _THREE and digit == _THREE - 1:
        return flags[1:] if rest else flags[:1]
    if len(flags) <= 1 << digit:
        return []
    return [f for k, f in enumerate(flags) if (k >> digit) % 2 != rest]


class Trial(dict[str, int]):
    """Sizes that are given up sooner than others: a model may ask for multiples, and what follows are such."""


def sizes(
    plan: Plan, recipe: Recipe, base: dict[str, int] | None, *, is_heavy: bool = False
) -> Iterator[dict[str, int]]:
    """Sizes of the dynamic dims to try for a case, until the original runs; `base` are some it is known to take. None
    that make far larger inputs than those: a tensor may have ten dims, and each counts. `is_heavy`: a run is much work;
    then the second case has a batch of one, and there is no third for that."""
    tried: list[dict[str, int]] = []
    most = _FIRST if base is None else _room(plan, base)
    alone = dict.fromkeys(filter(plan.is_batch, plan.symbols), 1) if is_heavy and recipe == OWN[1] else {}
    for choice in _with_rows(plan, recipe, base) if not (is_heavy and recipe == SINGLE) else ():
        choice = type(choice)(choice | alone)
        if choice not in tried and (not choice or plan.elements(choice) <= most):
            tried.append(choice)
            yield choice


def _room(plan: Plan, base: dict[str, int]) -> int:
    """How many elements inputs may have, if the original is known to take these sizes."""
    return max(_FURTHER, _LARGER * plan.elements(base))


def _with_rows(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> Iterator[dict[str, int]]:
    """Where floats are decided upon, few of a few numbers are near an edge, and a Relu may be zero for all: a small
    model has more rows, once."""
    more = recipe.rows or (recipe.other and (plan.decides or plan.mutes))
    more = more and base is not None and not recipe.tame
    rows = plan.rows if more and plan.bytes <= _LITTLE else []
    most, counts = (_NUMBERS, (_MOST_ROWS, _ROWS)) if recipe.rows else (0, (_ROWS,))
    count = next((n for n in counts if plan.is_small(n, most)), 0)
    for choice in _sizes(plan, recipe, base):
        if rows and count:
            yield Trial(choice | dict.fromkeys(rows, count))
        yield choice


def _sizes(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> Iterator[dict[str, int]]:
    if recipe.size and plan.symbols:
        yield from _of_size(plan, recipe, base, recipe.size)
    elif recipe.beyond:
        yield from _beyond(plan, recipe, base, plan.limits[recipe.beyond - 1])
    elif recipe.longer:
        yield from _longer(plan, base) if base is not None else ()
    elif recipe.single:
        batches = {s: 1 for s in plan.batch if base is not None and base[s] > 1}
        yield from [base | dict.fromkeys(plan.batch, 1)] if base is not None and batches else []
    else:
        yield from _others(plan, recipe, base) if recipe.other and base is not None else ()
        yield from _usual(plan, recipe, base)


def _of_size(plan: Plan, recipe: Recipe, base: dict[str, int] | None, size: int) -> Iterator[dict[str, int]]:
    yield from plan.size_choices((size,))
    counts = dict.fromkeys(plan.batch, size)
    if base is not None:  # images and windows have a smallest size, a batch has not
        yield from _ragged(plan, recipe, base | counts, 0)
        yield base | counts
    elif plan.windows:
        yield from (choice | counts for choice in plan.size_choices())


def _beyond(plan: Plan, recipe: Recipe, base: dict[str, int] | None, limit: int) -> Iterator[dict[str, int]]:
    if recipe.batch:
        yield from (c | dict.fromkeys(plan.batch, limit) for c in ([base] if base else plan.size_choices()))
        return
    if _is_light(plan, limit):
        yield dict.fromkeys(plan.symbols, limit)
    if not plan.windows or plan.bytes * limit**2 <= _WORK:
        yield from (choice for choice in plan.size_choices((limit,)) if limit in choice.values())


def _longer(plan: Plan, base: dict[str, int]) -> Iterator[dict[str, int]]:
    for factor in _FACTORS:
        choice = {s: n if plan.is_batch(s) else n * factor for s, n in base.items()}
        if choice != base and plan.elements(choice) <= _BRIEF:
            yield choice


def _others(plan: Plan, recipe: Recipe, base: dict[str, int]) -> Iterator[dict[str, int]]:
    """Sizes of which each is another than before, where the model takes such; batches, too."""
    batches = plan.batch
    changing = [s for s in plan.symbols if s not in batches and s not in plan.demanded]
    later = itertools.dropwhile(lambda choice: choice != base, plan.size_choices())  # those before it failed
    most = _LARGER * max(base.values(), default=1)  # far larger ones take long to fail
    fitting = (c for c in later if max(c.values(), default=1) <= most and all(c[s] != base[s] for s in changing))
    another = {s: base[s] + (base[s] > 1) for s in batches}  # of one that has to be 1, the larger ones failed
    for choice in itertools.islice((c for c in fitting if c != base), _ATTEMPTS):
        choice |= {s: another[s] for s in batches if choice[s] in (1, base[s])}
        yield from _ragged(plan, recipe, choice | dict.fromkeys(batches, 1), 1)  # little is lost if it is refused
        yield from _apart(plan, recipe, choice)
        yield choice
    yield base | another


def _usual(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> Iterator[dict[str, int]]:
    if recipe.wide and base is not None and plan.least <= _MANY and plan.is_small(_MANY):
        yield dict.fromkeys(plan.symbols, _MANY)
    if recipe.mask and plan.symbols and not plan.windows:
        yield from plan.size_choices((_MASKED_LENGTH,))
    if base is None:
        yield from plan.size_choices()
        return
    if recipe.values == "extremes":
        yield from _ragged(plan, recipe, base, 0)
        yield from _apart(plan, recipe, base)
    yield base


def _is_light(plan: Plan, size: int) -> bool:
    """Is it little work where all dynamic dims have this size?"""
    return plan.is_small(size) or plan.bytes * size ** len(plan.symbols) <= _WORK


def _apart(plan: Plan, recipe: Recipe, choice: dict[str, int]) -> Iterator[Trial]:
    """Instead of this choice, dims of one size with sizes of their own, that none is taken for another; or at least the
    batches. First such as are one longer than steps."""
    if recipe.tame:
        return
    free = [s for s in plan.apart if s in choice]
    batches = [s for s in free if plan.is_batch(s)]
    tried = [choice]
    for changing, stride in dict.fromkeys(((tuple(free), plan.stride), (tuple(free), 1), (tuple(batches), 1))):
        if (found := _own_sizes(plan, choice, changing, stride)) not in tried:
            tried.append(found)
            yield Trial(found)


def _own_sizes(plan: Plan, choice: dict[str, int], changing: Sequence[str], stride: int) -> dict[str, int]:
    """The choice with other sizes for what is `changing`, but for batches one more than a multiple of `stride`, as far
    as there is room."""
    found, used = dict(choice), {n for s, n in choice.items() if s not in changing}
    for symbol in changing:
        step = 1 if plan.is_batch(symbol) else stride
        size = next(n for n in itertools.count(choice[symbol]) if n not in used and n % step == 1 % step)
        if plan.elements(found | {symbol: size}) <= _room(plan, choice):
            found[symbol] = size
            used.add(size)
    return found


def _ragged(plan: Plan, recipe: Recipe, choice: dict[str, int], which: int) -> Iterator[Trial]:
    """Instead of this choice, where that has the sizes for windows, some that are no multiples of strides. What is as
    long as such a dim stays so."""
    ragged = {s: n for s, n in plan.ragged.items() if s in choice}
    if recipe.tame or not ragged or any(choice[s] != plan.windows[which][s] for s in ragged):
        return
    alike = {choice[s]: n for s, n in ragged.items()}
    yield Trial(choice | {s: alike.get(n, n) for s, n in choice.items() if not plan.is_batch(s)} | ragged)
