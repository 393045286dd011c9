"""Inputs that a model takes: found by trying, because a file does not say what sizes and integers it was made for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onnxopt.verification.cases import Recipe
from onnxopt.verification.datasets import Data, bound_dims
from onnxopt.verification.inputs import MODES, Case, InputMaker, Unsupported
from onnxopt.verification.plan import Plan
from onnxopt.verification.run import reason
from onnxopt.worker.service import Refused


def feed(
    run: Callable[[dict[str, Any]], Any],
    plan: Plan,
    recipe: Recipe,
    data: Data,
    choices: Iterable[dict[str, int]],
    seed: int = 0,
    label: str = "A",
) -> tuple[Case, Any]:
    """The first case of `recipe` that `run` takes, and what it makes of it; `data` is used as it is.

    `choices` are sizes of the dynamic dims, tried in turn, but for those that `data` fixes. Raises Refused.
    """
    error: Exception | None = None
    maker = InputMaker(plan, data.inputs, seed)
    bound = bound_dims(plan, data.inputs)
    modes = MODES if any("int" in i.kind for i in plan.inputs) else MODES[:1]
    tried: list[dict[str, int]] = []
    for choice in choices:
        dims = choice | bound
        if dims in tried:
            continue
        tried.append(dims)
        for mode in modes:
            try:
                case = maker.fill(recipe, dims, mode)
            except Unsupported as e:
                raise Refused(str(e)) from e
            case.feeds |= {name: value for name, value in data.inputs.items() if name not in case.feeds}
            try:
                return case, run(case.feeds)
            except Exception as e:
                error = e
    raise Refused(f"{label} does not take it: {reason(error)}" if error is not None else f"{label} has no size for it")
