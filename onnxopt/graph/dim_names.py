"""Names of dims: those a file gives, kept apart from those that are made here.

What is computed is called as it is computed, `{a*b}`, and what inference invents has an @. A file may call a dim
anything, `a*b` or `{a*b}` too: a name is no arithmetic, and the same name is all that makes two dims equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from onnx import TypeProto

from onnxopt.graph.value import Dim

_PLAIN: Final = re.compile(r"[^\W\d][\w.]*")


def as_symbol(name: str) -> str:
    """A name of a file as a symbol: in quotes if it is no plain word, so that nothing made here is called alike."""
    if _PLAIN.fullmatch(name):
        return name
    import json

    return json.dumps(name).replace("@", "\\u0040")


def as_written(dim: Dim) -> Dim:
    """A dim with its symbol as the file calls it."""
    if not (isinstance(dim, str) and dim.startswith('"') and dim.endswith('"')):
        return dim
    import json

    return str(json.loads(dim))


def rename_dims(kind: TypeProto, name: Callable[[str], str]) -> None:
    """Call the dims of a type, also of one inside it, as `name` says; by an empty name they are unknown."""
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
