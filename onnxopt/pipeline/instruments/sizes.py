"""Bytes of constants removed or added by each pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.instrument import Instrument
from onnxopt.proto.messages import tensor_bytes

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline.base import Pass


class Sizes(Instrument):
    """Fills `PassReport.bytes`: size in memory of initializers and Constant nodes."""

    def __init__(self) -> None:
        self._version = -1
        self._bytes = 0

    def begin(self, model: Model) -> None:
        self._version, self._bytes = model.version, constant_bytes(model)

    def after(self, model: Model, p: Pass) -> None:
        if p.children or model.version == self._version:
            return
        before, self._bytes, self._version = self._bytes, constant_bytes(model), model.version
        report = PassContext.current().report
        assert report is not None
        report.of(p.name).bytes += before - self._bytes


def constant_bytes(model: Model) -> int:
    """Return the bytes of all constants of a model in memory; nothing is decoded."""
    total = 0
    for scope in model.scopes():
        for value in scope.initializers.values():
            total += tensor_bytes(*value.constant_type())
        for node in scope.by_op.get("Constant", ()):
            if (a := node.attributes.get("value")) is not None:
                total += tensor_bytes(a.t.data_type, a.t.dims)
    return total
