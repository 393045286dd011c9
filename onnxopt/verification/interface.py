"""Two model files: can they be read, do they take and give the same, and which values inside have the same name?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.errors import ModelError, UsageError
from onnxopt.verification.plan import Plan
from onnxopt.verification.records import Side

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


def read(path: Path) -> ModelProto:
    """The model without its external data, whose files must be there. Raises ModelError."""
    from onnx import TensorProto, load

    try:
        model = load(path, load_external_data=False)
    except OSError as e:
        raise ModelError(f"{path}: {e.strerror or e}", "check the path") from None
    except Exception as e:
        raise ModelError(f"{path} is not an ONNX model: {' '.join(str(e).split())}", "is it complete?") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{path}: the model is empty", "is it an ONNX model, and complete?")
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            if not (path.parent / location).is_file():
                raise ModelError(
                    f"{path}: the data file {location} of `{tensor.name}` is missing", "keep them together"
                )
    return model


def check_interface(a: ModelProto, b: ModelProto) -> None:
    """Raises UsageError where inputs or outputs differ in name or type: there is nothing to compare then."""
    for kind, x, y in (
        ("inputs", _required(a.graph), _required(b.graph)),
        ("outputs", list(a.graph.output), list(b.graph.output)),
    ):
        names = [[i.name for i in infos] for infos in (x, y)]
        only = [sorted({*names[0]} - {*names[1]}), sorted({*names[1]} - {*names[0]})]
        if any(only):
            sides = [f"only {side} has {_list(found)}" for side, found in zip("AB", only) if found]
            raise UsageError(
                f"A and B differ in their {kind}: {', '.join(sides)}",
                "the models to compare must have the same names of inputs and outputs",
            )
    others = {i.name: i for i in _required(b.graph)}
    for i in _required(a.graph):
        types = [_type(v) for v in (i, others[i.name])]
        if all(types) and types[0] != types[1]:
            raise UsageError(
                f"input `{i.name}` is {types[0]} in A and {types[1]} in B", "both must take the same values"
            )


def _required(graph: GraphProto) -> list[ValueInfoProto]:
    initializers = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in initializers]


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"`{name}`" for name in names[:4]) + more


def _type(info: ValueInfoProto) -> str:
    """The element type of a tensor; empty for others and for unknown ones."""
    from onnx import TensorProto

    code = info.type.tensor_type.elem_type
    return TensorProto.DataType.Name(code).lower() if code else ""


def common_values(a: ModelProto, b: ModelProto) -> tuple[list[str], int]:
    """The names of values that nodes of both main graphs make, in A's topological order; how many A's nodes make."""
    mine, other = _made(a.graph.node), set(_made(b.graph.node))
    return [name for name in mine if name in other], len(mine)


def _made(nodes: Iterable[NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


def maker(model: ModelProto, value: str) -> Side | None:
    """The node of the main graph that makes `value`."""
    for node in model.graph.node:
        if value in node.output:
            return Side(node.name, f"{node.domain}.{node.op_type}".removeprefix("."), [n for n in node.input if n])
    return None


def fix_dims(plan: Plan, dims: dict[str, int]) -> None:
    """Give dynamic dims of the inputs their sizes. Raises UsageError for one that does not exist."""
    for name in dims:
        if name not in plan.symbols:
            has = f"it has {', '.join(plan.symbols)}" if plan.symbols else "all its dims are fixed"
            raise UsageError(f"no input of the model has a dynamic dim {name!r}", has)
    plan.fix(dims)
