"""Run parts of a program on the values of all cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from onnxopt.element_types import FLOATS
from onnxopt.verification.model.order import first_of
from onnxopt.verification.programs.program import Program, carried, carrier, seen, type_of, widened
from onnxopt.verification.programs.steps import shake_dequantized
from onnxopt.verification.run import OnnxRuntime, Reference, reason
from onnxopt.verification.runtime import PLAIN, Runtime

Values = dict[str, Any]
Tell = Callable[[str], None]
# Of an operand whose rank it does not know, onnx takes the numbers in it to be none at all (`sizes` of a Resize).
_GUESSED: Final = ("ShapeInferenceError", "TypeInferenceError")
Prepare = Callable[[Any, Values], Values]  # changes a model in place, and gives the arrays of its large weights


class Failed(Exception):
    """A part cannot be loaded or run; says why."""


class Runner:
    """Runs nodes of `program` in onnxruntime, its optimizations off, or in the reference evaluator."""

    def __init__(
        self,
        program: Program,
        *,
        reference: bool = False,
        stateful: bool = False,
        runtime: Runtime = PLAIN,
        label: str = "A",
        tell: Tell = lambda state: None,
    ) -> None:
        self.program = program
        self.reference = reference
        self.stateful = stateful
        self.runtime = runtime
        self.label = label
        self.tell = tell

    def inside(self, body: Program, *, reference: bool = False) -> Runner:
        """What runs a body in the same way; `reference`: in the reference evaluator."""
        how = {"reference": self.reference or reference, "stateful": self.stateful, "runtime": self.runtime}
        return Runner(body, **how, label=self.label, tell=self.tell)  # type: ignore[arg-type]

    def telling(self, word: Callable[[str], str]) -> Runner:
        """What says in other words what it does."""
        found = self.inside(self.program)
        found.tell = lambda state: self.tell(word(state))
        return found

    def tell_loading(self, nodes: Sequence[int]) -> None:
        if nodes:
            last = self.program.nodes[nodes[-1]]
            self.tell(f"loading a piece of {self.label} as far as `{first_of(last)}`")

    def open(
        self,
        nodes: Sequence[int],
        fed: Mapping[str, str],
        observed: Iterable[str],
        change: Callable[[Any], Any] | None = None,
        prepare: Prepare | None = None,
        *,
        quiet: bool = False,
    ) -> Opened:
        """These nodes, ready to run. `change` is applied to each large weight and to each constant; `prepare`, to the
        model of them. `quiet`: nobody is told.

        Raises Failed.
        """
        if not quiet:
            self.tell_loading(nodes)
        wanted = dict.fromkeys(observed, "")
        opened = self._open(nodes, fed, wanted, change, prepare)
        if self.reference:
            return opened
        wide = {name: kind for name, kind in opened.types.items() if carrier(kind)}
        return self._open(nodes, fed, wanted | wide, change, prepare) if wide else opened

    def _open(
        self, nodes: Sequence[int], fed: Mapping[str, str], observed: Mapping[str, str], change: Any, prepare: Any
    ) -> Opened:
        model, weights = self.program.model(nodes, fed, observed)
        if change is not None:
            nodes_of = model.graph.node
            scales = {n.input[1] for n in nodes_of if n.op_type == "DequantizeLinear"}
            scales -= {n.input[1] for n in nodes_of if n.op_type == "QuantizeLinear"}  # both quantize by the same
            kept = self.program.sources - scales
            _change_constants(model, change, kept, scales)
            weights = {n: array if n in kept else change(array) for n, array in weights.items()}
            shake_dequantized(model, change)
        if prepare is not None:
            weights = prepare(model, weights)
        names = {
            name: carried(name) if carrier(kind) else seen(name) if name in fed else name
            for name, kind in observed.items()
        }
        feeds = {i.name for i in model.graph.input}
        inputs = {(carried(name) if carrier(kind) else name): name for name, kind in fed.items()}
        if any(n.op_type == "Scan" for n in model.graph.node):  # onnxruntime asks its body for ranks when it is run
            self._give_shapes(model, inputs)
        try:
            try:
                engine = self._load(model, weights)
            except Exception as e:
                if not any(sign in str(e) for sign in _GUESSED) or not self._give_shapes(model, inputs):
                    raise
                engine = self._load(model, weights)
        except Exception as e:  # whatever a runtime raises
            raise Failed(reason(e)) from e
        return Opened(self, engine, {k: v for k, v in inputs.items() if k in feeds}, names, dict(observed), len(nodes))

    def _load(self, model: Any, weights: Mapping[str, Any]) -> Any:
        """What runs the model. Raises whatever a runtime does."""
        if self.reference:
            _inline(model, weights)
            return Reference(model.SerializeToString())
        return OnnxRuntime(
            model.SerializeToString(),
            stateful=self.stateful,
            runtime=self.runtime,
            weights=weights,
            folder=self.program.skeleton.path.absolute().parent,
        )

    def _give_shapes(self, model: Any, inputs: Mapping[str, str]) -> bool:
        """Say of those `inputs` what onnx can tell of their shapes in the whole model; is there one?"""
        shapes = self.program.shapes
        known = [i for i in model.graph.input if inputs[i.name] in shapes and i.type.HasField("tensor_type")]
        for given in known:
            shape = given.type.tensor_type.shape
            shape.SetInParent()  # of a scalar, too
            for size in shapes[inputs[given.name]]:
                shape.dim.add(**({"dim_value": size} if size else {}))
        return bool(known)


class Opened:
    """A part that may be run, of so many `nodes`. `types` of what it gives, as onnxruntime writes them."""

    def __init__(
        self,
        runner: Runner,
        engine: Any,
        inputs: dict[str, str],
        names: dict[str, str],
        declared: dict[str, str],
        nodes: int,
    ) -> None:
        self.nodes = nodes
        self._runner = runner
        self._engine = engine
        self._inputs = inputs
        self._names = names
        kinds = {} if runner.reference else engine.output_types
        self.types = {name: declared[name] or kinds.get(given, "") for name, given in names.items()}

    def run(self, values: Mapping[str, Any]) -> Values:
        """What is observed, made of these values. Raises Failed."""
        if not self._names:
            return {}
        self._runner.tell(f"running a piece of {self._runner.label} as far as `{next(reversed(self._names))}`")
        feeds = {given: widened(values[name]) for given, name in self._inputs.items()}
        try:
            found = dict(zip(self._engine.outputs, self._engine.run(feeds), strict=True))
        except Exception as e:  # whatever a runtime raises
            raise Failed(reason(e)) from e
        results = {name: found[given] for name, given in self._names.items()}
        if self._runner.reference:
            self.types = {name: type_of(value) for name, value in results.items()}
        return results


def _inline(model: Any, weights: Mapping[str, Any]) -> None:
    """The reference evaluator has no weights beside its model."""
    from onnx import TensorProto

    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
            tensor.raw_data = np.ascontiguousarray(weights[tensor.name]).tobytes()


_WEIGHTED: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Mul", "Add")
_SIZES: Final = ("Resize", "Upsample", "Range", "OneHot", "Pad")  # operators whose constants decide shapes


def _change_constants(model: Any, change: Callable[[Any], Any], kept: Collection[str], scales: Collection[str]) -> None:
    """Small initializers and Constant nodes that are lists of floats. A single number is an exponent, a bound, a
    factor of a formula: exact, and not a measured weight. But `scales` are, with which the numbers of a whole tensor
    are rounded, and the number of a ConstantOfShape that a product reads as its weights."""
    from onnx import TensorProto

    from onnxopt.protos import array_to_tensor, tensor_to_array

    exact = {name for n in model.graph.node if n.op_type in _SIZES for name in n.input[1:]}.union(kept)
    tensors = [t for t in model.graph.initializer if t.data_location != TensorProto.EXTERNAL and t.name not in exact]
    constants = [n for n in model.graph.node if n.op_type == "Constant" and n.output[0] not in exact]
    tensors += [a.t for n in constants for a in n.attribute if a.HasField("t")]
    weights = {name for n in model.graph.node if n.op_type in _WEIGHTED for name in n.input[1:]}
    filled = [n for n in model.graph.node if n.op_type == "ConstantOfShape" and n.output[0] in weights - exact]
    changed = [t for t in tensors if math.prod(t.dims) > 1 or t.name in scales]
    for tensor in (*changed, *(a.t for n in filled for a in n.attribute)):
        if tensor.data_type in FLOATS:
            tensor.CopyFrom(array_to_tensor(change(tensor_to_array(tensor)), tensor.name))
