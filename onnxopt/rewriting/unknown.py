"""Detects unknown operators and attributes in patterns: a misspelt name would silently never match."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import onnx

from onnxopt.errors import UsageError, any_of, few, nearest
from onnxopt.graph.model import Model
from onnxopt.graph.schema import operators_of, signature
from onnxopt.plaintext import counted
from onnxopt.proto.messages import qualified
from onnxopt.rewriting.pattern import Call, Either, Pattern
from onnxopt.rewriting.rule import Rule

_Schemas = Mapping[str, Sequence[onnx.defs.OpSchema]]
_DOMAIN_HINT = "other domains are written: com.microsoft.Gelu(x)"


def refuse_unknown(patterns: Iterable[Pattern], model: Model) -> None:
    """Raise UsageError for operators, and attributes of standard operators, found neither in the standard nor in the
    model.

    Only domains with schemas are checked.
    """
    calls = [c for p in patterns for c in _calls(p) if not _is_current(c)]
    standard = _standard() if calls else {}
    for call in calls:
        for what, hint in _unknown(call, standard, model):
            raise UsageError(what, hint)


def warn_of_unknown(rule: Rule) -> None:
    """Emit a UserWarning at the rule's source line for names missing from the standard.

    Only a warning: a model may contain operators removed from the standard, or added by an exporter.
    """
    calls = [c for c in _calls(rule.source) if not _is_current(c)]
    standard = _standard() if calls else {}
    code = rule.apply.__code__
    for what, hint in dict.fromkeys(said for c in calls for said in _unknown(c, standard, None)):
        text = f"rule {rule.name} may never match: {what}; {hint}"
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno)


@cache
def _standard() -> _Schemas:
    """Return every version of every operator schema."""
    standard: dict[str, list[onnx.defs.OpSchema]] = {}
    for s in onnx.defs.get_all_schemas_with_history():
        standard.setdefault(qualified(s.name, s.domain), []).append(s)
    return standard


def _calls(p: Pattern) -> Iterator[Call]:
    if isinstance(p, Call):
        yield p
        if p.reads:
            yield Call(tuple(sorted(p.reads)), (), variadic=True)
    for inner in p.inputs if isinstance(p, Call) else p.choices if isinstance(p, Either) else ():
        yield from _calls(inner)


def _is_current(call: Call) -> bool:
    """Whether the newest standard has all names of the call, so that no lookup is needed."""
    newest = onnx.defs.onnx_opset_version()
    known = [signature(op, newest) if "::" not in op else None for op in call.ops]
    return all(
        s is not None and _takes(call, *s.inputs) and all(name in s.attributes for name, _ in call.attributes)
        for s in known
    )


def _takes(call: Call, least: int, most: int) -> bool:
    """Whether an operator with `least` to `most` inputs can have the pattern's inputs."""
    needed = max((i + 1 for i, p in enumerate(call.inputs) if not getattr(p, "optional", p is None)), default=0)
    return needed <= most and (call.variadic or least <= len(call.inputs))


def _unknown(call: Call, standard: _Schemas, model: Model | None) -> Iterator[tuple[str, str]]:
    """Yield (message, hint) for each name missing from both the standard and the model."""
    scopes = list(model.scopes()) if model is not None else []
    nodes = {op: [n for g in scopes for n in g.by_op.get(op, ())] for op in call.ops}
    for op in call.ops:
        if op not in standard and not nodes[op] and (known := operators_of(op.rpartition("::")[0])):
            who = "neither the standard nor the model has" if model is not None else "the standard does not have"
            every = {*known, *(n.op for n in model.nodes())} if model is not None else known
            yield f"{who} an operator {op!r}", nearest(op, every, _DOMAIN_HINT)
    if not all(op in standard for op in call.ops):  # an operator without schema
        return
    versions = [s for op in call.ops for s in standard[op]]
    if model is None and not any(_takes(call, s.min_input, s.max_input) for s in versions):
        operands = f"{call.ops[0]}({', '.join(p.name for p in standard[call.ops[0]][0].inputs)})"
        yield (
            f"{any_of(call.ops)} does not have {counted(len(call.inputs), 'input')}",
            f"it is {operands}; `...` allows more than are written, `.opt()` fewer",
        )
    has = {name for op in call.ops for s in standard[op] for name in s.attributes}
    has |= {name for op in call.ops for n in nodes[op] for name in n.attributes}
    for name, _ in call.attributes:
        if name not in has:
            hint = nearest(name, sorted(has), f"it has {few(sorted(has), 9)}" if has else "it has none")
            yield f"{any_of(call.ops)} has no attribute {name!r}", hint
