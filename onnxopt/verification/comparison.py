"""Comparison of two model files on named cases and on data, as in `onnxopt verify`."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.errors import UsageError
from onnxopt.verification import VerifyOptions
from onnxopt.verification.inputs.cases import Recipe, choose, missing
from onnxopt.verification.inputs.datasets import Data, DataSet, find_data_sets, read_array
from onnxopt.verification.inputs.limits import Side, of_both
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.interface import check_interface, checked_names, fix_dims, read
from onnxopt.verification.job import Read
from onnxopt.verification.model.views import views
from onnxopt.verification.records import Comparison, JudgedCase
from onnxopt.verification.verifier import Verifier

if TYPE_CHECKING:
    from onnx import ModelProto


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
        plan = of_both(make_plan(models[0], skeletons[0].values), Side.of(skeletons[0]), Side.of(skeletons[1]))
        fix_dims(plan, options.dims)
        if options.int32:
            plan.hold_int32()
        skipped: list[JudgedCase] = []
        requests = list(_requests(models, plan, options, skipped))
        if not requests and skipped:
            why = f"no case of {', '.join(options.cases or ())}: {skipped[0].note}"
            raise UsageError(f"{a} has {why}", "name other cases, or leave --cases out")
        verifier.prepare(plan, requests)
        verifier.submit(b)
        result = Comparison(**vars(verifier.finish()), a=str(a), b=str(b), provider=verifier.provider)
        result.cases = [*(c for c in skipped if c.name in (options.cases or ())), *result.cases]
    result.seconds = time.monotonic() - began
    return result


def _requests(
    models: tuple[ModelProto, ModelProto], plan: Plan, options: VerifyOptions, skipped: list[JudgedCase]
) -> Iterator[tuple[Recipe, Read]]:
    """Yield (recipe, reader of its data) for each case.

    Cases without counterpart in the model are added to `skipped`.
    """
    given = {name: read_array(name, Path(file), plan) for name, file in options.inputs.items()}
    sets = find_data_sets(options.datasets, models[0], plan)
    names = options.cases
    if names is None and not sets and not given:
        names = ("all",)
    for recipe in choose(names or ()):
        why = missing(recipe, plan, given)
        others = {i.name for i in models[1].graph.input}
        if recipe.override and not why:
            why = "".join(f"B does not take `{n}`" for n in list(plan.overridable)[:1] if n not in others)
        if not why:
            yield recipe, functools.partial(Data, given)
        else:
            skipped.append(JudgedCase(recipe.name, {}, status="skipped", note=why))
    if given and not sets and options.cases is None:
        yield Recipe("given"), functools.partial(Data, given)
    for found in sets:
        yield Recipe(found.name), functools.partial(_read, found, given)


def _read(found: DataSet, given: dict[str, object]) -> Data:
    data = found.read()
    return replace(data, inputs=given | data.inputs)
