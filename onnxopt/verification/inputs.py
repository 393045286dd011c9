"""Values for the inputs of a plan: everything depends on the seed only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from onnxopt.verification.plan import InputSpec, Plan

# What integers may be, tried in this order until the original runs.
MODES: Final = ("bounded", "binary", "zeros", "ones")


class Unsupported(Exception):
    """An input of a type for which no values can be made."""


@dataclass
class Case:
    """Values for one run."""

    name: str
    dims: dict[str, int] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)


class InputMaker:
    """Makes feeds for the inputs of `plan`; `given` values are used as they are."""

    def __init__(self, plan: Plan, given: dict[str, Any], seed: int) -> None:
        self.plan = plan
        self.given = given
        self.seed = seed

    def make(self, name: str, dims: dict[str, int], variant: int, mode: str = "bounded") -> Case:
        """A case; `variant` picks the distribution: 0 normal, otherwise uniform."""
        rng = np.random.default_rng([self.seed, variant])
        feeds = {i.name: self._value(i, dims, rng, variant, mode) for i in self.plan.inputs}
        return Case(name, dims, feeds)

    def override(self, case: Case) -> Case:
        """The same case with other values for the initializers that a caller may override."""
        rng = np.random.default_rng([self.seed, 99])
        feeds = dict(case.feeds)
        for name, value in self.plan.overridable.items():
            if value.dtype.kind == "f":
                feeds[name] = (value * rng.uniform(0.9, 1.1, value.shape)).astype(value.dtype)
        return Case("other values for overridable initializers", case.dims, feeds)

    def _value(self, i: InputSpec, dims: dict[str, int], rng: np.random.Generator, variant: int, mode: str) -> Any:
        if i.name in self.given:
            return self.given[i.name]
        if i.why:
            raise Unsupported(i.why)
        shape = [d if isinstance(d, int) else dims[d] for d in i.shape]
        if i.sequence:
            return [_tensor(i, shape, rng, variant, mode) for _ in range(2)]
        return _tensor(i, shape, rng, variant, mode)


def _tensor(i: InputSpec, shape: list[int], rng: np.random.Generator, variant: int, mode: str) -> Any:
    if i.kind == "string":
        return rng.choice(np.array(["a", "b", "text"], object), shape)
    if i.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool) if shape else np.array(variant % 2 == 0)
    dtype = _dtype(i.kind)
    if dtype.kind in "iu":
        return _integers(i, shape, rng, variant, mode).astype(dtype)
    data = rng.standard_normal(shape, np.float32) if variant == 0 else rng.uniform(-1, 1, shape)
    return np.asarray(data).astype(dtype)


def _integers(i: InputSpec, shape: list[int], rng: np.random.Generator, variant: int, mode: str) -> Any:
    if mode == "zeros":
        return np.zeros(shape)
    if mode == "ones":
        return np.ones(shape)
    high = i.bound if mode == "bounded" and i.bound else 2
    if mode == "bounded" and "mask" in i.name.lower():
        mask = np.ones(shape)  # never all masked: a row without any token is not a case anybody runs
        if shape and shape[-1] > 1 and variant:
            mask[..., -1] = 0
        return mask
    if not shape:
        return np.array(min(high - 1, 1) if i.bound else 1 + variant)
    return rng.integers(0, high, shape)


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
