"""Broadcasting of any rank: numpy's functions stop at 32 dims, its arrays at 64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxopt.proto.messages import Array


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the broadcast shape. Raises ValueError if the shapes do not fit."""
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if found[i] not in (1, size):
                    raise ValueError(f"{size} elements do not fit {found[i]}")
                found[i] = size
    return tuple(found)


def broadcast_together(*arrays: Array) -> list[Array]:
    """Return views of the arrays in their broadcast shape. Raises ValueError if the shapes do not fit."""
    shape = broadcast_shape(*(np.shape(a) for a in arrays))
    return [np.broadcast_to(a, shape) for a in arrays]
