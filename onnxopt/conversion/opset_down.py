"""Lower the opset of a model, node by node and boundary by boundary.

A boundary is an opset that changed an operator, by the schemas of the standard. The table of older forms has
the form before each boundary. No entry means that the operator only takes more types since, or has an attribute
whose default is the older behaviour. A new operator is written out by the definition of the standard. One error
names all nodes without an older form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Final

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto
from onnx.defs import OpSchema

from onnxopt.conversion import expansions, older_forms  # noqa: F401  both enter their forms into the table
from onnxopt.conversion.call import TABLE, Call, Inexpressible, KnownValues, copy_description
from onnxopt.errors import ModelError
from onnxopt.graph.schema import attribute_default, find_schema, formals
from onnxopt.proto.functions import instance
from onnxopt.proto.messages import DEFAULT_DOMAINS, attribute_value, body_graphs, fields, make_attribute, type_name
from onnxopt.worker.limits import Limits
from onnxopt.worker.service import Declined, Sandbox
from onnxopt.worker.serving import Refused

_MAX_NAMED: Final = 3  # nodes of a reason, and reasons, in an error


def lower_opset(proto: ModelProto, current: int, target: int, path: Path, limits: Limits) -> None:
    """Change the nodes of `proto` to an older version of the default domain.

    Raises ModelError with the nodes without an older form; `proto` is unchanged then.
    """
    known = KnownValues(proto)
    known.infer(proto, current)
    with Sandbox(limits) as sandbox:
        lowering = _Lowering(known, sandbox, target)
        nodes = lowering.scope(proto.graph.node, current, "main")
    if lowering.refused:
        raise ModelError(f"{path} cannot be converted to opset {target}: {lowering.refusal()}", lowering.hint())
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


class _Lowering:
    """`refused`: the nodes without an older form, by boundary, scope, operator and reason."""

    def __init__(self, known: KnownValues, sandbox: Sandbox, target: int) -> None:
        self._known, self._sandbox, self._target = known, sandbox, target
        self.refused: dict[tuple[int, str, str, str], list[str]] = {}

    def scope(self, nodes: Iterable[NodeProto], opset: int, where: str) -> list[NodeProto]:
        """Return the lowered nodes of a graph or a body, without refused nodes."""
        found: list[NodeProto] = []
        for node in nodes:
            try:
                made = list(self._older(_with_bodies(node, partial(self._body, node, opset, where)), opset))
            except Inexpressible as e:
                name = f'"{node.name}"' if node.name else f"`{next(iter(node.output), '')}`"
                self.refused.setdefault((e.since, where, node.op_type, str(e)), []).append(name)
                continue
            if made and made[-1] is not node:
                copy_description(made[-1], node)
            found += made
        return found

    def _older(self, node: NodeProto, opset: int) -> Iterator[NodeProto]:
        """Yield the nodes of the target opset in place of `node`, a node of `opset`. Raises Inexpressible."""
        since = self._since(node, opset)
        while since > self._target:
            try:
                found = self._step(node, since)
            except Inexpressible as e:
                e.since = since
                raise
            if isinstance(found, NodeProto):
                node, since = found, self._since(found, since - 1)
                continue
            before, made = found
            for new in made:
                try:
                    yield from self._older(_with_bodies(new, partial(self._all, before)), before)
                except Inexpressible as e:
                    why = str(e) if new.op_type == node.op_type else f"{new.op_type}, of which it would be made: {e}"
                    raise Inexpressible(why, e.since) from None
            return
        yield node

    def _step(self, node: NodeProto, since: int) -> NodeProto | tuple[int, list[NodeProto]]:
        """Return a node of `since` as a node of the version before, or nodes in place of the node, and their opset."""
        adapter, before = TABLE.get((node.op_type, since)), since - 1
        made = adapter(Call(node, since, self._known)) if adapter is not None else None
        if made is None:
            fitted = self._fitted(node, since)
            if isinstance(fitted, NodeProto):
                return fitted
            before, made = fitted
        for new in made:
            self._known.infer_made(new, before)
            if before < since and (why := unfit(new, before, self._known)):
                raise Inexpressible(f"{why} before opset {since}")
        return before, made

    def _fitted(self, node: NodeProto, since: int) -> NodeProto | tuple[int, list[NodeProto]]:
        """Return a node of `since` as a node of the version before, or the nodes of the definition, and their opset."""
        if find_schema(node.op_type, since - 1) is None:
            why = f"there is no {node.op_type}"
        else:
            node = without_new_attributes(node, since)
            why = unfit(node, since - 1, self._known)
        if not why:
            return node
        written_out = self._definition(node, since)
        if written_out is None:
            raise Inexpressible(f"{why} before opset {since}")
        return written_out

    def _definition(self, node: NodeProto, since: int) -> tuple[int, list[NodeProto]] | None:
        """Return the opset and the nodes of the definition of `node`; None if the standard has no definition.

        A body may depend on the call, so onnx gives it in a separate process. Raises Inexpressible if onnx fails.
        """
        schema = find_schema(node.op_type, since)
        assert schema is not None
        if not schema.has_function and not schema.has_context_dependent_function:
            return None
        types = [t.SerializeToString() if (t := self._known.kind(n)) is not None else b"" for n in node.input]
        try:
            opset, data = self._sandbox.call("definition", node.SerializeToString(), types, since)
        except (Refused, Declined) as e:
            raise Inexpressible(f"onnx does not write it out: {e}") from None
        if not data:
            return None
        function = FunctionProto.FromString(data)
        results = {formal: name for formal, name in zip(function.output, node.output) if name}
        base = next(iter(results.values()), node.op_type)
        names = dict(zip_longest(function.input, node.input[: len(function.input)], fillvalue="")) | results
        defaults = {name: attribute_default(node.op_type, since, name) for name in schema.attributes}
        given = {name: make_attribute(name, value) for name, value in defaults.items() if value is not None}
        given |= {a.name: a for a in node.attribute}
        made = instance(function.node, names, given, lambda name: self._known.fresh(f"{base}_{name}"))
        return opset, _live(made, {*results.values()})

    def _since(self, node: NodeProto, opset: int) -> int:
        schema = find_schema(node.op_type, opset) if node.domain in DEFAULT_DOMAINS else None
        return schema.since_version if schema is not None else 0

    def _body(self, owner: NodeProto, opset: int, where: str, label: str, nodes: list[NodeProto]) -> list[NodeProto]:
        name = f' "{owner.name}"' if owner.name else ""
        return self.scope(nodes, opset, f"{where} / {owner.op_type}{name} / {label}")

    def _all(self, opset: int, label: str, nodes: list[NodeProto]) -> list[NodeProto]:
        """Return the lowered nodes of a body in a definition. Raises Inexpressible for the node that is written out."""
        return [made for node in nodes for made in self._older(node, opset)]

    def refusal(self) -> str:
        reasons = [
            f"{where}: {op} {_some(nodes)}: {why}"
            for (_, where, op, why), nodes in [*self.refused.items()][:_MAX_NAMED]
        ]
        return _some(reasons, len(self.refused), "; ")

    def hint(self) -> str:
        lowest = f"--target-opset {max(since for since, *_ in self.refused)} is the lowest that has all of them"
        computed = any("is computed" in why for *_, why in self.refused)
        return lowest + ("; `onnxopt optimize` without it makes constants of what it can" if computed else "")


def _with_bodies(node: NodeProto, lower: Callable[[str, list[NodeProto]], list[NodeProto]]) -> NodeProto:
    """Return the node with lowered bodies; `lower` is given the label and nodes of each body."""
    if not body_graphs(node):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    for label, body in body_graphs(copy):
        nodes = lower(label, list(body.node))
        kept = GraphProto(**fields(body, leave_out=("node",)))
        kept.node.extend(nodes)
        body.CopyFrom(kept)
    return copy


def _some(texts: Sequence[str], count: int = 0, between: str = ", ") -> str:
    """Return the first texts, and the number of the others."""
    more = (count or len(texts)) - len(texts[:_MAX_NAMED])
    return between.join(texts[:_MAX_NAMED]) + (
        f"{between if between == '; ' else ' '}and {more} more" if more > 0 else ""
    )


# -- a call in an older opset, by the schemas of the standard ---------------------------------------------------------

_OPTIONAL: Final = OpSchema.FormalParameterOption.Optional


def without_new_attributes(node: NodeProto, since: int) -> NodeProto:
    """Return the node without new attributes of opset `since` that have their default, the older behaviour."""
    given = {a.name: a for a in node.attribute}
    kept = _older_attributes(node.op_type, since, given)
    if kept.keys() == given.keys() and (not node.input or node.input[-1]):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(kept.values())
    while copy.input and not copy.input[-1]:
        copy.input.pop()
    return copy


def _older_attributes(op: str, since: int, given: Mapping[str, AttributeProto]) -> dict[str, AttributeProto]:
    """Return the attributes without new defaults. An attribute whose default `since` changed is written."""
    new, old = find_schema(op, since), find_schema(op, since - 1)
    assert new is not None and old is not None
    defaults = {name: attribute_default(op, since, name) for name in new.attributes}
    kept = {
        name: a
        for name, a in given.items()
        if name in old.attributes or defaults.get(name) is None or attribute_value(a) != defaults[name]
    }
    for name in old.attributes:
        default = defaults.get(name)
        if default not in (None, attribute_default(op, since - 1, name)):
            kept.setdefault(name, make_attribute(name, default))
    return kept


def unfit(node: NodeProto, opset: int, known: KnownValues) -> str:
    """Return why the call is invalid for the operator of `opset`; empty for a valid call."""
    schema = find_schema(node.op_type, opset) if node.domain in DEFAULT_DOMAINS else None
    if schema is None:
        return ""
    for a in node.attribute:
        if a.name not in schema.attributes:
            return f"it has no attribute `{a.name}`"
    for what, names, least, most, parameters in (
        ("operand", node.input, schema.min_input, schema.max_input, schema.inputs),
        ("result", node.output, schema.min_output, schema.max_output, schema.outputs),
    ):
        if not least <= len(names) <= most:
            return f"it has {most if len(names) > most else 'at least ' + str(least)} {what}s, not {len(names)},"
        for name, p in zip(names, parameters):
            if not name and p.option != _OPTIONAL:
                return f"its {what} `{p.name}` has to be there"
    return _unfit_types(node, schema, opset, known)


def _unfit_types(node: NodeProto, schema: OpSchema, opset: int, known: KnownValues) -> str:
    """Return why the types of operands and results are invalid for the operator of `opset`; empty for valid types."""
    allowed = formals(node.op_type, opset)
    if allowed is None:
        return ""
    symbols: dict[str, tuple[int, str]] = {}
    for names, parameters, kinds in (
        (node.input, schema.inputs, allowed[0]),
        (node.output, schema.outputs, allowed[1]),
    ):
        last = len(parameters) - 1
        for i, name in enumerate(names):
            kind = known.kind(name) if name else None
            if kind is None:
                continue
            found, formal = known.element_type(name), kinds[min(i, last)]
            if form := _unfit_form(kind, parameters[min(i, last)]):
                return f"it does not take {form}s such as `{name}`"
            if found and formal.allowed and found not in formal.allowed:
                return f"it does not take {type_name(found)}, which `{name}` is,"
            if found and formal.symbol:
                other, first = symbols.setdefault(formal.symbol, (found, name))
                if other != found:
                    return f"`{first}` and `{name}` have to be of one type"
    return ""


def _unfit_form(kind: TypeProto, parameter: OpSchema.FormalParameter) -> str:
    """Return the form of a value that a parameter does not take, as "sequence"; empty for other values."""
    form = (kind.WhichOneof("value") or "").removesuffix("_type")
    return "" if form[:3] in {text[:3] for text in parameter.types} else form  # `seq(tensor(float))`


# -- the definition of an operator by the standard --------------------------------------------------------------------


def _live(nodes: list[NodeProto], read: set[str]) -> list[NodeProto]:
    """Return the nodes with readers, direct or indirect."""
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(_reads(node))
    return kept[::-1]


def _reads(node: NodeProto) -> Iterable[str]:
    yield from node.input
    for _, body in body_graphs(node):
        yield from (o.name for o in body.output)
        for inner in body.node:
            yield from _reads(inner)
