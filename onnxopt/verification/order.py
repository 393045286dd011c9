"""An order in which nodes can be run. A runtime takes them in any, and files have them so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto


def in_order(nodes: Sequence[NodeProto], reads: Sequence[Sequence[str]]) -> list[int]:
    """A topological order: as it stands, if it is one."""
    maker = {o: i for i, n in enumerate(nodes) for o in n.output if o}
    done: dict[int, None] = {}
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            i = stack[-1]
            before = [maker[r] for r in reads[i] if r in maker and maker[r] not in done and maker[r] != i]
            if i in done or not before or len(stack) > len(nodes):
                done[stack.pop()] = None
            else:
                stack += before
    return list(done)
