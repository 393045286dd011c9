"""The version of the format (IR) that a model is in, raised where something needs a later one."""

from __future__ import annotations

from typing import Final

from onnx import ModelProto

DEFAULTS_SINCE: Final = 4  # from here on an initializer that is an input too is a default; before, it is a constant
FUNCTIONS_SINCE: Final = 8


def raise_ir_version(proto: ModelProto, least: int) -> None:
    """Have `proto` be of this version, or a later one.

    Constants, which old versions had to list among the inputs, are inputs no more: callers could override them now.
    """
    if proto.ir_version < DEFAULTS_SINCE <= least:
        constants = {t.name for t in proto.graph.initializer}
        kept = [i for i in proto.graph.input if i.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, least)
