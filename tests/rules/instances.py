"""Instances of a rule that nobody wrote: the rule fires on each; a name and a number always draw the same instance.

A draw begins with a model on which the rule fires, made from its pattern or taken from a case, and continues with
random changes. A change is undone if the result is invalid, accepted by no runtime, or no longer rewritten. A walk
therefore ends far from its beginning, and within the domain of the rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import onnx
from onnx import ModelProto

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.errors import OnnxOptError
from onnxopt.graph import read_model, write_model
from onnxopt.pipeline import Fixpoint, Instrument, PassContext, RewritePass, all_passes, execute
from onnxopt.rewriting import Match, Rule
from tests.cases.mutations import MUTATIONS, Mutation
from tests.cases.surroundings import forget_shapes, into_branches, into_function, of_any_size, read_elsewhere, scopes
from tests.cases.test_cases import CASES
from tests.rules import constants, patterns, shapes
from tests.rules.comparing import lacks_kernel, lies, runner
from tests.rules.constants import Change
from tests.rules.feeding import Range, draws
from tests.rules.judging import rewritten
from tests.rules.regions import REGIONS, region

LARGEST: Final = 60  # nodes
TRIES: Final = 5  # for each change that is wanted
DRAWS: Final = 12  # of the pattern
PATTERN: Final = 0.6  # share of draws that begin there


@cache
def rules() -> dict[str, str]:
    """The pass of each rule, by the rule's name."""
    found = {}
    for name, cls in all_passes(plugins=False).items():
        if issubclass(cls, RewritePass):
            found.update({r.name: name for r in cls.rules})
    return found


@cache
def rule(name: str) -> Rule:
    cls = all_passes(plugins=False)[rules()[name]]
    assert issubclass(cls, RewritePass)
    return next(r for r in cls.rules if r.name == name)


def subject(name: str) -> tuple[str, str | None]:
    """The pass, and its rule; a graph pass has none."""
    return (rules()[name], name) if name in rules() else (name, None)


@dataclass
class Instance:
    """A model, the way the judge runs the rule or graph pass on it, and its origin."""

    rule: str
    model: ModelProto
    ranges: Mapping[str, Range] = field(default_factory=dict)
    folded: bool = False
    before: tuple[str, ...] = ()  # passes that find out what the rule asks for
    history: list[str] = field(default_factory=list)

    @property
    def fires(self) -> bool:
        """Does the rule, alone? Raises what the pass raises."""
        return rewritten(self.model, *subject(self.rule), options(self.rule), self.folded, self.before)[1] > 0

    def with_model(self, model: ModelProto, folded: bool, step: str = "") -> Instance:
        """The same of another model."""
        return replace(self, model=model, folded=folded, history=[*self.history, *([step] if step else [])])


# -- where walks begin ---------------------------------------------------------------------------------------


class _Before(Instrument):
    """The model before each rule's first rewrite."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def rewriting(self, rule: Rule, m: Match, done: bool) -> None:
        if not done and rule.name not in self.found:
            self.found[rule.name] = write_model(m.graph.model).SerializeToString()


@cache
def options(name: str) -> dict[str, Any]:
    """Returns the options that a rule requires."""
    found = [c.options for c in CASES if c.hits.get(name)]
    return found[0] if found and all(found) else {}


@cache
def seeds(name: str) -> list[Instance]:
    """Returns the cases of the rule at its first match, if the rule fires alone."""
    found = []
    for case in CASES:
        if not case.hits.get(name) or case.options != options(name):
            continue
        watched = _Before()
        ctx = PassContext(opt_level=3, instruments=[watched])
        execute(Fixpoint(tuple(case.pipeline())), read_model(case.build()), ctx)
        if name in watched.found:
            first, said = ModelProto.FromString(watched.found[name]), [f"of the case “{case.name}”"]
            others = tuple(p for p in case.passes if p != rules()[name] and p != "dead-code")
            ways = ((first, False, ()), (first, True, ()), (first, False, others), (case.build(), False, others))
            for model, folded, passes in ways:
                instance = Instance(name, model, case.feeds, folded, passes, said)
                if instance.fires:
                    found.append(instance)
                    break
    return found


# -- walks ---------------------------------------------------------------------------------------------------


def _picking(mutation: Mutation) -> Change:
    return lambda model, rng: mutation(model, rng.choice)


CHANGES: Final[Mapping[str, Change]] = {
    **{c.__name__: c for c in (*constants.CHANGES, *shapes.CHANGES)},
    **{m.__name__: _picking(m) for m in (*MUTATIONS, into_branches, into_function, of_any_size, read_elsewhere)},
}
OFTEN: Final = (  # what a rule takes for something that it is not
    *("along_one_axis", "fill", "frozen", "made", "of_opset", "other_integers", "other_numbers", "resized", "unknown"),
)
NAMES: Final = (*CHANGES, *OFTEN, *OFTEN)
FILLS: Final = ("fill", "repeated")


def makes_constants(model: ModelProto) -> bool:
    """Does a node read constants only?"""
    known = {t.name for t in model.graph.initializer} - {i.name for i in model.graph.input}
    return any(n.op_type == "Constant" or (n.input and known.issuperset(n.input)) for n in model.graph.node)


def is_model(model: ModelProto) -> bool:
    if len(model.graph.node) > LARGEST:
        return False
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def is_taken(instance: Instance) -> bool:
    """Returns whether onnxruntime, or else the reference evaluator, runs the model."""
    feeds = None
    for reference in (False, True):
        try:
            run = runner(instance.model, reference)
            feeds = feeds or next(draws(instance.model, 0, instance.ranges))[1]
            return not any(lies(o, v) for o, v in zip(instance.model.graph.output, run(feeds), strict=True))
        except Exception as e:
            if reference or not lacks_kernel(e):
                return False
    return False


def changed(
    instance: Instance, rng: random.Random, names: Sequence[str] = NAMES, folds: float = 0.5
) -> Instance | None:
    """Another instance, one change away; None where the change leaves none. `folds`: how often constants are known."""
    model = ModelProto()
    model.CopyFrom(instance.model)
    name = rng.choice(names)
    try:
        if not CHANGES[name](model, rng):
            return None
    except (ValueError, TypeError, IndexError, OverflowError, KeyError, RuntimeError, onnx.checker.ValidationError):
        return None  # what the change asks for, this model has not
    folded = makes_constants(model) and rng.random() < folds
    found = instance.with_model(model, folded, name)
    return found if stands(found) else None


def stands(instance: Instance) -> bool:
    """Returns whether the model is valid, accepted by a runtime, and the rule fires or fails on it."""
    if not is_model(instance.model):
        return False
    try:
        if not instance.fires:
            return False
    except OnnxOptError:
        pass  # for the judge
    return is_taken(instance)


def of_pattern(name: str, rng: random.Random, reasons: Counter[str] | None = None) -> Instance | None:
    """Returns the first of a few draws of the pattern on which the rule fires. `reasons` counts the declined ones."""
    for _ in range(DRAWS):
        model = patterns.drawn(rng, rule(name).source)
        if model is not None:
            instance = Instance(name, model, {}, makes_constants(model) and rng.random() < 0.5, (), ["of the pattern"])
            if stands(instance):
                return instance
        if reasons is not None:
            reasons[_why_not(name, model)] += 1
    return None


def _why_not(name: str, model: ModelProto | None) -> str:
    """Returns the reason why a draw is no instance: the first guard that declines."""
    if model is None:
        return "no draw of the pattern is a model"
    if not is_model(model):
        return "onnx.checker refuses the draws"
    try:
        fired, declined = rewritten(model, *subject(name), options(name))[1:]
    except OnnxOptError:
        fired, declined = 1, ()
    if fired:
        return "no runtime runs the draws on which the rule fires"
    return declined[0] if declined else "the draws have another form (attributes, constants, readers of inner values)"


@cache
def unreached(name: str) -> str:
    """Why no draw of the rule's pattern is an instance, in most of a few draws; empty where one is."""
    reasons: Counter[str] = Counter()
    for i in range(2):
        if of_pattern(name, random.Random(f"{name} reached {i}"), reasons) is not None:
            return ""
    return reasons.most_common(1)[0][0]


def _beginning(name: str, rng: random.Random) -> Instance | None:
    """Of the pattern, or of a case."""
    begins = seeds(name)
    if not unreached(name) and (rng.random() < PATTERN or not begins):
        if (found := of_pattern(name, rng)) is not None:
            return found
    return rng.choice(begins) if begins else None


def draw(name: str, number: int, step: int = -1) -> Instance | None:
    """Returns the instance of a number, for a rule or graph pass; None if nothing fires.

    `step`: an earlier step of the walk.
    """
    found = walk(name, number)
    return found[step] if found else None


def walk(name: str, number: int) -> list[Instance]:
    """Yields the instances up to a number, each one change away from the preceding; none if nothing fires."""
    rng = random.Random(f"{name} {number}")
    if name in REGIONS:
        found, wanted = of_region(name, number), rng.choice([0, 0, 1, 2, 3])
        for body in [*scopes(found.model.graph)][1:] if found is not None and wanted else ():
            forget_shapes(body)  # which a change may make a lie that no checker sees
        return in_surroundings(found, rng, wanted) if found is not None else []
    instance = _beginning(name, rng)
    if instance is None:
        return []
    if rng.random() < 0.6:
        model = ModelProto()
        model.CopyFrom(instance.model)
        if constants.exact_numbers(model, rng):
            exact = instance.with_model(model, instance.folded, "exact_numbers")
            instance = exact if stands(exact) else instance
    if number % 3 == 1:  # of a constant that a node makes
        fills = (changed(instance, rng, FILLS, 0.9) for _ in range(6))
        instance = next((i for i in fills if i is not None), instance)
    return in_surroundings(instance, rng, rng.choice([0, 0, 1, 1, 2, 3, 4, 6]))


def of_region(name: str, number: int) -> Instance | None:
    """The first of a few regions on which the graph pass fires."""
    for i in range(DRAWS):
        instance = Instance(name, region(name, number * DRAWS + i), history=["a region"])
        if stands(instance):
            return instance
    return None


def in_surroundings(instance: Instance, rng: random.Random, wanted: int) -> list[Instance]:
    """Yields the instance, and the instances after each of several changes."""
    found = [instance]
    for _ in range(TRIES * wanted):
        following = changed(found[-1], rng)
        if following is not None:
            found.append(following)
            if len(found) > wanted:
                break
    return found
