"""The onnxruntime in use: execution provider and custom operator libraries."""

from __future__ import annotations

import os
import re
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError
from onnxopt.proto.wire import map_file, skim
from onnxopt.runtime import onnxruntime, path_for
from onnxopt.startup.record import record
from onnxopt.verification.references import Name, Reference, called, definitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto

CPU: Final = "CPUExecutionProvider"
_MAX_INLINE_BYTES: Final = 1024  # bytes; larger weights are skipped when reading
UNREGISTERED: Final = "is not a registered function/op"  # onnxruntime's message for an unknown operator
UNREGISTERED_HINT: Final = "--custom-op-library FILE brings a kernel, a plugin's declare_reference a function"
_UNIMPLEMENTED: Final = re.compile(r"to find kernel for (\w+)\((\d+)\)|not find an implementation for (\w+)\((\d+)\)")


@record(frozen=True)
class Runtime:
    """Execution provider and additional operators."""

    provider: str = CPU  # preferred before the CPU's
    libraries: tuple[str, ...] = ()  # files that register custom operators
    references: tuple[Reference, ...] = ()  # functions for operators unknown to both

    def defines(self, path: str) -> ModelProto | None:
        """Return a model with the functions to merge into the model at `path`; None if nothing is needed.

        Raises OSError, ValueError and protobuf's DecodeError.
        """
        if not self.references:
            return None
        found = definitions(_skimmed(path), self.references)
        return found if found.functions else None

    def refers(self, path: str) -> list[Reference]:
        """Return the references called by the model at `path`. Raises the same errors as `defines`."""
        return [reference for reference, _ in called(_skimmed(path), self.references)] if self.references else []

    def computes(self, path: str) -> bool:
        """Return whether the model at `path` calls a reference in Python: onnxruntime does not load such a model.

        Raises UsageError for a function that cannot be loaded.
        """
        return bool(self.computed) and any(reference.code and self.kernels for reference in self.refers(path))

    @cached_property
    def computed(self) -> frozenset[Name]:
        """Operators with a reference in Python. Pieces with such an operator run in onnx's reference evaluator."""
        return frozenset((r.domain, r.name) for r in self.references if r.code)

    @cached_property
    def kernels(self) -> list[type]:
        """These operators, as classes of the reference evaluator. Raises UsageError if a function cannot be loaded."""
        return [reference.kernel() for reference in self.references if reference.code]

    @property
    def providers(self) -> list[str]:
        """The execution providers, preferred first."""
        return list(dict.fromkeys((self.provider, CPU)))

    def session_options(self) -> Any:
        """Return new session options with all libraries registered. Raises UsageError if a library cannot be loaded."""
        options = onnxruntime().SessionOptions()
        options.log_severity_level = 4
        for library in self.libraries:
            try:
                options.register_custom_ops_library(path_for(library))
            except Exception as e:
                why = str(e).rpartition(" with error: ")[2].splitlines()[0]
                hint = "a shared library for this machine that exports RegisterCustomOps is expected"
                raise UsageError(f"the custom operator library {library} cannot be loaded: {why}", hint) from None
        return options

    def knows(self, domain: str, name: str) -> bool:
        """Return whether onnxruntime, a library or a reference in Python has the operator.

        Libraries do not list operators: a model with a single node is loaded, and the error read.
        """
        if (domain, name) in self._listed | self.computed:
            return True
        if not self.libraries:
            return False
        from onnx import ModelProto

        model = ModelProto(ir_version=8)
        for imported, version in (("", 17), (domain, 1)):
            model.opset_import.add(domain=imported, version=version)
        model.graph.name = "probe"
        model.graph.node.add(op_type=name, domain=domain, output=["y"])
        model.graph.output.add(name="y")
        try:
            onnxruntime().InferenceSession(model.SerializeToString(), self.session_options(), providers=[CPU])
        except Exception as e:
            return UNREGISTERED not in str(e)
        return True

    @cached_property
    def _listed(self) -> frozenset[tuple[str, str]]:
        """Operators listed by onnxruntime, as (domain, name).

        Operators defined for other platforms only, without a kernel here, are left out: onnx's evaluator covers only
        the standard operators.
        """
        state = onnxruntime().capi.onnxruntime_pybind11_state
        known = {(_domain(s.domain), s.name) for s in state.get_all_operator_schema()}
        if hasattr(state, "get_all_opkernel_def"):
            run = {(_domain(k.domain), k.op_name) for k in state.get_all_opkernel_def()}
            known = {op for op in known if op in run or not op[0] or op[0].startswith("ai.onnx")}
        return frozenset(known)


PLAIN: Final = Runtime()


def _skimmed(path: str) -> ModelProto:
    """Return the model at `path` without large weights."""
    from onnx import ModelProto as Proto

    return Proto.FromString(skim(map_file(path), _MAX_INLINE_BYTES, sys.maxsize)[0])


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def find_runtime(provider: str = "", libraries: Sequence[str | os.PathLike[str]] = ()) -> Runtime:
    """Return the runtime with an execution provider (`cuda` for CUDAExecutionProvider, "" for CPU) and libraries.

    Raises UsageError for an unavailable provider and an unloadable library.
    """
    found = Runtime(_find_provider(provider), tuple(os.fspath(file) for file in libraries))
    if libraries:
        found.session_options()
    return found


def _find_provider(name: str) -> str:
    if not name:
        return CPU
    every = onnxruntime().get_available_providers()
    available: dict[str, str] = {p.removesuffix("ExecutionProvider").lower(): p for p in every}
    found = available.get(name.lower().removesuffix("executionprovider"))
    if found is None:
        raise UsageError(
            f"onnxruntime has no execution provider {name!r} here", f"it has {', '.join(sorted(available.values()))}"
        )
    return found


def missing(error: str) -> str:
    """Return a sentence naming the operator missing according to an error of onnxruntime; "" for other errors."""
    found = _UNIMPLEMENTED.search(error)
    if found is None:
        return ""
    return f"onnxruntime does not implement {found[1] or found[3]} of opset {found[2] or found[4]} for its types"
