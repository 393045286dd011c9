"""Description of a fault: the nodes of both models, and the difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onnxopt.verification.pieces.outcome import Fault
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.rounded import name_in_file
from onnxopt.verification.records import OutputRecord, Place, Side

if TYPE_CHECKING:
    from onnx import NodeProto

    from onnxopt.verification.pieces.walk import Walk

_TINY: Final = 1e-12  # relative noise below is zero
_MAX_NODES: Final = 50  # nodes listed in a place


def place_of(walk: Walk, fault: Fault, cases: Sequence[str], scope: str) -> Place:
    """Return the place of a fault. `cases`: names of all cases; `scope`: path of the walked graph."""
    found, case = fault.found, fault.case
    noise = walk.noise([fault.value]).get(fault.value) if not fault.beyond else None
    if noise:  # a breakpoint reached in one case excuses nothing in another
        differences = walk.latest[fault.value]
        case = max(
            range(len(noise)), key=lambda k: (noise[k].uneven, differences[k].relative / max(noise[k].relative, _TINY))
        )
        found = differences[case]
    if found.discrete:
        how = f"{found.largest:.1%} of its elements differ"
    elif found.uneven:
        how = f"{found.words}, and by much of that of a row or channel"
    else:
        how = found.words
    value, nodes = fault.value, (fault.a, fault.b)
    # A value added here for a random operand: report the node that draws.
    if operand := walk.b.skeleton.operands.get(value):
        value = operand.result
        nodes = [*fault.a, walk.a.maker[value]], [*fault.b, walk.b.maker[value]]
    record = OutputRecord(
        value,
        walk.replay.kind(fault.value),
        list(fault.shape),
        found.largest,
        found.relative,
        False,
        found.note or how,
    )
    place = Place(cases[case], value, record, fault.entries, scope=scope, beyond=fault.beyond)
    place.a, place.b = (
        [_side(p, i) for i in there if not _is_added(p, p.nodes[i])][-_MAX_NODES:]
        for p, there in zip((walk.a, walk.b), nodes)
    )
    # For elements that jump to unseen values, or a few distant elements, noise of the whole is irrelevant.
    whole = noise[case] if noise else None
    place.noise = None if whole is None or whole.unseen or whole.uneven else whole.relative
    return place


def _side(program: Program, i: int) -> Side:
    node, operands = program.nodes[i], program.skeleton.operands
    op = f"{node.domain}.{node.op_type}".removeprefix(".")
    reads = [operands[name].read if name in operands else name for name in node.input]
    inputs, outputs = ([name_in_file(n) for n in names if n] for names in (reads, node.output))
    return Side(node.name, op, inputs, outputs)


def _is_added(program: Program, node: NodeProto) -> bool:
    """Return whether a node was added here, and is absent from the file."""
    if node.op_type == "Cast":
        return name_in_file(node.input[0]) == name_in_file(node.output[0])
    return node.op_type == "Identity" and node.output[0] in program.skeleton.operands
