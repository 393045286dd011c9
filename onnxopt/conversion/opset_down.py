"""Lower the opset of a model, node by node and boundary by boundary.

A boundary is an opset that changed an operator, by the schemas of the standard. The table of older forms has
the form before each boundary. No entry means that the operator only takes more types since, or has an attribute
whose default is the older behaviour. A new operator is written out by the definition of the standard. One error
names all nodes without an older form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto

from onnxopt.conversion import (  # noqa: F401  they enter their forms into the table
    einsum,
    older_forms,
    older_quantizers,
    older_sizes,
    older_types,
    rotary,
    written,
)
from onnxopt.conversion.boundaries import TABLE
from onnxopt.conversion.call import Call, Unsayable
from onnxopt.conversion.fitting import unfit, without_news
from onnxopt.conversion.known import Known
from onnxopt.conversion.written_out import Definitions
from onnxopt.errors import ModelError
from onnxopt.graph.schema import find_schema
from onnxopt.proto.messages import DEFAULT_DOMAINS, body_graphs, fields
from onnxopt.worker import Limits

_MAX_NAMED: Final = 3  # nodes that a refusal names, of one reason, and reasons


def lower_opset(proto: ModelProto, current: int, target: int, path: Path, limits: Limits) -> None:
    """Change the nodes of `proto` to an older version of the default domain.

    Raises ModelError with the nodes without an older form; `proto` is unchanged then.
    """
    known = Known(proto)
    known.infer(proto)
    with Definitions(known, limits) as definitions:
        lowering = _Lowering(known, definitions, target)
        nodes = lowering.scope(proto.graph.node, current, "main")
    if lowering.refused:
        raise ModelError(f"{path} cannot be converted to opset {target}: {lowering.refusal()}", lowering.hint())
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


class _Lowering:
    """`refused`: the nodes without an older form, by boundary, scope, operator and reason."""

    def __init__(self, known: Known, definitions: Definitions, target: int) -> None:
        self._known, self._definitions, self._target = known, definitions, target
        self.refused: dict[tuple[int, str, str, str], list[str]] = {}

    def scope(self, nodes: Iterable[NodeProto], opset: int, where: str) -> list[NodeProto]:
        """Return the lowered nodes of a graph or a body, without refused nodes."""
        found: list[NodeProto] = []
        for node in nodes:
            try:
                made = list(self._older(_with_bodies(node, partial(self._body, node, opset, where)), opset))
            except Unsayable as e:
                name = f'"{node.name}"' if node.name else f"`{next(iter(node.output), '')}`"
                self.refused.setdefault((e.since, where, node.op_type, str(e)), []).append(name)
                continue
            if made and made[-1] is not node:
                _note(made[-1], node)
            found += made
        return found

    def _older(self, node: NodeProto, opset: int) -> Iterator[NodeProto]:
        """Yield the nodes of the target opset in place of `node`, a node of `opset`. Raises Unsayable."""
        since = self._since(node, opset)
        while since > self._target:
            try:
                found = self._step(node, since)
            except Unsayable as e:
                e.since = since
                raise
            if isinstance(found, NodeProto):
                node, since = found, self._since(found, since - 1)
                continue
            before, made = found
            for new in made:
                try:
                    yield from self._older(_with_bodies(new, partial(self._all, before)), before)
                except Unsayable as e:
                    why = str(e) if new.op_type == node.op_type else f"{new.op_type}, of which it would be made: {e}"
                    raise _at(e.since, why) from None
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
                raise Unsayable(f"{why} before opset {since}")
        return before, made

    def _fitted(self, node: NodeProto, since: int) -> NodeProto | tuple[int, list[NodeProto]]:
        """Return a node of `since` as a node of the version before, or the nodes of the definition, and their opset."""
        if find_schema(node.op_type, since - 1) is None:
            why = f"there is no {node.op_type}"
        else:
            node = without_news(node, since)
            why = unfit(node, since - 1, self._known)
        if not why:
            return node
        written_out = self._definitions.of(node, since)
        if written_out is None:
            raise Unsayable(f"{why} before opset {since}")
        return written_out

    def _since(self, node: NodeProto, opset: int) -> int:
        schema = find_schema(node.op_type, opset) if node.domain in DEFAULT_DOMAINS else None
        return schema.since_version if schema is not None else 0

    def _body(self, owner: NodeProto, opset: int, where: str, label: str, nodes: list[NodeProto]) -> list[NodeProto]:
        name = f' "{owner.name}"' if owner.name else ""
        return self.scope(nodes, opset, f"{where} / {owner.op_type}{name} / {label}")

    def _all(self, opset: int, label: str, nodes: list[NodeProto]) -> list[NodeProto]:
        """Return the lowered nodes of a body in a definition. Raises Unsayable for the node that is written out."""
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


def _note(made: NodeProto, node: NodeProto) -> None:
    """Give `made`, the last node in place of `node`, the name and the notes of `node`."""
    made.name, made.doc_string = node.name, node.doc_string
    if not made.metadata_props:
        made.metadata_props.extend(node.metadata_props)


def _at(since: int, why: str) -> Unsayable:
    found = Unsayable(why)
    found.since = since
    return found


def _some(texts: Sequence[str], count: int = 0, between: str = ", ") -> str:
    """Return the first texts, and the number of the others."""
    more = (count or len(texts)) - len(texts[:_MAX_NAMED])
    return between.join(texts[:_MAX_NAMED]) + (
        f"{between if between == '; ' else ' '}and {more} more" if more > 0 else ""
    )
