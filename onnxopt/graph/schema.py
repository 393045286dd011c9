"""What the ONNX standard says of an operator at an opset, cached: attribute defaults, purity, what a call may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import onnx

from onnxopt.operators import ONE_RESULT, RANDOM
from onnxopt.protos import attribute_value, qualified
from onnxopt.record import record


@cache
def find_schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """The schema of a qualified operator at an opset version; None when the standard does not know it."""
    domain, _, op_type = op.rpartition("::")
    if opset <= 0:
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def newer(opset: int) -> str:
    """What is to be said of an opset that the installed onnx does not have; its operators are taken for the last ones
    that it has. Empty for others."""
    known = onnx.defs.onnx_opset_version()
    return f"the model is of opset {opset}, the installed onnx knows up to {known}" if opset > known else ""


@cache
def _defaults(op: str, opset: int) -> dict[str, Any]:
    schema = find_schema(op, opset)
    if schema is None:
        return {}
    return {
        name: attribute_value(a.default_value)
        for name, a in schema.attributes.items()
        if a.default_value.type != onnx.AttributeProto.UNDEFINED
    }


def attribute_default(op: str, opset: int, name: str) -> Any:
    """The default of an attribute, or None."""
    return _defaults(op, opset).get(name)


@record(frozen=True)
class Signature:
    """What a call of an operator may be, in plain Python: asking a schema costs ten times as much.

    `inputs`, `outputs`: how many, from and to. `needed`: inputs that may not be absent. `attributes`: types by name,
    those in `required` have to be there.
    """

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[int, ...]
    attributes: Mapping[str, int]
    required: frozenset[str]
    deprecated: bool
    operands: tuple[str, ...]

    def takes(self, count: int) -> bool:
        """May it be given so many inputs? Those that are missing behind them may be absent: a Loop has such."""
        least, most = self.inputs
        missing = self.operands[count:least]
        return count <= most and len(missing) == max(0, least - count) and all(o.endswith("?") for o in missing)

    def __str__(self) -> str:
        kind = onnx.AttributeProto.AttributeType.Name
        named = [f"{name}: {kind(t)}" for name, t in self.attributes.items()]
        return f"{self.name}({', '.join(self.operands)})" + (f" {{{', '.join(named)}}}" if named else "")


@cache
def signature(op: str, opset: int) -> Signature | None:
    """What a call may be; None when the standard does not know the operator."""
    schema = find_schema(op, opset)
    if schema is None:
        return None
    marks = {
        onnx.defs.OpSchema.FormalParameterOption.Optional: "?",
        onnx.defs.OpSchema.FormalParameterOption.Variadic: "…",
    }
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return Signature(
        op,
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(i for i, p in enumerate(schema.inputs) if p.option == single),
        {name: int(a.type) for name, a in schema.attributes.items()},
        frozenset(name for name, a in schema.attributes.items() if a.required),
        schema.deprecated,
        tuple(p.name + marks.get(p.option, "") for p in schema.inputs),
    )


@record(frozen=True)
class Results:
    """How many results an operator has to give at least, and which of them may be absent."""

    least: int
    optional: frozenset[int]

    def missing(self, made: Sequence[object]) -> str:
        """What is wrong with these results, of which those that are absent are false; empty if nothing is."""
        if len(made) < self.least:
            return f"gives {len(made)} results, and has to give {self.least}"
        for i, result in enumerate(made):
            if not result and i not in self.optional:
                return f"lacks its result {i}"
        return ""


_ONE: Final = Results(1, frozenset())


@cache
def results_of(op: str, opset: int) -> Results | None:
    """What an operator has to give out; None when the standard does not know it."""
    if op in ONE_RESULT:
        return _ONE  # the first schema that is asked for takes longer than a small model
    schema = find_schema(op, opset)
    if schema is None:
        return None
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return Results(schema.min_output, frozenset(i for i, p in enumerate(schema.outputs) if p.option == optional))


@record(frozen=True)
class Formal:
    """The types of one operand or result: `allowed` element types of tensors; those of one `symbol` are alike."""

    symbol: str
    allowed: frozenset[int]

    @property
    def only(self) -> int:
        """The one element type that it can be; 0 if it can be several."""
        return next(iter(self.allowed)) if len(self.allowed) == 1 else 0


@cache
def formals(op: str, opset: int) -> tuple[tuple[Formal, ...], tuple[Formal, ...]] | None:
    """(operands, results) of an operator, the last of them for all that follow; None where the installed standard does
    not say."""
    schema = find_schema(op, opset)
    if schema is None or ("::" not in op and newer(opset)):
        return None
    given, made = (tuple(map(_formal, parameters)) for parameters in (schema.inputs, schema.outputs))
    return given, made


def _formal(parameter: onnx.defs.OpSchema.FormalParameter) -> Formal:
    kinds = (_element_type(text) for text in parameter.types)
    alike = parameter.is_homogeneous and not parameter.type_str.endswith(")")  # else it is a type, no symbol
    return Formal(parameter.type_str if alike else "", frozenset(k for k in kinds if k))


@cache
def _element_type(text: str) -> int:
    """Of `tensor(float)`; 0 for what is no tensor."""
    try:
        return int(onnx.TensorProto.DataType.Value(text.removeprefix("tensor(").removesuffix(")").upper()))
    except ValueError:  # a sequence, say
        return 0


@cache
def typed_like(op: str, opset: int) -> tuple[int | None, ...]:
    """For each output the input whose type it has, if the standard says so."""
    schema = find_schema(op, opset)
    if schema is None:
        return ()
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    given = [p.type_str for p in schema.inputs if p.option != variadic or p.is_homogeneous]
    return tuple(given.index(p.type_str) if p.type_str in given else None for p in schema.outputs)


def operators_of(domain: str) -> list[str]:
    """The qualified names of all operators that the standard has in a domain."""
    return sorted({qualified(s.name, s.domain) for s in onnx.defs.get_all_schemas() if s.domain == domain})


def first_opset(op: str, after: int) -> int:
    """The first opset, later than `after`, that has an operator of the default domain; 0 where none has."""
    newest = 0 if "::" in op else onnx.defs.onnx_opset_version()
    return next((o for o in range(after + 1, newest + 1) if is_known(op, o)), 0)


def is_known(op: str, opset: int) -> bool:
    """Does the standard define this operator? What it does not define is opaque: kept, not merged, not folded."""
    return find_schema(op, opset) is not None


def is_alike(op: str, opset: int, other: int) -> bool:
    """Is an operator the same in two opsets, as far as the installed onnx knows both?"""
    if newer(opset) or newer(other):
        return False
    a, b = find_schema(op, opset), find_schema(op, other)
    return a is b if a is None or b is None else bool(a.since_version == b.since_version)


def is_deterministic(op: str) -> bool:
    return op not in RANDOM
