"""Calls that crash inference at a negative size, wrapped in functions that check the size during inference.

onnx infers negative sizes: AveragePool of 7 by 7 over 4 by 4 gives -2 by -2; so may any window, Split, Pad, and sizes
from attributes or constants. Two operators crash at a negative size. GatherND counts axes by the last size of the
indices, and reads memory before the first axis. A Slice by constants clamps them to an end before the start, and
libstdc++ aborts (`onnx/defs/tensor/defs.cc`). The size is known only during inference, so the check is part of the
model: the call becomes a call of a function. In the function a TopK with k = 0 along the axis fails for a negative
size. The empty result is concatenated to the operand, which changes no other size; after a failure the type of the
operand is unknown. No list of the operators that infer negative sizes is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableSequence, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

from onnxopt.proto.messages import body_graphs, is_external, tensor_to_array

DOMAIN: Final = "onnxopt.proto.negative_dims"  # of the functions
SINCE: Final = {"GatherND": 11, "Slice": 10}  # before, a Slice has attributes, and is not clamped
_MAX_RANK: Final = 64  # axes of a numpy array

Constant: TypeAlias = "TensorProto | NodeProto | None"  # None: an unknown argument


class _Scope:
    """The nodes of a graph or function that matter here: calls to check, and Constant nodes."""

    def __init__(self, opset: int, graph: GraphProto | None = None, ir_version: int = 4) -> None:
        self.opset, self.graph, self.ir_version = opset, graph, ir_version
        self.initializers: Iterable[TensorProto] = () if graph is None else graph.initializer
        self.readers: list[NodeProto] = []
        self.written: list[NodeProto] = []
        self.called: dict[str, list[tuple[_Scope, str]]] = {}  # arguments of a function, by input: (caller, name)

    @cached_property
    def given(self) -> dict[str, list[tuple[_Scope, str]]]:
        """The unknown names of the scope: arguments, and constants without an inferred shape, which a Slice ignores."""
        if self.graph is None:
            return self.called
        infos = (*self.graph.input, *self.graph.value_info, *self.graph.output)
        vague = {i.name for i in infos if not i.type.tensor_type.HasField("shape")}
        if self.ir_version < 4:
            vague |= {t.name for t in self.initializers}.difference(i.name for i in self.graph.input)
        return {name: [(self, name)] for name in vague}

    @cached_property
    def constants(self) -> dict[str, list[Constant]]:
        """The values that inference may use for each name; it has none for outer values of a body."""
        found: dict[str, list[Constant]] = {}
        for tensor in self.initializers:
            found.setdefault(tensor.name, []).append(tensor)
        for node in self.written:
            is_read = self.opset >= 12 or all(a.name == "value" for a in node.attribute)
            found.setdefault(node.output[0], []).append(node if is_read else None)
        return found

    def constant(self, name: str) -> list[Constant]:
        found = self.constants.get(name, [])
        for caller, argument in self.given.get(name, ()):
            found = found + ([None] if argument in caller.given else caller.constants.get(argument, []))
        return found


def add_size_checks(model: ModelProto, entered: Collection[str]) -> bool:
    """Replace calls that may crash by calls of functions, in place. Returns whether there are any.

    `entered`: operators whose bodies inference enters.
    """
    calls = [(node, axes, scope.opset) for scope in _scopes(model, entered) for node, axes in _calls(scope)]
    importers = (model, *model.functions)
    if any(o.domain == DOMAIN for importer in importers for o in importer.opset_import):
        for node, _, _ in calls:  # a file that uses our domain: the results of the calls are unknown
            node.op_type = ""
    elif calls:
        functions = dict[str, FunctionProto]()
        for node, axes, opset in calls:
            node.domain, node.overload = DOMAIN, _function(node, opset, axes, functions)
        for importer in importers:
            importer.opset_import.add(domain=DOMAIN, version=1)
        model.functions.extend(functions.values())
    return bool(calls)


def restore(model: ModelProto, entered: Collection[str]) -> None:
    """Restore the calls in an inferred model, in place."""
    waiting = [model.graph.node, *(f.node for f in model.functions)]
    while waiting:
        for node in waiting.pop():
            if node.domain == DOMAIN:
                node.ClearField("domain")
                node.ClearField("overload")
            elif node.op_type in entered:
                waiting += [body.node for _, body in body_graphs(node)]
    _remove_entries(model.functions)
    for importer in (model, *model.functions):
        _remove_entries(importer.opset_import)


def _remove_entries(field: MutableSequence[FunctionProto] | MutableSequence[OperatorSetIdProto]) -> None:
    for i in reversed([i for i, entry in enumerate(field) if entry.domain == DOMAIN]):
        del field[i]


def _scopes(model: ModelProto, entered: Collection[str]) -> list[_Scope]:
    scopes: list[_Scope] = []
    functions: dict[tuple[str, str, str], tuple[FunctionProto, _Scope]] = {}
    calls: list[tuple[NodeProto, _Scope]] = []
    for f in model.functions:
        inside = _Scope(_opset(f.opset_import))
        inside.called = {name: [] for name in f.input}
        functions.setdefault((f.domain, f.name, f.overload), (f, inside))  # onnx takes the first of equal names
    names = {name for _, name, _ in functions}

    def walk(nodes: Iterable[NodeProto], scope: _Scope) -> None:
        scopes.append(scope)
        for node in nodes:
            op = node.op_type
            if op in SINCE:
                scope.readers.append(node)
            elif op == "Constant":
                if not node.domain and len(node.output) == 1:
                    scope.written.append(node)
            elif op in entered:
                for _, body in body_graphs(node):
                    walk(body.node, _Scope(scope.opset, body))
            if op in names:
                calls.append((node, scope))

    walk(model.graph.node, _Scope(_opset(model.opset_import), model.graph, model.ir_version))
    for f, inside in functions.values():
        walk(f.node, inside)
    for node, scope in calls:
        called = functions.get((node.domain, node.op_type, node.overload))
        if called is not None:
            for name, argument in zip(called[0].input, node.input):
                called[1].called[name].append((scope, argument))
    return scopes


def _opset(imported: Iterable[OperatorSetIdProto]) -> int:
    versions: dict[str, int] = {i.domain: i.version for i in imported}
    return versions.get("", versions.get("ai.onnx", 0))


def _calls(scope: _Scope) -> Iterator[tuple[NodeProto, Sequence[int] | None]]:
    """Yield the calls that may crash, with the axes of the size; None if the axes are unknown."""
    cut: dict[tuple[str, ...], Sequence[int] | None] = {}  # many Slices have the same constants
    for node in scope.readers:
        if node.domain or scope.opset < SINCE[node.op_type]:
            continue
        names = tuple(node.input[1:4])
        if node.op_type == "GatherND":
            axes: Sequence[int] | None = (-1,) if names else ()  # a call without operands is refused
        else:
            axes = cut[names] if names in cut else cut.setdefault(names, _cut(names, scope))
        if axes is None or axes:
            yield node, axes


def _cut(names: Sequence[str], scope: _Scope) -> Sequence[int] | None:
    """Return the axes of a Slice whose sizes inference reads; None if unknown."""
    starts, ends, axes = (scope.constant(name) if name else [] for name in (*names, "", "", "")[:3])
    if not starts or not ends:
        return ()
    if axes:
        known = _agreed(axes)
        return None if known is None else tuple(dict.fromkeys(known))
    counted = _agreed(starts)  # also for computed axes, whose existence inference may not know
    return None if counted is None else range(len(counted))


def _agreed(constants: Iterable[Constant]) -> list[int] | None:
    """Return the common value of constants, or None if onnx may read another value."""
    found = [_integers(c) for c in constants]
    return found[0] if all(f == found[0] for f in found) else None


def _integers(constant: Constant) -> list[int] | None:
    if isinstance(constant, NodeProto):
        written = list(constant.attribute)
        if len(written) != 1 or written[0].ref_attr_name:
            return None
        kind = written[0].name, written[0].type
        if kind == ("value_ints", AttributeProto.INTS):
            return list(written[0].ints)
        if kind == ("value_int", AttributeProto.INT):
            return [written[0].i]
        constant = written[0].t if kind == ("value", AttributeProto.TENSOR) else None
    if constant is None or is_external(constant):
        return None
    if constant.data_type not in (TensorProto.INT32, TensorProto.INT64):
        return None
    try:
        values: list[int] = tensor_to_array(constant).ravel().tolist()
    except ValueError:  # a tensor without its elements
        return None
    return values


def _function(call: NodeProto, opset: int, axes: Sequence[int] | None, functions: dict[str, FunctionProto]) -> str:
    """Return the overload of the function to call, named as the operator, and add it to `functions`."""
    given = "".join("-+"[bool(name)] for name in call.input[:5])
    key = f"{opset} {given} {'?' if axes is None else ','.join(map(str, axes))}"
    if f"{call.op_type} {key}" not in functions:
        checked = 1 if call.op_type == "GatherND" else 0
        names = [f"i{i}" if name else "" for i, name in enumerate(call.input[:5])]
        inner = NodeProto(op_type=call.op_type, input=names, output=["o"])
        function = FunctionProto(domain=DOMAIN, name=call.op_type, overload=key, output=["o"])
        function.input.extend(f"i{i}" for i in range(len(names)))
        function.opset_import.add(domain="", version=opset)
        function.opset_import.add(domain=DOMAIN, version=1)
        if call.op_type == "GatherND":
            function.attribute.append("batch_dims")
            inner.attribute.add(name="batch_dims", ref_attr_name="batch_dims", type=AttributeProto.INT)
        if axes is None or len(axes) > _MAX_RANK:  # with a computed operand, only the rank of the Slice is inferred
            function.node.add(op_type="Identity", input=["i1"], output=["computed"])
            inner.input[1] = "computed"
        else:
            check = _size_check(axes)
            functions[check.overload] = check
            function.node.add(
                op_type=check.name, domain=DOMAIN, overload=check.overload, input=[names[checked]], output=["checked"]
            )
            inner.input[checked] = "checked"
        function.node.append(inner)
        functions[f"{call.op_type} {key}"] = function
    return key


def _size_check(axes: Sequence[int]) -> FunctionProto:
    """Return a function with the value of its operand; the type is unknown if a size along `axes` is negative."""
    function = FunctionProto(domain=DOMAIN, name="SizeCheck", overload=",".join(map(str, axes)), input=["x"])
    function.opset_import.add(domain="", version=13)
    none = function.node.add(op_type="Constant", output=["none"]).attribute.add(
        name="value", type=AttributeProto.TENSOR
    )
    none.t.CopyFrom(TensorProto(data_type=TensorProto.INT64, dims=[1], int64_data=[0]))
    x = "x"
    for i, axis in enumerate(axes):
        taken, both = f"taken{i}", f"x{i}"
        for op, read, made in (("TopK", "none", [taken, ""]), ("Concat", taken, [both])):
            node = function.node.add(op_type=op, input=[x, read], output=made)
            node.attribute.add(name="axis", type=AttributeProto.INT, i=axis)
        x = both
    function.output.append(x)
    return function
