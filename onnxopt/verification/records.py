"""Plain records of a verification: what was asked, what was compared, the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class VerifyOptions:
    """`rtol` is relative to the range of an output, `atol` absolute; None means the default of the output's type.

    `inputs` maps input names to .npy files, used in every case. `timeout` is in seconds, for everything.
    """

    rtol: float | None = None
    atol: float | None = None
    seed: int = 0
    inputs: dict[str, str] = field(default_factory=dict)
    timeout: float = 600.0


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
class CaseRecord:
    """One set of inputs: which sizes the dynamic dims had, and how each output compared."""

    name: str
    dims: dict[str, int]
    outputs: list[OutputRecord] = field(default_factory=list)


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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
