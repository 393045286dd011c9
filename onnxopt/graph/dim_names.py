"""Names of symbolic dims: names from a file are kept apart from names made by onnxopt.

A computed dim is named by its expression, `{a*b}`; a dim invented by shape inference contains an `@`. A file may use
any name, even `a*b` or `{a*b}`. Such a name is no expression: two dims are equal only if the names are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from onnx import TypeProto

from onnxopt.graph.value import Dim

_PLAIN: Final = re.compile(r"[^\W\d][\w.]*")


def as_symbol(name: str) -> str:
    """Return the symbol for a name of a file: the name, or a quoted form for anything but a plain identifier.

    Names made by onnxopt are never quoted, so symbols from a file cannot collide with made ones.
    """
    if _PLAIN.fullmatch(name):
        return name
    import json

    return json.dumps(name).replace("@", "\\u0040")


def as_written(dim: Dim) -> Dim:
    """Return a dim with its symbol spelled as in the file."""
    if not (isinstance(dim, str) and dim.startswith('"') and dim.endswith('"')):
        return dim
    import json

    return str(json.loads(dim))


def is_invented(dim: Dim) -> bool:
    """Whether a dim is a symbol invented by inference for an unnamed size."""
    return isinstance(dim, str) and "@" in dim


def rename_dims(kind: TypeProto, name: Callable[[str], str]) -> None:
    """Apply `name` to each named dim of a type, nested types included; an empty result makes the dim unknown."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        rename_dims(getattr(kind, which).elem_type, name)
    elif which == "map_type":
        rename_dims(kind.map_type.value_type, name)
    elif which in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(kind, which).shape.dim:
            if dim.dim_param:
                dim.dim_param = name(dim.dim_param)
                if not dim.dim_param:
                    dim.ClearField("dim_param")
