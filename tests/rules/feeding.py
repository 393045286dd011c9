"""Numbers for the inputs of a drawn model: exact for arithmetic, ordinary, and special ones."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from tests.cases.surroundings import scopes

Feeds = dict[str, Any]
Range = tuple[int, int]  # the upper end is not in it

# What a dim of this symbol is at first; a symbol that ends in a number, as n3, is that.
SIZES: Final = {"empty": 0, "one": 1, "N": 2, "batch": 2, "S": 3, "H": 8, "W": 6}
LARGEST: Final = 1 << 20  # elements of an input

EXACT: Final = ("integers", "powers")
KINDS: Final = (*EXACT, "ordinary", "special", "huge")

# Operators that may be given any integer: none of them asks for as much memory as an integer says, or turns as often.
_ANY_INTEGER: Final = frozenset(
    {
        *("Abs", "Add", "And", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast"),
        *(
            "CastLike",
            "Clip",
            "Concat",
            "Constant",
            "Equal",
            "Flatten",
            "Greater",
            "GreaterOrEqual",
            "Identity",
            "Less",
        ),
        *(
            "LessOrEqual",
            "Max",
            "Min",
            "Mul",
            "Neg",
            "Not",
            "Or",
            "ReduceMax",
            "ReduceMin",
            "ReduceSum",
            "Relu",
            "Sign",
        ),
        *("Size", "Shape", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze", "Where", "Xor"),
    }
)


def inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Returns the inputs without an initializer as default."""
    given = {t.name for t in model.graph.initializer} | {s.values.name for s in model.graph.sparse_initializer}
    return [i for i in model.graph.input if i.name not in given]


def size_of(symbol: str, way: str = "") -> int:
    """Returns the size of a symbolic dim: `larger` is one more; `empty` is zero, except for fixed numbers."""
    number = re.search(r"(\d+)$", symbol)
    size = int(number[1]) if number else SIZES.get(symbol, 2)
    if symbol.startswith("fixed"):  # what the model's constants say: no other size runs
        return size
    return 0 if way == "empty" else size + (way == "larger") * (symbol not in ("one", "empty"))


def draws(
    model: ModelProto, seed: int, ranges: Mapping[str, Range] | None = None, empty: bool = True
) -> Iterator[tuple[str, Feeds]]:
    """Yields (kind, feeds), each kind and size once. Raises ValueError for inputs that are no tensors."""
    symbols = any(d.dim_param for i in inputs(model) for d in i.type.tensor_type.shape.dim)
    ways = [(kind, "") for kind in KINDS]
    if symbols:
        ways += [("integers", "larger"), ("ordinary", "larger"), *([("integers", "empty")] if empty else [])]
    for kind, way in ways:
        if (way and not _fits(model, way)) or (way == "empty" and _dies_of_nothing(model)):
            continue
        yield kind, {i.name: _drawn(i, kind, way, seed, ranges or {}, _takes_any(model)) for i in inputs(model)}


def _fits(model: ModelProto, way: str) -> bool:
    """Returns whether the model accepts these sizes.

    onnxruntime drops empty operands of a Concat, whatever their dims.
    """
    sized = ModelProto()
    sized.CopyFrom(model)
    for info in inputs(sized):
        for d in info.type.tensor_type.shape.dim:
            if not d.HasField("dim_value"):
                d.dim_value = size_of(d.dim_param, way)
    try:
        onnx.shape_inference.infer_shapes(sized, check_type=True, strict_mode=True, data_prop=True)
    except Exception:
        return False
    return True


def _dies_of_nothing(model: ModelProto) -> bool:
    """Returns whether onnxruntime is known to crash on empty inputs of this model."""
    return any(n.op_type in ("Einsum", "Scan") for n in model.graph.node)


def _takes_any(model: ModelProto) -> bool:
    return not model.functions and all(n.op_type in _ANY_INTEGER for n in model.graph.node)


def _drawn(info: ValueInfoProto, kind: str, way: str, seed: int, ranges: Mapping[str, Range], any_integer: bool) -> Any:
    if info.type.WhichOneof("value") != "tensor_type":
        raise ValueError(f"{info.name} is no tensor")
    tensor = info.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else size_of(d.dim_param, way) for d in tensor.shape.dim]
    if np.prod(shape, dtype=float) > LARGEST:
        raise ValueError(f"{info.name} is too large")
    rng = np.random.default_rng([zlib.crc32(f"{info.name} {kind}".encode()), seed])
    if tensor.elem_type == TensorProto.STRING:
        return np.array(rng.choice(["", "a", "text", "ä"], shape), object)
    if tensor.elem_type == TensorProto.BOOL:
        return np.asarray(rng.integers(0, 2, shape), bool)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind in "iu":
        return _integers(rng, dtype, shape, kind, ranges.get(info.name), any_integer)
    if dtype.kind != "f":
        raise ValueError(f"{info.name}: no numbers of {dtype} are fed")
    return _floats(rng, dtype, shape, kind)


def _integers(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: list[int], kind: str, within: Range | None, any_integer: bool
) -> Any:
    if within is not None:
        return np.asarray(rng.integers(*within, shape), dtype)
    if kind == "special" and any_integer:
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1]
        return rng.choice(np.array(ends, dtype), shape)
    low = -3 if kind == "ordinary" and dtype.kind == "i" else 0
    return np.asarray(rng.integers(low, 4 if kind == "ordinary" else 2, shape), dtype)


def _floats(rng: np.random.Generator, dtype: np.dtype[Any], shape: list[int], kind: str) -> Any:
    if kind == "integers":
        return np.asarray(rng.integers(-4, 5, shape), dtype)
    if kind == "powers":
        return np.asarray(rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 4.0], shape), dtype)
    data = np.asarray(rng.standard_normal(shape), dtype)
    limits = np.finfo(dtype)
    if kind == "special":
        odd = np.array([-0.0, np.inf, -np.inf, np.nan, 0.0, limits.tiny, -limits.tiny / 4], dtype)
        flat = data.reshape(-1)
        places = rng.permutation(flat.size)[: max(1, flat.size // 2)]
        flat[places] = np.resize(rng.permutation(odd), places.size)
        return flat.reshape(shape)
    if kind == "huge":
        with np.errstate(over="ignore"):
            return np.clip(data * float(limits.max) ** 0.6, limits.min, limits.max).astype(dtype)
    return data


def kinds_of(model: ModelProto) -> set[int]:
    """Element types of what is fed, stored, or cast to, in bodies and functions too."""
    found, nodes = set(), [n for f in model.functions for n in f.node]
    for graph in scopes(model.graph):
        nodes += graph.node
        found |= {t.data_type for t in graph.initializer}
        found |= {i.type.tensor_type.elem_type for i in (*graph.input, *graph.output, *graph.value_info)}
    return found | {a.i for n in nodes for a in n.attribute if n.op_type == "Cast" and a.name == "to"}


__all__ = ["EXACT", "KINDS", "SIZES", "Feeds", "Range", "draws", "inputs", "kinds_of", "onnx", "size_of"]
