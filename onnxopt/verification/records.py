"""Plain records of a verification: what was asked, what was compared, the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class VerifyOptions:
    """`rtol` is relative to the range of an output, `atol` absolute; None means the default of the output's type.

    `inputs` maps input names to .npy files, used in every case. `timeout` is in seconds, for everything.

    What follows asks for the comparison of `onnxopt verify`, where `timeout` is for each load and each run.
    `cases`: names of cases and groups. `datasets`: folders of .npy files or of onnx test data, .npz files.
    `provider`: an execution provider of onnxruntime. `dims`: sizes of dynamic dims. `layers`: find the first value of
    the same name that differs.
    """

    rtol: float | None = None
    atol: float | None = None
    seed: int = 0
    inputs: dict[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    cases: tuple[str, ...] | None = None
    datasets: tuple[str, ...] = ()
    provider: str = ""
    dims: dict[str, int] = field(default_factory=dict)
    layers: bool = False

    @property
    def thorough(self) -> bool:
        """Is anything asked for that the optimizer's own check does not do?"""
        return bool(self.cases is not None or self.datasets or self.provider or self.dims or self.layers)


@dataclass
class OutputRecord:
    """One output in one case. `max_rel` is the largest difference over the largest magnitude of the original."""

    name: str
    dtype: str
    shape: list[int]
    max_abs: float = 0.0
    max_rel: float = 0.0
    ok: bool = True
    note: str = ""


@dataclass
class MeasuredRecord(OutputRecord):
    """An output with the figures that people ask for. None: not defined for its type, or its shapes differ.

    `cosine` of all elements; `ulp`, the most representable numbers between two elements; `nan` and `inf`, how many in
    each of the two; `rtol` and `atol`, what is allowed. `against`: which two, if not A and B.
    """

    cosine: float | None = None
    ulp: int | None = None
    nan: list[int] = field(default_factory=lambda: [0, 0])
    inf: list[int] = field(default_factory=lambda: [0, 0])
    rtol: float | None = None
    atol: float | None = None
    against: str = ""


@dataclass
class CaseRecord:
    """One set of inputs: which sizes the dynamic dims had, and how each output compared."""

    name: str
    dims: dict[str, int]
    outputs: list[OutputRecord] = field(default_factory=list)


@dataclass
class JudgedCase(CaseRecord):
    """A case with a verdict of its own: equal, different, skipped (A refuses such inputs) or unverified; and why."""

    status: str = "equal"
    note: str = ""


@dataclass
class Side:
    """One node: its name, operator, what it reads and makes."""

    node: str
    op: str
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)


@dataclass
class Place:
    """Where result and original part: `a` and `b`, the nodes of each between the values `entries`, which agree, and
    `value`, which does not."""

    case: str
    value: str
    record: OutputRecord
    entries: list[str] = field(default_factory=list)
    a: list[Side] = field(default_factory=list)
    b: list[Side] = field(default_factory=list)
    scope: str = "main"  # graph path, bodies as the project's Graph.path writes them
    rewrites: list[str] = field(default_factory=list)  # lines: what the journal says made them


@dataclass
class Layers:
    """What `--layers` found in the case `case`. `value` is the first that differs, empty where none does.

    `a` and `b`: the nodes that make it; `before`: the values that these read and that were compared, which agree.
    `matched` values have the same name in both, `named` are those of A, `compared` were held against each other.
    """

    case: str
    value: str = ""
    record: MeasuredRecord | None = None
    a: Side | None = None
    b: Side | None = None
    before: list[str] = field(default_factory=list)
    matched: int = 0
    named: int = 0
    compared: int = 0
    note: str = ""


@dataclass
class Verification:
    """The verdict.

    `equal`: every output of every case within tolerance (`exact`: bit for bit). `different`: not so.
    `inconclusive`: equal, but the cases prove little (constant outputs, a branch never taken).
    `unverified`: nothing could be compared, and why. `message` is one line.
    """

    status: str
    message: str
    hint: str = ""
    exact: bool = False
    engine: str = "onnxruntime"
    cases: list[CaseRecord] = field(default_factory=list)
    worst: str = ""
    worst_rel: float = 0.0
    seconds: float = 0.0
    places: list[Place] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Comparison(Verification):
    """The verdict of `onnxopt verify`, whose cases are `JudgedCase`s."""

    a: str = ""
    b: str = ""
    provider: str = "CPUExecutionProvider"
    layers: Layers | None = None

    @property
    def judged(self) -> list[JudgedCase]:
        return [c for c in self.cases if isinstance(c, JudgedCase)]
