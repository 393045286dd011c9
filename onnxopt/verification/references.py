"""References of operators of other domains: functions that plugins declare, and that stand in for missing kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import UsageError, told
from onnxopt.record import record

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto

Name = tuple[str, str]  # domain and name
_FORM: Final = '<domain: "lite", opset_import: ["" : 17]> Gate (x) => (y) { s = Sigmoid (x) y = Mul (x, s) }'
_PYTHON_FORM: Final = 'declare_reference(gate, "lite::Gate"), of a function at the top level of a plugin\'s file'


@record(frozen=True)
class Code:
    """Where a Python function is defined: the `module`, its `file`, the qualified `name`. A process that is sent these
    imports the file."""

    module: str
    file: str
    name: str

    def load(self) -> Callable[..., Any]:
        """The function. Raises whatever the import of the file does."""
        module = sys.modules.get(self.module)
        if module is None or module.__file__ != self.file:
            spec = spec_from_file_location(self.module, self.file)
            assert spec is not None and spec.loader is not None
            module = sys.modules[self.module] = module_from_spec(spec)
            spec.loader.exec_module(module)
        function: Callable[..., Any] = attrgetter(self.name)(module)
        return function


@record(frozen=True)
class Reference:
    """`function`: a FunctionProto, serialized, so that the reference can be sent; empty where `code` stands in its
    place. `by`: the plugin that declared the reference."""

    domain: str
    name: str
    function: bytes = b""
    code: Code | None = None
    by: str = "the program"

    def __str__(self) -> str:
        return f"{self.domain}.{self.name} by {self.by}"

    def kernel(self) -> type:
        """The operator of `code` for onnx's reference evaluator. Raises UsageError where the code cannot be loaded."""
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
    """Declare `function` as the meaning of a custom operator. Verification runs the function if onnxruntime has no
    kernel.

    An ONNX function, a FunctionProto or text, has the name, domain, inputs, outputs and attributes of the operator. A
    Python function computes the operator `op` (`"lite::Gate"`): positional arguments are numpy arrays, None for an
    omitted input; keyword arguments are attributes; the result is an array or a tuple of arrays.

    Raises UsageError for an invalid function, for the standard's domain, for a Python function that another process
    cannot import, and for a second, different declaration of an operator.
    """
    from onnx import FunctionProto

    if isinstance(function, str | FunctionProto) or not callable(function):
        made = _of_onnx(function)
        if op.replace("::", ".") not in ("", f"{made.domain}.{made.name}"):
            raise UsageError(f"the reference of {made.domain}.{made.name} is declared for {op}", "leave the name out")
    else:
        made = _of_python(function, op)
    known = DECLARED.setdefault((made.domain, made.name), made)
    if (known.function, known.code) != (made.function, made.code):
        name = f"{made.domain}.{made.name}"
        raise UsageError(f"the reference of {name} was declared otherwise before, by {known.by}", "declare it once")


def _of_python(function: Callable[..., Any], op: str) -> Reference:
    domain, _, name = op.rpartition("::")
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


def _of_onnx(function: object) -> Reference:
    import onnx

    if isinstance(function, str):
        try:
            function = onnx.parser.parse_function(function)
        except onnx.parser.ParseError as e:
            raise UsageError(f"a reference is no function: {_told(e)}", _FORM) from None
    if not isinstance(function, onnx.FunctionProto):
        raise UsageError(f"a reference is {type(function).__name__}, not a function", _FORM)
    name = f"{function.domain}.{function.name}"
    if function.domain in ("", "ai.onnx") or not function.name:
        raise UsageError(f"the reference {name!r} is of no domain of its own", _FORM)
    try:
        onnx.checker.check_function(function, _context(function))
    except onnx.checker.ValidationError as e:
        raise UsageError(f"the reference of {name} is not valid: {_told(e)}", _FORM) from None
    made = {*function.input, *(o for node in function.node for o in node.output)}
    if unmade := [o for o in function.output if o not in made]:
        raise UsageError(f"the reference of {name} does not make `{unmade[0]}`", _FORM)
    return Reference(function.domain, function.name, function.SerializeToString(deterministic=True))


def _told(error: Exception) -> str:
    """The last line of onnx's message, which says the reason."""
    text = error.args[0]
    return str(text.decode() if isinstance(text, bytes) else text).strip().splitlines()[-1]


def _context(function: FunctionProto) -> object:
    """The versions by domain that the checker asks for; an operator of a domain without a version is not checked."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {o.domain: o.version for o in function.opset_import}
    return context


def name_plugin(names: Collection[Name], plugin: str) -> None:
    """Say that this plugin declared these references."""
    DECLARED.update({name: replace(DECLARED[name], by=Path(plugin).name) for name in names})


def called(model: ModelProto, references: Sequence[Reference]) -> list[tuple[Reference, FunctionProto]]:
    """The references of operators that nodes of the model call, or functions of the model, or these references; each
    with its function, empty for one of Python. An operator that the model defines needs none."""
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
    """The functions of the references that the model calls, and the versions that these import: merged into the model,
    they define its operators."""
    from onnx import ModelProto

    imported = {o.domain for o in model.opset_import}
    made = ModelProto()
    made.functions.extend(function for reference, function in called(model, references) if reference.code is None)
    if made.functions:
        made.ir_version = max(model.ir_version, 8)  # from which on there are functions
    needed = {o.domain: o.version for f in made.functions for o in f.opset_import}
    for domain, version in (dict.fromkeys((f.domain for f in made.functions), 1) | needed).items():
        if domain not in imported:
            made.opset_import.add(domain=domain, version=version)
    return made
