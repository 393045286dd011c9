"""Evaluate constant nodes with a real runtime: onnxruntime for the whole cone at once, optimizations off.

Here, where nothing can go wrong: operators of which it is known, of known and small sizes. The rest in a process that
may die (`worker.room`). Where onnxruntime has no kernel (bfloat16 on CPU, an opset it does not know), onnx's
ReferenceEvaluator answers node by node, in that process unless it is done at once; where that has none either, the node
stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from onnx import ModelProto, ValueInfoProto

from onnxopt.analysis import types
from onnxopt.analysis.folding.work import work
from onnxopt.element_types import FLOATS
from onnxopt.graph.graph import Graph
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value
from onnxopt.graph.writer import write_names
from onnxopt.operators import HARMLESS
from onnxopt.protos import Array, array_to_tensor
from onnxopt.worker.native import Native, run_session
from onnxopt.worker.room import Declined, Room

Arrays = dict[Value, Array]
GiveUp = Callable[[Node, str], None]

_HERE: Final = 1 << 30  # operations at once: about a second, in which no signal is heard
_ALONE: Final = 1 << 20  # that are done by the time in which threads would have started
_FEW: Final = 1 << 14  # that an evaluator in Python does in the time in which a process starts
_DEATHS: Final = 4  # of one cone, before the rest of it is left alone
_OF_FLOATS: Final = frozenset({"Div", "Pow"})  # of integers they divide by zero


def run_cone(
    graph: Graph,
    nodes: Sequence[Node],
    known: Mapping[Value, Array],
    wanted: Sequence[Value],
    room: Room,
    most: int,
    give_up: GiveUp,
) -> Arrays:
    """Arrays of the `wanted` outputs of `nodes` (in topological order), as far as they can be had, of at most `most`
    bytes each where their size was not known. `give_up` is told of nodes of which a runtime dies, or for which it takes
    too long."""
    if not nodes:
        return {}
    data = _model(graph, nodes, known, wanted).SerializeToString()
    names = [v.name for v in wanted]
    operations = sum(f.operations for n in nodes if (f := work(n)))
    if all(map(is_harmless, nodes)) and operations <= _HERE:
        threads = 1 if operations <= _ALONE else 0
        try:
            found = run_session(data, names, threads)
            return {v: found[v.name] for v in wanted if v.name in found}
        except Exception:  # one of them has no kernel, or raises: find out which
            pass
        if operations <= _FEW:
            found = Native(threads=1).evaluate_each(data, names, most, ())
            return {v: found[v.name] for v in wanted if v.name in found}
    found = _run_elsewhere(room, data, nodes, names, most, give_up)
    return {v: found[v.name] for v in wanted if v.name in found}


def is_harmless(node: Node) -> bool:
    """Can it be run in this process, whatever its operands hold? Its size is known then, and small."""
    if node.op not in HARMLESS or (node.op in _OF_FLOATS and types.dtype(node.output) not in FLOATS):
        return False
    found = work(node)
    return found is not None and found.operations <= _HERE


def of_known_size(nodes: Sequence[Node]) -> dict[Node, None]:
    """Those whose results have a size that is known before they are run, and that can be run at once."""
    waiting: set[Value] = set()
    found: dict[Node, None] = {}
    for node in nodes:
        if is_harmless(node) and not any(v in waiting for v in node.inputs if v is not None):
            found[node] = None
        else:
            waiting.update(v for v in node.outputs if v is not None)
    return found


def _run_elsewhere(
    room: Room, data: bytes, nodes: Sequence[Node], wanted: Sequence[str], most: int, give_up: GiveUp
) -> dict[str, Array]:
    """One session for all; if that fails, one for each node, without those that are deadly."""
    try:
        return dict(room.call("evaluate", data, wanted, most))
    except Exception:  # which of them it was is found out now
        pass
    deadly: set[int] = set()
    while len(deadly) < _DEATHS:
        try:
            return dict(room.call("evaluate_each", data, wanted, most, deadly))
        except Declined as e:
            busy = int(e.state) if e.state.isdigit() else None
            for node in nodes if busy is None else [nodes[busy]]:
                give_up(node, f"the runtime {e}")
            if busy is None:
                break
            deadly.add(busy)
        except Exception:  # what came back cannot be read
            break
    return {}


def _model(graph: Graph, nodes: Sequence[Node], known: Mapping[Value, Array], wanted: Sequence[Value]) -> ModelProto:
    model = ModelProto(ir_version=max(8, graph.model.ir_version))
    for domain, version in (graph.root.opsets or graph.model.opsets).items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = "constants"
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None)
    model.graph.initializer.extend(array_to_tensor(known[v], v.name) for v in read if v in known)
    for node in nodes:
        write_names(node)
    model.graph.node.extend(n.proto for n in nodes)
    model.graph.output.extend(ValueInfoProto(name=v.name) for v in wanted)
    return model
