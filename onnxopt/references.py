"""How operators of other domains are computed where no runtime has them: functions that plugins declare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.errors import UsageError
from onnxopt.record import record

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto


@record(frozen=True)
class Reference:
    """`function`: a FunctionProto, serialized, so that it can be sent. `by`: the file that declared it."""

    domain: str
    name: str
    by: str
    function: bytes

    def __str__(self) -> str:
        return f"{self.domain}.{self.name} by {self.by}"


_DECLARED: dict[tuple[str, str], Reference] = {}


def declare_reference(function: FunctionProto | str) -> None:
    """Declare `function`, a FunctionProto or text, as the meaning of a custom operator with the same name, domain,
    inputs, outputs and attributes. Verification runs the function if onnxruntime has no kernel.

    Raises UsageError for an invalid function, for the standard's domain, and for a second, different declaration of an
    operator.
    """
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
    by = Path(sys._getframe(1).f_globals.get("__file__", "the program")).name
    declared = Reference(function.domain, function.name, by, function.SerializeToString(deterministic=True))
    known = _DECLARED.setdefault((declared.domain, declared.name), declared)
    if known.function != declared.function:
        raise UsageError(f"the reference of {name} was declared otherwise before, by {known.by}", "declare it once")


def _told(error: Exception) -> str:
    """The last line of what onnx says, which is what is wrong."""
    text = error.args[0]
    return str(text.decode() if isinstance(text, bytes) else text).strip().splitlines()[-1]


_FORM: Final = '<domain: "lite", opset_import: ["" : 17]> Gate (x) => (y) { s = Sigmoid (x) y = Mul (x, s) }'


def _context(function: FunctionProto) -> object:
    """What the checker asks for: versions by domain; what is imported at no version is not looked at."""
    import onnx

    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {o.domain: o.version for o in function.opset_import}
    return context


def declared_references() -> tuple[Reference, ...]:
    return tuple(_DECLARED.values())


def definitions(model: ModelProto, references: Sequence[Reference]) -> ModelProto:
    """What is to be merged into the model, so that it defines the operators that its nodes call, or functions of it or
    of these do: functions, and the versions that they import."""
    from onnx import ModelProto

    known = {(r.domain, r.name): r for r in references}
    defined = {(f.domain, f.name) for f in model.functions}
    imported = {o.domain for o in model.opset_import}
    made = ModelProto()
    scopes = [model.graph.node, *(f.node for f in model.functions)]
    while scopes:
        for node in scopes.pop():
            scopes += [g.node for a in node.attribute for g in (a.g, *a.graphs) if g.node]
            op = (node.domain, node.op_type)
            if op in known and op not in defined:
                defined.add(op)
                function = made.functions.add()
                function.ParseFromString(known[op].function)
                scopes.append(function.node)
    if made.functions:
        made.ir_version = max(model.ir_version, 8)  # from which on there are functions
    needed = {o.domain: o.version for f in made.functions for o in f.opset_import}
    for domain, version in (dict.fromkeys((f.domain for f in made.functions), 1) | needed).items():
        if domain not in imported:
            made.opset_import.add(domain=domain, version=version)
    return made
