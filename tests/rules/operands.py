"""Further operands and attributes of operators: proposals, of which some are invalid."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tests.rules.tensors import EPSILON, exact

Array = np.ndarray[Any, Any]
Shape = Sequence[int]
Attributes = dict[str, Any]

TRUTHS: Final = frozenset({"And", "Or", "Not", "Xor"})
PLACES: Final = frozenset({("Gather", 1), ("GatherND", 1), ("GatherElements", 1), ("SequenceAt", 1)})
SIZES: Final = frozenset({("Reshape", 1), ("Expand", 1), ("Tile", 1), ("Slice", 1), ("Slice", 2), ("Slice", 3)}) | {
    *(("Slice", 4), ("Pad", 1), ("Pad", 3), ("Squeeze", 1), ("Unsqueeze", 1), ("Split", 1), ("ConstantOfShape", 0)),
}
IMAGES: Final = frozenset(
    {"Conv", "ConvTranspose", "AveragePool", "MaxPool", "GlobalAveragePool", "InstanceNormalization"}
)
INTEGERS_ONLY: Final = frozenset({"Range"})


# What formulas of activations and normalizations have: one that is drawn like others hits none of them.
TELLING: Final = (
    2**0.5,
    0.5**0.5,
    0.5,
    1.0,
    2.0,
    3.0,
    6.0,
    1 / 6,
    0.0,
    -1.0,
    1e-5,
    0.044715,
    (2 / np.pi) ** 0.5,
    1.702,
)


class Draw(random.Random):
    """One draw, in which most operators use the same axis, counted from either end."""

    axis = -1

    def an_axis(self, rank: int) -> int:
        if rank and self.random() < 0.7 and -rank <= self.axis < rank:
            return self.axis
        return self.randint(-rank, rank - 1) if rank else 0


def dims(rng: Draw, rank: int) -> list[int]:
    return rng.choices([1, 2, 2, 3, 3, 4, 5], k=rank)


def base(rng: Draw, ops: frozenset[str]) -> list[int]:
    """Returns the shape of the main operand of a pattern with these operators."""
    if ops & IMAGES or "BatchNormalization" in ops:
        flat = "Gemm" in ops or "MatMul" in ops
        return dims(rng, 2 if flat else rng.choice([3, 4, 4, 4, 5]))
    if "Gemm" in ops:
        return dims(rng, rng.choice([2, 2, 2, 3]))
    return dims(rng, rng.choice([0, 1, 2, 2, 3, 3, 4, 5]) if rng.random() < 0.9 else rng.choice([2, 3, 4]))


def broadcast(rng: Draw, shape: Shape) -> list[int]:
    """Returns a shape that broadcasts to another: a number, along one axis, some axes, or in full."""
    way = rng.randrange(6)
    if way == 0 or not shape:
        return [1] * rng.choice([0, 0, 1, len(shape)])
    if way == 1:
        return list(shape)
    if way == 2:
        found = [n if rng.random() < 0.5 else 1 for n in shape]
    else:
        axis = rng.choice([len(shape) - 1, min(1, len(shape) - 1), rng.randrange(len(shape))])
        found = [n if i == axis else 1 for i, n in enumerate(shape)]
    while found and found[0] == 1 and rng.random() < 0.5:
        found.pop(0)
    return found


def is_truth(op: str, place: int) -> bool:
    return op in TRUTHS or (op, place) == ("Where", 0) or (op == "If" and place == 0)


def is_place(op: str, place: int) -> bool:
    """Does the operator read integers of 64 bits there?"""
    return (op, place) in PLACES or (op, place) in SIZES or (op.startswith("Reduce") and place == 1)


def factors(rng: Draw, size: int) -> list[int]:
    """Numbers whose product is the size."""
    found = []
    while size > 1:
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        found.append(rng.choice(divisors))
        size //= found[-1]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        found.insert(rng.randint(0, len(found)), 1)
    return found


def target(rng: Draw, shape: Shape) -> list[int]:
    """Returns a target of Reshape: other dims, copied, one open, neighbours merged, ones inserted or removed."""
    size, way = int(np.prod(shape, dtype=int)), rng.randrange(5)
    found = list(shape)
    if way == 0 or not shape:
        found = factors(rng, size)
    elif way == 1 and len(shape) > 1:
        k = rng.randrange(len(shape) - 1)
        found[k : k + 2] = [found[k] * found[k + 1]]
    elif way == 2:
        found.insert(rng.randint(0, len(found)), 1)
    elif way == 3:
        found = [n for n in found if n != 1]
    else:
        k = rng.randrange(len(shape))
        found[k : k + 1] = factors(rng, found[k])
    for k, n in enumerate(list(found)):
        if k < len(shape) and shape[k] == n and rng.random() < 0.2:
            found[k] = 0
    if found and rng.random() < 0.4:
        found[rng.randrange(len(found))] = -1
    return found


def _axes(rng: Draw, rank: int, count: int | None = None) -> list[int]:
    if not rank:
        return []
    if (count or 1) == 1 and rng.random() < 0.8:
        return [rng.an_axis(rank)]
    found = rng.sample(range(rank), min(rank, count or rng.choice([1, 2, rank])))
    return [a - rank if rng.random() < 0.3 else a for a in found]


def integers(rng: Draw, op: str, place: int, given: Sequence[Array | None], attributes: Attributes) -> Array:
    """Returns positions, sizes and axes for a constant operand at `place`."""
    x = given[0] if given and given[0] is not None else np.zeros(())
    shape, rank = x.shape, x.ndim
    found: Any
    if op in ("Gather", "GatherElements"):
        axis = attributes.get("axis", 0)
        size = shape[axis] if rank and -rank <= axis < rank else 1
        way = rng.randrange(4)
        if way == 0:
            found = np.arange(size)
        elif way == 1:
            found = np.array(rng.randrange(max(size, 1)))
        else:
            found = np.array(rng.choices(range(max(size, 1)), k=rng.choice([1, 2, 3])))
        found = found - size if rng.random() < 0.2 else found
        return np.asarray(found.reshape([1, *found.shape]) if rng.random() < 0.15 else found, np.int64)
    if op == "GatherND":
        depth = rng.randint(1, max(rank, 1))
        count = rng.choice([1, 2, 3])
        return np.array([[rng.randrange(max(n, 1)) for n in shape[:depth]] for _ in range(count)], np.int64)
    if op == "SequenceAt":
        return np.array(rng.choice([0, 0, 1, -1]), np.int64)
    if op == "Reshape":
        found = target(rng, shape)
    elif op == "Expand":
        kept = [1 if rng.random() < 0.3 else n if n != 1 else rng.choice([1, 2, 3]) for n in shape]
        found = [*dims(rng, rng.choice([0, 0, 0, 1])), *kept]
    elif op == "ConstantOfShape":
        found = dims(rng, rng.choice([0, 1, 2, 3]))
    elif op == "Tile":
        found = [rng.choice([1, 1, 1, 2]) for _ in shape]
    elif op in ("Squeeze", "Unsqueeze"):
        ones = [i for i, n in enumerate(shape) if n == 1]
        if op == "Unsqueeze":
            count = rng.choice([1, 1, 2])
            ones, rank = list(range(rank + count)), rank + count
        picked = rng.sample(ones, min(len(ones), rng.choice([0, 1, 1, 1, 1, 1, 2, 2])))
        if rank and rng.axis % rank in ones and rng.random() < 0.5:
            picked = [rng.axis % rank]
        found = [a - rank if rng.random() < 0.3 else a for a in picked]
    elif op == "Slice":
        axes = given[3] if len(given) > 3 and given[3] is not None else None
        count = len(given[1].reshape(-1)) if len(given) > 1 and given[1] is not None else rng.choice([1, 1, 1, 2])
        if place == 3:
            found = _axes(rng, rank, count)
        elif place == 4:
            found = rng.choices([1, 1, 1, 2, -1], k=count)
        else:
            del axes
            low = [0, 0, 1, -2, 2] if place == 1 else [1, 2, 3, -1, 2**63 - 1, 2**31 - 1, 100]
            found = rng.choices(low, k=count)
    elif op == "Pad":
        if place == 3:
            found = list(range(rank))
        else:
            found = [rng.choice([0, 0, 1, 2]) for _ in range(2 * rank)]
            if rank > 2 and rng.random() < 0.7:
                found[0] = found[1] = found[rank] = found[rank + 1] = 0
    elif op == "Split":
        axis = attributes.get("axis", 0)
        size = shape[axis] if rank and -rank <= axis < rank else 1
        first = rng.randint(0, size)
        found = rng.choice([[size], [first, size - first], [first, size - first]])
    else:  # a Reduce
        found = _axes(rng, rank)
    return np.array(found, np.int64)


def numbers(
    rng: Draw,
    op: str,
    place: int,
    given: Sequence[Array | None],
    attributes: Attributes,
    dtype: np.dtype[Any],
) -> Array:
    """Returns a constant of other numbers for an operand at `place`."""
    x = given[0] if given and given[0] is not None else np.zeros(())
    shape: Shape = _shape_of_number(rng, op, place, given, attributes, x)
    if (op, place) == ("BatchNormalization", 4):
        return exact(rng, shape, dtype, "positive") - dtype.type(EPSILON)
    if dtype.kind == "b":
        return np.array(rng.choices([False, True], k=int(np.prod(shape, dtype=int)))).reshape(shape)
    if dtype.kind == "u":
        return np.abs(exact(rng, shape, np.dtype(np.int64))).astype(dtype)
    if dtype.kind == "i":
        return exact(rng, shape, dtype)
    if np.prod(shape, dtype=int) == 1 and rng.random() < 0.4:
        sizes = [float(n) for n in x.shape] + [1.0 / n for n in x.shape if n]
        return np.full(shape, rng.choice((*TELLING, *sizes)), dtype)
    return exact(rng, shape, dtype, "factors" if (op, place) == ("Div", 1) else rng.choice(["factors", ""]))


def _shape_of_number(
    rng: Draw, op: str, place: int, given: Sequence[Array | None], attributes: Attributes, x: Array
) -> Shape:
    shape = x.shape
    channels = shape[1] if x.ndim > 1 else 1
    group = attributes.get("group", 1)
    if op == "Conv":
        if place == 2:
            w = given[1]
            return [w.shape[0] if w is not None else 1]
        kernel = attributes.get("kernel_shape") or [rng.randint(1, min(3, max(n, 1))) for n in shape[2:]]
        if rng.random() < 0.3:
            kernel = [1] * len(kernel)
        return [group * rng.choice([1, 1, 2, 3]), max(channels // group, 1), *kernel]
    if op == "ConvTranspose":
        if place == 2:
            w = given[1]
            return [w.shape[1] * group if w is not None else 1]
        return [channels, rng.choice([1, 2, 3]), *(rng.randint(1, 3) for _ in shape[2:])]
    if op in ("BatchNormalization", "InstanceNormalization"):
        return [channels]
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = attributes.get("axis", -1)
        return list(shape[axis:])
    if op == "PRelu":
        return broadcast(rng, shape)
    if op == "Gemm" and place == 1:
        k = shape[0 if attributes.get("transA") else -1] if x.ndim else 1
        n = rng.choice([1, 2, 3, 4])
        return [n, k] if attributes.get("transB") else [k, n]
    if op == "Gemm":
        w = given[1] if given[1] is not None else np.zeros((1, 1))
        n = w.shape[0 if attributes.get("transB") else -1]
        m = shape[1 if attributes.get("transA") else 0] if x.ndim > 1 else 1
        return rng.choice([[n], [n], [1, n], [m, n], [1], [m, 1], []])
    if op == "MatMul":
        k = shape[-1] if x.ndim else 1
        if place == 0:  # what comes second is known
            y = given[1] if len(given) > 1 and given[1] is not None else np.zeros((1, 1))
            return [rng.choice([1, 2, 3]), y.shape[-2] if y.ndim > 1 else y.shape[0] if y.ndim else 1]
        return rng.choice([[k, rng.choice([1, 2, 3, 4])], [k, rng.choice([1, 2, 3, 4])], [k], [*shape[:-2], k, 2]])
    if op in ("Clip", "Pad", "Range"):
        return []
    if op in ("QuantizeLinear", "DequantizeLinear"):
        return []
    others = [g.shape for i, g in enumerate(given) if g is not None and i != place]
    if not others:
        return dims(rng, rng.choice([0, 1, 2, 3]))
    try:
        met = np.broadcast_shapes(*others)
    except ValueError:
        met = others[0]
    if op in ("Concat", "SequenceConstruct"):
        return list(others[0])
    if rng.random() < 0.25:
        return []
    return broadcast(rng, met)


Attribute = Callable[[Draw, Array], Attributes]


def _pool(rng: Draw, x: Array) -> Attributes:
    spatial = x.ndim - 2
    found: Attributes = {"kernel_shape": [rng.randint(1, 3) for _ in range(spatial)]}
    return found | _windows(rng, spatial, dilated=False)


def _windows(rng: Draw, spatial: int, dilated: bool = True) -> Attributes:
    found: Attributes = {}
    if rng.random() < 0.4:
        found["pads"] = [rng.choice([0, 1, 1, 2]) for _ in range(2 * spatial)]
        if rng.random() < 0.5:
            found["pads"] = [1] * (2 * spatial)
    elif rng.random() < 0.15:
        found["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    if rng.random() < 0.3:
        found["strides"] = [rng.choice([1, 2]) for _ in range(spatial)]
    if dilated and rng.random() < 0.2:
        found["dilations"] = [rng.choice([1, 2]) for _ in range(spatial)]
    return found


def _conv(rng: Draw, x: Array) -> Attributes:
    channels = x.shape[1] if x.ndim > 1 else 1
    groups = [g for g in range(1, channels + 1) if channels % g == 0]
    found = _windows(rng, max(x.ndim - 2, 0))
    return found | ({"group": rng.choice(groups)} if rng.random() < 0.4 else {})


def _axis(rng: Draw, x: Array) -> Attributes:
    return {"axis": rng.an_axis(x.ndim)} if x.ndim and rng.random() < 0.8 else {}


def _perm(rng: Draw, x: Array) -> Attributes:
    rank = x.ndim
    way = rng.randrange(4)
    perm = list(range(rank))
    if way == 0 and rank > 1:
        perm = [*perm[:-2], rank - 1, rank - 2]
    elif way == 1 and rank > 1:
        k = rng.randrange(rank - 1)
        perm[k], perm[k + 1] = perm[k + 1], perm[k]
    elif way == 2 and rank > 2:
        perm = rng.choice([[0, *perm[2:], 1], [0, rank - 1, *perm[1:-1]]])
    else:
        rng.shuffle(perm)
    return {} if perm == perm[::-1] and rng.random() < 0.5 else {"perm": perm}


def _keeps(rng: Draw, x: Array) -> Attributes:
    return {"keepdims": rng.choice([0, 1])} if rng.random() < 0.7 else {}


def _gemm(rng: Draw, x: Array) -> Attributes:
    found = {name: rng.choice([0, 1]) for name in ("transA", "transB") if rng.random() < 0.3}
    return found | {name: rng.choice([0.5, 2.0, 1.0]) for name in ("alpha", "beta") if rng.random() < 0.2}


def _cast(rng: Draw, x: Array) -> Attributes:
    return {"to": rng.choice([1, 1, 11, 7, 6, 9, 10])}


ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("Gather", "GatherElements", "Concat", "Split", "Softmax", "LogSoftmax", "Flatten"), _axis),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _axis),
    **dict.fromkeys(("ArgMax", "ArgMin"), lambda rng, x: _axis(rng, x) | _keeps(rng, x)),
    "BatchNormalization": lambda rng, x: {"epsilon": EPSILON},
    "Transpose": _perm,
    "Gemm": _gemm,
    "Cast": _cast,
    "Mod": lambda rng, x: {"fmod": 1} if x.dtype.kind == "f" else {},
    "Elu": lambda rng, x: {"alpha": rng.choice([0.5, 1.0, 2.0])} if rng.random() < 0.6 else {},
    "LeakyRelu": lambda rng, x: {"alpha": rng.choice([0.5, 0.25, 2.0])} if rng.random() < 0.6 else {},
    "ConcatFromSequence": lambda rng, x: _axis(rng, x) or {"axis": 0},
    "Einsum": lambda rng, x: {"equation": "ij->ji"},
}


def attributes(rng: Draw, op: str, x: Array) -> Attributes:
    if op.startswith("Reduce"):
        return _keeps(rng, x)
    found = ATTRIBUTES[op](rng, x) if op in ATTRIBUTES else {}
    return {"axis": 0} | found if op == "Concat" else found
