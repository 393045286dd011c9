"""Named cases of `onnxopt verify`: recipes of inputs, conditions for a case, and sizes to try."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from onnxopt.errors import UsageError
from onnxopt.proto.element_types import element_kind
from onnxopt.verification.inputs.plan import Plan


class Recipe(NamedTuple):
    """Description of the inputs of a case."""

    name: str
    # Ones, zeros, random (normal), another (same, different seed), uniform, extremes; wide, edges, below, above
    # (`values.py`).
    values: str = "random"
    size: int | None = None  # of every dynamic dim
    mask: str = ""  # filling of masks: ones, right (padding at the end), left, one (a single token)
    override: bool = False  # change initializers that are also inputs
    other: bool = False  # sizes different from the first case, if accepted
    tame: bool = False  # try nothing the original may reject
    beyond: int = 0  # dims as large as this entry of `Plan.limits`, counted from 1
    batch: bool = False  # apply `beyond` to batches only
    single: bool = False  # batches of size 1
    rows: bool = False  # many rows, in small models with decisions on floats
    longer: bool = False  # much longer inputs, if short
    flags: int = 0  # number of a pattern of negated single booleans (`turned_flags`), from 1
    # False for inputs so few or uniform that agreement and coverage prove nothing; differences are faults.
    proves: bool = True

    @property
    def drawn(self) -> bool:
        """Whether the values are random."""
        return self.values in ("random", "another", "uniform")

    @property
    def wide(self) -> bool:
        """Whether the case is left out if the original rejects it."""
        return self.values in ("wide", "edges") or self.on_one_side

    @property
    def on_one_side(self) -> bool:
        """Whether all values lie on the same side of every breakpoint."""
        return self.values in ("below", "above")

    def is_daring(self, plan: Plan) -> bool:
        """Return whether sequences have a second length, or integer initializers are overridden."""
        longer = self.values in ("uniform", "extremes") and any(i.sequence for i in plan.inputs)
        changed = self.override and any(element_kind(v) in "iub" for v in plan.overridable.values())
        return not self.tame and (longer or changed)

    def amplified(self, plan: Plan) -> bool:
        """Return whether some floats are enlarged to reach operators that cut off large values."""
        return self.values == "uniform" and plan.cuts


FLAGS: Final = tuple(Recipe("flags" if k == 1 else f"flags-{k}", flags=k) for k in range(1, 7))
RECIPES: Final = {
    r.name: r
    for r in (
        Recipe("random"),
        Recipe("ones", "ones", proves=False),  # multiplication agrees with addition
        Recipe("zeros", "zeros", proves=False),  # any factor agrees
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
        Recipe("uniform", "uniform", other=True),  # the optimizer's own second case
    )
}
SINGLE: Final = Recipe("batch of one", single=True, proves=False)
LONGER: Final = Recipe("longer", longer=True)  # for outputs that prove nothing on short inputs
ROWS: Final = Recipe("more of each channel", "another", rows=True)  # for a channel negligible beside larger channels
# Cases of the optimizer's own check.
OWN: Final = (
    Recipe("case 1"),
    Recipe("case 2", "uniform", other=True),
    *(RECIPES[name] for name in ("wide", "edges", "below", "above")),
    Recipe("other values for overridable initializers", override=True),
    *FLAGS,
    SINGLE,
)
# Further cases for coverage gaps: they may show a fault, but do not close a gap.
FURTHER: Final = (
    *(RECIPES[name]._replace(proves=False) for name in ("zeros", "ones", "extremes")),
    Recipe("more rows", "another", rows=True, proves=False),
)
# Further cases for constants in only one of the two models.
OF_BOTH: Final = (
    *(r for r in RECIPES.values() if r.beyond),
    *(RECIPES[name]._replace(name=f"{name}, of both") for name in ("wide", "edges", "below", "above")),
    Recipe("compared, of both", "another"),
)
GROUPS: Final = {
    "all": tuple(RECIPES),
    "dynamic": tuple(name for name, r in RECIPES.items() if r.size),
    "masks": tuple(name for name, r in RECIPES.items() if r.mask),
}
_THREE: Final = 3  # flags; with two patterns, only pairs are distinguished
_MASKED_LENGTH: Final = 4  # long enough to distinguish padding on either side
_WIDE_SIZE: Final = 16  # elements of small inputs, enough to meet several breakpoints
_ROWS: Final = 64  # of models with few inputs
_MOST_ROWS: Final = 512  # if nothing else is left to try
_MAX_NUMBERS: Final = 1 << 15  # input elements, with many rows
_WORK: Final = 1 << 36  # bytes of weights read, once per use
_LITTLE: Final = 1 << 20  # bytes of weights
_FIRST: Final = 1 << 28  # elements of all inputs, before any sizes are accepted
_FURTHER: Final = 1 << 24  # elements afterwards, or a multiple of the accepted elements
_BRIEF: Final = 1 << 18  # elements of longer inputs
_FACTORS: Final = (64, 16, 4)  # of lengths
_ATTEMPTS: Final = 12  # to find different sizes
_LARGER: Final = 16  # times the accepted sizes or elements


def choose(names: Sequence[str]) -> list[Recipe]:
    """Return the recipes of the named cases and groups, without repetition. Raises UsageError for an unknown name."""
    found: dict[str, Recipe] = {}
    for name in names:
        if name not in RECIPES and name not in GROUPS:
            raise UsageError(f"there is no case {name!r}", f"cases: {', '.join(RECIPES)}; groups: {', '.join(GROUPS)}")
        found.update((n, RECIPES[n]) for n in GROUPS.get(name, (name,)))
    return list(found.values())


def missing(recipe: Recipe, plan: Plan, given: Collection[str] = ()) -> str:
    """Return why the model has no such case, or "". `given`: inputs with given values."""
    if why := next((why for lacks, why in _LACKING if lacks(recipe, plan, given)), ""):
        return why
    if recipe.override or recipe.name == "random" or not plan.gives_all(given):
        return ""
    return "" if recipe == OWN[0] else "all inputs are given"


# Property of an input that asks for values.
_ASKED: Final = {"wide": "asks", "edges": "asks_edges", "below": "is_levelled", "above": "is_levelled"}
_LACKING: Final[tuple[tuple[Callable[[Recipe, Plan, Collection[str]], bool], str], ...]] = (
    (lambda r, plan, _: bool(r.size) and not plan.symbols, "the model has no dynamic dims"),
    (lambda r, plan, _: r.single and not plan.batch, "the model has no batch that is dynamic"),
    (
        lambda r, plan, _: bool(r.beyond) and not (plan.symbols and len(plan.limits) >= r.beyond),
        "there is no size, or no other, at which only one of the models does something else",
    ),
    (
        lambda r, plan, _: r.batch and (not plan.batch or _is_light(plan, plan.limits[r.beyond - 1])),
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
        lambda r, plan, given: r.wide and not any(getattr(i, _ASKED[r.values]) for i in plan.left(given)),
        "nothing asks for values of this kind",
    ),
)


def turned_flags(recipe: Recipe, plan: Plan, given: Collection[str] = ()) -> list[str]:
    """Return the single-boolean inputs to negate: those with a digit of 1 in the binary position, then those with 0.

    For any two inputs, either is negated alone in some case. For three inputs, the first, then the remaining two,
    complete all combinations. Empty if no position has the digit.
    """
    flags = [f for f in plan.flags if f not in given]
    digit, rest = divmod(recipe.flags - 1, 2)
    if len(flags) == _THREE and digit == _THREE - 1:
        return flags[1:] if rest else flags[:1]
    if len(flags) <= 1 << digit:
        return []
    return [f for k, f in enumerate(flags) if (k >> digit) % 2 != rest]


class Trial(dict[str, int]):
    """Sizes abandoned after the first failure, as a model may require multiples. A tame case has none."""


def is_bold(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> bool:
    """Return whether the first inputs tried may be rejected by the original. `base`: see `sizes`."""
    return recipe.is_daring(plan) or isinstance(next(sizes(plan, recipe, base), None), Trial)


def sizes(
    plan: Plan, recipe: Recipe, base: dict[str, int] | None, *, is_heavy: bool = False
) -> Iterator[dict[str, int]]:
    """Yield sizes of the dynamic dims to try until the original runs.

    base: accepted sizes. Far larger inputs are left out. is_heavy: the second case has a batch of 1, and no third case.
    """
    if is_heavy and recipe == SINGLE:
        return
    tried: list[dict[str, int]] = []
    most = _FIRST if base is None else _room(plan, base)
    alone = dict.fromkeys(plan.batch, 1) if is_heavy and recipe == OWN[1] else {}
    for choice in _with_rows(plan, recipe, base):
        choice.update(alone)
        is_left_out = choice in tried or (recipe.tame and isinstance(choice, Trial))
        if not is_left_out and (not choice or plan.elements(choice) <= most):
            tried.append(choice)
            yield choice


def _with_rows(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> Iterator[dict[str, int]]:
    """Yield sizes, before each the same with more rows, as few rows may hide a difference."""
    rows = _rows(plan, recipe) if base is not None else {}
    for known in _sizes(plan, recipe, base):
        if rows:
            yield Trial(known | rows)
        yield type(known)(known)


def _room(plan: Plan, base: dict[str, int]) -> int:
    """Return the number of elements allowed for inputs, given accepted sizes."""
    return max(_FURTHER, _LARGER * plan.elements(base))


def _rows(plan: Plan, recipe: Recipe) -> dict[str, int]:
    """Return numbers of rows to try first, in a small model with decisions or Relu; empty if no more are needed.

    Of few numbers, hardly any lie near a breakpoint, and a channel may be muted in all rows.
    """
    if plan.bytes > _LITTLE or not (recipe.rows or (recipe.other and (plan.decides or plan.mutes))):
        return {}
    most, counts = (_MAX_NUMBERS, (_MOST_ROWS, _ROWS)) if recipe.rows else (0, (_ROWS,))
    count = next((n for n in counts if plan.is_small(n, most)), 0)
    return dict.fromkeys(plan.rows, count) if count else {}


def _sizes(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> Iterator[dict[str, int]]:
    if recipe.size and plan.symbols:
        yield from _of_size(plan, base, recipe.size)
    elif recipe.beyond:
        yield from (_of_batch if recipe.batch else _beyond)(plan, base, plan.limits[recipe.beyond - 1])
    elif not (recipe.longer or recipe.single):
        yield from _others(plan, base) if recipe.other and base is not None else ()
        yield from _usual(plan, recipe, base)
    elif base is not None:
        choices = _longer(plan, base) if recipe.longer else [base | dict.fromkeys(plan.batch, 1)]
        yield from (choice for choice in choices if choice != base)


def _longer(plan: Plan, base: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield multiples of the accepted sizes, except batches, with few elements."""
    longer = ({s: n if plan.is_batch(s) else n * factor for s, n in base.items()} for factor in _FACTORS)
    return (choice for choice in longer if plan.elements(choice) <= _BRIEF)


def _of_size(plan: Plan, base: dict[str, int] | None, size: int) -> Iterator[dict[str, int]]:
    yield from plan.size_choices((size,))
    counts = dict.fromkeys(plan.batch, size)
    if base is not None:  # images and windows have a smallest size, batches have none
        yield from _ragged(plan, base | counts, 0)
        yield base | counts
    elif plan.windows:
        yield from (choice | counts for choice in plan.size_choices())


def _of_batch(plan: Plan, base: dict[str, int] | None, size: int) -> Iterator[dict[str, int]]:
    return (known | dict.fromkeys(plan.batch, size) for known in ([base] if base else plan.size_choices()))


def _beyond(plan: Plan, base: dict[str, int] | None, limit: int) -> Iterator[dict[str, int]]:
    involved = plan.other_sizes.get(limit, frozenset())
    if base is not None and involved and involved.issubset(base):  # the further dims may not fit the size
        yield base | dict.fromkeys(involved, limit)
    if _is_light(plan, limit):
        yield dict.fromkeys(plan.symbols, limit)
    if not plan.windows or plan.bytes * limit**2 <= _WORK:  # images of the limit in both dims
        yield from (choice for choice in plan.size_choices((limit,)) if limit in choice.values())
    if base is not None and plan.batch:
        yield base | dict.fromkeys(plan.batch, limit)


def _others(plan: Plan, base: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes that all differ from the accepted sizes, including batches."""
    another = {s: base[s] + (base[s] > 1) for s in plan.batch}  # if 1 was required, larger batches failed
    for choice in itertools.islice(_later(plan, base), _ATTEMPTS):
        choice |= {s: n for s, n in another.items() if choice[s] in (1, base[s])}
        yield from _ragged(plan, choice | dict.fromkeys(another, 1), 1)  # a refusal costs little
        yield from _apart(plan, choice)
        yield choice
    yield base | another


def _later(plan: Plan, base: dict[str, int]) -> Iterator[dict[str, int]]:
    """Return the choices after the accepted sizes that differ in all dims except batches and required sizes."""
    later = itertools.dropwhile(lambda choice: choice != base, plan.size_choices())  # earlier choices failed
    most = _LARGER * max(base.values(), default=1)  # far larger inputs take long to fail
    fitting = (c for c in later if c != base and max(c.values(), default=1) <= most)
    return (c for c in fitting if all(c[s] != base[s] for s in plan.free))


def _usual(plan: Plan, recipe: Recipe, base: dict[str, int] | None) -> Iterator[dict[str, int]]:
    if recipe.wide and base is not None and plan.least <= _WIDE_SIZE and plan.is_small(_WIDE_SIZE):
        yield dict.fromkeys(plan.symbols, _WIDE_SIZE)
    if recipe.mask and plan.symbols and not plan.windows:
        yield from plan.size_choices((_MASKED_LENGTH,))
    if base is None:
        yield from plan.size_choices()
        return
    if recipe.values == "extremes":
        yield from _ragged(plan, base, 0)
        yield from _apart(plan, base)
    yield base


def _is_light(plan: Plan, size: int) -> bool:
    """Return whether a run is little work with this size for all dynamic dims."""
    return plan.is_small(size) or plan.bytes * size ** len(plan.symbols) <= _WORK


def _apart(plan: Plan, choice: dict[str, int]) -> Iterator[Trial]:
    """Yield the choice with distinct sizes for dims of equal size, or at least for batches, as far as room allows.

    First tried are sizes of 1 more than a multiple of the stride, except batches.
    """
    free = [s for s in plan.apart if s in choice]
    batches = [s for s in free if plan.is_batch(s)]
    tried = [choice]
    for changing, stride in ((free, plan.stride), (free, 1), (batches, 1)):
        found = _distinct(plan, choice, changing, {s: 1 if s in batches else stride for s in changing})
        if found not in tried:
            tried.append(found)
            yield found


def _distinct(plan: Plan, choice: dict[str, int], changing: Collection[str], steps: dict[str, int]) -> Trial:
    """Return the choice with distinct sizes for the changing dims, each 1 more than a multiple of its step."""
    found, used = Trial(choice), {n for s, n in choice.items() if s not in changing}
    for symbol in changing:
        step = steps[symbol]
        size = next(n for n in itertools.count(choice[symbol]) if n not in used and n % step == 1 % step)
        if plan.elements(found | {symbol: size}) <= _room(plan, choice):
            found[symbol] = size
            used.add(size)
    return found


def _ragged(plan: Plan, choice: dict[str, int], which: int) -> Iterator[Trial]:
    """Yield the choice with sizes that are no multiples of strides. Dims of equal size stay equal."""
    ragged = {s: n for s, n in plan.ragged.items() if s in choice}
    if not ragged or any(choice[s] != plan.windows[which][s] for s in ragged):
        return
    alike = {choice[s]: n for s, n in ragged.items()}
    yield Trial(choice | {s: alike.get(n, n) for s, n in choice.items() if not plan.is_batch(s)} | ragged)
