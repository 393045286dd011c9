"""What the parent tells its worker of one verification, and what it hears of it: plain data, both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.record import record
from onnxopt.references import Reference
from onnxopt.verification.options import VerifyOptions
from onnxopt.verification.records import JudgedCase, Verification

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.datasets import Data
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.numbers.compare import Evidence

# Steps, which a worker says before it begins one. Those of one case are `ORIGINAL`, `COMPARE` and the name of the case.
OPEN: Final = "open"
ORIGINAL: Final = "original "
LOAD: Final = "load"
COMPARE: Final = "compare "
LOOK: Final = "look"
UNSHOWN: Final = "unshown"
OPTIMIZED: Final = "optimized"
RELEASE: Final = "release"
JUST_LOAD: Final = "just load "

Read = Callable[[], "Data"]  # which can be pickled


class Opened(NamedTuple):
    """What runs the original: why onnxruntime does not, or what it was run `around`, where that is so."""

    engine: str = "onnxruntime"
    provider: str = ""
    refused: str = ""
    around: str = ""


@record
class Request:
    """One case: a recipe, values that are given, and the outputs that are expected with them.

    `base`: sizes of dynamic dims that the original is known to take, if the worker does not know.
    """

    recipe: Recipe
    data: Data
    base: dict[str, int] | None = None


@record
class Answer:
    """What came of running the original on a case, and by what the whole is judged, if it `proves` anything."""

    case: JudgedCase
    proves: bool = True
    evidence: dict[str, Evidence | None] = field(default_factory=dict)
    branches: dict[str, bool] = field(default_factory=dict)


@record(frozen=True)
class Death:
    """The end of a worker at a `step`, when it was busy with `state`: `how`; `late`, if it took too long."""

    step: str
    state: str
    how: str
    late: bool


@record
class Opening:
    """The original, before anything is known of it. `stepwise`: the timeout is for each step, and what dies in one case
    is not run again. `foreign`: results are made elsewhere, and may have parts that the original has not. `ended`:
    nothing is run any more, for want of time."""

    original: str
    options: VerifyOptions
    labels: tuple[str, str]
    stepwise: bool = False
    foreign: bool = False
    ended: bool = False


@record
class Preparation:
    """What the original expects, and its cases. `deaths`: of workers that ran these before. `eager`: they are run
    before there is a result. `references`: functions for operators that the runtime has not."""

    plan: Plan
    requests: list[tuple[Recipe, Read]]
    deaths: list[Death] = field(default_factory=list)
    eager: bool = True
    references: tuple[Reference, ...] = ()


@record
class Compared:
    """An event: what came of a case."""

    answer: Answer
    case: JudgedCase


@record
class Submission:
    """A result. `declared`: by how much of their range passes say that they change outputs. What workers before this
    one found out: their `deaths`, `known` cases, the `verdict` but for a load with optimizations; `spent`: seconds.
    `is_rushed`: the result has less time than the original took. `done`: the share of the steps."""

    path: str
    options: VerifyOptions
    declared: dict[str, float] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    known: dict[str, Compared] = field(default_factory=dict)
    verdict: Verification | None = None
    spent: float = 0.0
    is_rushed: bool = False
    done: float = 0.0


@record
class Begun:
    """An event: a step begins. `done`: the share of the steps that are behind it."""

    step: str
    done: float = 0.0


@record
class Concluded:
    """An event: the verdict, unless onnxruntime's optimizations do not take the result."""

    verdict: Verification
