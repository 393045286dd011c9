"""The IR version of a model, raised when a feature needs a later version."""

from __future__ import annotations

from typing import Final

from onnx import ModelProto

DEFAULTS_SINCE: Final = 4  # from IR 4 on an initializer that is also an input is a default value; before, a constant
FUNCTIONS_SINCE: Final = 8


def raise_ir_version(proto: ModelProto, least: int) -> None:
    """Raise the IR version of `proto` to at least `least`.

    Constants listed as inputs, as IR < 4 requires, are removed from the inputs: from IR 4 on callers could override
    them.
    """
    if proto.ir_version < DEFAULTS_SINCE <= least:
        constants = {t.name for t in proto.graph.initializer}
        kept = [i for i in proto.graph.input if i.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, least)
