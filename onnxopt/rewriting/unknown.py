"""What a pattern names and nobody knows: a misspelt operator or attribute matches nothing, without a word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import onnx

from onnxopt.errors import UsageError, few, nearest
from onnxopt.graph.model import Model
from onnxopt.graph.schema import operators_of
from onnxopt.protos import qualified
from onnxopt.rewriting.pattern import Call, Either, Pattern


def refuse_unknown(patterns: Iterable[Pattern], model: Model) -> None:
    """Raises UsageError for operators, and attributes of the standard's, that neither the standard nor the model has.
    Of other domains nobody knows all."""
    standard = defaultdict(list)
    for s in onnx.defs.get_all_schemas_with_history():
        standard[qualified(s.name, s.domain)].append(s)
    for call in (c for p in patterns for c in _calls(p)):
        known = [_attributes(op, standard.get(op, []), model) for op in call.ops]
        for name, _ in call.attributes:
            if all(has is not None and name not in has for has in known):
                has = sorted({n for attributes in known for n in attributes or ()})
                hint = nearest(name, has, f"it has {few(has, 9)}" if has else "it has none")
                raise UsageError(f"{' or '.join(call.ops)} has no attribute {name!r}", hint)


def _calls(p: Pattern) -> Iterator[Call]:
    if isinstance(p, Call):
        yield p
    for inner in p.inputs if isinstance(p, Call) else p.choices if isinstance(p, Either) else ():
        yield from _calls(inner)


def _attributes(op: str, schemas: Sequence[onnx.defs.OpSchema], model: Model) -> set[str] | None:
    """Those that an operator has in any version, or in the model; None where only others know."""
    nodes = [n for g in model.scopes() for n in g.by_op.get(op, ())]
    if not schemas and not nodes and (known := operators_of(op.rpartition("::")[0])):
        hint = nearest(op, {*known, *(n.op for n in model.nodes())}, "other domains are written: com.microsoft.Gelu(x)")
        raise UsageError(f"neither the standard nor the model has an operator {op!r}", hint)
    if not schemas:
        return None
    return {name for s in schemas for name in s.attributes} | {name for n in nodes for name in n.attributes}
