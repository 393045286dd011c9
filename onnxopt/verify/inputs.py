"""Inputs for a model that nobody described: types and shapes from the file, bounds from what integers index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

# Sizes for dynamic dims, tried in this order until the original runs: images and windows need larger ones.
SIZES: Final = (2, 3, 4, 1, 5, 8, 16, 32, 64, 128, 224)
_COMPOSITE: Final = re.compile(r"\+|plus|total|sum|_and_", re.IGNORECASE)
_BATCH: Final = re.compile(r"batch|^[NnBb]$", re.IGNORECASE)
# Operators that hand integers on unchanged, as far as bounds are concerned.
_CARRIES: Final = frozenset(
    ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Slice", "Expand", "Concat", "Tile")
)
_MODES: Final = ("bounded", "binary", "zeros", "ones")


class Unsupported(Exception):
    """An input of a type for which no values can be made."""


@dataclass
class Case:
    """Values for one run."""

    name: str
    dims: dict[str, int] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)


class InputMaker:
    """Makes feeds for `proto`. Everything depends on the seed only."""

    def __init__(self, proto: ModelProto, given: dict[str, Any], seed: int) -> None:
        graph = proto.graph
        self.given = given
        self.seed = seed
        initializers = {t.name: t for t in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in initializers]
        # Before IR 4 every initializer is listed as input; from then on a listed one may be overridden.
        listed = [i for i in graph.input if i.name in initializers] if proto.ir_version >= 4 else []
        self.overridable = [initializers[i.name] for i in listed]
        self.bounds = integer_bounds(graph)
        self.symbols = list(dict.fromkeys(name for i in self.inputs for name in _symbols(i.name, i.type)))

    def size_choices(self) -> Iterator[dict[str, int]]:
        """Sizes of the dynamic dims, likely ones first; one empty choice for a static model."""
        if not self.symbols:
            yield {}
            return
        composite = [s for s in self.symbols if _COMPOSITE.search(s)]
        batch = [s for s in self.symbols if _BATCH.search(s)]
        for size in SIZES:
            plain = {s: min(size, 3) if s in batch else size for s in self.symbols}
            # total = past + 1 where one token is fed, past + sequence where as many are
            for total in (size + 1, 2 * size, size) if composite else (size,):
                yield plain | {s: total for s in composite if s not in batch}
        for size in SIZES:
            yield dict.fromkeys(self.symbols, size)

    def make(self, name: str, dims: dict[str, int], variant: int, mode: str = "bounded") -> Case:
        """A case; `variant` picks the distribution: 0 normal, 1 uniform with a different scale."""
        rng = np.random.default_rng([self.seed, variant])
        feeds = {i.name: self._value(i.name, i.type, dims, rng, variant, mode) for i in self.inputs}
        return Case(name, dims, feeds)

    def override(self, case: Case) -> Case:
        """The same case with other values for the initializers that a caller may override."""
        rng = np.random.default_rng([self.seed, 99])
        feeds = dict(case.feeds)
        for tensor in self.overridable:
            value = numpy_helper.to_array(tensor)
            if value.dtype.kind == "f":
                feeds[tensor.name] = (value * rng.uniform(0.9, 1.1, value.shape)).astype(value.dtype)
        return Case("other values for overridable initializers", case.dims, feeds)

    def _value(
        self, name: str, kind: TypeProto, dims: dict[str, int], rng: np.random.Generator, variant: int, mode: str
    ) -> Any:
        if name in self.given:
            return self.given[name]
        which = kind.WhichOneof("value")
        if which == "sequence_type":
            return [self._value(name, kind.sequence_type.elem_type, dims, rng, variant, mode) for _ in range(2)]
        if which == "optional_type":
            return self._value(name, kind.optional_type.elem_type, dims, rng, variant, mode)
        if which != "tensor_type":
            raise Unsupported(f"input `{name}` is a {which or 'value of unknown type'}")
        shape = [
            d.dim_value if d.HasField("dim_value") else dims[_symbol(name, i, d.dim_param)]
            for i, d in enumerate(kind.tensor_type.shape.dim)
        ]
        if not kind.tensor_type.HasField("shape"):
            shape = [dims[_symbol(name, i, "")] for i in range(2)]
        return self._tensor(name, kind.tensor_type.elem_type, shape, rng, variant, mode)

    def _tensor(
        self, name: str, element: int, shape: list[int], rng: np.random.Generator, variant: int, mode: str
    ) -> Any:
        if element == TensorProto.STRING:
            return rng.choice(np.array(["a", "b", "text"], object), shape)
        if element == TensorProto.BOOL:
            return rng.integers(0, 2, shape).astype(bool) if shape else np.array(variant % 2 == 0)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element))
        if dtype.kind in "iu":
            high = {"bounded": self.bounds.get(name, 2), "binary": 2, "zeros": 1, "ones": 2}[mode]
            low = 1 if mode == "ones" else 0
            if mode == "bounded" and "mask" in name.lower():
                # Never all masked: a row without any token is not a case anybody runs.
                mask = np.ones(shape, dtype)
                if shape and shape[-1] > 1 and variant:
                    mask[..., -1] = 0
                return mask
            if not shape:
                return np.array(min(high - 1, 1 + variant), dtype) if mode == "bounded" else np.array(low, dtype)
            return rng.integers(low, max(high, low + 1), shape).astype(dtype)
        if dtype.kind == "c":
            raise Unsupported(f"input `{name}` is complex")
        data = rng.standard_normal(shape) if variant == 0 else rng.uniform(-1, 1, shape)
        return np.asarray(data).astype(dtype)


def _symbol(name: str, axis: int, param: str) -> str:
    return param or f"{name}[{axis}]"


def _symbols(name: str, kind: TypeProto) -> Iterator[str]:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        yield from _symbols(name, kind.sequence_type.elem_type)
    elif which == "optional_type":
        yield from _symbols(name, kind.optional_type.elem_type)
    elif which == "tensor_type":
        if not kind.tensor_type.HasField("shape"):
            yield from (_symbol(name, i, "") for i in range(2))
        for i, d in enumerate(kind.tensor_type.shape.dim):
            if not d.HasField("dim_value"):
                yield _symbol(name, i, d.dim_param)


def integer_bounds(graph: GraphProto) -> dict[str, int]:
    """For each graph input that indexes a constant table: the number of rows, the smallest if there are several."""
    sizes = {t.name: tuple(t.dims) for t in graph.initializer}
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        if node.op_type == "Constant":
            sizes.update((node.output[0], tuple(a.t.dims)) for a in node.attribute if a.name == "value")
        for name in node.input:
            readers.setdefault(name, []).append(node)
    bounds: dict[str, int] = {}
    for given in graph.input:
        stack, seen = [given.name], {given.name}
        while stack:
            name = stack.pop()
            for node in readers.get(name, ()):
                if node.op_type in ("Gather", "GatherElements") and node.input[1] == name and node.input[0] in sizes:
                    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                    shape = sizes[node.input[0]]
                    if -len(shape) <= axis < len(shape):
                        bounds[given.name] = min(bounds.get(given.name, 1 << 30), shape[axis])
                elif node.op_type in _CARRIES:
                    new = [o for o in node.output if o not in seen]
                    seen.update(new)
                    stack += new
    return bounds


def integer_modes() -> tuple[str, ...]:
    """What integers may be, tried in this order until the original runs."""
    return _MODES
