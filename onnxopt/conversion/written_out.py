"""Operators written out by the definition of the standard: the function body for a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from onnxopt.conversion.call import Unsayable
from onnxopt.conversion.known import Known
from onnxopt.graph.schema import attribute_default, find_schema
from onnxopt.proto.messages import body_graphs, make_attribute
from onnxopt.worker import Limits
from onnxopt.worker.service import Declined, Sandbox
from onnxopt.worker.serving import Refused


class Definitions:
    """A context manager. onnx gives the definitions in a separate process, because a body may depend on the call."""

    def __init__(self, known: Known, limits: Limits) -> None:
        self._known = known
        self._room = Sandbox(limits)

    def __enter__(self) -> Definitions:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._room.close()

    def of(self, node: NodeProto, since: int) -> tuple[int, list[NodeProto]] | None:
        """Return the opset and the nodes of the definition of `node`; None if the standard has no definition.

        Raises Unsayable if onnx fails to give the definition.
        """
        schema = find_schema(node.op_type, since)
        assert schema is not None
        if not schema.has_function and not schema.has_context_dependent_function:
            return None
        types = [t.SerializeToString() if (t := self._known.kind(n)) is not None else b"" for n in node.input]
        try:
            opset, data = self._room.call("definition", node.SerializeToString(), types, since)
        except (Refused, Declined) as e:
            raise Unsayable(f"onnx does not write it out: {e}") from None
        if not data:
            return None
        function = FunctionProto.FromString(data)
        names = dict(zip(function.input, node.input))
        results = {formal: name for formal, name in zip(function.output, node.output) if name}
        given = {a.name: a for a in node.attribute}
        defaults = {name: attribute_default(node.op_type, since, name) for name in schema.attributes}
        given |= {n: make_attribute(n, v) for n, v in defaults.items() if v is not None and n not in given}
        body = _Body(self._known, next(iter(results.values()), node.op_type), given)
        made = body.nodes(function.node, {formal: names.get(formal, "") for formal in function.input} | results)
        return opset, _live(made, set(results.values()))


class _Body:
    """The nodes of a function with names of the model and attributes of the call."""

    def __init__(self, known: Known, base: str, given: Mapping[str, AttributeProto]) -> None:
        self._known, self._base, self._given = known, base, given

    def nodes(self, nodes: Iterable[NodeProto], names: dict[str, str]) -> list[NodeProto]:
        found = []
        for node in nodes:
            copy = NodeProto(op_type=node.op_type, domain=node.domain)
            copy.input.extend(names.get(n, n) for n in node.input)
            for name in node.output:
                if name and name not in names:
                    names[name] = self._known.fresh(f"{self._base}_{name}")
                copy.output.append(names.get(name, ""))
            for a in node.attribute:
                if not a.ref_attr_name:
                    copy.attribute.append(a)
                elif a.ref_attr_name in self._given:
                    copy.attribute.append(make_attribute(a.name, self._given[a.ref_attr_name]))
            for _, body in body_graphs(copy):
                self._rename(body, dict(names))
            found.append(copy)
        return found

    def _rename(self, body: GraphProto, names: dict[str, str]) -> None:
        for value in (*body.input, *body.initializer):
            names[value.name] = self._known.fresh(f"{self._base}_{value.name}")
            value.name = names[value.name]
        for name in {n for node in body.node for n in node.output}:
            names.pop(name, None)  # of the body, and not of what is around it
        nodes = self.nodes(list(body.node), names)
        del body.node[:], body.value_info[:]
        body.node.extend(nodes)
        for value in body.output:
            value.name = names.get(value.name, value.name)


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
