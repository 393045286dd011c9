"""Messages between the parent and the worker of a verification: plain, picklable data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.verification import VerifyOptions

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.feeding import Read
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.records import CaseRecord, Evidence, Verification
    from onnxopt.verification.runtime import Reference

# Steps, announced by the worker before each begins. ORIGINAL and COMPARE are followed by the name of the case.
OPEN: Final = "open"
ORIGINAL: Final = "original "
LOAD: Final = "load"
COMPARE: Final = "compare "
LOOK: Final = "look"
UNSHOWN: Final = "unshown"
RELEASE: Final = "release"
# Loads alone, with onnxruntime's optimizations or without, followed by the name of the model.
OPTIMIZED: Final = "optimized "
JUST_LOAD: Final = "just load "
BATCHES: Final = "batches"  # case of the freed dims


class Opened(NamedTuple):
    """How the original runs: the engine, and why onnxruntime is not used or only runs parts."""

    engine: str = "onnxruntime"
    provider: str = ""
    refused: str = ""  # why onnxruntime does not load the original
    around: str = ""  # unknown operators left out, in words


@dataclass(eq=False, repr=False)
class Answer:
    """A case: run by the original, then (as an event) compared with the result."""

    case: CaseRecord
    proves: bool = True  # whether agreement on the case proves anything
    evidence: dict[str, Evidence | None] = field(default_factory=dict)  # of the original's outputs
    ran: bool = True  # the original ran


@dataclass(eq=False, repr=False)
class Death:
    """The end of a worker."""

    step: str  # step in progress
    state: str  # activity in progress, in words
    how: str  # cause, in words
    late: bool  # whether the time limit was exceeded


@dataclass(eq=False, repr=False)
class Step:
    """A file run in place of a part of a model."""

    file: Path
    inputs: tuple[str, ...]  # names fed, if known
    outputs: tuple[str, ...]  # names computed


@dataclass(eq=False, repr=False)
class Job:
    """The original, and its cases. Without a plan, the worker derives plan and cases from the file."""

    original: str
    options: VerifyOptions
    labels: tuple[str, str]
    stepwise: bool = False  # the timeout holds per step; a fatal case ends alone
    foreign: bool = False  # results were made elsewhere, perhaps with parts absent from the original
    steps: Sequence[Step] = ()  # files run in order, in place of a result
    plan: Plan | None = None  # of the original's inputs
    requests: Sequence[tuple[Recipe, Read]] = ()
    override: bool = True  # without a plan: initializers that are inputs may get other values
    references: tuple[Reference, ...] = ()  # functions for operators unknown to the runtime
    deaths: Sequence[Death] = ()  # of earlier workers
    ended: bool = False  # time is over: run nothing
    eager: bool = True  # run the original before a result is submitted


@dataclass(eq=False, repr=False)
class Submission:
    """A result to verify, with findings of earlier workers."""

    path: str
    options: VerifyOptions
    # By pass: change of outputs declared, relative to the range.
    declared: dict[str, float] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    known: dict[str, Answer] = field(default_factory=dict)  # by case
    verdict: Verification | None = None  # an event, complete but for the load with optimizations
    spent: float = 0.0  # seconds
    is_rushed: bool = False  # the time left is shorter than the original's run
    done: float = 0.0  # share of the steps


@dataclass(eq=False, repr=False)
class Begun:
    """Event: a step begins."""

    step: str
    done: float = 0.0  # share of the steps finished
