"""Models with a wrong value in a well-formed message: any field of any message, found by reflection."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto

EVIL = "\x1b]0;x\x07\x9b31m\u202e\u2028\n::stop-commands::x\r::error::y\n##[error]z\0\b</script><img src=x>`|[b]"
NUMBERS = [0, 1, -1, 2, 3, 7, 16, 17, 99, 127, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 40, 1 << 62,
           (1 << 63) - 1, -(1 << 63)]  # fmt: skip
FLOATS = [0.0, -0.0, 1e-45, 1.0, -1.0, 3e38, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", " ", ".", "..", "/", "a/b", "x", "y", EVIL, "L" * 100_000, "then_branch", "body", "value", "to", "axis",
         "ai.onnx", "com.microsoft", "l", "f", "If", "Loop", "Constant", "Identity", "-", "None", "%s%n{0}", "\ud7ff",
         "__proto__", "é", "N", "1", "-1", "9" * 400, "1_0", "٣"]  # fmt: skip
WIDTH = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}


def altered(model: ModelProto, rng: random.Random) -> ModelProto:
    """Return `model` with one to four changed fields."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change(pick(model, rng), rng, model)
    return model


def pick(message: Any, rng: random.Random) -> Any:
    """Return a random message inside `message`. Large messages are not picked more often than small ones."""
    while True:
        inner = [
            (field, value) for field, value in message.ListFields() if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        ]
        if not inner or rng.random() < 0.12:
            return message
        field, value = rng.choice(inner)
        message = rng.choice(list(value)) if field.is_repeated else value


def change(message: Any, rng: random.Random, root: ModelProto) -> None:
    """Change one field of `message`."""
    present = [field for field, _ in message.ListFields()]
    fields = present if present and rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    if field.is_repeated:
        _repeated(getattr(message, field.name), field, rng, root)
    elif field in present and rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        other = _another(field, rng, root)
        if other is None or rng.random() < 0.3:
            getattr(message, field.name).SetInParent()
        else:
            getattr(message, field.name).CopyFrom(other)
    else:
        setattr(message, field.name, _scalar(field, rng, root))


def _repeated(values: Any, field: Any, rng: random.Random, root: ModelProto) -> None:
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    way = rng.randrange(6)
    items = list(values)
    if way == 0 and items:
        del values[rng.randrange(len(items))]
    elif way == 1 and items:
        del values[:]
    elif way == 2 and items:  # twice, or reordered
        items.append(rng.choice(items))
        rng.shuffle(items)
        if is_message:
            copies = []
            for item in items:
                copies.append(type(item)())
                copies[-1].CopyFrom(item)
            items = copies
        del values[:]
        values.extend(items)
    elif is_message:
        other = _another(field, rng, root)
        if other is not None:
            values.add().CopyFrom(other)
        else:
            values.add()
    elif way == 3 or not items:
        values.append(_scalar(field, rng, root))
    else:
        values[rng.randrange(len(items))] = _scalar(field, rng, root)


def _another(field: Any, rng: random.Random, root: ModelProto) -> Any:
    """Return a copy of another message of this type in the model. A body may thus contain itself."""
    for _ in range(20):
        found = pick(root, rng)
        if found.DESCRIPTOR is field.message_type:
            copy = type(found)()
            copy.CopyFrom(found)
            return copy
    return None


def _scalar(field: Any, rng: random.Random, root: ModelProto) -> Any:
    kind = field.cpp_type
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\0", b"\xff\xfe", EVIL.encode(), rng.randbytes(rng.randrange(200)), b"L" * 100_000))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(TEXTS) if rng.random() < 0.6 else _name(rng, root)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:  # a closed enum: other numbers are in `damaged`
        return rng.choice([value.number for value in field.enum_type.values])
    bits = WIDTH.get(kind, 0)
    fitting = [n for n in NUMBERS if (-(1 << bits) <= n < 1 << bits if bits else 0 <= n < 1 << 32)]
    return rng.choice(fitting)


def _name(rng: random.Random, root: ModelProto) -> str:
    """Return a name of the model."""
    node = rng.choice(list(root.graph.node) or [None])
    names = [*(t.name for t in root.graph.initializer), *(v.name for v in root.graph.input)]
    names += [*node.input, *node.output, node.op_type] if node is not None else []
    return rng.choice(names or ["x"])
