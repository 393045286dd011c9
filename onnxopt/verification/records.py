"""Plain records of a verification: options, compared outputs, pieces, verdict."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from onnxopt.arguments import all_in, check_number, check_whole, names_in, names_of, sizes_in
from onnxopt.errors import UsageError, nearest_file
from onnxopt.verification import AGREES, DIFFERENT, EQUAL, LOADS_PLAIN, PROVEN, REFUSED, UNLOADED

_GROSS: Final = 30.0  # times the rounding noise of a piece


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
        return bool(
            self.cases is not None or self.datasets or self.provider or self.dims or self.rename or self.strip_qdq
        )

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


@dataclass(eq=False)
class OutputRecord:
    """Comparison of an output in a case."""

    name: str
    dtype: str
    shape: list[int]
    max_abs: float = 0.0  # largest difference
    max_rel: float = 0.0  # divided by the largest magnitude in the original; of discrete values, the share that differs
    ok: bool = True
    note: str = ""
    uneven: bool = False  # negligible for the whole, but large within its row or channel


@dataclass(eq=False)
class MeasuredRecord(OutputRecord):
    """Comparison of an output, with figures. None: undefined for the type, or shapes differ."""

    cosine: float | None = None  # similarity of all elements
    ulp: int | None = None  # largest distance, in representable numbers
    nan: list[int] = field(default_factory=lambda: [0, 0])  # count in each of the two
    inf: list[int] = field(default_factory=lambda: [0, 0])  # count in each of the two
    rtol: float | None = None  # tolerance
    atol: float | None = None  # tolerance
    against: str = ""  # the compared pair, if not A and B


@dataclass(eq=False)
class CaseRecord:
    """A set of inputs, its compared outputs, and its status: equal, different, skipped (by A) or not verified."""

    name: str
    dims: dict[str, int]  # sizes of the dynamic dims
    outputs: list[OutputRecord] = field(default_factory=list)
    status: str = EQUAL
    note: str = ""  # reason for the status


class Evidence(NamedTuple):
    """Summary of an output for judging the cases, a few bytes in size, as outputs are not kept."""

    said: str  # why the output proves nothing, or ""
    is_uniform: bool = False  # a single number everywhere
    digest: tuple[int, ...] | None = None  # of shape and elements; None with NaN


LEFT_OUT: Final = "not run: those before it took all of --timeout"  # note of a case


@dataclass(eq=False)
class Side:
    """A node in a place."""

    node: str  # name
    op: str  # operator
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Place:
    """A fault: nodes between agreeing values (`entries`) and a differing value (`value`)."""

    case: str
    value: str
    record: OutputRecord  # difference of `value`
    entries: list[str] = field(default_factory=list)
    a: list[Side] = field(default_factory=list)  # nodes of the original
    b: list[Side] = field(default_factory=list)  # nodes of the result
    scope: str = "main"  # graph path, written as by `Graph.path`
    rewrites: list[str] = field(default_factory=list)  # lines of the journal: rewrites that made the nodes
    noise: float | None = None  # change by rounding alone, relative to the range
    beyond: bool = False  # the narrower type cannot hold the original's values

    @property
    def is_gross(self) -> bool:
        """Whether the difference is too large for rounding, even if outputs hide the fault."""
        return self.noise is None or self.record.max_rel > _GROSS * self.noise


AND: Final = ", and "  # between an uncovered part and the evidence against the part


@dataclass(eq=False)
class Pieces:
    """Result of comparing in pieces."""

    cases: list[str] = field(default_factory=list)  # names
    cuts: int = 0  # agreeing shared values (cutpoints)
    shared: int = 0  # values present in both models
    same: int = 0  # cutpoints computed by equal nodes
    noisy: int = 0  # cutpoints that agree only within the noise of last bits
    blank: int = 0  # cutpoints zero or NaN everywhere
    largest: int = 0  # piece, in nodes
    worst: str = ""  # value with the largest difference of a piece
    worst_rel: float = 0.0  # relative to its range
    complete: bool = False  # every output is a cutpoint, or computed from cutpoints
    untaken: dict[str, str] = field(default_factory=dict)  # {branch that no case takes, in words: its condition}
    branches: list[str] = field(default_factory=list)  # conditions with a single branch taken, and equal branches
    unseen: list[str] = field(default_factory=list)  # coverage gaps, in words
    shown: list[str] = field(default_factory=list)  # gaps that differ in a probe
    silent: list[str] = field(default_factory=list)  # gaps that agree in probes
    dead: list[str] = field(default_factory=list)  # outputs computed differently from blank values
    seconds: float = 0.0
    note: str = ""  # why no pieces exist, or remain open

    @property
    def says_something(self) -> bool:
        """Whether at least nine in ten cutpoints are not blank."""
        return 10 * self.blank <= self.cuts

    def joined(self, other: Pieces, *, proves: bool = True) -> Pieces:
        """Return the pieces of two sets of cases: the worse figures, and gaps open in both.

        proves: coverage of `other` counts.
        """
        worse = max(self, other, key=lambda p: p.worst_rel)
        seen = other if proves else self
        shown = [*dict.fromkeys([*self.shown, *seen.shown])]
        unseen = [why for why in self._open_with(seen, self.unseen, seen.unseen) if why not in shown]
        dead = self._open_with(seen, self.dead, seen.dead)
        silent = self._open_with(seen, self.silent, seen.silent)
        return replace(
            worse,
            cases=self.cases + other.cases,
            cuts=min(self.cuts, other.cuts),
            same=min(self.same, other.same),
            noisy=max(self.noisy, other.noisy),
            blank=min(self.blank, other.blank),
            largest=max(self.largest, other.largest),
            complete=self.complete and other.complete,
            untaken={why: name for why, name in self.untaken.items() if why in seen.untaken},
            unseen=[*unseen, *shown],
            shown=shown,
            silent=[part for part in silent if part not in {*map(_part, unseen), *dead}],
            dead=dead,
            seconds=self.seconds + other.seconds,
            note=self.note or other.note,
        )

    def _open_with(self, other: Pieces, mine: Collection[str], theirs: Collection[str]) -> list[str]:
        """Return the statements about parts covered by neither. Incomplete pieces cover nothing."""
        known = [{_part(said) for said in (*p.unseen, *p.dead, *p.silent)} for p in (self, other) if p.complete]
        return [said for said in dict.fromkeys([*mine, *theirs]) if all(_part(said) in open_ for open_ in known)]


def _part(said: str) -> str:
    """Return the part named in a statement about a coverage gap."""
    return said.partition(AND)[0]


@dataclass(eq=False)
class Verification:
    """The verdict on a result.

    `status` is a verdict word, `message` its explanation in one line, `hint` an advice. `exact`: all outputs are equal
    bit for bit. `cases`: the compared outputs, by case. `worst`: the output with the largest difference, `worst_rel`,
    relative to its range. `pieces`: the comparison in pieces, None if not needed. `places`: the faults. `noise`: by
    output, the change of the original by last bits of inputs and weights, relative to the range. `reasons`: why the
    cases prove little, if inconclusive; the message names the first of them.
    """

    status: str
    message: str
    hint: str = ""
    exact: bool = False
    engine: str = "onnxruntime"
    cases: list[CaseRecord] = field(default_factory=list, repr=False)
    worst: str = ""
    worst_rel: float = 0.0
    seconds: float = 0.0
    pieces: Pieces | None = field(default=None, repr=False)
    places: list[Place] = field(default_factory=list, repr=False)
    noise: dict[str, float] = field(default_factory=dict, repr=False)
    reasons: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the result is proven: equal, verified, or verified in pieces."""
        return self.status in PROVEN

    @property
    def agrees(self) -> bool:
        """Whether the result may replace the original."""
        return self.status in AGREES

    @property
    def is_refused(self) -> bool:
        """Whether the result is known to be wrong."""
        return self.status in REFUSED

    @property
    def is_unloaded(self) -> bool:
        """Whether the only known fault is that the runtime does not load the result."""
        return self.status == LOADS_PLAIN or (
            self.status == DIFFERENT and not self.cases and self.message.partition(":")[0].endswith(UNLOADED)
        )

    @property
    def fault(self) -> str:
        """The reason for a refusal, in words."""
        return "differs from the original" if self.status == DIFFERENT else self.status

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


@dataclass(eq=False)
class Comparison(Verification):
    """The verdict of `onnxopt verify`."""

    a: str = ""
    b: str = ""
    provider: str = "CPUExecutionProvider"
