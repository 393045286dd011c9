"""Numbers that only one of two models has: sizes that are compared with them, or cut off at them, and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.inputs.rows import other_rows, other_size
from onnxopt.verification.model.constants import constants, numbers
from onnxopt.verification.model.operators import AFFINE, DATA, HANDED_ON, MEASURING, MUTUAL, operator

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

    from onnxopt.verification.inputs.plan import Plan
    from onnxopt.verification.model.skeleton import Skeleton

_LEAST: Final = 2  # of sizes up to the next one all are tried in any case,
_USUAL: Final = 4  # and up to this they may be what is cut of channels: only where nothing larger is asked for
_MOST: Final = 512
_SIZED: Final = HANDED_ON | AFFINE | {"Range", "CumSum"}
_LIMITING: Final = MUTUAL | {"Clip"}
_WORK: Final = 1 << 36  # bytes of weights, each time one is read


def of_both(plan: Plan, a: Skeleton, b: Skeleton, work: int = _WORK) -> Plan:
    """The plan of the first model, with what reaches the numbers that only one of the two has: sizes at which it does
    something else, trips of loops, bounds, rows of tables. `work`: bytes of weights that a run may read in all."""
    both = plan.beside(b.proto, other_rows(a, b))
    both.other_sizes = other_sizes(a.proto.graph, b.proto.graph, other_size(a, b))
    both.limits = affordable(both.other_sizes, plan, work)
    return both


def other_sizes(a: GraphProto, b: GraphProto, size: int = 0) -> list[int]:
    """Sizes that are on one side of a number in one model, and on the other in the other, or this `size`, from which on
    they differ; none where there is no number that only one has."""
    numbers = set(_limits(a)) ^ set(_limits(b)) | ({size - 1} if _LEAST < size <= _MOST + 1 else set())
    return sorted(n + 1 for n in numbers if n > _USUAL) or [n + 1 for n in [max(numbers, default=0)] if n]


def affordable(sizes: Sequence[int], plan: Plan, work: int = _WORK) -> tuple[int, ...]:
    """Those of these sizes with which a run reads at most so many bytes of weights: smallest, largest, others."""
    few = [n for n in sizes if plan.bytes * n ** (2 if plan.windows and not plan.batch else 1) <= work]
    return tuple(dict.fromkeys((*few[:1], *few[-1:], *few)))


def _limits(graph: GraphProto) -> Iterator[int]:
    """The largest sizes for which it does the one thing."""
    held = {t.name: t for t in graph.initializer} | dict(constants(graph.node))
    sized: dict[str, int] = {}  # by what is computed of sizes, how far below them it is
    for node in graph.node:
        kind, name = node.op_type, node.output[0] if node.output else ""
        data = (r for k, r in enumerate(node.input) if kind == "Range" or operator(kind).role(k) == DATA)
        reads = [sized[r] for r in data if r in sized]
        if kind in MEASURING:
            sized[name] = 0
        elif reads and kind in _SIZED:
            sized[name] = max(*reads, int(kind == "Range"))
        if (reads and kind in _LIMITING) or (kind in ("Slice", "Trilu") and not reads):
            yield from (n + max(reads, default=0) for n in _numbers(node, held) if _LEAST < n <= _MOST)


def _numbers(node: NodeProto, held: Mapping[str, TensorProto]) -> Iterator[int]:
    operands = range(1, min(3, len(node.input))) if node.op_type == "Slice" else range(len(node.input))
    for k in operands:
        found = numbers(held[node.input[k]]) if node.input[k] in held else []
        beyond = -1 if node.op_type == "Trilu" else _is_beyond(node.op_type, k)  # a diagonal begins in its corner
        yield from (abs(int(n)) - beyond for n in found if n == n // 1 and abs(n) <= _MOST)


def _is_beyond(kind: str, k: int) -> bool:
    """Is a size of that number itself, the operand k, what it does the other thing for?"""
    return kind in ("Equal", "Mod") or kind in (("Greater", "LessOrEqual"), ("Less", "GreaterOrEqual"))[k > 0]
