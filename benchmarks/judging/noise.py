"""The effect of rounding alone on a model's outputs, from runs of the benchmark, independent of the judge.

A model runs again with the last bit of its inputs and weights changed, up or down at random, in their type. Zeros and
exact numbers (2, 0.5, 6: exponents, sizes, bounds) stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnxruntime as rt
from mutations.place import scopes
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from onnxopt.verification.inputs.cases import Recipe
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.uses import SIZE
from onnxopt.verification.inputs.values import MODES, InputMaker

Feeds = Mapping[str, Any]

OTHER_SEED: Final = 20_011  # inputs that the judge does not use
FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


class Engine:
    """onnxruntime, graph optimizations off, one thread: the same bits in every run."""

    def __init__(self, model: ModelProto, give: Sequence[str] = (), stateful: bool = False) -> None:
        """`give`: inner values returned as well. `stateful`: runs leave traces, so each has its own session."""
        options = rt.SessionOptions()
        options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.enable_mem_reuse = False  # its planner is worse than quadratic on deep graphs
        options.log_severity_level = 4
        if give:
            copy = ModelProto()
            copy.CopyFrom(model)
            copy.graph.output.extend(ValueInfoProto(name=name) for name in give)
            model = copy
        data = model.SerializeToString()
        self._open: Callable[[], Any] = lambda: rt.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self._session = self._open()
        self._stateful = stateful

    def run(self, feeds: Feeds) -> list[Any]:
        session = self._open() if self._stateful else self._session
        return list(session.run(None, feeds))


@dataclass
class Original:
    """A model, accepted inputs, its outputs, and the noise of each output (`noise[case][output]`).

    The first `usual` cases are those of verification.
    """

    model: ModelProto
    cases: list[Feeds]
    outputs: list[list[Any]]
    noise: list[list[float]]
    stateful: bool
    usual: int
    maker: InputMaker
    engine: Engine
    sizes: Mapping[str, int]  # of the first case
    _larger: dict[int, list[tuple[Feeds, list[Any]]]] = field(default_factory=dict)

    def beyond(self, size: int) -> list[tuple[Feeds, list[Any]]]:
        """Returns cases with one dim, or one integer that is a size, larger than `size`, and their outputs."""
        if size not in self._larger:
            self._larger[size] = found = []
            for symbol in self.sizes:
                dims = {**self.sizes, symbol: size + 1}
                if self.maker.plan.elements(dims) <= _FIRST:
                    with contextlib.suppress(Exception):  # it does not take that size
                        feeds = self.maker.fill(Recipe("", _VALUES[0]), dims).feeds
                        found.append((feeds, self.engine.run(feeds)))
            counts = [i.name for i in self.maker.plan.inputs if i.use.role == SIZE and i.kind.startswith("int")]
            for name in counts:
                with contextlib.suppress(Exception):
                    feeds = {**self.cases[0], name: np.full_like(self.cases[0][name], size + 1)}
                    found.append((feeds, self.engine.run(feeds)))
        return self._larger[size]

    def equal(self, results: list[list[Any]]) -> bool:
        return all(distance(a, b) == 0 for c, d in zip(self.outputs, results) for a, b in zip(c, d))

    def excess(self, before: list[list[Any]], after: list[list[Any]]) -> tuple[float, float]:
        """Returns the largest change of an output: in multiples of its noise, and as a part of its range."""
        found = [(0.0, 0.0)]
        for noise, c, d in zip(self.noise, before, after):
            for limit, a, b in zip(noise, c, d):
                far, size = distance(a, b), span(a)
                if far and limit < np.inf:
                    found.append((far / limit if limit else np.inf, far / size if size else far))
        return max(found)


class NotHere(Exception):
    """The model cannot be run by this benchmark; says why."""


def measure(model: ModelProto, runs: int) -> Original:
    """Run the model, as it is and `runs` times with last bits changed. Raises NotHere."""
    plan = make_plan(model)
    try:
        engine = Engine(model, stateful=plan.stateful)
    except Exception as e:
        raise NotHere(f"onnxruntime does not load it: {_line(e)}") from e
    maker = InputMaker(plan, {}, OTHER_SEED)
    usual, others = _cases(InputMaker(plan, {}, 0), engine), _cases(maker, engine)
    cases = [feeds for feeds, _, _ in usual + others]
    outputs = [results for _, results, _ in usual + others]
    if any(distance(a, b) for a, b in zip(outputs[0], engine.run(cases[0]))):
        raise NotHere("two runs of it differ")
    noise = [[0.0] * len(c) for c in outputs]
    for seed in range(runs):
        rng = np.random.default_rng([seed, OTHER_SEED])
        try:
            shaken = Engine(_shaken_model(model, rng), stateful=plan.stateful)
            again = [shaken.run({name: shake(v, rng) for name, v in feeds.items()}) for feeds in cases]
        except Exception as e:
            raise NotHere(f"it fails with its last bits changed: {_line(e)}") from e
        for k, results in enumerate(again):
            noise[k] = [max(n, distance(a, b)) for n, a, b in zip(noise[k], outputs[k], results)]
    return Original(model, cases, outputs, noise, plan.stateful, len(usual), maker, engine, usual[0][2])


_VALUES: Final = ("random", "uniform")
_FIRST: Final = 1 << 26  # elements of all inputs, before any sizes are known to be taken,
_LARGER: Final = 64  # and then so many times those


def _cases(maker: InputMaker, engine: Engine) -> list[tuple[Feeds, list[Any], dict[str, int]]]:
    """Two of them, of two sizes where the model has dynamic dims: inputs, outputs, sizes."""
    found: list[tuple[Feeds, list[Any], dict[str, int]]] = []
    sizes: list[dict[str, int]] = []
    said = "it has no inputs that it takes"
    plan = maker.plan
    for dims in plan.size_choices():
        if any(dims[s] == d[s] for d in sizes for s in dims if not plan.is_batch(s)):
            continue
        if plan.elements(dims) > (_LARGER * plan.elements(sizes[0]) if sizes else _FIRST):
            continue
        for mode in MODES:
            try:
                case = maker.fill(Recipe("", _VALUES[len(found)]), dims, mode)
                found.append((case.feeds, engine.run(case.feeds), dims))
            except Exception as e:
                said = _line(e)
                continue
            sizes.append(dims)
            break
        if len(found) == 2:
            return found
    if not found:
        raise NotHere(f"it fails on every input tried: {said}")
    try:
        case = maker.fill(Recipe("", _VALUES[1]), sizes[0])
        return [*found, (case.feeds, engine.run(case.feeds), sizes[0])]
    except Exception:
        return found  # values that are not to the model's taste


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _shaken_model(model: ModelProto, rng: np.random.Generator) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    for graph, _ in scopes(copy.graph):
        tensors = list(graph.initializer)
        tensors += [a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
        for t in tensors:
            if t.data_type in FLOATS:
                t.CopyFrom(numpy_helper.from_array(shake(numpy_helper.to_array(t), rng), t.name))
    return copy


def shake(value: Any, rng: np.random.Generator) -> Any:
    """Returns each number replaced by one of its neighbours, except exact ones."""
    if isinstance(value, list):
        return [shake(v, rng) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    with np.errstate(all="ignore"):
        up = rng.integers(0, 2, value.shape).astype(bool)
        near = np.nextafter(value, np.where(up, np.inf, -np.inf).astype(value.dtype))
        exact = (value * 8 == np.rint(value * 8)) | ~np.isfinite(value) | ~np.isfinite(near)
    return np.where(exact, value, near).astype(value.dtype)


def distance(a: Any, b: Any) -> float:
    """Returns the largest difference of two outputs (integers: number of differences); infinite for other shapes."""
    if isinstance(a, list) and isinstance(b, list):
        return max(map(distance, a, b), default=0.0) if len(a) == len(b) else float("inf")
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return 0.0 if str(a) == str(b) else float("inf")
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if a.dtype.kind != "f":
        return float(np.count_nonzero(a != b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return float("inf")
    return float(np.abs(x[finite] - y[finite]).max(initial=0.0))


def span(a: Any) -> float:
    """Returns the range of an output: its largest magnitude (integers: their number)."""
    if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
        return float(getattr(a, "size", 1))
    return float(np.abs(a[np.isfinite(a)]).astype(np.float64).max(initial=0.0))


def shapes(model: ModelProto, feeds: Feeds) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every value of the main graph in a run."""
    given = {o.name for o in model.graph.output}
    names = list(dict.fromkeys(o for n in model.graph.node for o in n.output if o and o not in given))
    values = zip([o.name for o in model.graph.output] + names, Engine(model, names).run(feeds))
    found = {name: v for name, v in values if isinstance(v, np.ndarray)} | dict(feeds)
    return {name: (v.dtype.name, v.shape) for name, v in found.items() if isinstance(v, np.ndarray)}
