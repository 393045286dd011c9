"""Operator schemas of the ONNX standard, cached: attribute defaults, signatures, allowed types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import onnx

from onnxopt.operators import ONE_RESULT, RANDOM
from onnxopt.proto.messages import attribute_value, qualified
from onnxopt.startup.record import record


@cache
def find_schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a qualified operator at an opset version; None if the standard has none."""
    domain, _, op_type = op.rpartition("::")
    if opset <= 0:
        return None
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def newer(opset: int) -> str:
    """Return a message if the opset is newer than the installed onnx knows, else an empty string.

    Operators of such an opset are taken to be the newest known ones.
    """
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
    """Return the default of an attribute, or None."""
    return _defaults(op, opset).get(name)


@record(frozen=True)
class Signature:
    """The signature of an operator in plain Python, ten times as fast to query as onnx's schema.

    `inputs`, `outputs`: (minimum, maximum) count. `needed`: indices of inputs that must be present. `attributes`: types
    by name; the names in `required` must be set.
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
        """Whether a call may have `count` inputs. Optional trailing inputs below the minimum may be missing (Loop)."""
        least, most = self.inputs
        missing = self.operands[count:least]
        return count <= most and len(missing) == max(0, least - count) and all(o.endswith("?") for o in missing)

    def __str__(self) -> str:
        kind = onnx.AttributeProto.AttributeType.Name
        named = [f"{name}: {kind(t)}" for name, t in self.attributes.items()]
        return f"{self.name}({', '.join(self.operands)})" + (f" {{{', '.join(named)}}}" if named else "")


@cache
def signature(op: str, opset: int) -> Signature | None:
    """Return the signature of an operator; None if the standard has none."""
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
    """The minimum number of outputs of an operator, and the indices of the optional ones."""

    least: int
    optional: frozenset[int]

    def missing(self, made: Sequence[object]) -> str:
        """Return why the outputs `made` (false: absent) violate the schema, or an empty string."""
        if len(made) < self.least:
            return f"gives {len(made)} results, and has to give {self.least}"
        for i, result in enumerate(made):
            if not result and i not in self.optional:
                return f"lacks its result {i}"
        return ""


_ONE: Final = Results(1, frozenset())


@cache
def results_of(op: str, opset: int) -> Results | None:
    """Return the required outputs of an operator; None if the standard does not define it."""
    if op in ONE_RESULT:
        return _ONE  # the first schema lookup takes longer than optimizing a small model
    schema = find_schema(op, opset)
    if schema is None:
        return None
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return Results(schema.min_output, frozenset(i for i, p in enumerate(schema.outputs) if p.option == optional))


@record(frozen=True)
class Formal:
    """The types of an input or output: `allowed` element types of tensors; parameters with the same `symbol` share a
    type."""

    symbol: str
    allowed: frozenset[int]

    @property
    def only(self) -> int:
        """The single element type allowed; 0 if several are."""
        return next(iter(self.allowed)) if len(self.allowed) == 1 else 0


@cache
def formals(op: str, opset: int) -> tuple[tuple[Formal, ...], tuple[Formal, ...]] | None:
    """Return (inputs, outputs) of an operator; the last of each stands for all further. None if the schema is not
    known."""
    schema = find_schema(op, opset)
    if schema is None or ("::" not in op and newer(opset)):
        return None
    given, made = (tuple(map(_formal, parameters)) for parameters in (schema.inputs, schema.outputs))
    return given, made


def _formal(parameter: onnx.defs.OpSchema.FormalParameter) -> Formal:
    kinds = (_element_type(text) for text in parameter.types)
    # a concrete type, such as `tensor(float)`, is no type variable
    alike = parameter.is_homogeneous and not parameter.type_str.endswith(")")
    return Formal(parameter.type_str if alike else "", frozenset(k for k in kinds if k))


@cache
def _element_type(text: str) -> int:
    """Return the element type named by `tensor(float)`; 0 for types other than tensors."""
    try:
        return int(onnx.TensorProto.DataType.Value(text.removeprefix("tensor(").removesuffix(")").upper()))
    except ValueError:  # for example a sequence type
        return 0


@cache
def typed_like(op: str, opset: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each output, the index of the first input of the same type variable, if there is one."""
    schema = find_schema(op, opset)
    if schema is None:
        return ()
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    given = [p.type_str for p in schema.inputs if p.option != variadic or p.is_homogeneous]
    return tuple((given.index(p.type_str),) if p.type_str in given else () for p in schema.outputs)


def operators_of(domain: str) -> list[str]:
    """Return the qualified names of all standard operators of a domain."""
    return sorted({qualified(s.name, s.domain) for s in onnx.defs.get_all_schemas() if s.domain == domain})


def first_opset(op: str, after: int) -> int:
    """Return the first opset after `after` that has an operator of the default domain; 0 if none has."""
    newest = 0 if "::" in op else onnx.defs.onnx_opset_version()
    return next((o for o in range(after + 1, newest + 1) if is_known(op, o)), 0)


def is_known(op: str, opset: int) -> bool:
    """Whether the standard defines this operator. Unknown operators are opaque: kept, never merged or folded."""
    return find_schema(op, opset) is not None


def is_alike(op: str, opset: int, other: int) -> bool:
    """Whether an operator has the same definition in two opsets; False for opsets unknown to the installed onnx."""
    if newer(opset) or newer(other):
        return False
    a, b = find_schema(op, opset), find_schema(op, other)
    return a is b if a is None or b is None else bool(a.since_version == b.since_version)


def is_deterministic(op: str) -> bool:
    return op not in RANDOM
