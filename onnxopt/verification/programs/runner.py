"""Execution of parts of a program on given values. Results of quantizers jump between steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import array_to_tensor, put_inside, tensor_to_array
from onnxopt.verification.model.nodes import first_of, operator_of
from onnxopt.verification.model.operators import AFFINE, CUTTING, SIZED, STANDARD, having
from onnxopt.verification.programs.program import Program, carried, carrier, observed_as, types_of, widened
from onnxopt.verification.run import Failed, OnnxRuntime, Reference, reason
from onnxopt.verification.runtime import PLAIN, Runtime
from onnxopt.worker.serving import Refused

# -- stepped floats ---------------------------------------------------------------------------------------

_MAX_CHANGED: Final = 1 << 22  # elements; of larger tensors, only the scales are perturbed
_STEP_TYPES: Final = {1: np.float32, 10: np.float16}  # by TensorProto.DataType
_ROUNDED: Final = 4 / 3  # a number with all mantissa bits in use
_EXACT_SUFFIX: Final = "\N{RIGHTWARDS ARROW}exact"
# Operators that move numbers of the first operand, or select some.
_KEEPS: Final = (having("moves") - having("joined", "retypes") - {"Pad"}) | having("picks") | {"Relu"}
_SHIFTS: Final = frozenset(("Add", "Sub"))  # of integers: scaling afterwards would round them
_SCALES: Final = (AFFINE - _SHIFTS) | (CUTTING & having("bends"))  # by constants, for all elements alike
_MAKES: Final = having("rounds") | {"DequantizeLinear", "Sign"}


def is_stepped(program: Program, value: str) -> bool:
    """Return whether a value comes from a DequantizeLinear of variable integers, or from rounding to integers.

    Only operators that move, scale or shift may lie between, as in quantization by Round, Clip and Mul.
    """
    are_integers = False
    while value in program.maker and value not in program.fixed:
        node = program.nodes[program.maker[value]]
        if node.domain not in STANDARD:
            return False
        if node.op_type in _MAKES:
            return _varies(program, node.input[0]) and not (are_integers and node.op_type == "DequantizeLinear")
        are_integers |= node.op_type in _SHIFTS
        value = _handed_on(program, node, are_integers=are_integers)
    return False


def _varies(program: Program, name: str) -> bool:
    return not program.is_constant(name) and name not in program.fixed


def _handed_on(program: Program, node: NodeProto, *, are_integers: bool) -> str:
    """Return the operand whose numbers a node moves, scales or shifts alike; "" for none."""
    if node.op_type in _KEEPS:
        return str(node.input[0])
    if node.op_type not in _SCALES | _SHIFTS or (are_integers and node.op_type in ("Mul", "Div")):
        return ""
    reads = [r for r in node.input if _varies(program, r)]
    return reads[0] if len(reads) == 1 else ""


def shake_dequantized(model: ModelProto, change: Callable[[Any], Any]) -> None:
    """Add a perturbation of each constant dequantized number, as for float weights.

    A perturbed scale moves all elements alike; with elements at two breakpoints, only some may jump.
    """
    graph = model.graph
    tensors = {t.name: t for t in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        graph.node.append(node)
        if node.op_type != "DequantizeLinear" or any(name not in tensors for name in node.input[:2]):
            continue
        dims, dtype = tensors[node.input[0]].dims, _STEP_TYPES.get(tensors[node.input[1]].data_type)
        is_cast = any(a.name == "output_dtype" for a in node.attribute)
        if dtype is None or is_cast or not 1 < math.prod(dims) <= _MAX_CHANGED:
            continue
        rounded = np.full(dims, _ROUNDED, dtype)
        made, exact = node.output[0], f"{node.output[0]}{_EXACT_SUFFIX}"
        graph.node[-1].output[0] = exact
        graph.node.add(op_type="Mul", input=[exact, f"{exact} factor"], output=[made])
        graph.initializer.append(array_to_tensor((change(rounded) / rounded).astype(dtype), f"{exact} factor"))


# -- execution --------------------------------------------------------------------------------------------

Values = dict[str, Any]
Tell = Callable[[str], None]
# onnx's inference takes constants in an operand of unknown rank for absent (`sizes` of Resize).
_GUESSED: Final = ("ShapeInferenceError", "TypeInferenceError")
Prepare = Callable[[Any, Values], Values]  # changes a model in place; maps and returns the arrays of large weights


@dataclass(eq=False, repr=False)
class Runner:
    """Runs nodes of `program` in onnxruntime with optimizations off, or in the reference evaluator."""

    program: Program
    reference: bool = False
    stateful: bool = False
    runtime: Runtime = PLAIN
    label: str = "A"
    tell: Tell = lambda state: None
    ahead: Any = None  # a `Stream` that ran before anything asks for its values

    def inside(self, body: Program) -> Runner:
        """Return a runner of a body with the same settings."""
        return replace(self, program=body, ahead=None)

    @cached_property
    def computed(self) -> frozenset[int]:
        """Nodes that call a reference in Python, directly, in a body or in a function."""
        if not self.runtime.computed:
            return frozenset()
        operators = self.runtime.computed - self.program.skeleton.functions.names
        return frozenset(self.program.having(lambda node: operator_of(node) in operators))

    def open(
        self,
        nodes: Sequence[int],
        fed: Mapping[str, str],
        observed: Iterable[str],
        change: Callable[[Any], Any] | None = None,
        prepare: Prepare | None = None,
    ) -> Opened:
        """Return a loaded part.

        change: applied to each large weight and constant; prepare: applied to the part's model. Raises Failed.
        """
        if nodes:
            last = self.program.nodes[nodes[-1]]
            self.tell(f"loading a piece of {self.label} as far as `{first_of(last)}`")
        wanted = dict.fromkeys(observed, "")
        if not (self.reference or self.computed.isdisjoint(nodes) or self.computed.issuperset(nodes)):
            return Mixed(self, nodes, fed, wanted, change, prepare)
        opened = self._open(nodes, fed, wanted, change, prepare)
        wide = {name: kind for name, kind in opened.types.items() if carrier(kind)}
        return self._open(nodes, fed, wanted | wide, change, prepare) if wide else opened

    def _open(
        self, nodes: Sequence[int], fed: Mapping[str, str], observed: Mapping[str, str], change: Any, prepare: Any
    ) -> Opened:
        model, weights = self.program.model(nodes, fed, observed)
        if change is not None:
            weights = self._changed(model, weights, change)
        if prepare is not None:
            weights = prepare(model, weights)
        names = {name: observed_as(name, kind, fed) for name, kind in observed.items()}
        inputs = _inputs(model, fed)
        # onnxruntime requires ranks of a Scan's inputs at run time.
        if any(n.op_type == "Scan" for n in model.graph.node):
            self._give_shapes(model, inputs)
        in_reference = self.reference or not self.computed.isdisjoint(nodes)
        try:
            engine = self._loaded(model, weights, inputs, in_reference)
        except Exception as e:  # any exception of a runtime
            raise self._not_loaded(e, in_reference) from e
        return Opened(self, engine, inputs, names, observed, len(nodes))

    def _not_loaded(self, error: Exception, in_reference: bool) -> Exception:
        if in_reference and not self.reference:
            what = f"onnx's reference evaluator, for references in Python, cannot load a piece of {self.label}"
            return Refused(f"{what}: {reason(error)}")
        return Failed(reason(error))

    def _changed(self, model: Any, weights: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the changed weights, and apply `change` to the constants in the model."""
        scales = {n.input[1] for n in model.graph.node if n.op_type == "DequantizeLinear"}
        # Both quantize with the same scale.
        scales -= {n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear"}
        kept = self.program.sources - scales
        _change_constants(model, change, kept, scales)
        shake_dequantized(model, change)
        return {n: array if n in kept else change(array) for n, array in weights.items()}

    def _loaded(self, model: Any, weights: dict[str, Any], inputs: dict[str, str], in_reference: bool) -> Any:
        """Return the engine of a piece; declare the shapes of inputs if the runtime guesses wrong ones."""
        try:
            return self._load(model, weights, in_reference)
        except Exception as e:
            if not any(sign in str(e) for sign in _GUESSED) or not self._give_shapes(model, inputs):
                raise
        return self._load(model, weights, in_reference)

    def _load(self, model: Any, weights: Mapping[str, Any], in_reference: bool) -> Any:
        """Return the engine of a model. Raises the runtime's errors."""
        if in_reference:
            for tensor in model.graph.initializer:  # the reference evaluator reads no external arrays
                if tensor.name in weights:
                    put_inside(tensor, np.ascontiguousarray(weights[tensor.name]).tobytes())
            return Reference(model.SerializeToString(), kernels=self.runtime.kernels)
        return OnnxRuntime(
            model.SerializeToString(),
            stateful=self.stateful,
            runtime=self.runtime,
            weights=weights,
            folder=self.program.skeleton.path.absolute().parent,
        )

    def _give_shapes(self, model: Any, inputs: Mapping[str, str]) -> bool:
        """Declare shapes of `inputs` inferred in the whole model. Returns whether any are known."""
        shapes = self.program.shapes
        known = [i for i in model.graph.input if inputs[i.name] in shapes and i.type.HasField("tensor_type")]
        for given in known:
            shape = given.type.tensor_type.shape
            shape.SetInParent()  # also for a scalar
            for size in shapes[inputs[given.name]]:
                shape.dim.add(**({"dim_value": size} if size else {}))
        return bool(known)


@dataclass(eq=False, repr=False)
class Opened:
    """A loaded part. types: of the observed values, as written by onnxruntime."""

    runner: Runner
    engine: Any
    inputs: dict[str, str]  # {input of the engine: value}
    names: dict[str, str]  # {observed value: output of the engine}
    declared: Mapping[str, str]  # {observed value: type, "" if the engine decides}
    nodes: int  # number of nodes

    def __post_init__(self) -> None:
        kinds = {} if isinstance(self.engine, Reference) else self.engine.output_types
        self.types = {name: self.declared[name] or kinds.get(given, "") for name, given in self.names.items()}

    def run(self, values: Mapping[str, Any]) -> Values:
        """Return the observed values computed from `values`. Raises Failed."""
        if not self.names:
            return {}
        self.runner.tell(f"running a piece of {self.runner.label} as far as `{next(reversed(self.names))}`")
        feeds = {given: widened(values[name]) for given, name in self.inputs.items()}
        try:
            found = dict(zip(self.engine.outputs, self.engine.run(feeds), strict=True))
        except Exception as e:  # any exception of a runtime
            raise Failed(reason(e)) from e
        results = {name: found[given] for name, given in self.names.items()}
        if isinstance(self.engine, Reference):
            self.types = types_of(results)
        return results


class Mixed(Opened):
    """A part with `Runner.computed` nodes: these run in the reference evaluator, the nodes between in onnxruntime.

    Groups of nodes are loaded in turn, once the types of their inputs are known. Constant nodes belong to every group
    with a reader, because onnxruntime asks for constant shapes when it loads.
    """

    def __init__(
        self,
        runner: Runner,
        nodes: Sequence[int],
        fed: Mapping[str, str],
        observed: dict[str, str],
        change: Any,
        prepare: Any,
    ) -> None:
        self.nodes, self.types = len(nodes), observed
        self.runner, self._fed, self._how = runner, fed, (change, prepare)
        self.names = observed
        self._parts: list[Opened] = []
        program, computed = runner.program, runner.computed
        constants = program.fixed.difference(observed, program.made(computed))
        constants -= {*program.made(i for i in nodes if not fed.keys().isdisjoint(program.reads[i]))}
        kept = [i for i in nodes if not constants.issuperset(program.made([i]))]
        self._groups = [[*group] for _, group in itertools.groupby(kept, computed.__contains__)]
        self._made = {*fed, *program.made(kept)}

    def run(self, values: Mapping[str, Any]) -> Values:
        """Return the observed values computed from `values`. Raises Failed, and Refused."""
        known, types, found = {name: values[name] for name in self._fed}, dict(self._fed), dict[str, Any]()
        for k in range(len(self._groups)):
            if k == len(self._parts):
                self._parts.append(self._opened(k, types))
            made = self._parts[k].run(known)
            found |= made
            self.types |= {name: kind for name, kind in self._parts[k].types.items() if name in self.names}
            for name in made.keys() - self._fed.keys():
                known[name], types[name] = made[name], self._parts[k].types[name]
        return {name: found[name] for name in self.names}

    def _opened(self, k: int, types: Mapping[str, str]) -> Opened:
        runner, program = self.runner, self.runner.program
        others = itertools.chain(*self._groups[:k], *self._groups[k + 1 :])
        read = self.names.keys() | program.read(others).keys()
        made = program.made(self._groups[k])
        wanted = [name for name in made if name in read] or made
        nodes = program.cone(made, self._made)
        fed = {r: types[r] for r in program.read(nodes) if r in types}
        if self._groups[k][0] in runner.computed:
            return runner._open(nodes, fed, dict.fromkeys(wanted, ""), *self._how)
        return runner.open(nodes, fed, wanted, *self._how)


def _inputs(model: Any, fed: Mapping[str, str]) -> dict[str, str]:
    """Return {input of a model: fed value, perhaps carried in a different type}."""
    present = {i.name for i in model.graph.input}
    named = ((carried(name) if carrier(kind) else name, name) for name, kind in fed.items())
    return {given: name for given, name in named if given in present}


def _constants(model: Any, exact: Collection[str]) -> list[TensorProto]:
    """Return the small initializers and the constants of nodes, except `exact` values."""
    tensors = [t for t in model.graph.initializer if t.data_location != TensorProto.EXTERNAL and t.name not in exact]
    nodes = [n for n in model.graph.node if n.op_type == "Constant" and n.output[0] not in exact]
    return [*tensors, *(a.t for n in nodes for a in n.attribute if a.HasField("t"))]


def _change_constants(model: Any, change: Callable[[Any], Any], kept: Collection[str], scales: Collection[str]) -> None:
    """Apply `change` to float constants with several elements: small initializers and Constant nodes.

    A scalar is an exponent, bound or factor, and exact, except `scales` (quantizer scales of a whole tensor).
    """
    exact = {name for n in model.graph.node if n.op_type in SIZED for name in n.input[1:]}.union(kept)
    for tensor in _constants(model, exact):
        if tensor.data_type in FLOATS and (math.prod(tensor.dims) > 1 or tensor.name in scales):
            tensor.CopyFrom(array_to_tensor(change(tensor_to_array(tensor)), tensor.name))
