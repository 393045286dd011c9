"""Inputs that a model accepts: given data, and a search, as a file does not declare accepted sizes and integers.

Data of `onnxopt verify --inputs`: .npy files named after inputs, .npz files, and onnx test data. onnx's layout is a
folder `test_data_set_0` with `input_0.pb`, … in order of the graph's inputs, and `output_0.pb`, …: TensorProto,
SequenceProto or OptionalProto, depending on the declared type.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import ModelProto, TypeProto, ValueInfoProto

from onnxopt.errors import UsageError
from onnxopt.proto.element_types import BY_NAME, element_kind
from onnxopt.verification.inputs.cases import Recipe, Trial
from onnxopt.verification.inputs.plan import InputSpec, Plan
from onnxopt.verification.inputs.values import AXES, KNOWN, MODES, WIDE, Case, InputMaker, says_lengths
from onnxopt.verification.model.nodes import required
from onnxopt.verification.run import is_about_types, is_starved, reason
from onnxopt.worker.serving import Refused

# -- given data -------------------------------------------------------------------------------------------

_FORMS: Final = "give a folder of NAME.npy or input_0.pb files, a FILE.npz, or NAME=FILE.npy"


@dataclass(eq=False, repr=False)
class Data:
    """Values of inputs by name, and expected outputs if available."""

    inputs: dict[str, Any]
    expected: dict[str, Any] = field(default_factory=dict)


Read = Callable[[], Data]  # picklable


def find_data_sets(places: Sequence[str], model: ModelProto, plan: Plan) -> list[tuple[str, Read]]:
    """Return (name, reader) of the data sets in folders and .npz files. Raises UsageError for a place without data.

    The readers raise UsageError for data unsuitable for the model.
    """
    return [found for place in places for found in _in_place(Path(place), model, plan)]


def _in_place(path: Path, model: ModelProto, plan: Plan) -> list[tuple[str, Read]]:
    if path.is_file() and path.suffix == ".npz":
        return [(path.name, partial(_from_npz, path, plan))]
    if not path.is_dir():
        what = "is neither a folder nor an .npz file" if path.exists() else "no such file or folder"
        raise UsageError(f"--inputs {path}: {what}", _FORMS)
    name = path.resolve().name
    if any(path.glob("input_*.pb")) or any(path.glob("output_*.pb")):
        return [(name, partial(_onnx, path, model, plan))]
    if sets := sorted(path.glob("test_data_set_*"), key=lambda folder: (len(folder.name), folder.name)):
        return [found for folder in sets for found in _in_place(folder, model, plan)]
    if any(path.rglob("*.npy")):
        return [(name, partial(_from_npy, path, plan))]
    raise UsageError(f"--inputs {path}: there are no .npy and no input_*.pb files in it", _FORMS)


# -- numpy files -----------------------------------------------------------------------------------------


def read_array(name: str, file: Path, plan: Plan) -> Any:
    """Return the value of input `name` from an .npy file. Raises UsageError."""
    value = _load(file)
    if not isinstance(value, np.ndarray):
        value.close()
        raise UsageError(f"{file} holds several arrays, the input `{name}` takes one", "write it with numpy.save")
    return fitting(name, value, plan, file)


def _load(file: Path) -> Any:
    try:
        _require_plain(file)
        return np.load(file, allow_pickle=False)
    except (MemoryError, UsageError):
        raise
    except Exception as e:  # a damaged archive raises errors of zipfile and zlib
        raise _unreadable(file, e) from None


def _require_plain(file: Path) -> None:
    """Raise UsageError for a pipe, which might block forever."""
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is no plain file", _FORMS)


def _unreadable(file: Path, error: Exception) -> UsageError:
    why = f"cannot be read: {error}"
    if "pickle" in str(error):  # numpy's message suggests running the file's code
        is_array = str(error).startswith("Object arrays")
        why = "holds Python objects, which are not read" if is_array else "is no .npy file, and no .npz file"
    return UsageError(f"{file} {why}", "write it with numpy.save or numpy.savez")


def _from_npy(folder: Path, plan: Plan) -> Data:
    files = {str(f.relative_to(folder).with_suffix("")): f for f in sorted(folder.rglob("*.npy"))}
    return Data({name: read_array(name, file, plan) for name, file in files.items()})


def _from_npz(file: Path, plan: Plan) -> Data:
    with _load(file) as archive:
        try:
            return Data({name: fitting(name, archive[name], plan, file) for name in archive.files})
        except (MemoryError, UsageError):
            raise
        except Exception as e:
            raise _unreadable(file, e) from None


def fitting(name: str, value: Any, plan: Plan, file: Path) -> Any:
    """Return `value` if suitable for input `name`. Raises UsageError with a description of the input."""
    if name not in plan.names:
        known = f"the inputs are {', '.join(plan.names)}" if plan.names else "it has none"
        raise UsageError(f"{file}: the model has no input `{name}`", known)
    spec = next((i for i in plan.inputs if i.name == name), None)
    return value if spec is None or spec.why or value is None else _as_given(spec, value, file)


def _as_given(spec: InputSpec, value: Any, file: Path) -> Any:
    """Return the value as fed to an input. Raises UsageError for an unsuitable one."""
    if spec.sequence != isinstance(value, list):
        hint = "a sequence is in an input_0.pb, anything else in an .npy file too"
        raise UsageError(f"{file}: input `{spec.name}` is {'a sequence' if spec.sequence else 'no sequence'}", hint)
    for element in value if spec.sequence else [value]:
        _check(spec, element, file)
    return value.astype(object) if spec.kind == "string" and not spec.sequence else value


def _check(spec: InputSpec, value: Any, file: Path) -> None:
    kind = "string" if element_kind(value) == "S" else value.dtype.name
    if kind != spec.kind:
        hint = f"convert it with .astype({spec.kind!r})" if spec.kind != "string" else "give it strings"
        raise UsageError(f"{file}: input `{spec.name}` takes {spec.kind}, not {kind}", hint)
    if spec.int32 and (beyond := value[np.clip(value, *BY_NAME["int32"].integers) != value]).size:
        hint = "the result takes int32: give numbers of 32 bits, or let inputs and outputs keep their types"
        raise UsageError(f"{file}: input `{spec.name}` holds {beyond[0]}, which needs 64 bits", hint)
    unknown = f"{spec.name}[0]", f"{spec.name}[1]"  # of unknown rank
    sizes = [size if isinstance(d, str) else d for d, size in zip(spec.shape, value.shape)]
    if (len(spec.shape), [*value.shape]) != (value.ndim, sizes) and spec.shape != unknown:
        shape = ", ".join(map(str, spec.shape))
        raise UsageError(f"{file}: input `{spec.name}` takes shape [{shape}], not {list(value.shape)}", "reshape it")


# -- onnx test data --------------------------------------------------------------------------------------


def _onnx(folder: Path, model: ModelProto, plan: Plan) -> Data:
    inputs, without_default = _files(folder, "input"), required(model.graph)
    given = list(model.graph.input) if len(inputs) > len(without_default) else without_default
    feeds = {name: fitting(name, value, plan, file) for name, file, value in _values(inputs, given)}
    return Data(feeds, {name: value for name, _, value in _values(_files(folder, "output"), model.graph.output)})


def _files(folder: Path, kind: str) -> list[Path]:
    """Return `input_0.pb`, `input_1.pb`, … in order. Raises UsageError for a gap."""
    count = sum(re.fullmatch(rf"{kind}_\d+\.pb", f.name) is not None for f in folder.iterdir())
    files = [folder / f"{kind}_{i}.pb" for i in range(count)]
    if lacking := next((f for f in files if not f.exists()), None):
        raise UsageError(f"{lacking} is missing", "they are numbered in the order of the graph's")
    return files


def _values(files: list[Path], infos: Sequence[ValueInfoProto]) -> list[tuple[str, Path, Any]]:
    if len(files) > len(infos):
        raise UsageError(f"{files[len(infos)]}: the model has only {len(infos)} of these", "is it of another model?")
    return [(info.name, file, _read(file, info.type)) for file, info in zip(files, infos)]


def _read(file: Path, kind: TypeProto) -> Any:
    """Return the value of a .pb file of the declared type."""
    from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper

    which = kind.WhichOneof("value")
    readers: dict[str | None, tuple[Any, Callable[[Any], Any]]] = {
        "tensor_type": (TensorProto, numpy_helper.to_array),
        "sequence_type": (SequenceProto, numpy_helper.to_list),
        "optional_type": (OptionalProto, numpy_helper.to_optional),
    }
    if which not in readers:
        raise UsageError(
            f"{file}: onnx has no files for a {(which or 'unknown').removesuffix('_type')}", "leave it out"
        )
    message, convert = readers[which]
    _require_plain(file)
    proto = message()
    try:
        proto.ParseFromString(file.read_bytes())
        return convert(proto)
    except Exception as e:
        what = " ".join(str(e).split()) or type(e).__name__
        raise UsageError(f"{file} is not a {message.__name__}: {what}", f"the graph says {which}") from None


# -- the search -------------------------------------------------------------------------------------------

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 1 << 30
_MAX_RETRIED_BYTES: Final = 1 << 26  # bytes; a failure with as many is not repeated with more
_ENOUGH: Final = 8  # failed attempts independent of sizes
_TRIED: Final = 24  # attempts without success, or `_ENOUGH` with the same message
_SHORT: Final = 0.5  # seconds of search afterwards
_MAX_EVALUATED_BYTES: Final = 1 << 20  # bytes, in place of `_MAX_RETRIED_BYTES`, for an evaluator in Python


class Search:
    """Budget for all cases of an original: `seconds` of failed attempts, and inputs of at most `most` bytes.

    An attempt counts by the smaller of wall time and CPU time, so neither load on the machine nor many threads shorten
    the search. After many attempts without success, the budget shrinks.
    """

    def __init__(self, seconds: float = _SECONDS, most: int = _MAX_BYTES) -> None:
        self.seconds = seconds
        self.most = most
        self.spent = 0.0
        self.taken = False
        self.why = f" after {seconds:g} s"
        self.step = _MAX_RETRIED_BYTES  # bytes of inputs in excess of the smallest failed attempt
        self._said: list[str] = []  # messages of failed attempts
        self._hopeless = 0

    def slow_down(self) -> None:
        """Reduce the budget for a slow engine, which rejects most models rejected by a runtime."""
        self.seconds, self.step = min(self.seconds, 2 * _SHORT), _MAX_EVALUATED_BYTES

    @property
    def ended(self) -> bool:
        """Whether the budget is used up."""
        return self.spent > self.seconds

    @staticmethod
    def begin() -> tuple[float, float]:
        """Return the start of an attempt, for `spend`."""
        return time.monotonic(), time.process_time()

    def spend(self, began: tuple[float, float]) -> None:
        """Count a failed attempt."""
        self.spent += min(time.monotonic() - began[0], time.process_time() - began[1])

    @property
    def _is_stuck(self) -> bool:
        return len(self._said) == _TRIED or (len({*self._said[-_ENOUGH:]}) == 1 and len(self._said) >= _ENOUGH)

    def fail(self, error: Exception) -> str:
        """Record the error of a failed attempt, and return its message. Ends a search without prospects."""
        self._said.append(reason(error))
        if not (self.taken or self.ended) and self._is_stuck:
            self.seconds = min(self.seconds, _SHORT)
            self.why = f" after {self.seconds:g} s"
        self._hopeless += is_about_types(error)
        if is_starved(error):  # further sizes are larger, and further cases as large
            self.spent, self.why = self.seconds + 1, ""
        elif self._hopeless == _ENOUGH:
            self.spent, self.why = self.seconds + 1, ", as sizes do not matter to it"
        return self._said[-1]


def feed(
    run: Callable[[dict[str, Any]], Any],
    plan: Plan,
    recipe: Recipe,
    data: Data,
    choices: Iterable[dict[str, int]],
    seed: int = 0,
    label: str = "A",
    search: Search | None = None,
) -> tuple[Case, Any]:
    """Return (first accepted case of a recipe, result of `run`).

    choices: sizes of dynamic dims, tried in turn, except those fixed by `data`, whose values are used unchanged. Raises
    Refused.
    """
    search = search or Search()
    why, room = "", _Room(search)
    maker = InputMaker(plan, data.inputs, seed)
    bound = plan.bound(data.inputs)
    ways = (True, False) if recipe.is_daring(plan) else (False,)
    for choice, dims, some in _in_order(choices, bound, plan, recipe):
        if not room.takes(maker.bytes(dims), failed=bool(why)):
            continue
        for mode, daring in itertools.product(some, ways):
            if why and search.ended:
                raise Refused(f"{label} does not take it: {why}; no others were tried{search.why}")
            began = search.begin()
            case = maker.fill(recipe, dims, mode, daring=daring)
            try:
                made = run(case.feeds)
                search.taken = True
                return case, made
            except Exception as e:
                why = search.fail(e)
                refuses = isinstance(choice, Trial) and not isinstance(e, Refused)
            search.spend(began)
            if refuses:
                break
    raise Refused(f"{label} {room.refusal(why)}")


@dataclass(eq=False, repr=False)
class _Room:
    """Sizes worth trying in a case: within memory, and after a failure hardly larger than the smallest tried."""

    search: Search
    large: int = 0  # least bytes of a rejected size
    least: int = 0  # least bytes tried

    def takes(self, size: int, *, failed: bool) -> bool:
        """Return whether inputs of `size` bytes are tried."""
        if size > self.search.most:
            self.large = min(self.large or size, size)
            return False
        self.least = min(self.least or size, size)
        return not failed or size <= self.least + self.search.step

    def refusal(self, why: str) -> str:
        """Return, in words, why no inputs are accepted."""
        if why or not self.large:
            return f"does not take it: {why}" if why else "has no size for it"
        asked, made = (f"{size / (1 << 30):.1f} GiB" for size in (self.large, self.search.most))
        return f"asks for inputs of {asked}, and {made} are made (--verify-memory)"


def _modes(plan: Plan, recipe: Recipe) -> tuple[str, ...]:
    """Return the modes of values to try, in order."""
    integers = MODES if any("int" in i.kind for i in plan.inputs) else MODES[:1]
    usual = (*integers, *AXES) if any(map(says_lengths, plan.inputs)) else integers
    wide = WIDE if recipe.wide or recipe.amplified(plan) else ()
    known = (KNOWN,) if any(i.kind == "string" and i.use.words for i in plan.inputs) else ()
    return (*wide, *(() if recipe.wide else usual), *known)


def _in_order(
    choices: Iterable[dict[str, int]], bound: dict[str, int], plan: Plan, recipe: Recipe
) -> Iterator[tuple[dict[str, int], dict[str, int], Sequence[str]]]:
    """Yield (choice, its sizes with those of given inputs, modes of integers) to try, each sizes and modes once.

    If an integer decides which part of the model runs, all sizes are tried with its comparands first: further integers
    may select a part that accepts anything, or does nothing.
    """
    modes = _modes(plan, recipe)
    decide = any(i.compared and {*i.shape} <= {1} for i in plan.inputs)
    is_first = decide and recipe.drawn and modes[: len(MODES)] == MODES
    parts = (modes[:1], modes[1:]) if is_first else (modes,)
    for some, each in zip(parts, itertools.tee(choices, len(parts))):
        tried: list[dict[str, int]] = []
        for choice in each:
            if (dims := choice | bound) not in tried:
                tried.append(dims)
                yield choice, dims, some
