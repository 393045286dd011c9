"""Value numbering: equal numbers for values equal according to the file, without a run.

Values are equal if equal operators compute them from equal operands, under any names, with constants in any form, and
with operands of commutative operators in any order. Calls of functions are inlined. An If with a constant condition
equals its branch, and so does an If with equal branches.
"""

from __future__ import annotations

import functools
import zlib
from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from onnxopt.proto.element_types import element_kind
from onnxopt.proto.messages import array_to_tensor, tensor_to_array
from onnxopt.verification.model.dataflow import draws
from onnxopt.verification.model.nodes import domain_of, held_as
from onnxopt.verification.model.operators import having
from onnxopt.verification.programs.program import Program, bodies

Numbers: TypeAlias = MutableMapping[str, int]
_WIDTHS: Final = {"tensor(int32)": 6, "tensor(int64)": 7}
_PREFIX: Final = 64  # elements compared before all
_SAMPLE: Final = 1 << 16  # bytes of a large array in the hash
_BLOCK: Final = 1 << 18  # bytes compared at once
_MAX_CALLED_NODES: Final = 100_000  # nodes of functions, counted in each call
_COMMUTING: Final = having("commutes")  # bitwise
_TURNED: Final = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}


def number_of(table: dict[Hashable, int], key: Hashable) -> int:
    """Return the number of a key, a new number for a new key."""
    return table.setdefault(key, len(table))


class _Scope(NamedTuple):
    """Position of a node."""

    versions: Mapping[str, int]  # opsets by domain
    given: Mapping[str, AttributeProto]  # attributes of the enclosing call
    depth: int  # number of enclosing bodies

    def tells(self, a: AttributeProto) -> bool:
        """Return whether an attribute has a value. A reference to an attribute missing in the call has none."""
        return not a.ref_attr_name or a.ref_attr_name in self.given


class _Known(dict[str, int]):
    """Value numbers by name. `key`: returns the key of a name without number."""

    def __init__(self, key: Callable[[str], Hashable], table: dict[Hashable, int]) -> None:
        self._key, self._table = key, table

    def __missing__(self, name: str) -> int:
        found = self[name] = number_of(self._table, self._key(name))
        return found


class ValueNumbering:
    """Value numbers of a model. Models that share a `table` have equal numbers for equal values."""

    def __init__(
        self,
        program: Program,
        table: dict[Hashable, int],
        several: Collection[str],
        fed: Mapping[str, Hashable],
        folded: Mapping[str, Any],
    ) -> None:
        """Number fed values.

        several: domains imported in more than one version; fed: keys of fed values; folded: arrays of constant results.
        """
        self._program, self._table, self._several = program, table, several
        self._versions = program.skeleton.versions
        self._functions = program.skeleton.functions
        self._left = _MAX_CALLED_NODES
        self._kinds = program.skeleton.kinds
        self._any_width = bool(self._kinds)
        self._fed = fed.keys() | folded.keys()
        self._found: dict[int, Mapping[str, int]] = {}  # {node: {result: number}}
        # Numbers of values as read: a fed value is not the result of its node.
        self.known = _Known(lambda name: self.constant(name) if program.is_constant(name) else ("other", name), table)
        self.known.update((name, number_of(table, key)) for name, key in fed.items() if not program.is_constant(name))
        self.known.update((name, number_of(table, self.elements(array))) for name, array in folded.items())

    def value(self, name: str) -> int:
        """Return the number of a value as computed from fed values."""
        i = self._program.maker.get(name)
        return self.known[name] if i is None else self.number([i])[i][name]

    def number(self, nodes: Collection[int]) -> dict[int, Mapping[str, int]]:
        """Return {node: {result: number}}, computed from fed values."""
        if new := [i for i in nodes if i not in self._found]:
            self._number(self._program.made(new))
        return {i: self._found.get(i, {}) for i in nodes}

    def operands(self, i: int) -> list[int]:
        """Return the numbers of a node's operands, -1 if absent."""
        self._number(r for r in self._program.reads[i] if r not in self.known)
        return _operands(self._program.nodes[i], self.known)

    def _number(self, wanted: Iterable[str]) -> None:
        """Number the nodes between fed values and `wanted`."""
        for i in self._program.cone(wanted, self._fed):
            if i not in self._found:
                node = self._program.nodes[i]
                made = self._made(node, self.known, _Scope(self._versions, {}, 0))
                self._found[i] = {name: number for name, number in zip(node.output, made) if name}
                self.known.update((o, number) for o, number in self._found[i].items() if o not in self._fed)

    def elements(self, array: Any) -> Hashable:
        """Return the key of a constant array; int32 and int64 have equal keys if any width is allowed."""
        return elements(self._widened(np.asarray(array)))

    def _widened(self, array: Any) -> Any:
        """Return int32 as int64 if any width is allowed. The extremes, ends of a Slice, stay extremes."""
        if not self._any_width or array.dtype != np.int32:
            return array
        narrow, ends = np.iinfo(np.int32), np.iinfo(np.int64)
        wide = array.astype(np.int64)
        return np.where(wide == narrow.max, ends.max, np.where(wide == narrow.min, ends.min, wide))

    def _only_changes_width(self, node: NodeProto) -> bool:
        """Return whether a node is a Cast between int32 and int64, and any width is allowed."""
        if not self._any_width or node.op_type != "Cast" or self._kinds.get(node.input[0]) not in _WIDTHS:
            return False
        return any(a.name == "to" and a.i in _WIDTHS.values() for a in node.attribute)

    def constant(self, name: str) -> Hashable:
        """Return the key of a constant, made once for all numberings of a program."""
        program, key = self._program, (name, self._any_width)
        if name not in program.constants:
            return "sparse", id(program), name
        if key not in program.keys:  # not copied, as it is kept
            program.keys[key] = self.elements(program.skeleton.values(program.constants[name], aligned=False))
        return program.keys[key]

    def _node(self, node: NodeProto, known: Numbers, scope: _Scope) -> None:
        made = self._made(node, known, scope)
        known.update((name, number) for name, number in zip(node.output, made) if name)

    def _made(self, node: NodeProto, known: Numbers, scope: _Scope) -> list[int]:
        """Return the numbers of a node's results."""
        reads = _operands(node, known)
        told = [(a.name, scope.given.get(a.ref_attr_name, a)) for a in node.attribute if scope.tells(a)]
        is_standard = not domain_of(node.domain)
        if is_standard and (simple := self._simple(node, reads, told, scope)) is not None:
            return simple
        function = self._functions.of(node)
        if function is not None and self._left > 0:
            self._left -= len(function.node)
            return self._called(function, node, reads, scope)
        branches: dict[str, list[int]] = {}
        if is_standard and node.op_type == "If":
            if (taken := self._taken(node, reads[0])) is not None:
                return self.body(taken, known, scope)  # at the depth of the If, as when inlined
            # Comparable with inlined branches.
            branches = {n: self.body(b, known, scope) for n, b in bodies(node).items()}
            one, *others = branches.values()
            if others == [one]:
                return one
        attributes = [
            (n, ("", *map(str, branches[n])) if n in branches else self._told(a, known, scope)) for n, a in told
        ]
        key = self._call(node, reads, tuple(sorted(attributes)), scope)
        return [number_of(self._table, (key, k)) if name else -1 for k, name in enumerate(node.output)]

    def _simple(
        self, node: NodeProto, reads: Sequence[int], told: Sequence[tuple[str, Any]], scope: _Scope
    ) -> list[int] | None:
        """Return the numbers of a node that hands on its operand, or whose results are constants; else None."""
        # Before opset 7, Dropout trains by default.
        is_inactive = node.op_type == "Dropout" and not draws(node) and scope.versions.get("", 0) >= 7
        if node.op_type == "Identity" or is_inactive:
            return [*reads[:1], *[number_of(self._table, ("mask", reads[0]))] * (len(node.output) - 1)]
        if self._only_changes_width(node):
            return [*reads[:1]]
        if node.op_type == "Constant" and len(told) == 1:
            return [number_of(self._table, self._held(*told[0]))]
        fill = self._filled(node, reads[0]) if node.op_type == "ConstantOfShape" else None
        return [number_of(self._table, fill)] if fill is not None else None

    def _held(self, name: str, attribute: Any) -> Hashable:
        """Return the constant in an attribute of a Constant, as by `elements`; of sparse tensors, the message."""
        tensor = held_as(name, attribute)
        if tensor is None:
            return "held", attribute.SerializeToString(deterministic=True)
        return self.elements(tensor_to_array(tensor))

    def _filled(self, node: NodeProto, shape: int) -> Hashable | None:
        """Return the constant made by a ConstantOfShape, as by `elements`; None for a computed shape."""
        constants = self._program.constants
        if node.input[0] not in constants or shape != self._table.get(self.constant(node.input[0])):
            return None
        value = next((tensor_to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1, np.float32))
        shape_ = tuple(self._program.constant(node.input[0]).tolist())
        one = self._widened(np.asarray(value)).reshape(-1)[:1]
        return "fill", one.dtype, shape_, one.tobytes()

    def _call(
        self, node: NodeProto, reads: list[int], told: tuple[tuple[str, tuple[str, ...]], ...], scope: _Scope
    ) -> Hashable:
        """Return the key of an operator applied to operands. `told`: values of attributes."""
        domain, operator = domain_of(node.domain), node.op_type
        # New versions of random operators only add types; equal draws are identified by name.
        drawn = node.output[0] if draws(node) else ""
        is_dated = domain in self._several and not drawn
        version = since(operator, domain, scope.versions.get(domain, 0)) if is_dated else 0
        # The number of outputs may decide their contents.
        parts = len(node.output) if domain or operator == "Split" else 0
        drawn += str(id(self)) if self._functions.of(node) is not None else ""  # a function not inlined is opaque
        if not domain and not told:
            operator, reads = _in_order(operator, reads)
        return domain, operator, node.overload, version, parts, tuple(reads), told, drawn

    def _taken(self, node: NodeProto, condition: int) -> GraphProto | None:
        """Return the branch of a constant condition, else None."""
        for decided in (True, False):
            if condition in (self._table.get(elements(np.full(shape, decided))) for shape in ((), (1,))):
                return bodies(node).get("then_branch" if decided else "else_branch")
        return None

    def _told(self, a: AttributeProto, known: Numbers, scope: _Scope) -> tuple[str, ...]:
        """Return an attribute's value in canonical form."""
        if a.type in (a.GRAPH, a.GRAPHS):
            graphs = (a.g,) if a.type == a.GRAPH else a.graphs
            return "", *(
                str(n) for g in graphs for n in (*self.body(g, known, scope._replace(depth=scope.depth + 1)), -1)
            )
        return (self._plain(a).SerializeToString(deterministic=True).hex(),)

    def _plain(self, a: AttributeProto) -> AttributeProto:
        """Return an attribute without its name, in any width of integers if widths do not count."""
        plain = type(a)()
        plain.CopyFrom(a)
        plain.name = plain.doc_string = ""
        if self._any_width and a.name == "to" and a.i in _WIDTHS.values():
            plain.i = _WIDTHS["tensor(int64)"]
        if self._any_width and a.type == a.TENSOR and a.t.data_type in _WIDTHS.values():
            plain.t.CopyFrom(array_to_tensor(self._widened(tensor_to_array(a.t)), ""))
        return plain

    def body(self, graph: GraphProto, known: Numbers, scope: _Scope | None = None) -> list[int]:
        """Return the numbers of a body's outputs. `scope`: by default, a body of the main graph."""
        scope = scope or _Scope(self._versions, {}, 1)
        inner: Numbers = ChainMap({}, known)
        for k, i in enumerate(graph.input):
            inner[i.name] = number_of(self._table, ("given", scope.depth, k))
        for t in graph.initializer:
            inner[t.name] = number_of(self._table, self.elements(tensor_to_array(t)))
        for s in graph.sparse_initializer:
            inner[s.values.name] = number_of(self._table, ("sparse", id(self._program), s.values.name))
        for node in graph.node:
            self._node(node, inner, scope)
        return [inner[o.name] for o in graph.output]

    def _called(self, function: FunctionProto, node: NodeProto, reads: Sequence[int], scope: _Scope) -> list[int]:
        """Return the numbers of a call's results."""
        told = {a.name: a for a in function.attribute_proto}
        told |= {a.name: scope.given.get(a.ref_attr_name, a) for a in node.attribute if scope.tells(a)}
        versions = {domain_of(o.domain): o.version for o in function.opset_import}
        inner: Numbers = dict.fromkeys(function.input, -1) | dict(zip(function.input, reads))
        for n in function.node:
            self._node(n, inner, _Scope(versions, told, scope.depth))
        return [inner[name] for name in function.output]


def _in_order(operator: str, reads: list[int]) -> tuple[str, list[int]]:
    """Return a canonical operator and operand order with the same result."""
    if operator in _TURNED:
        return _TURNED[operator], reads[::-1]
    return operator, sorted(reads) if operator in _COMMUTING else reads


def elements(array: Any) -> Hashable:
    """Return the key of a constant array, of any shape and type."""
    array = np.asarray(array)
    if element_kind(array) == "S":
        return "strings", array.shape, tuple(map(str, array.reshape(-1).tolist()))
    flat = np.ascontiguousarray(array).reshape(-1)
    first, one, data = flat[:_PREFIX].tobytes(), flat[:1].tobytes(), flat.view(np.uint8)
    is_short, is_fill = flat.size <= _PREFIX, first == one * min(flat.size, _PREFIX) and flat.size > 0  # of most arrays
    if is_fill and (is_short or bool((data.reshape(flat.size, -1) == data[: len(one)]).all())):
        return "fill", array.dtype, array.shape, one
    return "constant", array.dtype, array.shape, first if is_short else _Bytes(data)


class _Bytes:
    """The bytes of an array, not copied.

    The hash reads a sample of a large array; arrays of equal hash are compared in full.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        some = data if data.size <= _SAMPLE else np.ascontiguousarray(data[:: data.size // _SAMPLE])
        self._hash = zlib.crc32(some.data, data.size)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bytes) or len(self._data) != len(other._data):
            return False
        blocks = range(0, len(self._data), _BLOCK)  # bound the memory of the comparison
        return all(bool((self._data[i : i + _BLOCK] == other._data[i : i + _BLOCK]).all()) for i in blocks)


@functools.cache
def since(op: str, domain: str, version: int) -> int:
    """Return the version of an operator's current definition."""
    from onnx import defs

    try:
        return int(defs.get_schema(op, version, domain).since_version)
    except defs.SchemaError:
        return version


def _operands(node: NodeProto, known: Numbers) -> list[int]:
    """Return the numbers of the operands, -1 if absent, without absent ones at the end."""
    reads = [known[name] if name else -1 for name in node.input]
    while reads and reads[-1] == -1:
        reads.pop()
    return reads
