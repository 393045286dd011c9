"""Instances made from a rule's pattern: its tree becomes nodes, its variables inputs, constants or results of others.

The reference evaluator runs each node while a model grows, so all values are known: shapes of constants follow their
operands, and invalid models are found at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxopt.rewriting.pattern import COMMUTATIVE, About, Call, Const, Either, Literal, Pattern, Var
from tests.rules import operands

Array = np.ndarray[Any, Any]
OPSETS: Final = (13, 17, 18, 20, 22, 23)
_KIND: Final = onnx.defs.OpSchema.AttrType
WANTED: Final[dict[Any, tuple[Any, ...]]] = {  # of attributes, of each type
    _KIND.INT: (0, 1, -1, 2, 3, None),
    _KIND.INTS: (None, [1, 0], [0, 2, 1], [0], [1], [-1], [0, 1]),
    _KIND.FLOAT: (None, 1.0, 0.5, 0.0, 2.0, 0.2),
    _KIND.STRING: (None, "tanh", "none", "linear"),
}
MOVED: Final = ("Add", "Mul", "Relu", "Abs", "Neg")  # what may make a variable
WHOLE: Final = {
    TensorProto.FLOAT: 60,
    TensorProto.DOUBLE: 10,
    TensorProto.FLOAT16: 5,
    TensorProto.INT64: 15,
    TensorProto.INT32: 10,
    TensorProto.UINT8: 3,
    TensorProto.INT8: 2,
}
_IR: Final = {13: 7, 17: 8, 18: 8, 20: 9, 22: 10, 23: 11}


class NoModel(Exception):
    """The draw leads to none."""


class Sketch:
    """A model that grows from inputs to the anchor of a pattern."""

    def __init__(self, rng: operands.Draw, source: Pattern) -> None:
        self.rng = rng
        self.opset = rng.choice(OPSETS)
        ops = frozenset(_operators(source))
        self.shape = operands.base(rng, ops)
        floats = ops & (
            operands.IMAGES | {"Gemm", "MatMul", "BatchNormalization", "Exp", "Erf", "Tanh", "Softmax", "Sqrt"}
        )
        whole = WHOLE if not floats else {TensorProto.FLOAT: 9, TensorProto.DOUBLE: 1, TensorProto.FLOAT16: 0.5}
        self.type = rng.choices(list(whole), list(whole.values()))[0]
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[TensorProto] = []
        self.nodes: list[NodeProto] = []
        self.values: dict[str, Array] = {}
        self.bound: dict[str, str] = {}
        self.made: dict[str, NodeProto] = {}

    # -- values ----------------------------------------------------------------------------------------------

    def constant(self, array: Array) -> str:
        name = f"k{len(self.values)}"
        self.values[name] = np.asarray(array)
        self.weights.append(numpy_helper.from_array(self.values[name], name))
        return name

    def array(self, name: str | None) -> Array | None:
        """Of a sequence, its first tensor."""
        value: Any = self.values[name] if name else None
        return np.asarray(value[0]) if isinstance(value, list) and value else value

    def input(self, shape: Sequence[int], elem_type: int) -> str:
        name = f"x{len(self.values)}"
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        self.values[name] = (
            np.array(self.rng.choices(range(4), k=int(np.prod(shape, dtype=int)))).reshape(shape).astype(dtype)
        )
        return name

    def node(self, op: str, inputs: Sequence[str | None], attributes: dict[str, Any], outputs: int = 1) -> NodeProto:
        qualified = op.rpartition("::")
        names = [f"v{len(self.values)}_{i}" for i in range(outputs)]
        given = [n or "" for n in inputs]
        while given and not given[-1]:
            given.pop()
        attributes = {k: v for k, v in attributes.items() if v != []}
        proto = helper.make_node(qualified[2], given, names, domain=qualified[0], **attributes)
        results = self._run(proto)
        for name, value in zip(names, results):
            if sum(np.size(v) for v in (value if isinstance(value, list) else [value])) > 1 << 14:
                raise NoModel("too large")
            self.values[name] = value
        self.nodes.append(proto)
        return proto

    def _run(self, node: NodeProto) -> list[Array]:
        given = dict.fromkeys(n for n in node.input if n)
        inputs = [_info(n, self.values[n]) for n in given]
        outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
        graph = helper.make_graph([node], "one", inputs, outputs)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(node.domain, 1)][: 1 + bool(node.domain)]
        try:
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports)).run(
                    None, {n: self.values[n] for n in given}
                )
        except Exception as e:
            raise NoModel(f"{node.op_type}: {e}") from e
        return [v if isinstance(v, list) else np.asarray(v) for v in found]

    # -- patterns --------------------------------------------------------------------------------------------

    def call(self, p: Call) -> str:
        if p.name is not None and p.name in self.made:
            return self._output(self.made[p.name], p.output)
        op = self.rng.choice(p.ops)
        patterns = list(p.inputs)
        if COMMUTATIVE.issuperset(p.ops) and len(patterns) == 2 and self.rng.random() < 0.5:
            patterns.reverse()
        plain = op.rpartition("::")[2]
        known = onnx.defs.has(plain, self.opset, op.rpartition("::")[0])
        schema = onnx.defs.get_schema(plain, self.opset, op.rpartition("::")[0]) if known else None
        if schema is None:
            raise NoModel(f"{op} is not of opset {self.opset}")
        if p.variadic:
            least = max(schema.min_input, len(patterns))
            most = min(schema.max_input, max(least, len(patterns) + 3))
            more = least if self.rng.random() < 0.5 else self.rng.randint(least, most)
            patterns += [None] * (more - len(patterns))
        given: list[str | None] = [None] * len(patterns)
        later: list[int] = []
        reader = self.rng.randrange(len(patterns)) if p.reads and patterns else -1
        variable = [i for i, q in enumerate(patterns) if i < len(p.inputs) and isinstance(_one(q), (Var, Call, Either))]
        for i, q in enumerate(patterns):
            if i == reader:
                often = sorted(p.reads & {"ConstantOfShape", "Expand", "Tile"}) if self.rng.random() < 0.5 else []
                given[i] = self.copied(self.rng.choice(often or sorted(p.reads)), op, i)
            elif i < len(p.inputs) and i in variable:
                given[i] = self.operand(q, op, i)
            else:
                later.append(i)
        fixed = self.fixed(p, schema)
        first = next((a for g in given if (a := self.array(g)) is not None), np.zeros(self.shape, np.float32))
        attributes = operands.attributes(self.rng, op, first)
        attributes = {k: v for k, v in (attributes | fixed).items() if v is not None and k in schema.attributes}
        for i in later:
            extra = i >= len(p.inputs)
            given[i] = self.behind(None if extra else patterns[i], op, i, given, attributes, i < schema.min_input)
        outputs = max(p.output + 1, self._outputs(op, attributes, given))
        made = self.node(op, given, attributes, outputs)
        if p.name is not None:
            self.made[p.name] = made
        return self._output(made, p.output)

    def _outputs(self, op: str, attributes: dict[str, Any], given: Sequence[str | None]) -> int:
        if op != "Split":
            return 1
        if len(given) > 1 and given[1]:
            return len(self.values[given[1]])
        count = self.rng.choice([1, 2, 2, 3])
        if self.opset >= 18:
            attributes["num_outputs"] = count
        return count

    def _output(self, node: NodeProto, output: int) -> str:
        if output >= len(node.output):
            raise NoModel("no such output")
        return node.output[output]

    def fixed(self, p: Call, schema: onnx.defs.OpSchema) -> dict[str, Any]:
        """What the pattern says of attributes."""
        found: dict[str, Any] = {}
        for name, value in p.attributes:
            if isinstance(value, About):
                found[name] = value.value
            elif callable(value):
                known = schema.attributes.get(name)
                fitting = [w for w in WANTED.get(known.type if known else None, (None,)) if _fits(value, w)]
                if not fitting:
                    raise NoModel(f"no {name} is known that fits")
                found[name] = self.rng.choice(fitting)
            else:
                found[name] = value
        return found

    def operand(self, p: Pattern, op: str, place: int) -> str | None:
        """What is no constant: a variable, or the result of a call."""
        if isinstance(p, Either):
            p = self.rng.choice(p.choices)
        if isinstance(p, Call):
            return self.call(p)
        if isinstance(p, Var):
            if p.optional and self.rng.random() < 0.5:
                return None
            if p.name not in self.bound:
                self.bound[p.name] = self.variable(p, op, place)
            return self.bound[p.name]
        return self.behind(p, op, place, [], {}, True)

    def variable(self, p: Var | None, op: str, place: int) -> str:
        """An input, sometimes a constant, or what a node makes of an input."""
        shape = list(self.shape)
        way = self.rng.random()
        if way < 0.15:
            shape = operands.broadcast(self.rng, shape)
        elif way < 0.2 and shape:
            shape[self.rng.randrange(len(shape))] = self.rng.choice([1, 2, 3])
        if (op, place) in {("MatMul", 1), ("Gemm", 1), ("Conv", 1), ("ConvTranspose", 1), ("Gemm", 2), ("Conv", 2)}:
            first = np.zeros(self.shape, np.float32)
            made = operands.numbers(self.rng, op, place, [first, None], {}, np.dtype(np.float32))
            shape = list(made.shape)
        if operands.is_place(op, place):
            array = operands.integers(self.rng, op, place, [np.zeros(self.shape)], {})
            wants_constant = p is None or p.constant is not False
            if wants_constant or self.rng.random() < 0.5:
                return self.constant(array)
            return self.input(array.shape, TensorProto.INT64)
        elem_type = TensorProto.BOOL if operands.is_truth(op, place) else self.type
        if (p is not None and p.constant is True) or ((p is None or p.constant is None) and self.rng.random() < 0.12):
            dtype = helper.tensor_dtype_to_np_dtype(elem_type)
            like = [np.zeros(self.shape, dtype)]
            return self.constant(operands.numbers(self.rng, "Add", 1, like, {}, dtype))
        name = self.input(shape, elem_type)
        if self.rng.random() < 0.1 and elem_type == TensorProto.FLOAT:
            op = self.rng.choice(MOVED)
            return self.node(op, [name] * (2 if op in ("Add", "Mul") else 1), {}).output[0]
        return name

    def behind(
        self, p: Pattern, op: str, place: int, given: list[str | None], attributes: dict[str, Any], needed: bool
    ) -> str | None:
        """Returns a constant that fits the operands; none if the pattern or operator allows its absence."""
        if isinstance(p, Either):
            p = self.rng.choice(p.choices)
        if isinstance(p, (Var, Const)):
            if p.name in self.bound:
                return self.bound[p.name]
            if p.optional and self.rng.random() < 0.5:
                return None
        arrays = [self.array(g) for g in given]
        dtype = next((a.dtype for a in arrays if a is not None), helper.tensor_dtype_to_np_dtype(self.type))
        if isinstance(p, (About, bool, int, float)):
            number = p.value if isinstance(p, About) else p
            rank = self.rng.choice([0, 0, 0, 1, max((a.ndim for a in arrays if a is not None), default=0)])
            return self.constant(np.full([1] * rank, number, bool if isinstance(number, bool) else dtype))
        if isinstance(p, Literal):
            return self.constant(p.array)
        if p is None and not needed and self.rng.random() < 0.6:
            return None
        if operands.is_place(op, place):
            made = self.constant(operands.integers(self.rng, op, place, arrays, attributes))
        elif p is None and self.rng.random() < 0.5:
            made = self.variable(None, op, place)
        else:
            of = np.dtype(bool) if operands.is_truth(op, place) else dtype
            made = self.constant(operands.numbers(self.rng, op, place, arrays, attributes, of))
            if self.rng.random() < 0.15:
                made = self.expanded(made)
        if isinstance(p, (Var, Const)):
            self.bound[p.name] = made
        return made

    def expanded(self, name: str) -> str:
        """Returns an Expand of a constant to some or all dims of the pattern's variables."""
        array = self.values[name]
        shape = operands.broadcast(self.rng, self.shape)
        try:
            whole = np.broadcast_shapes(array.shape, shape)
        except ValueError:
            return name
        return self.node("Expand", [name, self.constant(np.array(whole, np.int64))], {}).output[0]

    def copied(self, op: str, reader: str, place: int) -> str:
        """Returns a result of an operator that the pattern wants to have readers."""
        truth = operands.is_truth(reader, place)
        elem_type = TensorProto.BOOL if truth or op == "Not" else self.type
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        shape = operands.broadcast(self.rng, self.shape) if op in ("Expand", "Tile") else list(self.shape)
        if self.rng.random() < (0.3 if op in ("Expand", "Tile") else 0.5):
            x = self.input(shape, elem_type)
        else:
            x = self.constant(np.abs(operands.exact(self.rng, shape, np.dtype(np.int64))).astype(dtype))
        array = self.values[x]
        schema = onnx.defs.get_schema(op, self.opset)
        if op == "ConstantOfShape":
            value = numpy_helper.from_array(np.ones(1, dtype))
            return self.node(op, [self.constant(np.array(self.shape, np.int64))], {"value": value}).output[0]
        if op == "Expand":
            return self.node(op, [x, self.constant(np.array(self.shape, np.int64))], {}).output[0]
        attributes = operands.attributes(self.rng, op, array)
        if op == "Cast":
            attributes = {"to": elem_type}
        given: list[str | None] = [x]
        for i in range(1, max(schema.min_input, 2 if op in ("Squeeze", "Split") else 1)):
            arrays = [self.array(g) for g in given]
            if operands.is_place(op, i):
                given.append(self.constant(operands.integers(self.rng, op, i, arrays, attributes)))
            else:
                given.append(self.constant(operands.numbers(self.rng, op, i, arrays, attributes, dtype)))
        attributes = {k: v for k, v in attributes.items() if k in schema.attributes}
        return self.rng.choice(self.node(op, given, attributes, self._outputs(op, attributes, given)).output)

    # -- the whole -------------------------------------------------------------------------------------------

    def model(self, result: str) -> ModelProto:
        if self.rng.random() < 0.4:  # somebody reads it
            truth = np.asarray(self.values[result]).dtype == bool
            result = self.node("Not" if truth else self.rng.choice(["Neg", "Abs", "Identity"]), [result], {}).output[0]
        outputs = [result]
        inner = [o for n in self.nodes for o in n.output if o != result]
        if inner and self.rng.random() < 0.1:
            outputs.append(self.rng.choice(inner))
        infos = [_info(o, self.values[o]) for o in outputs]
        graph = helper.make_graph(self.nodes, "drawn", self.inputs, infos, self.weights)
        domains = sorted({n.domain for n in self.nodes} - {""})
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(graph, opset_imports=imports, ir_version=_IR[self.opset])


def _info(name: str, value: Any) -> onnx.ValueInfoProto:
    """Of a tensor of any shape, or several."""
    if isinstance(value, list):
        first = np.asarray(value[0]) if value else np.zeros((), np.float32)
        return helper.make_tensor_sequence_value_info(name, helper.np_dtype_to_tensor_dtype(first.dtype), None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)


def _operators(p: Pattern) -> list[str]:
    if isinstance(p, Either):
        return [o for c in p.choices for o in _operators(c)]
    if isinstance(p, Call):
        return [*p.ops, *(o for q in p.inputs for o in _operators(q))]
    return []


def _one(p: Pattern) -> Pattern:
    """An Either is a variable or a call if its first choice is."""
    return _one(p.choices[0]) if isinstance(p, Either) else p


def _fits(predicate: Any, value: object) -> bool:
    try:
        return bool(predicate(value))
    except Exception:
        return False


def drawn(rng: random.Random, source: Pattern) -> ModelProto | None:
    """A model of the pattern; None where the draw leads to none."""
    root = rng.choice(source.choices) if isinstance(source, Either) else source
    draw = operands.Draw(rng.getrandbits(64))
    draw.axis = draw.choice([-1, -1, 1, 0, 2, -2])
    sketch = Sketch(draw, root)
    try:
        assert isinstance(root, Call)
        return sketch.model(sketch.call(root))
    except (NoModel, IndexError, KeyError, OverflowError, TypeError, ValueError):  # of an operand that fits nothing
        return None
    except onnx.defs.SchemaError:  # of an operator that is newer than the opset
        return None
