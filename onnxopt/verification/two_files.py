"""Comparison of two model files on named cases and on data."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto, TensorProto, ValueInfoProto

from onnxopt.arguments import by_name
from onnxopt.errors import ModelError, UsageError, few, nearest, refuse_pipe, unreadable
from onnxopt.proto.external import ExternalData, file_of
from onnxopt.proto.messages import is_external
from onnxopt.verification import VerifyOptions
from onnxopt.verification.inputs.cases import Recipe, choose, missing
from onnxopt.verification.inputs.feeding import Data, Read, find_data_sets
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.planning import given_inputs, make_plan
from onnxopt.verification.inputs.sizes import Side, of_both
from onnxopt.verification.model.nodes import required
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.model.views import View, views
from onnxopt.verification.records import CaseRecord, Comparison
from onnxopt.verification.verifier import Verifier

# -- reading ----------------------------------------------------------------------------------------------

_MAX_NAMES: Final = 4  # names listed in a message


def read(path: Path, view: View | None = None) -> Skeleton:
    """Return the skeleton of a model (see `Skeleton`, also for `view`).

    Raises ModelError, also for missing weight files.
    """
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
    data = ExternalData(path.parent, str(path))
    for tensor in filter(is_external, model.graph.initializer):
        data.path(tensor.name, file_of(tensor))
    return skeleton


def check_interface(a: ModelProto, b: ModelProto, dtype: str = "", *, int32: bool = False) -> None:
    """Raise UsageError if inputs or outputs differ in name or type.

    dtype: type B may take for A's float32 inputs; int32: B may take int32 for A's int64 inputs.
    """
    for kind, x, y in (
        ("inputs", required(a.graph), required(b.graph)),
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
    _check_types(required(a.graph), {i.name: i for i in required(b.graph)}, dtype, int32=int32)


def _check_types(
    inputs: Sequence[ValueInfoProto], others: Mapping[str, ValueInfoProto], dtype: str, *, int32: bool
) -> None:
    """Raise UsageError for an input of A with another type in B, unless the type is narrower on request."""
    for i in inputs:
        types = [_type(v) for v in (i, others[i.name])]
        narrowed = types == ["float", dtype] or (int32 and types == ["int64", "int32"])
        if all(types) and types[0] != types[1] and not narrowed:
            what = f"input `{i.name}` is {types[0]} in A and {types[1]} in B"
            raise UsageError(what, "both must take the same values")


def checked_names(a: ModelProto, b: ModelProto, rename: Mapping[str, str]) -> dict[str, str]:
    """Return `rename` with positions replaced by names of A's inputs and outputs.

    Raises UsageError for an old name missing in A's interface, or a new name missing in B's. `b` is not renamed yet.
    """
    rename = by_name(rename, [i.name for i in required(a.graph)], [o.name for o in a.graph.output])
    for side, model, names in (("A", a, rename), ("B", b, rename.values())):
        infos = [*model.graph.input, *model.graph.output]
        known = dict.fromkeys(i.name for i in infos)
        known |= dict.fromkeys(d.dim_param for i in infos for d in i.type.tensor_type.shape.dim if d.dim_param)
        for name in names:
            if name not in known:
                hint = nearest(name, known, f"it has {few([*known], _MAX_NAMES)}")
                raise UsageError(f"--rename: {side} has no input, output or dim called {name!r}", hint)
    return rename


def _type(info: ValueInfoProto) -> str:
    """Return the element type of a tensor; "" for unknown types and for sequences, optionals and maps."""
    code = info.type.tensor_type.elem_type
    return TensorProto.DataType.Name(code).lower() if code else ""


# -- cases and data ---------------------------------------------------------------------------------------


def compare_files(a: str | Path, b: str | Path, options: VerifyOptions) -> Comparison:
    """Compare two models on the cases and data in `options`, with graph optimizations off. Returns a `Comparison`.

    A crash or hang of the runtime is a verdict. Raises ModelError for an unreadable file; UsageError for different
    inputs or outputs, unknown names, and unsuitable data.
    """
    began = time.monotonic()
    a, b = Path(a), Path(b)
    if options.rename:
        options = replace(options, rename=checked_names(read(a).proto, read(b).proto, options.rename))
    with Verifier(a, options, labels=("A", "B"), stepwise=True, foreign=True) as verifier:
        of_a, of_b = views(options)
        skeletons = read(a, of_a), read(b, of_b)
        models = skeletons[0].proto, skeletons[1].proto
        check_interface(*models, options.dtype, int32=options.int32)
        side = Side(skeletons[0])
        plan = of_both(make_plan(models[0], skeletons[0].values, side), side, Side(skeletons[1]))
        given = given_inputs(plan, options)
        skipped: list[CaseRecord] = []
        requests = list(_requests(models, plan, options, given, skipped))
        if not requests and skipped:
            why = f"no case of {', '.join(options.cases or ())}: {skipped[0].note}"
            raise UsageError(f"{a} has {why}", "name other cases, or leave --cases out")
        verifier.prepare(plan, requests)
        verifier.submit(b)
        result = Comparison(**vars(verifier.finish()), a=str(a), b=str(b), provider=verifier.provider)
        result.cases = [*(c for c in skipped if c.name in (options.cases or ())), *result.cases]
    result.seconds = time.monotonic() - began
    return result


def _not_taken(recipe: Recipe, plan: Plan, result: ModelProto) -> str:
    """Return why the result cannot take the inputs of a case, or ""."""
    first = next(iter(plan.overridable), None)
    is_taken = first is None or not recipe.override or any(i.name == first for i in result.graph.input)
    return "" if is_taken else f"B does not take `{first}`"


def _requests(
    models: tuple[ModelProto, ModelProto],
    plan: Plan,
    options: VerifyOptions,
    given: dict[str, Any],
    skipped: list[CaseRecord],
) -> Iterator[tuple[Recipe, Read]]:
    """Yield (recipe, reader of its data) for each case.

    Cases without counterpart in the model are added to `skipped`.
    """
    sets = find_data_sets(options.datasets, models[0], plan)
    for recipe in choose(_named(options, has_data=bool(sets or given))):
        why = missing(recipe, plan, given) or _not_taken(recipe, plan, models[1])
        if not why:
            yield recipe, functools.partial(Data, given)
        else:
            skipped.append(CaseRecord(recipe.name, {}, status="skipped", note=why))
    if given and not sets and options.cases is None:
        yield Recipe("given"), functools.partial(Data, given)
    for name, found in sets:
        yield Recipe(name), functools.partial(_read, found, given)


def _named(options: VerifyOptions, *, has_data: bool) -> Sequence[str]:
    """Return the names of cases: of all if neither cases nor data are given."""
    return options.cases or (() if has_data or options.cases is not None else ("all",))


def _read(found: Read, given: dict[str, object]) -> Data:
    data = found()
    return replace(data, inputs=given | data.inputs)
