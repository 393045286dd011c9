"""Indexes a ModelProto: resolves names to values in each scope, and counts users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxopt.errors import ModelError, UsageError
from onnxopt.graph.bindings import pin
from onnxopt.graph.graph import Graph
from onnxopt.graph.model import Model, function_label, values_read
from onnxopt.graph.node import HELD, Node
from onnxopt.graph.schema import DEFAULTS_SINCE, FUNCTIONS_SINCE, adopt_opsets, import_domain, raise_ir_version
from onnxopt.graph.structure import interface_of
from onnxopt.graph.value import Value
from onnxopt.proto.messages import body_graphs, tensor_type, training_graphs

SKIP = "onnxopt.skip"  # metadata key of a graph or function that passes leave alone
_HINT = "the file does not pass onnx.checker; export it again, or repair it"
_NEWEST = (1 << 31) - 1  # largest opset version: schemas are looked up by a C int


def read_model(proto: ModelProto, path: Path | None = None, *, freeze_initializers: bool = False) -> Model:
    """Return the in-memory graph over `proto`, and take ownership of `proto`.

    `freeze_initializers` treats initializers also listed as graph inputs as constants: the caller promises never to
    override them. Raises ModelError for a name read but not defined, or defined twice, and for functions whose
    expansion is too large.
    """
    if not isinstance(proto, ModelProto):
        raise UsageError(f"a ModelProto is read, not a {type(proto).__name__}", "onnxopt.load reads a file")
    model = Model(proto, path)
    _check_versions(model)
    if proto.functions:
        from onnxopt.proto.functions import refuse_explosion

        refuse_explosion(proto, model.name)
    model.freeze_initializers = freeze_initializers
    trainable, trained = _names_in_training(proto) if proto.training_info else (set[str](), set[str]())
    model.names.update(trained)  # a training step runs both graphs as one: no new value has the name of another
    for function in proto.functions:
        _index_function(model, function)
    model.graph = Graph(model, proto.graph, None, "main")
    reader = _Reader(model, trainable)
    reader.read_graph(model.graph, proto.graph)
    reader.name_apart()
    model.interface = interface_of(proto, model.graph.initializers)
    pin(model.graph)
    if trainable:
        _pin_trainable(model.graph, trainable)
    _check_text(model)
    return model


def _check_versions(model: Model) -> None:
    for imported in (model.proto.opset_import, *(f.opset_import for f in model.proto.functions)):
        for o in imported:
            if not 0 <= o.version <= _NEWEST:
                domain = o.domain or "ai.onnx"
                raise ModelError(f"{model.name}: there is no opset {o.version} of the domain {domain}", _HINT)


def _check_text(model: Model) -> None:
    """Raise ModelError for names not in UTF-8, returned as bytes by protobuf. Node names are not checked."""
    texts: list[object] = [] if set(map(type, model.names)) <= {str} else list(model.names)
    for scope in model.scopes():
        texts += [scope.proto.name, getattr(scope.proto, "domain", "")]
        for nodes in scope.by_op.values():
            proto = next(iter(nodes)).proto
            texts += [proto.op_type, proto.domain]
    garbled = next((text for text in texts if not isinstance(text, str)), None)
    if garbled is not None:
        raise ModelError(f"{model.name}: the name {garbled!r} is not UTF-8", _HINT)


def _has_value(constant: NodeProto) -> bool:
    return any(HELD.get(a.name) == a.type or a.ref_attr_name for a in constant.attribute[:])


def add_function(model: Model, function: FunctionProto) -> Graph:
    """Append a copy of `function` to the model and index it. Raises UsageError if its name is taken."""
    label = function_label(function.domain, function.name, function.overload)
    if label in model.functions:
        raise UsageError(f"{model.name}: there is a {label} already", "give it another name")
    model.proto.functions.append(function)
    model.version += 1
    if model.ir_version < FUNCTIONS_SINCE:
        _raise_ir_version(model)
    import_domain(model.graph, function.domain, 1)
    graph = _index_function(model, model.proto.functions[-1])
    for node in graph.walk():
        model.mark(node)
    return graph


def _raise_ir_version(model: Model) -> None:
    """Raise the IR version to the first with functions."""
    raise_ir_version(model.proto, FUNCTIONS_SINCE)
    model.ir_version = FUNCTIONS_SINCE
    taken = {i.name for i in model.proto.graph.input}
    for value in model.graph.inputs:
        value.is_input = value.name in taken
    model.graph.inputs = [v for v in model.graph.inputs if v.is_input]


def _index_function(model: Model, function: FunctionProto) -> Graph:
    label = function_label(function.domain, function.name, function.overload)
    graph = Graph(model, function, None, label)
    graph.opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
    model.functions[label] = graph
    reader = _Reader(model)
    reader.read_function(graph, function)
    adopt_opsets(graph)
    reader.name_apart()
    return graph


def _names_in_training(proto: ModelProto) -> tuple[set[str], set[str]]:
    """Return the names that training reads or binds, and the names that its graphs define."""
    read, defined, scopes = set[str](), set[str](), training_graphs(proto)
    for graph in scopes:
        defined.update(v.name for v in (*graph.input, *graph.initializer))
        for node in graph.node:
            read.update(node.input)
            defined.update(node.output)
            scopes += [body for _, body in body_graphs(node)]
    bindings = (b for info in proto.training_info for b in (*info.initialization_binding, *info.update_binding))
    return read - defined | {name for binding in bindings for name in (binding.key, binding.value)}, defined


def _pin_trainable(graph: Graph, names: set[str]) -> None:
    """Keep the values that the training graphs, which the index does not model, refer to by name."""
    for value in dict.fromkeys([*graph.initializers.values(), *graph.inputs, *(v for n in graph for v in n.results)]):
        value.output_count += value.name in names


class _Reader:
    """Reads scopes with a stack of name tables; a name resolves to the innermost definition."""

    def __init__(self, model: Model, trainable: set[str] | None = None) -> None:
        self.model = model
        self.trainable = trainable or set()
        self.scopes: list[dict[str, Value]] = []
        self.hiding: list[Value] = []  # values that shadow a name of an outer scope

    def error(self, graph: Graph, message: str) -> ModelError:
        return ModelError(f"{self.model.name}: {graph.path}: {message}", _HINT)

    def define(self, graph: Graph, name: str, producer: Node | None = None, index: int = 0) -> Value:
        value = Value(name, graph, producer, index)
        if self.scopes[-1].setdefault(name, value) is not value:
            raise self.error(graph, f"`{name}` is defined twice")
        return value

    def name_apart(self) -> None:
        """Rename values that shadow an outer value, so that a node may read any visible value by name.

        Values bound by name are renamed in the index only.
        """
        for value in self.hiding:
            old, graph = value.name, value.graph
            value.rename(self.model.names.fresh(old))
            if graph.initializers.get(old) is value:
                graph.initializers = {v.name: v for v in graph.initializers.values()}
                if value.tensor is not None:
                    value.tensor.name = value.name
            elif graph.is_bound_by_name and (value.is_input or value.output_count):
                self.model.hiding[value] = old

    def resolve(self, graph: Graph, name: str, reader: Node | str) -> Value:
        for table in reversed(self.scopes):
            value = table.get(name)
            if value is not None:
                return value
        raise self.error(graph, f"{reader} reads `{name}`, which nothing defines")

    def open_scope(self, graph: Graph, proto: GraphProto | FunctionProto) -> None:
        self.scopes.append({})
        marked = any(p.key == SKIP and p.value.lower() not in ("", "0", "false") for p in proto.metadata_props)
        graph.skipped = marked or (graph.parent is not None and graph.parent.skipped)
        self.model.has_skipped = self.model.has_skipped or marked

    def read_function(self, graph: Graph, proto: FunctionProto) -> None:
        self.open_scope(graph, proto)
        for name in proto.input:
            value = self.define(graph, name)
            value.is_input = True
            graph.inputs.append(value)
        self.read_nodes(graph, proto.node)
        graph.outputs = [self.resolve(graph, name, "a graph output") for name in proto.output]
        self.finish(graph)

    def read_graph(self, graph: Graph, proto: GraphProto) -> None:
        self.open_scope(graph, proto)
        if graph.owner is not None and graph.owner.op == "If":
            self.read_around(proto)
        for info in proto.input:
            value = self.define(graph, info.name)
            value.is_input = True
            graph.inputs.append(value)
            data_type, dims = tensor_type(info.type)
            if graph.owner is None and dims is not None and all(isinstance(d, int) for d in dims):
                value.dtype, value.shape = data_type, dims  # symbolic dims are left to shape inference
        self.read_initializers(graph, proto)
        self.read_nodes(graph, proto.node)
        graph.outputs = [self.resolve(graph, info.name, "a graph output") for info in proto.output]
        self.finish(graph)

    def read_initializers(self, graph: Graph, proto: GraphProto) -> None:
        frozen = self.model.freeze_initializers or self.model.ir_version < DEFAULTS_SINCE
        table = self.scopes[-1]
        initializers = graph.initializers
        for tensor in proto.initializer[:]:
            name = tensor.name
            there = table.get(name)  # an input of the same name
            if there is not None and there.tensor is not None:
                raise self.error(graph, f"initializer `{name}` is there twice")
            value = initializers[name] = table[name] = there or Value(name, graph)
            value.tensor = tensor
            value.constant = (frozen or not value.is_input) and name not in self.trainable
        for sparse in proto.sparse_initializer:
            if sparse.values.name not in table:
                self.define(graph, sparse.values.name)

    def read_around(self, branch: GraphProto) -> None:
        """Remove inputs of an If branch that name outer values. The standard allows a branch no inputs.

        Runtimes without this check read the outer values.
        """
        if branch.input:
            kept = [i for i in branch.input if not any(i.name in table for table in self.scopes)]
            del branch.input[:]
            branch.input.extend(kept)

    def finish(self, graph: Graph) -> None:
        for value in graph.outputs:
            value.output_count += 1
        if len(set(graph.outputs)) < len(graph.outputs):
            self.model.repeated.update(v for v in graph.outputs if graph.outputs.count(v) > 1)
        for op, nodes in graph.by_op.items():
            demanded = graph.signature(op)
            if demanded is not None and demanded.outputs[0] > 1:
                self.model.lacking.update(n for n in nodes if demanded.lacks(n.outputs))
        self.scopes.pop()

    def read_nodes(self, graph: Graph, protos: Sequence[NodeProto]) -> None:
        """Read the nodes of a scope, with their bodies, and sort them if a node reads a later one."""
        nodes = [self.new_node(graph, proto) for proto in protos[:]]
        *around, table = self.scopes  # by now the table holds every name the scope defines
        self.model.names.update(table)
        if around:
            self.hiding += [v for name, v in table.items() if any(name in outer for outer in around)]
        unsorted = False
        for node in nodes:
            inputs, proto = node.inputs, node.proto
            for name in proto.input[:]:
                value = table.get(name) or (self.resolve(graph, name, node) if name else None)
                inputs.append(value)
                # Producers join the graph in order: a producer without a graph comes later.
                if value is not None and (producer := value.producer) is not None and producer.graph is None:
                    unsorted = True
            if held := body_graphs(proto):
                unsorted = self.read_bodies(graph, node, held) or unsorted
            graph.place(node)
            if node._op == "Constant":
                for v in node.outputs:
                    if v is not None:
                        v.constant = node.holds_array
        graph.nodes_changed = False
        if unsorted:
            # a change, but not an optimization: the file is written in this order only if a pass changes more
            sort_nodes(graph)

    def read_bodies(self, graph: Graph, node: Node, held: Sequence[tuple[str, GraphProto]]) -> bool:
        """Read the bodies of `node`. Returns whether any reads an output of a later node of `graph`."""
        bodies: dict[str, Graph] = {}
        node.bodies, node.graph = bodies, graph  # for the path in error messages
        for key, proto in held:
            bodies[key] = Graph(self.model, proto, node, key)
            self.read_graph(bodies[key], proto)
        node.graph = None
        return any(p.graph is None for p in makers(node, graph))

    def new_node(self, graph: Graph, proto: NodeProto) -> Node:
        """Return a node with its outputs defined; its inputs may be defined by later nodes."""
        outputs: list[Value | None] = []
        node = Node(proto, [], outputs)
        if node._op == "Constant" and not _has_value(proto):
            raise self.error(graph, f"Constant -> {', '.join(map(str, proto.output))} has no value")
        for name in proto.output[:]:
            outputs.append(self.define(graph, name, node, len(outputs)) if name else None)
        if not outputs or None in outputs:
            self.model.lacking.add(node)  # narrowed down to required outputs in `finish`
        return node


def makers(node: Node, graph: Graph) -> set[Node]:
    """Return the nodes of `graph`, the scope of `node`, whose outputs `node` and its bodies read."""
    return {v.producer for v in values_read(node) if v.producer is not None and v.graph is graph}


def stable_order(needs: Sequence[Iterable[int]]) -> list[int]:
    """Return 0, 1, … in topological order, the smallest possible number first. `needs[i]`: the numbers before i.

    Raises graphlib.CycleError.
    """
    from graphlib import TopologicalSorter
    from heapq import heappop, heappush

    sorter = TopologicalSorter(dict(enumerate(needs)))
    sorter.prepare()
    ready: list[int] = []
    order = []
    while sorter.is_active():
        for i in sorter.get_ready():
            heappush(ready, i)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return order


def sort_nodes(graph: Graph) -> None:
    """Sort the nodes topologically and stably. Raises ModelError on a cycle."""
    from graphlib import CycleError

    nodes = list(graph)
    position = {node: i for i, node in enumerate(nodes)}
    needs = [{position[n] for n in makers(node, graph) if n in position} for node in nodes]
    try:
        order = stable_order(needs)
    except CycleError as e:
        stuck = nodes[min(e.args[1])]
        raise ModelError(f"{graph.model.name}: {graph.path}: {stuck!r} is part of a cycle", _HINT) from None
    graph.arrange([nodes[i] for i in order])
    graph.nodes_changed = True
