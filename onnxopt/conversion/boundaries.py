"""Forms of operators before an opset that changed them, by operator and opset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from onnx import NodeProto

from onnxopt.conversion.call import Call

Form: TypeAlias = Callable[[Call], "list[NodeProto] | None"]
TABLE: Final[dict[tuple[str, int], Form]] = {}  # by operator, and the opset that changed the operator


def before(since: int, *ops: str) -> Callable[[Form], Form]:
    """Return a decorator that enters a function as the form of these operators before the opset `since`.

    The first line of a form is its equation. A form returns nodes of the opset before, or None if the schemas of the
    standard decide: if the operator only takes more types since, or has an attribute whose default is the older
    behaviour. It raises Unsayable if the operator was not able to do the same.
    """

    def enter(form: Form) -> Form:
        TABLE.update(dict.fromkeys(((op, since) for op in ops), form))
        return form

    return enter
