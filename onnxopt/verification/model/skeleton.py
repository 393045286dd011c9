"""A model file without weights: weights stay in the file, and are mapped where a piece needs them.

The file is parsed without `raw_data` of large initializers of the main graph, whose positions are recorded. External
data of those initializers is mapped likewise. All further external tensors (in bodies, functions and attributes, and
small ones) are loaded into the proto, so no later reader has to handle external data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from onnxopt.proto.element_types import TYPES
from onnxopt.proto.external import ExternalData, location
from onnxopt.proto.messages import all_tensors, belongs_inside, is_external, tensor_bytes, tensor_to_array
from onnxopt.proto.wire import Stored, call_of, map_file, skim
from onnxopt.verification.model.nodes import Functions, domain_of
from onnxopt.verification.model.views import View, leave_out_false_modes, leave_out_inputs, leave_out_unread
from onnxopt.verification.runtime import Reference, definitions

_FIELDS: Final = sys.maxsize
_ROOM: Final = 1_900_000_000  # bytes of a message, limited to 2 GiB
_MAX_INLINE_BYTES: Final = 1024  # smaller weights stay in the model: a runtime needs shapes and axes when loading

# Types known to numpy. Data of further types (bfloat16, 4 and 8 bits) is passed to a runtime as bytes.
_DTYPES: Final[dict[int, Any]] = {t.code: t.dtype for t in TYPES if t.kind in "fiub" and not t.is_foreign}


_DATA: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


class Operand(NamedTuple):
    """An operand of a random node, renamed to be compared."""

    read: str  # name in the file
    result: str  # first result of the node


class Skeleton:
    """A model without large weights."""

    def __init__(self, path: str | Path, view: View | None = None, references: Sequence[Reference] = ()) -> None:
        """Read a file.

        view: changes the model after reading; references: functions for operators not defined by the model. Raises
        OSError, ValueError and protobuf's DecodeError for an invalid model, ModelError for external data outside the
        model's folder, and for missing data of a body.
        """
        self.path = Path(path)
        self.proto: ModelProto = ModelProto()  # the model; large initializers have no data
        self.stored: dict[str, Stored] = {}  # positions of their data, by name
        self.foreign: list[NodeProto] = []  # nodes cut out
        self.operands: dict[str, Operand] = {}  # operands of random nodes, by new name
        self.kinds: dict[str, str] = {}  # types of values, if int32 is allowed in place of int64
        inside = self._parse()
        if view is not None:
            view(self.proto)
        if references:
            self.proto.MergeFrom(definitions(self.proto, references))
        data = ExternalData(self.path.parent, str(self.path))
        for i, tensor in enumerate(self.proto.graph.initializer[:]):
            if i in inside:
                self.stored[tensor.name] = Stored(self.path, *inside[i])
            elif is_external(tensor) and not belongs_inside(tensor):
                where = location(tensor, data.model_name)
                file = data.place(tensor.name, where.file) or self.path.parent / where.file  # reported when read
                self.stored[tensor.name] = Stored(file, where.offset, where.length)
        self.left_outside = self._bring_in(data)

    def _bring_in(self, data: ExternalData) -> int:
        """Load external tensors not in `stored` into the proto.

        Returns the bytes of large tensors left out because the message would exceed 2 GiB.
        """
        if not self._names_files:
            return 0
        found = self._not_stored()
        left = sum(tensor_bytes(t.data_type, t.dims) for t in found if not belongs_inside(t))
        has_room = left + self.proto.ByteSize() <= _ROOM
        for tensor in found:
            if has_room or belongs_inside(tensor):
                data.bring_in(tensor)
        return 0 if has_room else left

    def _not_stored(self) -> list[TensorProto]:
        """Return the external tensors not in `stored`."""
        main = self.proto.graph.initializer[:]  # kept alive, so that no later message reuses an id
        kept = {id(t) for t in main if t.name in self.stored}
        return [t for t in all_tensors(self.proto) if is_external(t) and id(t) not in kept]

    def copied(self) -> Skeleton:
        """Return a copy with a model of its own."""
        found = copy(self)
        found.proto = ModelProto.FromString(self.proto.SerializeToString())
        vars(found).pop("functions", None)
        return found

    @cached_property
    def functions(self) -> Functions:
        """The functions of the model."""
        return Functions(self.proto)

    @cached_property
    def versions(self) -> dict[str, int]:
        """Opset versions imported by the model, by domain."""
        return {domain_of(o.domain): o.version for o in self.proto.opset_import}

    @cached_property
    def imports(self) -> set[tuple[str, int]]:
        """(domain, version) imported by the model or its functions."""
        parts = self.proto, *self.proto.functions
        return {(domain_of(o.domain), o.version) for part in parts for o in part.opset_import}

    def _parse(self) -> dict[int, tuple[int, int]]:
        """Parse the file without weights. Returns {index of initializer: (start, length) of its data}."""
        light, found = skim(map_file(self.path), _MAX_INLINE_BYTES, _FIELDS)
        self.proto.ParseFromString(light)
        self._names_files = b"location" in light
        if call_of("Dropout") in light:
            leave_out_false_modes(self.proto)
        if call_of("If") in light:
            leave_out_inputs(self.proto)
        leave_out_unread(self.proto)
        return found

    def place(self, tensor: TensorProto) -> Stored | None:
        """Return the position of an initializer's data; None for data inside the tensor.

        An initializer of a body may have the name of one in the main graph.
        """
        holds = tensor.HasField("raw_data") or any(len(getattr(tensor, field)) for field in _DATA)
        return None if holds else self.stored.get(tensor.name)

    def array(self, tensor: TensorProto, *, aligned: bool = True) -> Any:
        """Return the mapped array of a stored initializer of a numpy type, else None.

        aligned: as kernels require; copied if stored otherwise.
        """
        where, dtype = self.place(tensor), _DTYPES.get(tensor.data_type)
        if where is None or dtype is None:
            return None
        if not math.prod(tensor.dims):
            return np.zeros(tuple(tensor.dims), dtype)
        is_view = not aligned or not where.start % np.dtype(dtype).itemsize
        return np.frombuffer(where.bytes() if is_view else where.read(), dtype).reshape(tuple(tensor.dims))

    def values(self, tensor: TensorProto, *, aligned: bool = True) -> Any:
        """Return the array of an initializer. `aligned`: see `array`."""
        found = self.array(tensor, aligned=aligned)
        return tensor_to_array(self.whole(tensor)) if found is None else found

    def whole(self, tensor: TensorProto) -> TensorProto:
        """Return an initializer with its data inside."""
        where = self.place(tensor)
        if where is None:
            return tensor
        whole = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        whole.raw_data = bytes(where.bytes())
        return whole

    def size(self, tensor: TensorProto) -> int:
        """Return the bytes of an initializer."""
        where = self.place(tensor)
        return where.length if where is not None else tensor.ByteSize()
