"""Engines for a model file: onnxruntime with optimizations off, and onnx's reference evaluator."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partialmethod
from pathlib import Path
from typing import Any, Final

import numpy as np

from onnxopt.proto.wire import map_file, skim
from onnxopt.runtime import PathError, folder_for, onnxruntime, path_for, source_for
from onnxopt.verification.runtime import CPU, PLAIN, Runtime
from onnxopt.worker import weights_apart
from onnxopt.worker.serving import Refused


def viewed(path: str, view: Callable[[Any], None]) -> bytes:
    """Return the serialized model at `path` after `view` changed it."""
    from onnx import ModelProto

    model = ModelProto.FromString(Path(path).read_bytes())
    view(model)
    return bytes(model.SerializeToString())


def _behind(path: str, runtime: Runtime) -> bytes:
    """Return functions for operators unknown to the runtime, to append to the model at `path`.

    Readers of protobuf merge both.
    """
    defined = runtime.defines(path)
    return b"" if defined is None else bytes(defined.SerializeToString())


def with_weights_mapped(path: str) -> bytes | None:
    """Return the serialized model with large weights external, mapped by the runtime from the same file without a copy.

    None for a small model, or if impossible.
    """
    if sys.platform == "win32" or os.path.getsize(path) < _LARGE_FILE:  # Windows does not rename a mapped file
        return None
    from onnx import ModelProto, TensorProto

    try:
        place = path_for(os.path.basename(path)), path_for(os.path.dirname(os.path.abspath(path)))
        light, weights = skim(map_file(path), _LARGE_WEIGHT, sys.maxsize)
        proto = ModelProto.FromString(light)
    except Exception:  # loading the file reports the error
        return None
    for i, (start, length) in weights.items():
        tensor = proto.graph.initializer[i]
        tensor.data_location = TensorProto.EXTERNAL
        for key_, value in (("location", place[0]), ("offset", start), ("length", length)):
            tensor.external_data.add(key=key_, value=str(value))
    return proto.SerializeToString() if weights else None


_LARGE_FILE: Final = 1 << 24  # bytes
_LARGE_WEIGHT: Final = 1 << 16


class Failed(Exception):
    """A part of a model cannot be loaded or run; the message says why."""


def _sources(
    path: str, runtime: Runtime, view: Callable[[Any], None] | None, *, may_map: bool
) -> tuple[list[str | bytes], str]:
    """Return (equivalent sources of a file, folder of external data). may_map: map large weights."""
    behind = _behind(path, runtime)
    if behind or view is not None:
        whole = (Path(path).read_bytes() if view is None else viewed(path, view)) + behind
        beside = folder_for(str(Path(path).absolute().parent), whole)
        source: str | bytes = whole
    else:
        source, beside = source_for(path)
    if may_map and view is None and (mapped := with_weights_mapped(path)):
        return [mapped + behind, source], os.path.dirname(os.path.abspath(path))
    return [source], beside


class OnnxRuntime:
    """onnxruntime on CPU, with graph optimizations off: else the original would be folded as well.

    Memory reuse is off, as its planner takes more than quadratic time on deep graphs. Arena and prepacking are off, as
    they cost more than they save in one or two runs; so are memory patterns, by which a second run of equal sizes
    would allocate all its values at once.
    """

    name = "onnxruntime"

    def __init__(
        self,
        model: str | bytes,
        optimize: bool = False,
        stateful: bool = False,
        runtime: Runtime = PLAIN,
        weights: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        view: Callable[[Any], None] | None = None,
    ) -> None:
        """Load a file or a serialized model. Raises the runtime's errors.

        stateful: each run needs a new session, since training BatchNormalization writes into initializers. weights:
        arrays of external initializers of a serialized model; folder: directory of further external data. view: changes
        the model of a file beforehand.
        """
        rt = onnxruntime()
        options = _session_options(runtime, optimize=optimize)
        if weights:
            # onnxruntime does not copy the arrays.
            self._weights = [rt.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
            options.add_external_initializers(list(weights), self._weights)
        if isinstance(model, str):
            sources, beside = _sources(model, runtime, view, may_map=not stateful and runtime.provider == CPU)
        else:
            sources, beside = [model], folder_for(str(folder), model) if folder is not None else ""
        if beside:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", beside)
        self._sources: Sequence[str | bytes] = sources  # each is tried if the one before is not loaded
        providers = runtime.providers
        self._load: Callable[[Any], Any] = lambda source: rt.InferenceSession(source, options, providers=providers)
        self._stateful = stateful
        self._session: Any = self._open()
        self.dims: dict[str, Sequence[int | str | None]] = {i.name: i.shape for i in self._session.get_inputs()}
        given = self._session.get_outputs()
        self.outputs: list[str] = [o.name for o in given]  # an output listed twice is returned twice
        # Types by output: `tensor(float)`, `seq(tensor(int64))`.
        self.output_types: dict[str, str] = {o.name: o.type for o in given}

    def _open(self) -> Any:
        with weights_apart():
            for source in self._sources[:-1]:
                with contextlib.suppress(Exception):
                    return self._load(source)
            return self._load(self._sources[-1])

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """Return the outputs. Raises the runtime's errors."""
        if self._stateful or self._session is None:
            self._session = self._open()
        return list(self._session.run(None, feeds))

    def rest(self) -> None:
        """Unload the session until the next run."""
        self._session = None

    def wake(self) -> None:
        """Load the session again, if unloaded."""
        if self._session is None:
            self._session = self._open()


def _session_options(runtime: Runtime, *, optimize: bool) -> Any:
    """Return the options of a session, with onnxruntime's optimizations if `optimize`."""
    options = runtime.session_options()
    if not optimize:
        options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        if runtime.provider == CPU:  # groups of quantizers, for the optimizations alone: a quarter of a load
            options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.enable_mem_reuse = options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    # Spinning threads would take a core from the parent.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


@cache
def _convolution() -> type:
    """Return a kernel of Conv for the reference evaluator that computes float64 by matrix products.

    y = b + Σ W_k x_k over positions k of the kernel, with x_k the strided slice of the padded x at offset k. Runtimes
    have no float64 kernel, and onnx's own is slow.
    """
    from onnx.reference.ops.op_conv import Conv as Whole

    class Conv(Whole):  # type: ignore[misc]
        def _run(self, x: Any, w: Any, b: Any = None, **how: Any) -> tuple[Any, ...]:
            if x.dtype != np.float64 or how["auto_pad"] not in ("NOTSET", "VALID"):
                return tuple(super()._run(x, w, b, **how))
            axes, group = w.ndim - 2, how["group"]
            strides, dilations = how["strides"] or [1] * axes, how["dilations"] or [1] * axes
            pads = how["pads"] or [0] * 2 * axes
            x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:])])
            extents = [(size - 1) * d + 1 for size, d in zip(w.shape[2:], dilations)]
            sizes = [(size - e) // s + 1 for size, e, s in zip(x.shape[2:], extents, strides)]
            matrices, total = w.reshape(group, -1, *w.shape[1:]), np.zeros(())
            for k in np.ndindex(*w.shape[2:]):
                places = (slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, n, s in zip(k, dilations, sizes, strides))
                under = x[(..., *places)].reshape(len(x), group, w.shape[1], -1)
                total = total + matrices[(..., *k)] @ under
            total = total.reshape(len(x), len(w), *sizes)
            return (total if b is None else total + b.reshape(-1, *[1] * axes),)

    return Conv


class Reference:
    """onnx's ReferenceEvaluator: slow, but supports every operator and opset of onnx."""

    name = "reference"

    def __init__(
        self, model: str | bytes, view: Callable[[Any], None] | None = None, kernels: Sequence[type] = ()
    ) -> None:
        """Load a file or a serialized model.

        view: changes the model beforehand; kernels: of operators that onnx does not know, also in functions.
        """
        import onnx
        from onnx.reference import ReferenceEvaluator

        init = partialmethod(ReferenceEvaluator.__init__, new_ops=[_convolution(), *kernels])
        evaluator: Any = type("Evaluator", (ReferenceEvaluator,), {"__init__": init})
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        if view is not None:
            view(proto)
        self._evaluator = evaluator(proto)
        self.outputs: list[str] = list(self._evaluator.output_names)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """Return the outputs. Raises the evaluator's errors."""
        with np.errstate(all="ignore"):
            results: Sequence[Any] = self._evaluator.run(None, feeds)
        return list(results)


def open_original(
    path: str, stateful: bool, runtime: Runtime, without: str = "", view: Callable[[Any], None] | None = None
) -> tuple[OnnxRuntime | Reference, str]:
    """Return (engine, refusal): onnxruntime and "", or the reference evaluator and why onnxruntime failed.

    without: reason not to try onnxruntime; view: change made to the model beforehand. Raises Refused if both fail.
    """
    if without:
        return Reference(path, view), without
    try:
        return OnnxRuntime(path, stateful=stateful, runtime=runtime, view=view), ""
    except Exception as e:
        why = reason(e)
        if is_starved(e):  # a slower engine takes no less memory
            raise Refused(f"the original cannot be loaded: {why}") from e
        try:
            return Reference(path, view), why
        except Exception as other:
            raise Refused(f"onnxruntime cannot load the original: {why}") from other


class TooLarge(MemoryError):
    """A run that needs more than the free memory."""


class Outgrown(MemoryError):
    """A run in segments that exceeds the planned memory, its limit."""


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def is_starved(error: BaseException) -> bool:
    """Return whether an error, or any of its causes, is a lack of memory."""
    return any(isinstance(e, MemoryError) or any(text in str(e) for text in _STARVED) for e in _with_causes(error))


_SYSTEM: Final = ("pthread_create failed", "start new thread", "failed to map segment")


def blame_system(error: BaseException) -> None:
    """Raise Refused if `error` is a failure of the operating system, independent of the model."""
    if isinstance(error, PathError):
        raise Refused(f"onnxruntime cannot find its files: {error}") from error
    if any(text in str(error) for text in _SYSTEM):
        raise Refused("the system refuses onnxruntime memory for its threads and libraries (ulimit -a)") from error


# Error classes.
_KINDS: Final = ("InvalidGraph", "NotImplemented", "NotImplementedError", "RuntimeTypeError", "TypeError")


def is_about_types(error: BaseException | None) -> bool:
    """Return whether the runtime lacks an operator or rejects types. Different sizes do not help then."""
    return any(kind.__name__ in _KINDS for e in _with_causes(error) for kind in type(e).__mro__)


_LINE: Final = 300
_FILE: Final = r"Load model from .* failed: ?"
# A source location of onnxruntime in a message: file, line, and template arguments.
_SOURCE: Final = r"(?a)[\w:/\\.-]{1,200}\.(?:cc|h):\d+ .{0,1000}?\)(?: const)?(?: \[with .{0,1000}?\])? "
_STARVED: Final = ("bad_alloc", "Failed to allocate memory", "Failed to map")


def reason(error: BaseException) -> str:
    """Return a runtime's error as a single line of at most 300 characters.

    A longer line keeps its end, where the node is named.
    """
    if isinstance(error, Outgrown):
        return "it takes more memory than it is planned with (--verify-memory)"
    if is_starved(error):
        return "it takes more memory than it may (--memory)" + (f": {error}" if isinstance(error, TooLarge) else "")
    line = _main_line(error)
    end = line[1 - _LINE :]
    return line if len(line) <= _LINE else f"…{end.partition(' ')[2] or end}"


def _main_line(error: BaseException) -> str:
    """Return the first line of an error without file, source location and prefix, with its indices."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0].removeprefix("[ONNXRuntimeError] : ") or type(error).__name__
    if (found := re.search(_FILE, line)) is not None:  # the reader knows the file
        line = line[: found.start()] + line[found.end() :]
    line = re.sub(_SOURCE, "", line)
    if line.endswith(" indices"):  # followed by a line per index
        return "; ".join([line, *(" ".join(text.split()) for text in lines[1:] if text.startswith(" index:"))])
    return line
