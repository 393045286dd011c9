"""Reading of model files for comparison, and checks of equal inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxopt.arguments import by_name
from onnxopt.errors import ModelError, UsageError, few, nearest, refuse_pipe, unreadable
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.model.skeleton import Skeleton

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

    from onnxopt.verification.model.views import View

_MAX_NAMES: Final = 4  # names listed in a message


def read(path: Path, view: View | None = None) -> Skeleton:
    """Return the skeleton of a model (see `Skeleton`, also for `view`).

    Raises ModelError, also for missing weight files.
    """
    from onnx import TensorProto

    from onnxopt.proto.functions import refuse_explosion

    refuse_pipe(path)
    try:
        skeleton = Skeleton(path, view)
    except (ModelError, MemoryError):
        raise
    except Exception as e:
        raise unreadable(path, e) from None
    model = skeleton.proto
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path} is empty", "the export or the download did not finish")
    refuse_explosion(model, path)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            file = skeleton.stored[tensor.name].file
            if not file.is_file():
                location = next((e.value for e in reversed(tensor.external_data) if e.key == "location"), "")
                raise ModelError(
                    f"{path}: the data file {location} of `{tensor.name}` is missing", "keep them together"
                )
    return skeleton


def check_interface(a: ModelProto, b: ModelProto, dtype: str = "", *, int32: bool = False) -> None:
    """Raise UsageError if inputs or outputs differ in name or type.

    dtype: type B may take for A's float32 inputs; int32: B may take int32 for A's int64 inputs.
    """
    for kind, x, y in (
        ("inputs", _required(a.graph), _required(b.graph)),
        ("outputs", list(a.graph.output), list(b.graph.output)),
    ):
        names = [[i.name for i in infos] for infos in (x, y)]
        only = [[f"`{n}`" for n in sorted({*p} - {*q})] for p, q in (names, names[::-1])]
        if any(only):
            sides = [f"only {side} has {few(found, _MAX_NAMES)}" for side, found in zip("AB", only) if found]
            raise UsageError(
                f"A and B differ in their {kind}: {', '.join(sides)}",
                "they must have the same names; --rename OLD=NEW says what A's are called in B",
            )
    others = {i.name: i for i in _required(b.graph)}
    for i in _required(a.graph):
        types = [_type(v) for v in (i, others[i.name])]
        narrowed = types == ["float", dtype] or (int32 and types == ["int64", "int32"])
        if all(types) and types[0] != types[1] and not narrowed:
            raise UsageError(
                f"input `{i.name}` is {types[0]} in A and {types[1]} in B", "both must take the same values"
            )


def checked_names(a: ModelProto, b: ModelProto, rename: Mapping[str, str]) -> dict[str, str]:
    """Return `rename` with positions replaced by names of A's inputs and outputs.

    Raises UsageError for an old name missing in A's interface, or a new name missing in B's. `b` is not renamed yet.
    """
    rename = by_name(rename, [i.name for i in _required(a.graph)], [o.name for o in a.graph.output])
    for side, model, names in (("A", a, rename), ("B", b, rename.values())):
        infos = [*model.graph.input, *model.graph.output]
        known = dict.fromkeys(i.name for i in infos)
        known |= dict.fromkeys(d.dim_param for i in infos for d in i.type.tensor_type.shape.dim if d.dim_param)
        for name in names:
            if name not in known:
                hint = nearest(name, known, f"it has {few([*known], _MAX_NAMES)}")
                raise UsageError(f"--rename: {side} has no input, output or dim called {name!r}", hint)
    return rename


def _required(graph: GraphProto) -> list[ValueInfoProto]:
    initializers = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in initializers]


def _type(info: ValueInfoProto) -> str:
    """Return the element type of a tensor; "" for unknown types and for sequences, optionals and maps."""
    from onnx import TensorProto

    code = info.type.tensor_type.elem_type
    return TensorProto.DataType.Name(code).lower() if code else ""


def fix_dims(plan: Plan, dims: dict[str, int]) -> None:
    """Fix dynamic dims of the inputs to the given sizes. Raises UsageError for an unknown dim."""
    for name in dims:
        if name not in plan.symbols:
            has = f"it has {', '.join(plan.symbols)}" if plan.symbols else "all its dims are fixed"
            raise UsageError(f"no input of the model has a dynamic dim {name!r}", has)
    plan.fix(dims)
