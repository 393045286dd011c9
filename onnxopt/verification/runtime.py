"""Which onnxruntime runs models: its execution provider, and libraries with operators of their own."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError
from onnxopt.ort import onnxruntime, path_for
from onnxopt.record import record
from onnxopt.references import Reference, definitions
from onnxopt.wire import map_file, skim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto

CPU: Final = "CPUExecutionProvider"
_SMALL: Final = 1024  # bytes of weights, which nobody asks for


@record(frozen=True)
class Runtime:
    """`provider` is put before the CPU's; `libraries` are files that register custom operators; `references`, functions
    for operators that neither has."""

    provider: str = CPU
    libraries: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()

    def defines(self, path: str) -> ModelProto | None:
        """What is to be merged into the model at `path`, so that it defines what it calls; None where there is
        nothing. Raises OSError, ValueError and protobuf's DecodeError."""
        if not self.references:
            return None
        from onnx import ModelProto as Proto

        found = definitions(Proto.FromString(skim(map_file(path), _SMALL, sys.maxsize)[0]), self.references)
        return found if found.functions else None

    @property
    def providers(self) -> list[str]:
        return list(dict.fromkeys((self.provider, CPU)))

    def session_options(self) -> Any:
        """New options of a session that knows the operators of the libraries. Raises UsageError for one that cannot be
        loaded."""
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
        """Does onnxruntime, or one of the libraries, have an operator of that name? A library lists none: a model of
        one node is loaded, and refused for another reason, or not at all."""
        if (domain, name) in self._listed:
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
            return "is not a registered function/op" not in str(e)
        return True

    @cached_property
    def _listed(self) -> frozenset[tuple[str, str]]:
        """Operators that onnxruntime can run, by its own list. Also what onnxruntime defines for other machines is
        none: nothing runs it here, as onnx's own evaluator knows the standard's alone."""
        state = onnxruntime().capi.onnxruntime_pybind11_state
        known = {(_domain(s.domain), s.name) for s in state.get_all_operator_schema()}
        if hasattr(state, "get_all_opkernel_def"):
            run = {(_domain(k.domain), k.op_name) for k in state.get_all_opkernel_def()}
            known = {op for op in known if op in run or not op[0] or op[0].startswith("ai.onnx")}
        return frozenset(known)


PLAIN: Final = Runtime()


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def find_runtime(provider: str = "", libraries: Sequence[str | os.PathLike[str]] = ()) -> Runtime:
    """The one with the execution provider called `provider` (`cuda` is enough for CUDAExecutionProvider; an empty name
    is the CPU's), and with these libraries.

    Raises UsageError for a provider that this onnxruntime does not have, and for a library that cannot be loaded.
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
