"""Compares the results of a model and of its rewritten form, run in onnxruntime or onnx's evaluator."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.verification.model.dataflow import is_random_model
from tests.rules.feeding import EXACT, Feeds, kinds_of
from tests.runtime import plain_session, run_within

LONG: Final = 5.0  # seconds, in which each of the instances runs a thousand times
# A Reshape copies a dim of 0 (docs/rewrites.md), and what a Loop of no trips collects has dims that runtimes make up.
OF_NOTHING: Final = frozenset({"Loop", "Reshape"})
CONSTANTS: Final = 2e-6  # how far off a new constant of float32 may put a result
LIMITS: Final = {"special": "special", "huge": "overflow"}
NARROW: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Whose kernels add up in another order depending on who makes their operands (docs/architecture.md, levels).
PRODUCTS: Final = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
# Whose last bits depend on where operands lie in memory: what does not fill a packet is computed otherwise.
PACKETS: Final = frozenset({"Erf", "Exp", "Log", "LogSoftmax", "Pow", "Sigmoid", "Softmax", "Softplus", "Tanh"})
Results = list[Any]
Run = Callable[[Feeds], Results]


def line_of(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:300]


class BatchNormalization(OpRun):
    """BatchNormalization before opset 14, which the evaluator takes for training."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_: Any) -> tuple[Any]:
        s, b, m, v = (a.reshape(-1, *[1] * (x.ndim - 2)) for a in (scale, bias, mean, var))
        return ((s * (x - m) / np.sqrt(v + epsilon) + b).astype(x.dtype),)


def runner(model: ModelProto, reference: bool) -> Run:
    """Runs a model in onnxruntime with its optimizations off, or in onnx's reference evaluator."""
    if reference:
        trains = any(o.version < 14 for o in model.opset_import if not o.domain)
        evaluator = ReferenceEvaluator(model, new_ops=[BatchNormalization] if trains else None)

        def evaluate(feeds: Feeds) -> Results:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return list(evaluator.run(None, feeds))

        return evaluate
    session = plain_session(model, enable_mem_reuse=False)

    loops = any(n.op_type == "Loop" for n in all_nodes(model))

    def run(feeds: Feeds) -> Results:
        return run_within(LONG, session, feeds) if loops else list(session.run(None, feeds))  # some have no end

    return run


def lacks_kernel(error: Exception) -> bool:
    return any(
        word in str(error) for word in ("NOT_IMPLEMENTED", "is not a registered function/op", "No Op registered")
    )


class Comparison:
    """Compares results with a model that has already run. Raises the runtime's errors."""

    def __init__(self, model: ModelProto, feeds: Iterable[tuple[str, Feeds]], tolerance: float = 0.0) -> None:
        """`tolerance`: as declared by the pass."""
        self.model = model
        self.tolerance = max(tolerance, _tolerance(model))
        if is_random_model(model):
            raise ValueError("its results are random")
        self.feeds = list(feeds)
        self.limits: dict[str, str] = {}
        self.expected: list[tuple[str, Feeds, Results]] = []
        self._ask(reference=False)

    def _ask(self, reference: bool) -> None:
        """Run the original on each accepted feed."""
        self.reference = reference
        self.expected = []
        first: Exception | None = None
        try:
            run = runner(self.model, reference)
            for kind, feeds in self.feeds:
                try:
                    values = run(feeds)
                except Exception as e:
                    first = first or e
                    continue
                if any(lies(o, a) for o, a in zip(self.model.graph.output, values, strict=True)):
                    raise ValueError("its results have other shapes than it says")
                self.expected.append((kind, feeds, values))
            if not self.expected:
                raise first or ValueError("no input")
        except Exception as e:
            if reference or not lacks_kernel(e):
                raise
            self._ask(reference=True)
            return
        kind, feeds, values = self.expected[0]
        if not all(same(a, b, exact=True) for a, b in zip(values, run(feeds), strict=True)):
            raise ValueError("its results are not steady")

    def fault(self, after: ModelProto, exact: bool) -> tuple[str, str] | None:
        """(kind, text) of the first result that is another."""
        try:
            run = runner(after, self.reference)
        except Exception as e:
            if self.reference or not lacks_kernel(e):
                return "does not load", line_of(e)
            try:
                self._ask(reference=True)
                run = runner(after, True)
            except Exception:
                return None  # no engine has both
        for kind, feeds, expected in self.expected:
            try:
                found = run(feeds)
            except Exception as e:
                said = f"does not run on {kind} numbers: {line_of(e)}; {shown_feeds(feeds)}"
                if all(np.size(v) for v in feeds.values()):
                    return "wrong", said
                self.limits.setdefault("empty", said)
                continue
            if any(lies(o, a) for o, a in zip(after.graph.output, found, strict=True)):
                return "types", "the results have other shapes than the model says"
            for o, x, y in zip(self.model.graph.output, expected, found, strict=True):
                fault = self._difference(after, exact, kind, feeds, o.name, x, y)
                if fault and (all(np.size(v) for v in feeds.values()) or self._is_defined(feeds)):
                    return fault
        return None

    def _is_defined(self, feeds: Feeds) -> bool:
        """Returns whether the reference evaluator runs the model.

        onnxruntime joins empty tensors with any other, and invents the numbers.
        """
        try:
            runner(self.model, True)(feeds)
        except Exception:
            return False
        return True

    def _difference(
        self, after: ModelProto, exact: bool, kind: str, feeds: Feeds, name: str, x: Any, y: Any
    ) -> tuple[str, str] | None:
        if same(x, y, exact):
            return None
        said = f"{name} on {kind} numbers: {shown(x)}, not {shown(y)}; of {shown_feeds(feeds)}"
        if np.size(x) == np.size(y) == 0 and any(n.op_type in OF_NOTHING for n in all_nodes(self.model)):
            self.limits.setdefault("empty", said)
            return None
        exact = exact and not self.reference  # the evaluator knows little of infinities and of the signs of zeros
        near = same(x, y, False, max(self.tolerance, _tolerance(after)))
        if exact:
            if near and any(n.op_type in PACKETS for n in all_nodes(self.model)):
                self.limits.setdefault("rounded", said)
                return None
            rounds = kind not in EXACT and (kinds_of(self.model) & NARROW or self._multiplies)
            return None if near and rounds else ("wrong", said)
        if kind in LIMITS:
            if not near:
                self.limits.setdefault(LIMITS[kind], said)
            return None
        if not near:
            if same(*_finite(x, y), False, max(self.tolerance, _tolerance(after))):
                self.limits.setdefault("special", said)  # which the model itself makes of ordinary numbers
                return None
            if self._agree_in_double(after, feeds, name):
                self.limits.setdefault("rounded", said)
                return None
            return "wrong", said
        is_narrowed = kinds_of(after) & NARROW - kinds_of(self.model)
        if kind in EXACT and not is_narrowed and _is_in_double(self.model, feeds, name, x):
            if not self._agree_in_double(after, feeds, name, CONSTANTS):
                return "inexact", said
        return None

    def _agree_in_double(self, after: ModelProto, feeds: Feeds, name: str, tolerance: float = 1e-9) -> bool:
        """Returns whether the results agree in float64.

        Then rounding alone decides, or a difference of large numbers.
        """
        x, y = (results_in_double(m, feeds) for m in (self.model, after))
        return x is not None and y is not None and same(x[name], y[name], False, tolerance)

    @property
    def _multiplies(self) -> bool:
        return any(n.op_type in PRODUCTS for n in all_nodes(self.model))


def _is_in_double(model: ModelProto, feeds: Feeds, name: str, x: Any) -> bool:
    """Does the model make `x` of float64, to the last bits? Then nothing of it is rounded."""
    values = results_in_double(model, feeds)
    return values is not None and same(_wide(x), values[name], False, 1e-12)


def results_in_double(model: ModelProto, feeds: Feeds) -> dict[str, Any] | None:
    """By the reference evaluator; None where it has none."""
    wide = in_double(model)
    try:
        values = runner(wide, True)({n: _wide(v) for n, v in feeds.items()})
    except Exception:
        return None
    return dict(zip([o.name for o in wide.graph.output], map(_wide, values), strict=True))


def _tolerance(model: ModelProto) -> float:
    kinds = kinds_of(model)
    return 0.05 if TensorProto.BFLOAT16 in kinds else 1e-2 if TensorProto.FLOAT16 in kinds else 1e-4


def all_nodes(model: ModelProto) -> Iterator[onnx.NodeProto]:
    """Those of functions and bodies, too."""

    def inside(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            yield node
            for a in node.attribute:
                for body in [a.g] if a.HasField("g") else a.graphs:
                    yield from inside(body.node)

    for nodes in itertools.chain([model.graph.node], (f.node for f in model.functions)):
        yield from inside(nodes)


def _wide(value: Any) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16)


def in_double(model: ModelProto) -> ModelProto:
    """The same model in float64: inputs, weights, Casts, and what constants are made of."""
    wide = ModelProto()
    wide.CopyFrom(model)

    def tensor(t: TensorProto) -> None:
        if t.data_type in _FLOATS:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))

    def node_in_double(node: onnx.NodeProto) -> None:
        for a in node.attribute:
            if a.type == a.TENSOR:
                tensor(a.t)
            elif a.name in ("to", "dtype") and a.i in _FLOATS:
                a.i = TensorProto.DOUBLE
            elif a.type == a.GRAPH:
                graph_in_double(a.g)
        if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
            given = helper.get_attribute_value(node.attribute[0])
            node.attribute[0].CopyFrom(
                helper.make_attribute("value", numpy_helper.from_array(np.array(given, np.float64)))
            )
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))

    def graph_in_double(graph: onnx.GraphProto) -> None:
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type in _FLOATS:
                info.type.tensor_type.elem_type = TensorProto.DOUBLE
        for t in graph.initializer:
            tensor(t)
        for node in graph.node:
            node_in_double(node)

    graph_in_double(wide.graph)
    for node in (n for f in wide.functions for n in f.node):
        node_in_double(node)
    return wide


# -- comparing -----------------------------------------------------------------------------------------------


def lies(output: onnx.ValueInfoProto, value: object) -> bool:
    """Has a result another type or shape than the model says? Inference does not notice for all operators."""
    shaped = output.type.tensor_type
    if not isinstance(value, np.ndarray) or not shaped.HasField("shape"):
        return False
    dims = shaped.shape.dim
    return len(dims) != value.ndim or any(
        d.HasField("dim_value") and d.dim_value != n for d, n in zip(dims, value.shape)
    )


def same(a: object, b: object, exact: bool, tolerance: float = 0.0) -> bool:
    """Bit for bit where `exact`; else a zero has no sign, and finite floats may be `tolerance` of their range apart."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y, exact, tolerance) for x, y in zip(a, b))
    if isinstance(a, np.generic) and isinstance(b, (np.generic, np.ndarray)):
        a, b = np.asarray(a), np.asarray(b)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return str(a) == str(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    if exact:
        return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all())
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
    return bool(np.abs(x - y).max(initial=0) <= tolerance * max(1.0, np.abs(x).max(initial=0)))


def _finite(x: Any, y: Any) -> tuple[Any, Any]:
    """Both results where the first, a tensor of floats, is finite; else as they are."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape and x.dtype.kind == "f":
        return x[np.isfinite(x)], y[np.isfinite(x)]
    return x, y


def shown(value: Any) -> str:
    """On one line."""
    if not isinstance(value, np.ndarray):
        return str(value)[:200]
    numbers = " ".join(str(v) for v in value.reshape(-1)[:8].tolist())
    return f"{value.dtype}{list(value.shape)} {{{numbers}{' …' if value.size > 8 else ''}}}"


def shown_feeds(feeds: Feeds) -> str:
    return ", ".join(f"{name} = {shown(value)}" for name, value in feeds.items()) or "no inputs"
