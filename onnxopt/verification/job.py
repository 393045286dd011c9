"""Messages between the parent and the worker of a verification: plain, picklable data; the optimizer's own cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onnxopt.errors import UsageError
from onnxopt.startup.record import record
from onnxopt.verification import VerifyOptions
from onnxopt.verification.records import JudgedCase, Verification
from onnxopt.verification.runtime import Reference

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from onnxopt.verification.compare import Evidence
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.feeding import Data
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.inputs.uses import Uses

# Steps, announced by the worker before each begins. ORIGINAL and COMPARE are followed by the name of the case.
OPEN: Final = "open"
ORIGINAL: Final = "original "
LOAD: Final = "load"
COMPARE: Final = "compare "
LOOK: Final = "look"
UNSHOWN: Final = "unshown"
OPTIMIZED: Final = "optimized"
RELEASE: Final = "release"
JUST_LOAD: Final = "just load "
BATCHES: Final = "batches"  # case of the freed dims

Read = Callable[[], "Data"]  # picklable


class Opened(NamedTuple):
    """How the original runs: the engine, and why onnxruntime is not used or only runs parts."""

    engine: str = "onnxruntime"
    provider: str = ""
    refused: str = ""  # why onnxruntime does not load the original
    around: str = ""  # unknown operators left out, in words


@record
class Request:
    """A case to run: a recipe, given inputs, and expected outputs."""

    recipe: Recipe
    data: Data
    base: dict[str, int] | None = None  # sizes of dynamic dims accepted by the original, for a new worker


@record
class Answer:
    """The result of running the original on a case."""

    case: JudgedCase
    proves: bool = True  # whether agreement on the case proves anything
    evidence: dict[str, Evidence | None] = field(default_factory=dict)
    branches: dict[str, bool] = field(default_factory=dict)


@record(frozen=True)
class Death:
    """The end of a worker."""

    step: str  # step in progress
    state: str  # activity in progress, in words
    how: str  # cause, in words
    late: bool  # whether the time limit was exceeded


@record
class Opening:
    """The original to load."""

    original: str
    options: VerifyOptions
    labels: tuple[str, str]
    stepwise: bool = False  # the timeout holds per step; a case that killed a worker is not run again
    foreign: bool = False  # results were made elsewhere, perhaps with parts absent from the original
    ended: bool = False  # time is over: run nothing


@record
class Preparation:
    """The plan of the original's inputs, and its cases. Without a plan, the worker derives both from the file."""

    plan: Plan | None
    requests: list[tuple[Recipe, Read]] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)  # of earlier workers on these cases
    eager: bool = True  # run the original before a result is submitted
    references: tuple[Reference, ...] = ()  # functions for operators unknown to the runtime
    override: bool = True  # without a plan: initializers that are inputs may get other values


@record
class Compared:
    """Event: a case was compared."""

    answer: Answer
    case: JudgedCase


@record
class Submission:
    """A result to verify, with findings of earlier workers."""

    path: str
    options: VerifyOptions
    # By pass: change of outputs declared, relative to the range.
    declared: dict[str, float] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    known: dict[str, Compared] = field(default_factory=dict)  # by case
    verdict: Verification | None = None  # complete but for the load with optimizations
    spent: float = 0.0  # seconds
    is_rushed: bool = False  # the time left is shorter than the original's run
    done: float = 0.0  # share of the steps


@record
class Begun:
    """Event: a step begins."""

    step: str
    done: float = 0.0  # share of the steps finished


@record
class Concluded:
    """Event: the verdict, before the load with onnxruntime's optimizations."""

    verdict: Verification


def own_cases(
    original: ModelProto,
    array: Callable[[TensorProto], Any] | None,
    options: VerifyOptions,
    *,
    override: bool = True,
    stepwise: bool = False,
    uses: Uses | None = None,
) -> tuple[Plan, list[tuple[Recipe, Read]]]:
    """Return the plan of the original, and the optimizer's own cases with readers of their data.

    Arguments: see `Verifier.describe`; stepwise: see `Opening`; uses: of the original's inputs, if known. Raises
    UsageError for unknown inputs and dims.
    """
    from onnxopt.verification.inputs.cases import OWN, missing
    from onnxopt.verification.inputs.feeding import Data, read_array
    from onnxopt.verification.inputs.planning import make_plan

    plan = make_plan(original, array, uses)
    if options.int32:
        plan.hold_int32()
    if not override:
        plan.overridable = {}
    given = {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}
    fix_dims(plan, options.dims)
    is_long = stepwise or 2 * plan.bytes > options.memory  # each run reads all weights
    recipes = (r for r in OWN if not missing(r, plan, given) and not (r.single and is_long))
    return plan, [(r, partial(Data, given)) for r in recipes]


def fix_dims(plan: Plan, dims: dict[str, int]) -> None:
    """Fix dynamic dims of the inputs to the given sizes. Raises UsageError for an unknown dim."""
    for name in dims:
        if name not in plan.symbols:
            has = f"it has {', '.join(plan.symbols)}" if plan.symbols else "all its dims are fixed"
            raise UsageError(f"no input of the model has a dynamic dim {name!r}", has)
    plan.fix(dims)
