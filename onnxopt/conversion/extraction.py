"""Extraction of the part of a model between values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.analysis import types
from onnxopt.analysis.cut import Cut, cut, inlined_again
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.analysis.stats import file_bytes
from onnxopt.analysis.submodel import submodel
from onnxopt.graph import Model, Value, read_model
from onnxopt.io import Staged, blaming, check_choice, from_proto, load, refuse_overwriting_input
from onnxopt.pipeline import PassContext, execute, parse_pipeline
from onnxopt.proto.messages import type_proto_text

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Extraction:
    """The result of `extract_file`. `nodes` of `nodes_before`, with bodies and functions. `inputs` (without defaults)
    and `outputs`: types by name. `bytes`: model and data; `bytes_before`: the source. `data`: the data files.

    `unneeded`: requested inputs that no output needs. `left_out`: outputs of the model that the inputs do not
    determine.
    """

    source: str
    destination: str
    nodes_before: int
    nodes: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    bytes: int
    data: list[str]
    unneeded: list[str]
    left_out: list[str]
    bytes_before: int = 0


def extract(model: str | Path | ModelProto, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> ModelProto:
    """Return the part of a model file or ModelProto that computes `outputs` from `inputs`; the model is not changed.

    `inputs` and `outputs` name values of the main graph, or of a body and the graphs around the body. Without `inputs`
    the part starts at the inputs of the model and of the body; without `outputs` the part ends at all outputs of the
    model, or of the body, that the inputs determine. The part contains the needed weights,
    functions and metadata. External data stays a reference into the folder of the model; `extract_file` writes parts to
    other folders. Raises UsageError for unknown names and for outputs that need further inputs, ModelError for an
    unreadable file and for an input of unknown type.
    """
    with blaming(model):

        def read() -> Model:
            return load(model) if isinstance(model, (str, Path)) else from_proto(model)

        loaded = read()
        return _part(loaded, cut(loaded, inputs, outputs), read)


def extract_file(
    source: str | Path,
    destination: str | Path,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    *,
    external: str = "auto",
) -> Extraction:
    """Write the part of a file that computes `outputs` from `inputs` (see `extract`) into another file.

    Needed external data is copied into a file beside the destination. `external`: `inline` moves the data into the
    model, `reuse` keeps the data in place, in the folder of the destination. Raises the errors of `extract`, and
    WriteError; the destination is then unchanged.
    """
    check_choice(external)
    source, destination = Path(source), Path(destination)
    with blaming(source):
        model = load(source, stored=True)
        refuse_overwriting_input(source, destination, model)
        found = cut(model, inputs, outputs)
        # External data of the part is in the folder of the source.
        part = read_model(_part(model, found, lambda: load(source, stored=True)), source)
    part.version += 1
    with Staged(destination) as staged:
        staged.write(part, external)
        files, size = staged.read, staged.bytes
        staged.commit()
    return Extraction(
        str(source),
        str(destination),
        model.node_count(),
        part.node_count(),
        {i.name: type_proto_text(i.type) for i in part.proto.graph.input if i.name not in part.graph.initializers},
        {o.name: type_proto_text(o.type) for o in part.proto.graph.output},
        size,
        files,
        found.unneeded,
        found.left_out,
        file_bytes(model),
    )


@contextmanager
def cut_off(
    source: Path, destination: Path, inputs: Sequence[str], outputs: Sequence[str]
) -> Iterator[tuple[Path, Extraction]]:
    """Yield a file written by `extract_file`, in a folder beside `destination` that is removed at the end.

    The part is optimized into `destination`, and is the original for verification. Raises the errors of `extract_file`.
    """
    refuse_overwriting_input(source, destination)
    with Staged(destination) as staged:
        file = staged.path.with_name(source.name) if source.suffix else staged.path.with_suffix(".onnx")
        file = file.parent / "cut" / file.name
        file.parent.mkdir()
        yield file, extract_file(source, file, inputs, outputs)


def _part(model: Model, found: Cut, again: Callable[[], Model]) -> ModelProto:
    """Return the part as a ModelProto. `again` returns another copy of the model."""
    inner = [v for v in (*found.inputs, *found.outputs) if not v.is_input and v not in model.graph.outputs]
    if not _proven(inner):
        learn_shapes(model.graph)
    if not _proven(inner):
        settle_shapes(model, lambda: inlined_again(again(), found))
        learn_shapes(model.graph)
    return submodel(model.graph, found.nodes, "", found.inputs, found.outputs)


def _proven(values: Iterable[Value]) -> bool:
    """Return whether every dim is a number, or an expression of symbols of the inputs."""
    shapes = [types.shape(v) for v in values]
    return all(s is not None and not any(d is None or "@" in str(d) for d in s) for s in shapes)


# Passes that compute shapes, and change no other value.
_SHAPES: Final = (
    "fixpoint(lift-constants,canonicalize,shape-arithmetic,elim-identity,neutral-operands,constant-folding,"
    "inline-branches)"
)


def settle_shapes(model: Model, again: Callable[[], Model]) -> None:
    """Give the values of `model` the types and shapes in a copy with constant shape arithmetic, made by `again`.

    Inference alone does not evaluate shape arithmetic. Values of the copy are found by name.
    """
    import onnxopt.passes  # noqa: F401 - registers them

    types.update(model)
    open_values = [v for v in _results(model) if types.static_shape(v) is None]
    if not open_values:
        return
    folded = again()
    execute(parse_pipeline(_SHAPES), folded, PassContext(opt_level=1))
    types.update(folded)
    known: dict[str, Value] = {}
    for scope in folded.scopes():
        known |= scope.initializers
    known |= {v.name: v for v in _results(folded)}
    for v in open_values:
        same = known.get(v.name)
        if same is not None and (shape := types.shape(same)) is not None:
            v.dtype, v.shape = types.dtype(same), shape


def _results(model: Model) -> Iterator[Value]:
    """Yield the results of all nodes."""
    return (v for node in model.nodes() for v in node.results)
