"""A graph run in parts: its nodes in order, reads and makers of values, and models of selected nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxopt.proto.element_types import BY_ONNX, INTEGERS, TYPES, of
from onnxopt.verification.model.dataflow import Changing, draws, is_decision
from onnxopt.verification.model.nodes import bodies_of, captured, holds, in_order, inferred_infos, is_part, reads_of
from onnxopt.verification.model.ranges import Range, Ranges
from onnxopt.verification.model.skeleton import Skeleton

# Types unknown to numpy, and to the runtime's Python interface. At the border of a piece, values are carried in a wider
# type that holds every number.
_CARRIER: Final = {t.onnx: {"f": "float", "i": "int8", "u": "uint8"}[t.kind] for t in TYPES if t.is_foreign}


class Program:
    """The main graph of a model, or a body of a node."""

    def __init__(
        self,
        skeleton: Skeleton,
        graph: GraphProto | None = None,
        outer: Program | None = None,
        fed: Collection[str] = (),
    ) -> None:
        """Read a graph.

        graph: a body of a node of `outer`; None: the main graph. fed: inputs with default values that are fed.
        """
        self.skeleton = skeleton
        self.is_body = outer is not None
        self._outer = outer
        self.graph = skeleton.proto.graph if graph is None else graph
        # Initializers by name, including overridden defaults.
        self.constants: dict[str, TensorProto] = {t.name: t for t in self.graph.initializer[:]}
        self.given = {i.name for i in self.graph.input}  # names fed: inputs of the graph, and values captured by a body
        if outer is not None:
            self._capture(outer)
        else:  # a default not fed is a constant
            self.given -= self.constants.keys() - fed
        self.sparse = {t.values.name: t for t in self.graph.sparse_initializer}
        # In topological order; by node: values read, including values captured by its bodies.
        self.nodes, self.reads = _ordered(self.graph)
        self.results = [[o for o in n.output[:] if o] for n in self.nodes]
        # Index of the node, by value.
        self.maker = {o: i for i, made in enumerate(self.results) for o in made}
        self.outputs = [o.name for o in self.graph.output]
        self.impossible: dict[tuple[int, str], bool] = {}  # by (node, branch): whether the branch cannot be taken
        self.keys: dict[tuple[str, bool], Hashable] = {}  # of constants: by name, of any width

    def _capture(self, outer: Program) -> None:
        """Add the values captured by a body: results are fed, constants are known."""
        taken = set(captured(self.graph))
        self.given |= {name for name in taken if not outer.is_constant(name)}
        self.constants = {name: t for name, t in outer.constants.items() if name in taken} | self.constants

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Indices of the nodes by operator type, in any domain."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            found.setdefault(node.op_type, []).append(i)
        return found

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Inferred shapes by value, 0 for an unknown dim.

        Sizes are kept only for lists of integers, which may be shapes; for all others only the rank is trusted.
        """
        found: dict[str, tuple[int, ...]] = {}
        for info in inferred_infos(self.skeleton.proto):
            tensor = info.type.tensor_type
            if tensor.HasField("shape"):
                is_list = tensor.elem_type in INTEGERS and len(tensor.shape.dim) == 1
                found[info.name] = tuple(d.dim_value if is_list else 0 for d in tensor.shape.dim)
        return found

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """Possible numbers by value, if known. Unknown for a body's inputs."""
        own = {i.name for i in self.graph.input}
        outer = self._outer.ranges if self._outer is not None else {}
        found = Ranges(self.skeleton.proto.functions)
        found.constants.update((name, t) for name, t in self.constants.items() if self.is_constant(name))
        found.facts.update((name, fact) for name, fact in outer.items() if name not in own)
        found.follow(self.nodes)
        return found.facts

    @cached_property
    def changing(self) -> Changing | None:
        """Dependence of the whole model's values on inputs, with facts; None if unknown."""
        from onnxopt.verification.model.facts import can_change

        if self._outer is not None:
            return self._outer.changing
        proto = type(self.skeleton.proto)()
        proto.CopyFrom(self.skeleton.proto)
        with contextlib.suppress(Exception):  # inference is no source of verdicts
            return can_change(proto)
        return None

    @cached_property
    def _makers(self) -> list[list[tuple[str, int]]]:
        """By node: (value read, index of its maker)."""
        maker = self.maker
        return [[(r, maker[r]) for r in reads if r in maker] for reads in self.reads]

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Indices of the nodes that read a value, in order."""
        found: dict[str, list[int]] = {}
        for i, reads in enumerate(self.reads):
            for r in reads:
                found.setdefault(r, []).append(i)
        return found

    @cached_property
    def holding(self) -> list[int]:
        """Indices of nodes with bodies."""
        return [i for i, node in enumerate(self.nodes) if bodies_of(node)]

    def having(self, is_one: Callable[[NodeProto], bool]) -> list[int]:
        """Return the indices of nodes that satisfy `is_one`, or hold such a node in bodies or called functions."""
        functions = self.skeleton.functions.holding(is_one)
        inner = range(len(self.nodes)) if functions else {*self.holding}
        return [i for i, n in enumerate(self.nodes) if is_one(n) or (i in inner and holds(n, is_one, functions))]

    @cached_property
    def hiding(self) -> list[int]:
        """Indices of nodes with a part that may not run, in bodies or called functions."""
        return self.having(is_part)

    @cached_property
    def deciding(self) -> list[int]:
        """Indices of nodes with a decision in their bodies or called functions."""
        function_of, holding = self.skeleton.functions.of, {*self.holding}
        return [i for i in self.having(is_decision) if i in holding or function_of(self.nodes[i]) is not None]

    @cached_property
    def random(self) -> set[int]:
        """The nodes that draw random numbers."""
        return {*self.having(draws)}

    @cached_property
    def sources(self) -> set[str]:
        """Constants from which constant values are computed.

        If perturbed, decisions on the values (quantized weights) would jump.
        """
        return {r for n, reads in zip(self.nodes, self.reads) if not self.fixed.isdisjoint(n.output[:]) for r in reads}

    @cached_property
    def fixed(self) -> set[str]:
        """The values that depend on constants only.

        Each piece computes them again, as a runtime needs constant shapes and axes when loading.
        """
        found: set[str] = set()
        for i, (node, reads) in enumerate(zip(self.nodes, self.reads)):
            if i not in self.random and self.are_known(reads, found):
                found.update(filter(None, node.output[:]))
        return found

    def is_constant(self, name: str) -> bool:
        """Return whether a name is an initializer that is not fed."""
        return name not in self.given and (name in self.constants or name in self.sparse)

    def are_known(self, names: Iterable[str], known: Collection[str]) -> bool:
        """Return whether all names are known or constants."""
        return all(name in known or self.is_constant(name) for name in names)

    def constant(self, name: str) -> Any:
        """Return the array of an initializer."""
        return self.skeleton.values(self.constants[name])

    def cone(self, wanted: Iterable[str], fed: Collection[str], most: int = 1 << 62) -> list[int]:
        """Return the nodes between fed or constant values and `wanted`, in order; about `most` at most."""
        found: set[int] = set()
        makers = self._makers
        stack = [self.maker[name] for name in wanted if name in self.maker]
        while stack and len(found) < most:
            i = stack.pop()
            if i not in found:
                found.add(i)
                for name, maker in makers[i]:
                    if name not in fed:
                        stack.append(maker)
        return sorted(found)

    def behind(self, new: Collection[str], fed: Collection[str], end: int) -> set[str]:
        """Return the values computed from `new` by nodes up to `end`, not through fed values."""
        found, seen, left, readers = set[str](), set[int](), [*new], self.readers
        while left:
            for i in readers.get(left.pop(), ()):
                if i <= end and i not in seen:
                    seen.add(i)
                    found.update(self.results[i])
                    left += [o for o in self.results[i] if o not in fed]
        return found

    def entries(self, nodes: Sequence[int], fed: Collection[str]) -> list[str]:
        """Return the values read by `nodes` but made elsewhere, except constants."""
        made = {o for i in nodes for o in self.results[i] if o not in fed}
        return [r for r in self.read(nodes) if r not in made and not self.is_constant(r)]

    @cached_property
    def last_readers(self) -> dict[str, int]:
        """Index of the last reader by value; the number of nodes for outputs."""
        found = {r: i for i, reads in enumerate(self.reads) for r in reads}
        return found | dict.fromkeys(self.outputs, len(self.nodes))

    def read(self, nodes: Iterable[int]) -> dict[str, None]:
        """Return the values read by `nodes`, in order."""
        return dict.fromkeys(r for i in nodes for r in self.reads[i])

    def at(self, nodes: Iterable[int]) -> Iterator[NodeProto]:
        """Return the nodes at these indices."""
        return map(self.nodes.__getitem__, nodes)

    def kinds(self, nodes: Iterable[int]) -> set[str]:
        """Return the operators of `nodes`."""
        return {node.op_type for node in self.at(nodes)}

    def made(self, nodes: Iterable[int]) -> list[str]:
        """Return the values made by `nodes`."""
        return [o for i in nodes for o in self.results[i]]

    def weight(self, nodes: Iterable[int]) -> int:
        """Return the bytes of initializers read by `nodes` together."""
        return sum(self.skeleton.size(self.constants[r]) for r in self.read(nodes) if r in self.constants)

    def model(
        self, nodes: Sequence[int], fed: Mapping[str, str], observed: Mapping[str, str]
    ) -> tuple[ModelProto, dict[str, Any]]:
        """Return (model of `nodes`, arrays of large initializers, external in the model).

        fed: {input: type as written by onnxruntime, `tensor(float)`}; observed: {output: type, "" for a numpy type}. If
        a name is in both, readers get the fed value, and the computed value is an output named `seen(name)`.
        """
        source = self.skeleton.proto
        model = ModelProto(ir_version=source.ir_version, producer_name=source.producer_name)
        model.opset_import.extend(source.opset_import)
        model.functions.extend(self.skeleton.functions.needed(self.at(nodes)))
        graph = model.graph
        graph.name = "piece"
        reads = self.read(nodes)
        weights = self._initialize_all(graph, [r for r in reads if r not in fed], set(self.made(nodes)))
        for name, kind in fed.items():
            if name in reads:
                _add_input(graph, name, kind)
        for i in nodes:
            node = graph.node.add()
            node.CopyFrom(self.nodes[i])
            node.output[:] = [made_as(output, fed) for output in node.output[:]]
        for name, kind in observed.items():
            if carrier(kind):
                add_cast(graph, made_as(name, fed), carried(name), _code(carrier(kind)))
            graph.output.add(name=observed_as(name, kind, fed))
        return model, weights

    def _initialize_all(self, graph: GraphProto, names: Sequence[str], made: Collection[str]) -> dict[str, Any]:
        """Add the constants among `names` to a graph, except results `made` in it. Returns the external arrays."""
        weights = dict[str, Any]()
        for name in names:
            if name in self.sparse:
                graph.sparse_initializer.add().CopyFrom(self.sparse[name])
            elif name in self.constants and name not in made:
                tensor = self.constants[name]
                array = self.skeleton.array(tensor)
                if array is None:
                    graph.initializer.append(self.skeleton.whole(tensor))
                    continue
                how = {"data_type": tensor.data_type, "dims": tensor.dims, "data_location": TensorProto.EXTERNAL}
                graph.initializer.add(name=name, **how).external_data.add(key="location", value="piece")
                weights[name] = array
        return weights


def _ordered(graph: GraphProto) -> tuple[list[NodeProto], list[list[str]]]:
    """Return the nodes of a graph in topological order, and the values that each reads."""
    nodes = graph.node[:]
    reads = [list(dict.fromkeys(reads_of(n))) for n in nodes]
    order = in_order(nodes, reads)
    return [nodes[i] for i in order], [reads[i] for i in order]


def seen(name: str) -> str:
    """Return the name of an observed value in a piece where the same name is fed."""
    return f"{name}\N{RIGHTWARDS ARROW}seen"


def made_as(name: str, fed: Collection[str]) -> str:
    """Return the name of a computed value in a piece with `fed` values."""
    return seen(name) if name in fed else name


def observed_as(name: str, kind: str, fed: Collection[str]) -> str:
    """Return the output of a piece with the value `name` of type `kind`."""
    return carried(name) if carrier(kind) else made_as(name, fed)


def carried(name: str) -> str:
    """Return the name of a value carried across the border of a piece in a wider type."""
    return f"{name}\N{RIGHTWARDS ARROW}carried"


def carrier(kind: str) -> str:
    """Return the type that carries values of type `kind` (`tensor(bfloat16)`); "" if numpy has the type."""
    return _CARRIER.get(_element(kind), "")


def type_of(value: Any) -> str:
    """Return a value's type as written by onnxruntime; "" unless a tensor or a sequence of tensors."""
    if isinstance(value, list):
        inner = type_of(value[0]) if value else ""
        return f"seq({inner})" if inner.startswith("tensor") else ""
    if not isinstance(value, np.ndarray):
        return ""
    return _tensor_of(value.dtype)


def types_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of values, by name."""
    return {name: type_of(value) for name, value in values.items()}


@cache
def _tensor_of(dtype: Any) -> str:
    """Return the type of a tensor. Cached, as numpy builds the name of a dtype on each access."""
    return f"tensor({of(dtype).onnx})"


def widened(value: Any) -> Any:
    """Return a value in its carrier type."""
    wide = carrier(type_of(value))
    return value.astype({"float": np.float32}.get(wide, wide)) if wide else value


def narrowed(value: Any, kind: str) -> Any:
    """Return a carried value in the type `kind`."""
    return value.astype(BY_ONNX[_element(kind)].dtype) if carrier(kind) else value


def _element(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else ""


def _type_proto(kind: str) -> TypeProto:
    """Return the proto of a type. Raises ValueError for a type impossible as a model input."""
    found = TypeProto()
    if kind.startswith("seq("):
        found.sequence_type.elem_type.CopyFrom(_type_proto(kind[4:-1]))
    elif kind.startswith("optional("):
        found.optional_type.elem_type.CopyFrom(_type_proto(kind[9:-1]))
    else:
        found.tensor_type.elem_type = _code(_element(kind))
    return found


def _code(kind: str) -> int:
    """Return the code of an element type, such as `float16`."""
    return int(TensorProto.DataType.Value(kind.upper()))


def add_cast(graph: GraphProto, source: str, target: str, code: int) -> None:
    """Append a Cast to a type of TensorProto.DataType."""
    node = graph.node.add(op_type="Cast", input=[source], output=[target])
    attribute = node.attribute.add(name="to", i=code)
    attribute.type = attribute.INT


def bodies(node: NodeProto) -> dict[str, GraphProto]:
    """Return a node's bodies by attribute name."""
    return {a.name: a.g for a in node.attribute if a.HasField("g")}


def _add_input(graph: GraphProto, name: str, kind: str) -> None:
    """Add an input of a type; of the carrier, followed by a Cast for types unknown to numpy."""
    wide = carrier(kind)
    given = graph.input.add(name=carried(name) if wide else name)
    given.type.CopyFrom(_type_proto(f"tensor({wide})" if wide else kind))
    if wide:
        add_cast(graph, carried(name), name, _code(_element(kind)))
