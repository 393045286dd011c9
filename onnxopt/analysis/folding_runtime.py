"""Evaluates constant nodes with onnxruntime: all nodes in a session, optimizations off.

Harmless operators of known, small size run in this process, all others in a subprocess (`worker.service.Sandbox`),
as they may crash. Without an onnxruntime kernel (bfloat16 on CPU, unknown opsets) onnx's ReferenceEvaluator runs node
by node, in the subprocess unless the work is small. Nodes without either stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import ModelProto, ValueInfoProto

from onnxopt.analysis import types
from onnxopt.analysis.cost import operations
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_names
from onnxopt.operators import HARMLESS
from onnxopt.proto.element_types import FLOATS
from onnxopt.proto.messages import Array, array_to_tensor, tensor_bytes
from onnxopt.worker.native import Native, run_session
from onnxopt.worker.service import Declined, Sandbox


@dataclass(frozen=True)
class WorkBound:
    """`bytes` of the results; `operations`: scalar operations, or bytes read and written if these are more."""

    bytes: int
    operations: int


def work(node: Node) -> WorkBound | None:
    """Return an upper bound of the work of a node; None if a size is unknown."""
    made, read = _bytes(node.results), _bytes(node.operands)
    return None if made is None or read is None else WorkBound(made, max(made + read, operations(node)))


def _bytes(values: Iterable[Value]) -> int | None:
    """Return the bytes of tensors; None if a size is unknown."""
    total = 0
    for v in values:
        shape, data_type = types.static_shape(v), types.dtype(v)
        if shape is None or not data_type:
            return None
        total += tensor_bytes(data_type, shape)
    return total


Arrays = dict[Value, Array]
GiveUp = Callable[[Node, str], None]

_HERE: Final = 1 << 30  # operations in a session: about a second, during which signals are not handled
_ALONE: Final = 1 << 20  # operations finished before threads would have started
_MAX_PYTHON_WORK: Final = 1 << 14  # operations that Python evaluates faster than a process starts
_DEATHS: Final = 4  # crashes after which the remaining nodes are left alone
_OF_FLOATS: Final = frozenset({"Div", "Pow"})  # on integers they may divide by zero


def run_cone(
    graph: Graph,
    nodes: Sequence[Node],
    known: Mapping[Value, Array],
    wanted: Sequence[Value],
    sandbox: Sandbox,
    most: int,
    give_up: GiveUp,
) -> Arrays:
    """Return the arrays of `wanted` outputs of `nodes` (in topological order), as far as computable.

    Results of unknown size are limited to `most` bytes each. `give_up` is called with nodes that crash the runtime or
    run too long.
    """
    if not nodes:
        return {}
    data = _model(graph, nodes, known, wanted).SerializeToString()
    names = [v.name for v in wanted]
    found = _run_here(data, nodes, names, most)
    if found is None:
        found = _run_elsewhere(sandbox, data, nodes, names, most, give_up)
    return {v: found[v.name] for v in wanted if v.name in found}


def _run_here(data: bytes, nodes: Sequence[Node], names: Sequence[str], most: int) -> dict[str, Array] | None:
    """Return the arrays computed in this process; None if a node is unsafe or unsupported, or the work too large."""
    operations = sum(f.operations for n in nodes if (f := work(n)))
    if operations > _HERE or not all(map(is_harmless, nodes)):
        return None
    try:
        return run_session(data, names, 1 if operations <= _ALONE else 0)
    except Exception:  # find out which node has no kernel, or raises
        return Native(threads=1).evaluate_each(data, names, most, ()) if operations <= _MAX_PYTHON_WORK else None


def is_harmless(node: Node) -> bool:
    """Whether a node of known, small size can run in this process for any contents of its operands."""
    if node.op not in HARMLESS or (node.op in _OF_FLOATS and types.dtype(node.output) not in FLOATS):
        return False
    found = work(node)
    return found is not None and found.operations <= _HERE


def of_known_size(nodes: Sequence[Node]) -> dict[Node, None]:
    """Return the nodes with result sizes known ahead, able to run in a session."""
    waiting: set[Value] = set()
    found: dict[Node, None] = {}
    for node in nodes:
        if is_harmless(node) and not any(v in waiting for v in node.operands):
            found[node] = None
        else:
            waiting.update(node.results)
    return found


def _run_elsewhere(
    sandbox: Sandbox, data: bytes, nodes: Sequence[Node], wanted: Sequence[str], most: int, give_up: GiveUp
) -> dict[str, Array]:
    """Run all nodes in a session of the subprocess; after a failure, one by one without crashing nodes."""
    try:
        return dict(sandbox.call("evaluate", data, wanted, most))
    except Exception:  # the failing node is found below
        pass
    deadly: set[int] = set()
    while len(deadly) < _DEATHS:
        try:
            return dict(sandbox.call("evaluate_each", data, wanted, most, deadly))
        except Declined as e:
            busy = int(e.state) if e.state.isdigit() else None
            for node in nodes if busy is None else [nodes[busy]]:
                give_up(node, f"the runtime {e}")
            if busy is None:
                break
            deadly.add(busy)
        except Exception:  # unreadable answer
            break
    return {}


def _model(graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]) -> ModelProto:
    model = ModelProto(ir_version=max(8, graph.model.ir_version))
    for domain, version in (graph.root.opsets or graph.model.opsets).items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = "constants"
    read = dict.fromkeys(v for n in nodes for v in n.operands)
    model.graph.initializer.extend(array_to_tensor(known[v], v.name) for v in read if v in known)
    for node in nodes:
        write_names(node)
    model.graph.node.extend(n.proto for n in nodes)
    model.graph.output.extend(ValueInfoProto(name=v.name) for v in wanted)
    return model
