"""Options of a verification."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnxopt.arguments import all_in, check_number, check_whole, names_in, names_of, sizes_in
from onnxopt.errors import UsageError, nearest_file


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
