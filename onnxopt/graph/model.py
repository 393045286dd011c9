"""A model: ModelProto header, main graph, functions, names, opsets and the version counter."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.errors import InvariantError, ModelError, UsageError, nearest
from onnxopt.graph.structure import Interface
from onnxopt.plaintext import counted
from onnxopt.proto.messages import Array, is_external, qualified, tensor_to_array

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, TensorProto, TypeProto

    from onnxopt.graph.graph import Graph
    from onnxopt.graph.node import Node
    from onnxopt.graph.value import Value
    from onnxopt.proto.wire import MappedFile, Stored


class Names:
    """All value names ever defined in the model (sibling bodies may share a name), and the source of fresh names.

    Shadowing is illegal, so a new name must be new in every scope. A name derived from a derived name goes back to the
    original stem; otherwise names would grow with every rewrite.
    """

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}  # name: the stem it was derived from, or None
        self._next: dict[str, int] = {}

    def update(self, names: Iterable[str]) -> None:
        known: dict[str, str | None] = dict.fromkeys(names)
        if self._known:
            self._known.update({name: None for name in known if name not in self._known})
        else:
            self._known = known

    def __contains__(self, name: str) -> bool:
        """Whether the name was ever defined."""
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def fresh(self, hint: str, ending: str = "") -> str:
        """Return `hint` + `ending` if free, otherwise with `_1`, `_2`, … appended. Amortized constant time."""
        known = self._known
        stem = known.get(hint) or hint
        name = base = stem + ending
        if name in known:
            i = self._next.get(base, 0)
            while name in known:
                i += 1
                name = f"{base}_{i}"
            if i > 1:  # most stems need no counter
                self._next[base] = i
        known[name] = stem if name != stem else None
        return name


Decoder = Callable[["TensorProto"], Array]
_PURE: Final = "pure functions"


class Left:
    """State of a model after a pass: `state`, mark `clock`, and the reasons of the pass by declined node.

    A declined node is tried again when more becomes known. `declined` is None if the pass does not report any.
    """

    def __init__(self, state: tuple[int, int], clock: int, declined: Mapping[Node, Sequence[str]] | None) -> None:
        self.state, self.clock, self.declined = state, clock, declined


class Model:
    """The index over a ModelProto. Unknown parts stay in the proto, untouched.

    `version` counts mutations: unchanged after a pass that did nothing. `learnt` counts improvements of types and
    shapes. `watchers` are called with every marked and every removed node. `read_external` decodes tensors stored
    in external files. In `debug` mode the use of a removed value raises InvariantError.
    """

    debug = bool(os.environ.get("ONNXOPT_DEBUG"))

    def __init__(self, proto: ModelProto, path: Path | None = None) -> None:
        self.proto = proto
        self.path = path  # the file that the model was read from
        self.file: MappedFile | None = None  # `path` mapped into memory, if weights stayed in the file
        self.stands_alone = False  # whether no tensor is known to name an external file
        self.data_files: Sequence[str] = ()  # external files that the tensors named when the model was loaded
        self.brought_in = 0  # count of small external tensors that belong inside the model
        self.without: Mapping[str, str] = {}  # standard operators that no rule may make, and the reason
        self.raised: Sequence[Any] = ()  # opset changes made for a target, as records of the report
        self.names = Names()
        self.hiding: dict[Value, str] = {}  # see bindings.py
        self.copied: dict[Value, str] = {}
        self._node_names: Names | None = None  # made on first use: few rewrites need a new node name
        self.version = 0
        self.learnt = 0
        # (version, operators of all scopes at this version)
        self._operators: tuple[int, frozenset[str]] = (-1, frozenset())
        self.watchers: list[Callable[[Node], object]] = []
        self.read_external: Decoder | None = None
        self.opsets: dict[str, int] = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        self.ir_version = int(proto.ir_version)
        self.graph: Graph
        self.interface: Interface  # inputs and outputs, which no pass may change
        self.lacking: set[Node] = set()  # nodes of the file that lack a required output
        self.repeated: set[Value] = set()  # values that a scope of the file lists more than once as output
        self.gone: dict[Value, str] = {}  # debug mode: removed values and the reason
        self.functions: dict[str, Graph] = {}
        self.freeze_initializers = False
        self.analyses: dict[str, object] = {}  # cached results of analyses, for a round of passes
        self.allowed_domains: Collection[str] | None = None  # domains that may be imported; None allows all
        self.computed: dict[Any, tuple[tuple[int, int], Any]] = {}  # results shared between passes, by state
        self.clock = 0  # number of marks so far
        self.marked: dict[Node, int] = {}  # nodes with the clock of their last mark, in order of marking
        # (clocks and version, no nodes, nodes after each number of steps): see `reached_since`
        self._reached: tuple[tuple[int, int, int], list[dict[Node, None]]] = (-1, -1, -1), []
        self.axes: dict[Node, tuple[int, Any]] = {}  # of nodes, with the clock then: see rewriting/axes.py
        self.sizes: Any = None  # sizes of a model without bodies, kept between sweeps: see analysis/shapes/sweep.py
        self.chains: dict[Any, Any] = {}  # composed chains, by all they depend on: see rewriting/compositions.py
        self.left_by: dict[Hashable, Left] = {}  # by pass: state of the model when the pass last left it
        self.tolerances: dict[str, float] = {}  # by pass: tolerance declared for a deliberate change of numbers
        self.foreign: list[Node] = []  # nodes of non-standard domains made by passes: see writer.py
        self.has_skipped = False  # whether any scope is marked `onnxopt.skip`
        self.inference_allowed = True  # see analysis/types.py
        self.inferred_version = -1
        self.inferred_clock = -1
        # whether inference left some dim without a name from the file and without a number, or some rank unknown
        self.is_vague = False
        self.containers: dict[Value, TypeProto] = {}  # types of values other than tensors, known so far

    @property
    def name(self) -> str:
        """The model's name in messages: the file's path, or the graph's name."""
        return str(self.path) if self.path is not None else self.proto.graph.name or "model"

    def __str__(self) -> str:
        """Return the model as text, in the format of `--print-ir-after`."""
        from onnxopt.graph.text import model_text

        return model_text(self).rstrip("\n")

    def __repr__(self) -> str:
        return f"Model({self.name}, {counted(self.node_count(), 'node')})"

    @property
    def state(self) -> tuple[int, int]:
        """(version, learnt): unchanged as long as passes cannot find anything new."""
        return self.version, self.learnt

    def mark(self, node: Node) -> None:
        """Mark `node` as changed, itself or in its neighbourhood, for passes to visit again."""
        self.clock += 1
        if node in self.marked:
            del self.marked[node]  # to be the last
        self.marked[node] = self.clock
        for watch in self.watchers:
            watch(node)

    def forget(self, node: Node) -> None:
        """Drop the data of a removed node, and report the node."""
        for known in (self.marked, self.axes):
            if node in known:
                del known[node]
        for watch in self.watchers:
            watch(node)

    def marked_since(self, clock: int) -> list[Node]:
        """Return the nodes marked after `clock`, the latest first."""
        latest = islice(reversed(self.marked.items()), self.clock - clock)
        return [node for node, when in latest if when > clock]

    def reached_since(self, clock: int, steps: int) -> dict[Node, None]:
        """Return the nodes marked after `clock`, and readers up to this number of steps away.

        Kept until the next change: passes without rewrites ask the same.
        """
        state = clock, self.clock, self.version
        if self._reached[0] != state:
            self._reached = state, [{}, dict.fromkeys(self.marked_since(clock))]
        within = self._reached[1]
        while len(within) <= steps + 1:
            within.append(with_readers(within[-1], len(within[-2])))
        return within[steps + 1]

    def decode(self, tensor: TensorProto, stored: Stored | None = None) -> Array:
        """Return the data of a tensor, from `stored` or the tensor. Raises ModelError if type or dims do not fit."""
        if is_external(tensor):
            if self.read_external is None:  # no path is known, and the working directory must not be searched
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
        """Return the data of an initializer of the main graph, wherever they are stored."""
        return self.graph.initializers[initializer.name].array

    def bytes_of(self, stored: Stored) -> memoryview:
        """Return the bytes of data left in the model's file."""
        assert self.file is not None, "weights in a file that is not there"
        return self.file.view[stored.start : stored.start + stored.length]

    def scopes(self) -> Iterator[Graph]:
        """Yield every scope: functions, then the main graph, nested bodies before the owner's scope."""
        for function in self.functions.values():
            yield from inner_scopes(function)
        yield from inner_scopes(self.graph)

    def open_scopes(self) -> Iterator[Graph]:
        """Yield the scopes open to passes: all but those marked `onnxopt.skip`."""
        return (scope for scope in self.scopes() if not scope.skipped)

    def nodes(self) -> Iterator[Node]:
        for scope in self.scopes():
            yield from scope

    def operators(self) -> frozenset[str]:
        """Return the qualified operators called in any scope, cached by version because every pass asks."""
        version, known = self._operators
        if version != self.version:
            known = frozenset(op for scope in self.scopes() for op, nodes in scope.by_op.items() if nodes)
            self._operators = self.version, known
        return known

    def node_count(self) -> int:
        return sum(len(scope) for scope in self.scopes())

    def node_name(self, hint: str, ending: str) -> str:
        """Return a fresh node name: runtimes refuse two nodes of the same name."""
        if self._node_names is None:
            self._node_names = Names()
            self._node_names.update(node.name for node in self.nodes())
        return self._node_names.fresh(f"{hint}", ending)  # `hint` may be bytes (invalid UTF-8)

    def add_function(self, function: FunctionProto) -> Graph:
        """Append a copy of `function`, callable from any scope. Raises UsageError if the name is taken."""
        from onnxopt.graph.reader import add_function

        self.analyses.pop(_PURE, None)
        return add_function(self, function)

    def remove_function(self, op: str) -> None:
        """Remove the function that defines an operator (qualified name), with all its overloads.

        Raises UsageError if the model has none, and InvariantError if a node calls it.
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
        """Remove functions that no remaining function or graph calls."""
        # sorted, then cut off: each single deletion would move all functions behind
        protos = self.proto.functions
        protos.sort(key=lambda f: function_label(f.domain, f.name, f.overload) in labels)
        del protos[len(self.functions) - len(labels) :]
        for label in labels:
            self.functions.pop(label).release()
            self.version += 1
        self.analyses.pop(_PURE, None)

    def has_function(self, op: str) -> bool:
        """Whether the model itself defines this operator (qualified name)."""
        return f"function {op}" in self.functions

    def is_pure_function(self, op: str) -> bool:
        """Whether the operator is a function of the model made of standard operators and pure functions only."""
        known = self.analyses.get(_PURE)
        if known is None:
            known = self.analyses[_PURE] = functions_made_of(self, lambda scope, inner: scope.knows(inner))
        assert isinstance(known, frozenset)
        return op in known

    def may_lack(self, node: Node, index: int) -> bool:
        """Whether the operator's schema makes this output optional."""
        demanded = node.scope.signature(node.op)
        return demanded is not None and index in demanded.optional

    def check_use(self, value: Value | None, scope: Graph, reader: str) -> None:
        """Raise InvariantError if `reader`, in `scope`, is to read a removed or invisible value."""
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


def with_readers(nodes: Iterable[Node], start: int = 0) -> dict[Node, None]:
    """Return the nodes, then the readers of the nodes from number `start` on."""
    found = dict.fromkeys(nodes)
    values = [v for node in islice(found, start, None) for v in node.outputs if v is not None]
    found.update({user: None for v in values for user in v.users})
    return found


def function_label(domain: str, name: str, overload: str = "") -> str:
    """Return the key of a function in `Model.functions`, also its name in messages."""
    return f"function {domain}::{name}" + (f":{overload}" if overload else "")


def inner_scopes(graph: Graph) -> Iterator[Graph]:
    """Yield the bodies nested in `graph`, deepest first, then `graph`. Iterative, since models may nest deeply."""
    stack, found = [graph], []
    while stack:
        scope = stack.pop()
        found.append(scope)
        for node in scope.owners:
            stack.extend(node.bodies.values())
    return reversed(found)


def values_read(node: Node) -> Iterator[Value]:
    """Yield the values that a node reads, including reads in its bodies."""
    yield from node.operands
    for body in node.bodies.values():
        for scope in inner_scopes(body):
            for inner in scope:
                yield from inner.operands
            yield from scope.outputs


def functions_made_of(model: Model, allowed: Callable[[Graph, str], bool]) -> frozenset[str]:
    """Return the functions (qualified names) made of `allowed` operators only, directly and through calls."""
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
