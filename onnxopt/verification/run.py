"""Engines that run a model file: onnxruntime with optimizations off, or onnx's reference evaluator."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from onnxopt.ort import PathError, folder_for, onnxruntime, path_for, source_for
from onnxopt.verification.runtime import CPU, PLAIN, Runtime
from onnxopt.wire import map_file, skim
from onnxopt.worker.heap import weights_apart
from onnxopt.worker.serving import Refused


def viewed(path: str, view: Callable[[Any], None]) -> bytes:
    """The model at `path` after `view` has changed it."""
    from onnx import ModelProto

    model = ModelProto.FromString(Path(path).read_bytes())
    view(model)
    return bytes(model.SerializeToString())


def _behind(path: str, give: Sequence[str], runtime: Runtime) -> bytes:
    """What is put behind the model at `path`, which a reader of protobuf merges: values that it gives out, too, and
    functions for operators that the runtime has not."""
    defined = runtime.defines(path)
    if not give:
        return b"" if defined is None else bytes(defined.SerializeToString())
    from onnx import ModelProto, ValueInfoProto

    extra = ModelProto() if defined is None else defined
    extra.graph.output.extend(ValueInfoProto(name=name) for name in give)
    return bytes(extra.SerializeToString())


def with_weights_mapped(path: str) -> bytes | None:
    """The model at `path` without its large weights, which a runtime then maps where they lie in that file: nothing is
    read, parsed or copied for them. None for a small model, or one that cannot be handed over so."""
    if sys.platform == "win32" or os.path.getsize(path) < _LARGE_FILE:  # Windows renames no file that is mapped
        return None
    from onnx import ModelProto, TensorProto

    try:
        place = path_for(os.path.basename(path)), path_for(os.path.dirname(os.path.abspath(path)))
        light, weights = skim(map_file(path), _LARGE_WEIGHT, sys.maxsize)
        proto = ModelProto.FromString(light)
    except Exception:  # whoever loads the file as it is says why
        return None
    for i, (start, length) in weights.items():
        tensor = proto.graph.initializer[i]
        tensor.data_location = TensorProto.EXTERNAL
        for key_, value in (("location", place[0]), ("offset", start), ("length", length)):
            tensor.external_data.add(key=key_, value=str(value))
    return proto.SerializeToString() if weights else None


_LARGE_FILE: Final = 1 << 24  # bytes
_LARGE_WEIGHT: Final = 1 << 16


class Called:
    """Inputs and outputs that are called here otherwise than in a file: by `names`, which has the file's as keys."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._back = {here: name for name, here in names.items()}

    def here(self, outputs: Iterable[str]) -> list[str]:
        return [self._names.get(name, name) for name in outputs]

    def in_file(self, feeds: dict[str, Any]) -> dict[str, Any]:
        return {self._back.get(name, name): value for name, value in feeds.items()} if self._back else feeds


class OnnxRuntime:
    """onnxruntime on CPU. With its default level the original would be folded too, and a comparison prove nothing.

    Memory reuse is off because its planner is worse than quadratic on deep graphs; arena and prepacking are off
    because they cost more than the one or two runs they would speed up.
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
        names: Mapping[str, str] | None = None,
        give: Sequence[str] = (),
    ) -> None:
        """`stateful`: runs leave traces (training BatchNormalization writes into initializers): one session each.

        Of a serialized model, `weights` are the arrays of external initializers, and `folder` is where other external
        data lie. `names`: what inputs and outputs are called here, where that is not what the file calls them.
        Of a file, `give` are values inside that are given out, too.
        """
        rt = onnxruntime()
        options = runtime.session_options()
        if weights:
            self._weights = [rt.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]  # they stay ours
            options.add_external_initializers(list(weights), self._weights)
        source: str | bytes
        behind = _behind(model, give, runtime) if isinstance(model, str) else b""
        if isinstance(model, str) and behind:
            source = Path(model).read_bytes() + behind
            beside = folder_for(str(Path(model).absolute().parent), source)
        elif isinstance(model, str):
            source, beside = source_for(model)
        else:
            source, beside = model, folder_for(str(folder), model) if folder is not None else ""
        sources = [source]
        may_map = not stateful and runtime.provider == CPU
        if isinstance(model, str) and may_map and (mapped := with_weights_mapped(model)):
            sources, beside = [mapped + behind, source], os.path.dirname(os.path.abspath(model))
        if beside:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", beside)
        if not optimize:
            options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_reuse = False
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the parent needs that core
        self._sources = sources  # each as good as the next, which is loaded where that one is not
        providers = runtime.providers
        self._load: Callable[[Any], Any] = lambda source: rt.InferenceSession(source, options, providers=providers)
        self._stateful = stateful
        self._session: Any = self._open()
        self._names = Called(names or {})
        taken = self._session.get_inputs()
        self.dims: dict[str, Sequence[int | str | None]] = dict(
            zip(self._names.here(i.name for i in taken), (i.shape for i in taken))
        )
        given = self._session.get_outputs()
        self.outputs: list[str] = self._names.here(o.name for o in given)  # one that is listed twice is given twice
        # The type of each output: `tensor(float)`, `seq(tensor(int64))`.
        self.output_types: dict[str, str] = dict(zip(self.outputs, (o.type for o in given)))

    def _open(self) -> Any:
        with weights_apart():
            for source in self._sources[:-1]:
                with contextlib.suppress(Exception):
                    return self._load(source)
            return self._load(self._sources[-1])

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        if self._stateful or self._session is None:
            self._session = self._open()
        return list(self._session.run(None, self._names.in_file(feeds)))

    def rest(self) -> None:
        """Let go of what is loaded, until it is to run again."""
        self._session = None

    def wake(self) -> None:
        """Load it again, if it rests."""
        if self._session is None:
            self._session = self._open()


class Reference:
    """onnx's ReferenceEvaluator: slow, but knows every operator and opset that onnx knows."""

    name = "reference"

    def __init__(self, model: str | bytes, names: Mapping[str, str] | None = None) -> None:
        from onnx.reference import ReferenceEvaluator

        source: Any = model if isinstance(model, bytes) else str(Path(model))
        self._evaluator = ReferenceEvaluator(source)
        self._names = Called(names or {})

    @property
    def outputs(self) -> list[str]:
        return self._names.here(self._evaluator.output_names)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            results: Sequence[Any] = self._evaluator.run(None, self._names.in_file(feeds))
        return list(results)


def open_original(
    path: str,
    give: Sequence[str],
    stateful: bool,
    runtime: Runtime,
    without: str = "",
    view: Callable[[Any], None] | None = None,
) -> tuple[OnnxRuntime | Reference, str]:
    """Load the original, where onnxruntime cannot, in the reference evaluator; and why it could not, else empty.

    `give`: values inside that onnxruntime gives out, too. `without`: why it is not asked. `view`: what changes the
    model before anything runs it. Raises Refused where neither can.
    """
    source = path if view is None else viewed(path, view)
    if without:
        return Reference(source), without
    try:
        if isinstance(source, bytes):
            source += _behind(path, give, runtime)
            return OnnxRuntime(source, stateful=stateful, runtime=runtime, folder=Path(path).absolute().parent), ""
        return OnnxRuntime(path, stateful=stateful, runtime=runtime, give=give), ""
    except Exception as e:
        why = reason(e)
        if is_starved(e):  # a slower engine takes no less
            raise Refused(f"the original cannot be loaded: {why}") from e
        try:
            return Reference(source), why
        except Exception as other:
            raise Refused(f"onnxruntime cannot load the original: {why}") from other


class TooLarge(MemoryError):
    """A run that would take more than there is."""


class Outgrown(MemoryError):
    """A run in segments for which the memory that models are planned with is too little: it may have no other."""


def is_starved(error: BaseException) -> bool:
    """Was it, or what it was made of, refused memory?"""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    return any(isinstance(e, MemoryError) or any(text in str(e) for text in _STARVED) for e in causes)


_SYSTEM: Final = ("pthread_create failed", "start new thread", "failed to map segment")


def blame_system(error: BaseException) -> None:
    """What the system does not give says nothing about a model. Raises Refused where `error` is such."""
    if isinstance(error, PathError):
        raise Refused(f"onnxruntime cannot find its files: {error}") from error
    if any(text in str(error) for text in _SYSTEM):
        raise Refused("the system refuses onnxruntime memory for its threads and libraries (ulimit -a)") from error


_KINDS: Final = ("InvalidGraph", "NotImplemented", "NotImplementedError", "RuntimeTypeError", "TypeError")  # of errors


def is_about_types(error: BaseException | None) -> bool:
    """Does a runtime lack an operator, or say that types are wrong? Other sizes do not change that."""
    while error is not None:
        if any(kind.__name__ in _KINDS for kind in type(error).__mro__):
            return True
        error = error.__cause__
    return False


_LINE: Final = 300
_FILE: Final = re.compile(r"Load model from .* failed: ?")
# Where in onnxruntime it went wrong: a file, a line, and all of a function's types.
_SOURCE: Final = re.compile(
    r"[\w:/\\.-]{1,200}\.(?:cc|h):\d+ .{0,1000}?\)(?: const)?(?: \[with .{0,1000}?\])? ", re.ASCII
)
_STARVED: Final = ("bad_alloc", "Failed to allocate memory", "Failed to map")


def reason(error: BaseException) -> str:
    """What a runtime's error says in its first line, short enough for one line of ours: its end, where it names a
    node."""
    if isinstance(error, Outgrown):
        return "it takes more memory than it is planned with (--verify-memory)"
    if is_starved(error):
        return "it takes more memory than it may (--memory)" + (f": {error}" if isinstance(error, TooLarge) else "")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0].removeprefix("[ONNXRuntimeError] : ") or type(error).__name__
    if (found := _FILE.search(line)) is not None:  # whoever reads this knows which
        line = line[: found.start()] + line[found.end() :]
    line = _SOURCE.sub("", line)
    if line.endswith(" indices"):  # which follow, one in a line
        line = "; ".join([line, *(" ".join(text.split()) for text in lines[1:] if text.startswith(" index:"))])
    end = line[1 - _LINE :]
    return line if len(line) <= _LINE else f"…{end.partition(' ')[2] or end}"
