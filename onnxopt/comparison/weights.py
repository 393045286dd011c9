"""Constants of a model, or the differing constants of two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from onnxopt.comparison.records import GraphRecord, elements, is_elsewhere, same_constant
from onnxopt.graph.text import type_text
from onnxopt.graph.value import Value
from onnxopt.proto.messages import tensor_bytes

_LISTED: Final = 300


def weights(graphs: Sequence[GraphRecord]) -> dict[str, Any]:
    """Return the constants, largest first: all of a single model, or the differing constants of two.

    rows: scope, name, and for each model (type, bytes, elements if few) or None; left: number not listed; same: number
    of equal constants; unread: equal constants in data files, not compared.
    """
    held = [{(v.graph.path, v.name): v for v in g.values if v.constant} for g in graphs]
    names = dict.fromkeys(key for side in held for key in side)
    same = unread = 0
    found: list[tuple[int, tuple[str, str], list[Value | None]]] = []
    for key in names:
        values = [side.get(key) for side in held]
        if len(values) == 2 and values[0] is not None and values[1] is not None and same_constant(values[0], values[1]):
            same += 1
            unread += is_elsewhere(values[0]) or is_elsewhere(values[1])
        else:
            found.append((max(_bytes(v) for v in values if v is not None), key, values))
    found.sort(key=lambda row: -row[0])
    rows = [[*key, [_told(v) for v in values]] for _, key, values in found[:_LISTED]]
    return {"rows": rows, "left": len(found) - len(rows), "same": same, "unread": unread}


def _told(value: Value | None) -> list[Any] | None:
    return [type_text(value), _bytes(value), elements(value)] if value is not None else None


def _bytes(value: Value) -> int:
    return tensor_bytes(*value.constant_type())
