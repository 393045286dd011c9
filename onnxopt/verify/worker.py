"""The child process that runs models: a crash or a hang here is a verdict, not the end of onnxopt.

Frames on a private copy of stdout and on stdin: 4 bytes of length, then a pickle. First the request with the original,
which is loaded and run at once; then the result's path, answered by a Verification. It ends when stdin does.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import IO, Any, Final

from onnxopt.verify.records import CaseRecord, Verification, VerifyOptions

_RANDOM: Final = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
_QUANTIZED: Final = ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinear")


def send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next message; raises EOFError when the other side is gone."""
    header = stream.read(4)
    if len(header) < 4:
        raise EOFError
    size = struct.unpack("<I", header)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class Refused(Exception):
    """The original cannot be run here; says why."""


class Judge:
    """Holds what the original computed, and compares a result with it."""

    def __init__(self, path: str, options: VerifyOptions) -> None:
        import numpy as np
        from onnx import load

        from onnxopt.verify.inputs import InputMaker

        self.path = path
        self.options = options
        self.proto = load(path, load_external_data=False)
        self.ops = _operators(self.proto)
        self.quantized = any(op.startswith(_QUANTIZED) for op in self.ops)
        given = {name: np.load(file, allow_pickle=False) for name, file in options.inputs.items()}
        known = {i.name for i in self.proto.graph.input}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise Refused(f"the model has no input `{unknown[0]}`; it has {', '.join(sorted(known))}")
        self.maker = InputMaker(self.proto, given, options.seed)
        self.branches: dict[str, set[bool]] = {}
        self.engine: Any = None
        self.cases: list[Any] = []
        self.results: list[list[Any]] = []
        self._open()
        self._run_original()

    def _open(self) -> None:
        from onnxopt.verify.run import OnnxRuntime, Reference, reason

        model = self._with_conditions()
        try:
            self.engine = OnnxRuntime(model)
        except Exception as e:
            why = reason(e)
            try:
                self.engine = Reference(self.path)
            except Exception as other:
                raise Refused(f"onnxruntime cannot load the original: {why}") from other
            self.refused_by_runtime = why

    def _with_conditions(self) -> str | bytes:
        """The original's path; where it branches, a copy that also gives out the conditions."""
        from onnx import ModelProto, TensorProto, helper

        conditions = {n.input[0] for n in self.proto.graph.node if n.op_type == "If" and n.domain in ("", "ai.onnx")}
        outputs = {o.name for o in self.proto.graph.output}
        produced = {o for n in self.proto.graph.node for o in n.output}
        wanted = sorted((conditions - outputs) & produced)
        external = any(t.data_location == TensorProto.EXTERNAL for t in self.proto.graph.initializer)
        if not wanted or external:
            return self.path
        copy = ModelProto()
        copy.CopyFrom(self.proto)
        copy.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, None) for name in wanted)
        self.branches = {name: set() for name in wanted}
        return bytes(copy.SerializeToString())

    def _run_original(self) -> None:
        from onnxopt.verify.inputs import Unsupported, integer_modes
        from onnxopt.verify.run import reason

        error: Exception | None = None
        tried = 0
        for dims in self.maker.size_choices():
            if len(self.cases) == 2:
                break
            if any(dims == c.dims for c in self.cases) and dims:
                continue
            for mode in integer_modes():
                try:
                    case = self.maker.make(f"case {len(self.cases) + 1}", dims, len(self.cases), mode)
                    results = self.engine.run(case.feeds)
                except Unsupported as e:
                    raise Refused(str(e)) from e
                except Exception as e:
                    error, tried = e, tried + 1
                    continue
                self._keep(case, results)
                break
            if tried > 60 and not self.cases:
                break
        if not self.cases:
            raise Refused(f"the original fails on every input tried: {reason(error) if error else 'no input'}")
        if len(self.cases) == 1 and not self.maker.symbols and self.maker.inputs:
            case = self.maker.make("case 2", {}, 1)
            try:
                self._keep(case, self.engine.run(case.feeds))
            except Exception:  # the first case stands; this one's values were not to the model's taste
                pass
        if self.maker.overridable:
            case = self.maker.override(self.cases[0])
            try:
                self._keep(case, self.engine.run(case.feeds))
            except Exception as e:
                raise Refused(f"the original fails with other values for its initializers: {reason(e)}") from e
        if self.ops & _RANDOM:
            again = self.engine.run(self.cases[0].feeds)[: len(self.results[0])]
            if _differ(self.results[0], again):
                raise Refused("the model is not deterministic: two runs of the original differ")

    def _keep(self, case: Any, results: list[Any]) -> None:
        count = len(results) - len(self.branches)
        for name, value in zip(self.branches, results[count:]):
            self.branches[name].add(bool(value.any()))
        self.cases.append(case)
        self.results.append(results[:count])

    def judge(self, path: str) -> Verification:
        from onnxopt.verify.compare import compare
        from onnxopt.verify.run import OnnxRuntime, Reference, reason

        try:
            engine: Any = (OnnxRuntime if isinstance(self.engine, OnnxRuntime) else Reference)(path)
        except Exception as e:
            return Verification("different", f"the result cannot be loaded: {reason(e)}")
        names = self.engine.outputs[: len(self.results[0])]
        if engine.outputs != names:
            return Verification("different", f"the outputs are {engine.outputs}, they were {names}")
        records = []
        for case, originals in zip(self.cases, self.results):
            try:
                results = engine.run(case.feeds)
            except Exception as e:
                return Verification("different", f"the result fails where the original runs: {reason(e)}")
            record = CaseRecord(case.name, case.dims)
            for name, a, b in zip(names, originals, results):
                record.outputs.append(compare(name, a, b, self.options, self.quantized))
            records.append(record)
        verdict = self._verdict(records, names)
        if verdict.status == "equal" and isinstance(engine, OnnxRuntime):
            self._open_optimized(path, verdict)
        return verdict

    def _verdict(self, records: list[CaseRecord], names: list[str]) -> Verification:
        from onnxopt.verify.compare import proves_nothing

        outputs = [(c, o) for c in records for o in c.outputs]
        worst = max(outputs, key=lambda pair: (not pair[1].ok, pair[1].max_rel), default=None)
        exact = all(o.ok and not o.max_abs for _, o in outputs)
        verdict = Verification("equal", "", exact=exact, engine=self.engine.name, cases=records)
        if worst is not None:
            case, output = worst
            verdict.worst, verdict.worst_rel = output.name, output.max_rel
            if not output.ok:
                sizes = ", ".join(f"{k}={v}" for k, v in case.dims.items())
                verdict.status = "different"
                verdict.message = f"output `{output.name}` {output.note}" + (f" ({sizes})" if sizes else "")
                verdict.hint = "nothing was written; find the pass with --disable NAME, and report it"
                if "int" in output.dtype or output.dtype == "bool":
                    verdict.hint = "integers that rank or threshold floats flip in near ties: try -O1, which is exact"
                return verdict
        weak = [
            f"output `{name}` {why}"
            for i, name in enumerate(names)
            if self.maker.inputs and (why := proves_nothing([r[i] for r in self.results]))
        ]
        weak += [
            f"the {'else' if True in seen else 'then'} branch on `{name}` was never taken"
            for name, seen in self.branches.items()
            if len(seen) < 2
        ]
        sizes = [" ".join(f"{k}={v}" for k, v in c.dims.items()) for c in records if c.dims]
        text = "bit for bit the same" if exact else f"largest difference {verdict.worst_rel:.1e} of the range of `{verdict.worst}`"
        text += f", {len(records)} case{'s' if len(records) != 1 else ''}"
        text += f" ({'; '.join(dict.fromkeys(sizes))})" if sizes else ""
        if self.engine.name == "reference":
            text += f", by the reference evaluator (onnxruntime: {self.refused_by_runtime})"
        if weak:
            verdict.status = "inconclusive"
            verdict.message = f"{text}; but {'; '.join(weak[:3])}" + (f"; and {len(weak) - 3} more" if len(weak) > 3 else "")
            verdict.hint = "give real data with --input NAME=FILE.npy"
        else:
            verdict.message = text
        return verdict

    def _open_optimized(self, path: str, verdict: Verification) -> None:
        """Deployed with optimizations on, the result must load there too, if the original does."""
        from onnxopt.verify.run import OnnxRuntime, reason

        try:
            OnnxRuntime(path, optimize=True)
        except Exception as e:
            try:
                OnnxRuntime(self.path, optimize=True)
            except Exception:  # the runtime's optimizer cannot take the original either
                return
            verdict.status = "different"
            verdict.message = f"onnxruntime's optimizer loads the original but not the result: {reason(e)}"


def _operators(proto: Any) -> set[str]:
    found: set[str] = set()
    graphs = [proto.graph.node, *(f.node for f in proto.functions)]
    while graphs:
        for node in graphs.pop():
            found.add(node.op_type)
            for a in node.attribute:
                if a.HasField("g"):
                    graphs.append(a.g.node)
                graphs.extend(g.node for g in a.graphs)
    return found


def _differ(a: list[Any], b: list[Any]) -> bool:
    import numpy as np

    return any(
        isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(a, b)
    )


def main() -> None:
    """Serve one parent."""
    source = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # whatever a runtime prints must not enter the frames
        path, options = receive(source)
        try:
            judge = Judge(path, options)
        except Refused as e:
            send(target, str(e))
            return
        except Exception as e:
            send(target, f"{type(e).__name__}: {e}")
            return
        send(target, None)
        while True:
            try:
                result = receive(source)
            except EOFError:
                return
            send(target, judge.judge(result))


if __name__ == "__main__":
    main()
