"""A verification as plain, picklable data: its options, and the messages between the parent and the worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from onnxopt.arguments import all_in, check_number, check_whole, names_in, names_of, sizes_in
from onnxopt.errors import UsageError, nearest_file

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.feeding import Read
    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.records import CaseRecord, Evidence, Verification
    from onnxopt.verification.runtime import Reference


@dataclass
class VerifyOptions:
    """Options of a verification.

    `rtol` (relative to the range of an output) and `atol`: fixed tolerances in place of the rounding analysis.
    `inputs`: .npy files by input name, used in every case. `timeout`: seconds for the whole verification. `memory`:
    bytes for weights and values of both models; larger models run in segments. `limit`: bytes of the worker, 0 for half
    of the machine; without effect for providers other than the CPU's. `pieces`: compare pieces in any case. `dims`:
    sizes of dynamic dims, for verification only.

    The following options select the comparison of `onnxopt verify`; `timeout` then limits each load and each run, and
    no case starts after this time. `cases`: names of cases and groups. `datasets`: folders of .npy files or of onnx
    test data, .npz files. `provider`: an execution provider of onnxruntime.

    `dtype`: `float16` or `bfloat16`, allowed in the result in place of float32; pieces are always compared.
    `int32`: int32 is allowed in inputs and outputs of the result in place of int64; `inner_int32`: only inside.
    `rename`: new names of inputs, outputs and symbolic dims, by old names.
    `freed`: fixed dims of the original that are symbols in the result, along which samples are independent.
    `strip_qdq`: compare with the original without pairs of QuantizeLinear and DequantizeLinear, except for names in
    `keep`.
    `without`: the reason to use onnx's reference evaluator in place of onnxruntime.
    `custom_op_libraries`: files that register custom operators with onnxruntime.
    """

    rtol: float | None = None
    atol: float | None = None
    seed: int = 0
    inputs: dict[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    memory: int = 2 << 30
    limit: int = 0
    pieces: bool = False
    cases: tuple[str, ...] | None = None
    datasets: tuple[str, ...] = ()
    provider: str = ""
    dims: dict[str, int] = field(default_factory=dict)
    dtype: str = ""
    int32: bool = False
    inner_int32: bool = False
    freed: tuple[str, ...] = ()
    without: str = ""
    rename: dict[str, str] = field(default_factory=dict)
    custom_op_libraries: Sequence[str | os.PathLike[str]] = ()
    strip_qdq: bool = False
    keep: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for invalid numbers and types."""
        for name in ("rtol", "atol"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        for name in ("seed", "memory", "limit"):
            check_whole(name, getattr(self, name))
        check_number("timeout", self.timeout, "it is a number of seconds")
        if not self.timeout:
            raise UsageError("timeout is 0", "it is a number of seconds")
        cases = None if self.cases is None else tuple(names_in(self.cases, "cases"))
        datasets = tuple(map(os.fspath, all_in(self.datasets, "datasets", "folders and archives")))
        libraries = library_files(self.custom_op_libraries)
        dims, rename = sizes_in(self.dims, "dims"), names_of(self.rename, "rename")
        vars(self).update(keep=tuple(names_in(self.keep, "keep")))
        vars(self).update(cases=cases, datasets=datasets, dims=dims, rename=rename, custom_op_libraries=libraries)

    def share(self, limit: int) -> VerifyOptions:
        """Return the options for a worker limited to `limit` bytes (0: no limit), with room for the runtime."""
        return replace(self, memory=min(self.memory, limit // 2)) if limit else self

    @property
    def original_names(self) -> dict[str, str]:
        """Return {result name: original name}."""
        return {new: old for old, new in self.rename.items()}

    @property
    def any_width(self) -> bool:
        """Whether a value of the result may be int32 in place of int64."""
        return self.int32 or self.inner_int32

    @property
    def thorough(self) -> bool:
        """Whether the options go beyond the optimizer's own check."""
        given = self.cases is not None, self.datasets, self.provider, self.dims, self.rename, self.strip_qdq
        return any(given)

    @property
    def by_tolerance(self) -> bool:
        """Whether a tolerance given by the user decides."""
        return self.rtol is not None or self.atol is not None


def library_files(given: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return absolute paths of custom operator libraries. Raises UsageError for a missing file."""
    files = tuple(os.fspath(file) for file in all_in(given, "custom_op_libraries", "files"))
    for file in files:
        if not os.path.isfile(file):
            hint = "a shared library that exports RegisterCustomOps is expected"
            raise UsageError(f"the custom operator library {file} is not there", nearest_file(file, hint))
    return tuple(map(os.path.abspath, files))


# Steps, announced by the worker before each begins. ORIGINAL and COMPARE are followed by the name of the case.
OPEN: Final = "open"
ORIGINAL: Final = "original "
AHEAD: Final = "ahead"
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
