"""The onnxruntime in use: execution provider, libraries of custom operators, and references.

A reference is a function that a plugin declares for operators of a custom domain, in place of a missing kernel.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onnxopt.errors import UsageError, told
from onnxopt.proto.wire import map_file, skim
from onnxopt.runtime import onnxruntime, path_for

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto


Name = tuple[str, str]  # domain and name
_FORM: Final = '<domain: "lite", opset_import: ["" : 17]> Gate (x) => (y) { s = Sigmoid (x) y = Mul (x, s) }'
_PYTHON_FORM: Final = 'declare_reference(gate, "lite::Gate"), of a function at the top level of a plugin\'s file'


class Code(NamedTuple):
    """Position of a Python function. A process that receives the position imports the file."""

    module: str
    file: str
    name: str  # qualified name

    def load(self) -> Callable[..., Any]:
        """Return the function. Raises any error of the import."""
        module = sys.modules.get(self.module)
        if module is None or module.__file__ != self.file:
            spec = spec_from_file_location(self.module, self.file)
            assert spec is not None and spec.loader is not None
            module = sys.modules[self.module] = module_from_spec(spec)
            spec.loader.exec_module(module)
        function: Callable[..., Any] = attrgetter(self.name)(module)
        return function


class Reference(NamedTuple):
    """Definition of a custom operator, picklable."""

    domain: str
    name: str
    function: bytes = b""  # a serialized FunctionProto; empty for a Python function
    code: Code | None = None  # a Python function
    by: str = "the program"  # the declaring plugin

    def __str__(self) -> str:
        return f"{self.domain}.{self.name} by {self.by}"

    def kernel(self) -> type:
        """Return `code` as an operator of onnx's reference evaluator. Raises UsageError if it cannot be loaded."""
        from onnx.reference.op_run import OpRun

        assert self.code is not None
        try:
            compute = self.code.load()
        except Exception as e:
            hint = "its file is imported again by the process that verifies; ONNXOPT_DEBUG=1 shows the traceback"
            raise UsageError(f"the reference of {self} cannot be loaded: {told(e)}", hint) from e

        def run(operator: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
            import numpy as np

            try:
                found = compute(*inputs, **attributes)
                every = found if isinstance(found, tuple) else (found,)
                return tuple(v if isinstance(v, list) else np.asarray(v) for v in every)
            except Exception as e:
                raise RuntimeError(f"the reference of {self} fails: {told(e)}") from e

        return type(self.name, (OpRun,), {"op_domain": self.domain, "_run": run})


DECLARED: Final[dict[Name, Reference]] = {}


def declare_reference(function: FunctionProto | str | Callable[..., Any], op: str = "") -> None:
    """Declare `function` as the meaning of a custom operator, for verification without kernel in onnxruntime.

    An ONNX function, a FunctionProto or text, has the name, domain, inputs, outputs and attributes of the operator. A
    Python function computes the operator `op` (`"lite::Gate"`): positional arguments are numpy arrays, None for an
    omitted input; keyword arguments are attributes; the result is an array or a tuple of arrays.

    Raises UsageError for an invalid function, for the standard's domain, for a Python function that another process
    cannot import, and for a second, different declaration of an operator.
    """
    from onnx import FunctionProto

    if isinstance(function, str | FunctionProto) or not callable(function):
        made = _of_onnx(function)
        if str(op).replace("::", ".") not in ("", f"{made.domain}.{made.name}"):
            raise UsageError(f"the reference of {made.domain}.{made.name} is declared for {op}", "leave the name out")
    else:
        made = _of_python(function, op)
    known = DECLARED.setdefault((made.domain, made.name), made)
    if (known.function, known.code) != (made.function, made.code):
        name = f"{made.domain}.{made.name}"
        raise UsageError(f"the reference of {name} was declared otherwise before, by {known.by}", "declare it once")


def _of_python(function: Callable[..., Any], op: str) -> Reference:
    domain, _, name = str(op).rpartition("::")
    if domain in ("", "ai.onnx") or not name:
        raise UsageError(
            f"the reference {_called(function)} is for no operator of another domain: {op!r}", _PYTHON_FORM
        )
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    code = Code(getattr(module, "__name__", ""), getattr(module, "__file__", None) or "", _called(function))
    if not code.file or code.module == "__main__" or "<" in code.name:
        raise UsageError(f"the reference {code.name} of {op} cannot be imported by another process", _PYTHON_FORM)
    return Reference(domain, name, code=code, by=Path(code.file).name)


def _called(function: object) -> str:
    return str(getattr(function, "__qualname__", "") or f"<{type(function).__name__}>")


def _parsed(text: str) -> object:
    import onnx

    try:
        return onnx.parser.parse_function(text)
    except onnx.parser.ParseError as e:
        raise UsageError(f"a reference is no function: {_told(e)}", _FORM) from None


def _of_onnx(function: object) -> Reference:
    import onnx

    if isinstance(function, str):
        function = _parsed(function)
    if not isinstance(function, onnx.FunctionProto):
        raise UsageError(f"a reference is {type(function).__name__}, not a function", _FORM)
    name = f"{function.domain}.{function.name}"
    if function.domain in ("", "ai.onnx") or not function.name:
        raise UsageError(f"the reference {name!r} is of no domain of its own", _FORM)
    _check(function, name)
    return Reference(function.domain, function.name, function.SerializeToString(deterministic=True))


def _check(function: Any, name: str) -> None:
    """Raise UsageError for an invalid function."""
    import onnx

    try:
        onnx.checker.check_function(function, _context(function))
    except onnx.checker.ValidationError as e:
        raise UsageError(f"the reference of {name} is not valid: {_told(e)}", _FORM) from None
    made = {*function.input, *(o for node in function.node for o in node.output)}
    if unmade := [o for o in function.output if o not in made]:
        raise UsageError(f"the reference of {name} does not make `{unmade[0]}`", _FORM)


def _told(error: Exception) -> str:
    """Return the last line of onnx's message, with the reason."""
    text = error.args[0]
    return str(text.decode() if isinstance(text, bytes) else text).strip().splitlines()[-1]


def _context(function: FunctionProto) -> object:
    """Return a checker context with opsets by domain. Operators of a domain without opset are not checked."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {o.domain: o.version for o in function.opset_import}
    return context


def name_plugin(names: Collection[Name], plugin: str) -> None:
    """Record a plugin as the declarer of references."""
    DECLARED.update({name: DECLARED[name]._replace(by=Path(plugin).name) for name in names})


def called(model: ModelProto, references: Sequence[Reference]) -> list[tuple[Reference, FunctionProto]]:
    """Return (reference, function) for each operator called, directly, in functions, or in references.

    The function is empty for a reference in Python. Operators defined by the model are left out.
    """
    from onnx import FunctionProto

    known = {(r.domain, r.name): r for r in references}
    for f in model.functions:
        known.pop((f.domain, f.name), None)
    found = []
    scopes = [model.graph.node, *(f.node for f in model.functions)]
    while scopes:
        for node in scopes.pop():
            scopes += [g.node for a in node.attribute for g in (a.g, *a.graphs) if g.node]
            reference = known.pop((node.domain, node.op_type), None)
            if reference is not None:
                found.append((reference, FunctionProto.FromString(reference.function)))
                scopes.append(found[-1][1].node)
    return found


def definitions(model: ModelProto, references: Sequence[Reference]) -> ModelProto:
    """Return a model with the functions of called references and their opsets, to merge into `model`."""
    from onnx import ModelProto

    imported = {o.domain for o in model.opset_import}
    made = ModelProto()
    made.functions.extend(function for reference, function in called(model, references) if reference.code is None)
    if made.functions:
        made.ir_version = max(model.ir_version, 8)  # the first version with functions
    needed = {o.domain: o.version for f in made.functions for o in f.opset_import}
    for domain, version in (dict.fromkeys((f.domain for f in made.functions), 1) | needed).items():
        if domain not in imported:
            made.opset_import.add(domain=domain, version=version)
    return made


# -- the runtime ------------------------------------------------------------------------------------------

CPU: Final = "CPUExecutionProvider"
_MAX_INLINE_BYTES: Final = 1024  # bytes; larger weights are skipped when reading
UNREGISTERED: Final = "is not a registered function/op"  # onnxruntime's message for an unknown operator
UNREGISTERED_HINT: Final = "--custom-op-library FILE brings a kernel, a plugin's declare_reference a function"
_UNIMPLEMENTED: Final = r"to find kernel for (\w+)\((\d+)\)|not find an implementation for (\w+)\((\d+)\)"


@dataclass(frozen=True)
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
        known = frozenset(schemas())
        if hasattr(state, "get_all_opkernel_def"):
            run = {(_domain(k.domain), k.op_name) for k in state.get_all_opkernel_def()}
            known = frozenset(op for op in known if op in run or not op[0] or op[0].startswith("ai.onnx"))
        return known


PLAIN: Final = Runtime()


@cache
def schemas() -> dict[Name, list[Any]]:
    """Return the schemas in onnxruntime's operator list by (domain, operator); {} for a build without list."""
    found: dict[Name, list[Any]] = {}
    for schema in getattr(onnxruntime().capi.onnxruntime_pybind11_state, "get_all_operator_schema", list)():
        found.setdefault((_domain(schema.domain), schema.name), []).append(schema)
    return found


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
    found = re.search(_UNIMPLEMENTED, error)
    if found is None:
        return ""
    return f"onnxruntime does not implement {found[1] or found[3]} of opset {found[2] or found[4]} for its types"
