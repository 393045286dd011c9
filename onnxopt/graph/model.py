"""A model: the header of the ModelProto, its main graph and functions, names, opsets and the version counter."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import InvariantError, ModelError, UsageError, nearest
from onnxopt.graph.names import Names
from onnxopt.graph.schema import results_of
from onnxopt.graph.structure import Interface
from onnxopt.plaintext import counted
from onnxopt.protos import Array, is_external, qualified, tensor_to_array
from onnxopt.record import record

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, TensorProto

    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node
    from onnxopt.graph.value import Value
    from onnxopt.wire import MappedFile, Stored

Decoder = Callable[["TensorProto"], Array]
_PURE: Final = "pure functions"


@record(frozen=True)
class Left:
    """How a pass left a model: the state, the clock when it had looked at all, and what it declined, by node: it may do
    that yet, if more becomes known. None where it does not tell."""

    state: tuple[int, int]
    clock: int
    declined: Mapping[Node, Sequence[str]] | None


class Model:
    """The index over one ModelProto. What the index does not understand stays in the proto, untouched.

    `version` counts mutations: a pass that leaves it unchanged did nothing; `learnt` how often a value came to be known
    better. `watch`, when set, is called with every node that is marked, and with each that is removed. `read_external`
    decodes tensors stored outside the file. In `debug` mode the use of a value that no longer is raises InvariantError.
    """

    debug = bool(os.environ.get("ONNXOPT_DEBUG"))

    def __init__(self, proto: ModelProto, path: Path | None = None) -> None:
        self.proto = proto
        self.path = path  # the file it was read from
        self.file: MappedFile | None = None  # the same, where weights stayed in it
        self.stands_alone = False  # is it known that none of its tensors names another file?
        self.data_files: Sequence[str] = ()  # what the tensors of the file name, whatever became of them
        self.brought_in = 0  # small tensors of data files, which belong inside
        self.without: Mapping[str, str] = {}  # operators of the standard that no rule makes, and why
        self.raised: Sequence[Any] = ()  # what a target did with the opset, as records of the report
        self.names = Names()
        self.hiding: dict[Value, str] = {}  # see hiding.py
        self.copied: dict[Value, str] = {}
        self._node_names: Names | None = None  # made when first asked for: few rewrites need a new one
        self.version = 0
        self.learnt = 0
        self._operators: tuple[int, frozenset[str]] = (-1, frozenset())  # with the version of which they are
        self.watch: Callable[[Node], None] | None = None
        self.read_external: Decoder | None = None
        self.opsets: dict[str, int] = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        self.ir_version = int(proto.ir_version)
        self.graph: Graph
        self.interface: Interface  # what no pass may change
        self.lacking: set[Node] = set()  # nodes that the file has without a result that their operator has to give
        self.repeated: set[Value] = set()  # what a scope of the file gives out more than once
        self.gone: dict[Value, str] = {}  # in debug mode: values that no longer are, and why
        self.functions: dict[str, Graph] = {}
        self.freeze_initializers = False
        self.analyses: dict[str, object] = {}  # results that analyses keep for one round of passes
        self.allowed_domains: Collection[str] | None = None  # what operators may come in whose domain is not imported
        self.computed: dict[Any, tuple[tuple[int, int], Any]] = {}  # what passes hand to others, by state
        self.clock = 0  # counts marks
        self.marked: dict[Node, int] = {}  # nodes by when they were last marked, the latest last
        self.left_by: dict[Hashable, Left] = {}  # what each pass knew of the model when it last left it
        self.tolerances: dict[str, float] = {}  # what passes that changed numbers on purpose declared, by their names
        self.foreign: list[Node] = []  # made by passes, of domains that are not the standard's: see writer.py
        self.has_skipped = False  # is any scope marked `onnxopt.skip`?
        self.inference_allowed = True  # see analysis/types.py
        self.inferred_version = -1
        self.inferred_clock = -1
        self.is_vague = False  # has inference no name of the file's, and no number, for some dim, or not even a rank?

    @property
    def name(self) -> str:
        """How error messages call it: the file, or the graph's name."""
        return str(self.path) if self.path is not None else self.proto.graph.name or "model"

    def __str__(self) -> str:
        """The model as text, as `--print-ir-after` prints it."""
        from onnxopt.graph.text import model_text

        return model_text(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"Model({self.name}, {counted(self.node_count(), 'node')})"

    @property
    def state(self) -> tuple[int, int]:
        """Changes exactly when passes may find something that they did not find before."""
        return self.version, self.learnt

    def mark(self, node: Node) -> None:
        """`node`, or what is around it, changed: whoever looked at it before has to look again."""
        self.clock += 1
        self.marked.pop(node, None)
        self.marked[node] = self.clock
        if self.watch is not None:
            self.watch(node)

    def marked_since(self, clock: int) -> list[Node]:
        """The nodes that were marked after `clock`, the latest first."""
        found = []
        for node, when in reversed(self.marked.items()):
            if when <= clock:
                break
            found.append(node)
        return found

    def decode(self, tensor: TensorProto, stored: Stored | None = None) -> Array:
        """The data of a tensor, `stored` or its own. Raises ModelError where it is none of its type and dims."""
        if is_external(tensor):
            if self.read_external is None:  # nor may it be looked for in the current folder
                raise ModelError(
                    f"{self.name}: the data of `{tensor.name}` are in a file, and a ModelProto does not say where",
                    "give the path of the model, or a ModelProto with its weights, as onnx.load makes it",
                )
            return self.read_external(tensor)
        try:
            return tensor_to_array(tensor, None if stored is None else self.bytes_of(stored))
        except (KeyError, TypeError, ValueError) as e:
            message = f"{self.name}: tensor `{tensor.name}` cannot be decoded: {' '.join(str(e).split())}"
            raise ModelError(message, "the file is damaged: export or download it again") from e

    def data_of(self, initializer: TensorProto) -> Array:
        """Of one of the main graph, wherever its data are."""
        return self.graph.initializers[initializer.name].array

    def bytes_of(self, stored: Stored) -> memoryview:
        """What stayed in the file that the model was read from."""
        assert self.file is not None, "weights in a file that is not there"
        return self.file.view[stored.start : stored.start + stored.length]

    def scopes(self) -> Iterator[Graph]:
        """Every scope: bodies before their owners' scope, functions, then main."""
        for function in self.functions.values():
            yield from inner_scopes(function)
        yield from inner_scopes(self.graph)

    def open_scopes(self) -> Iterator[Graph]:
        """The scopes that passes may change: those not marked `onnxopt.skip`."""
        return (scope for scope in self.scopes() if not scope.skipped)

    def nodes(self) -> Iterator[Node]:
        for scope in self.scopes():
            yield from scope

    def operators(self) -> frozenset[str]:
        """What nodes of any scope call (qualified names); each pass asks, and it is looked up once for each version."""
        version, known = self._operators
        if version != self.version:
            known = frozenset(op for scope in self.scopes() for op, nodes in scope.by_op.items() if nodes)
            self._operators = self.version, known
        return known

    def node_count(self) -> int:
        return sum(len(scope) for scope in self.scopes())

    def node_name(self, hint: str, ending: str) -> str:
        """A name that no node has: runtimes refuse two nodes of one."""
        if self._node_names is None:
            self._node_names = Names()
            self._node_names.update(node.name for node in self.nodes())
        return self._node_names.fresh(f"{hint}", ending)  # which may be bytes, of no text

    def add_function(self, function: FunctionProto) -> Graph:
        """Append a copy of `function`, which nodes of any scope may call then.

        Raises UsageError where the model has one of its name.
        """
        from onnxopt.graph.reader import add_function

        self.analyses.pop(_PURE, None)
        return add_function(self, function)

    def remove_function(self, op: str) -> None:
        """Remove the function that defines an operator (qualified name), with all that overload it.

        Raises UsageError where the model has none, and InvariantError where a node calls it.
        """
        labels = [label for label, f in self.functions.items() if qualified(f.proto.name, f.proto.domain) == op]
        if not labels:
            known = [label.removeprefix("function ") for label in self.functions]
            hint = nearest(op, known, f"it has {', '.join(known) or 'no functions'}")
            raise UsageError(f"{self.name}: there is no function {op}", hint)
        for scope in self.scopes():
            if scope.root.label not in labels and (call := next(iter(scope.by_op.get(op, ())), None)) is not None:
                raise InvariantError(
                    f"{self.name}: the function {op} was to be removed, and {scope.path} calls it: {call!r}",
                    "this is a bug in the pass: what takes the place of its calls comes first",
                )
        self.drop_functions(labels)

    def drop_functions(self, labels: Collection[str]) -> None:
        """Take functions that no other calls out of the model."""
        protos = self.proto.functions  # deleted one by one, each would move all behind it
        protos.sort(key=lambda f: function_label(f.domain, f.name, f.overload) in labels)
        del protos[len(self.functions) - len(labels) :]
        for label in labels:
            del self.functions[label]
            self.version += 1
        self.analyses.pop(_PURE, None)

    def has_function(self, op: str) -> bool:
        """Does the model itself define this operator (qualified name)?"""
        return f"function {op}" in self.functions

    def is_pure_function(self, op: str) -> bool:
        """Is the operator a function of the model, made of operators of the standard, or of such functions?"""
        known = self.analyses.get(_PURE)
        if known is None:
            known = self.analyses[_PURE] = functions_made_of(self, lambda scope, inner: scope.knows(inner))
        assert isinstance(known, frozenset)
        return op in known

    def may_lack(self, node: Node, index: int) -> bool:
        """May this output of a node be absent, by its operator's schema?"""
        graph = node.graph
        assert graph is not None
        demanded = results_of(node.op, graph.opset(node.op.rpartition("::")[0]))
        return demanded is not None and index in demanded.optional

    def check_use(self, value: Value | None, scope: Graph, reader: str) -> None:
        """Raise InvariantError where `reader`, in `scope`, is to read what no longer is, or is not visible there."""
        if value is None:
            return
        why = self.gone.get(value, "")
        graph: Graph | None = scope
        while graph is not None and graph is not value.graph:
            graph = graph.parent
        if why or graph is None:
            why = why or f"it is of another scope, {value.graph.path}"
            raise InvariantError(
                f"{self.name}: {scope.path}: {reader} was to read `{value.name}`, which is stale: {why}",
                "read what value.replace_all_uses_with(other) returns, or look the value up again",
            )


def function_label(domain: str, name: str, overload: str = "") -> str:
    """How a function is called in `Model.functions` and in messages."""
    return f"function {domain}::{name}" + (f":{overload}" if overload else "")


def inner_scopes(graph: Graph) -> Iterator[Graph]:
    """Bodies inside `graph`, deepest first, then `graph`. Iterative: models may nest deeply."""
    stack, found = [graph], []
    while stack:
        scope = stack.pop()
        found.append(scope)
        for node in scope.owners:
            stack.extend(node.bodies.values())
    return reversed(found)


def values_read(node: Node) -> Iterator[Value]:
    """What a node reads, in its bodies too."""
    yield from (v for v in node.inputs if v is not None)
    for body in node.bodies.values():
        for scope in inner_scopes(body):
            yield from (v for inner in scope for v in inner.inputs if v is not None)
            yield from scope.outputs


def functions_made_of(model: Model, allowed: Callable[[Graph, str], bool]) -> frozenset[str]:
    """The functions (qualified names) in which, and in what they call, all operators are `allowed` in their scope."""
    functions = {label.removeprefix("function "): function for label, function in model.functions.items()}
    callers: dict[str, list[str]] = {}
    others = []
    for name, function in functions.items():
        for scope in inner_scopes(function):
            for op in [op for op, nodes in scope.by_op.items() if nodes and not allowed(scope, op)]:
                if op in functions and not any(node.proto.overload for node in scope.by_op[op]):
                    callers.setdefault(op, []).append(name)
                else:
                    others.append(name)
    while others:
        name = others.pop()
        functions.pop(name, None)
        others += callers.pop(name, ())
    return frozenset(functions)
