"""Models with operators unknown to every runtime here: the parts before and behind are run.

Unknown nodes are cut out. Values read by the nodes become outputs and are compared; values made by the nodes become
inputs, fed with equal numbers in both models. By induction, an equal node with equal operands makes equal results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from onnxopt.errors import few
from onnxopt.proto.element_types import BY_CODE, element_kind
from onnxopt.proto.messages import attribute_bytes
from onnxopt.verification.model.nodes import Functions, Name, domain_of, inside, operator_of, reads_of
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.model.views import View
from onnxopt.verification.rounding import Draws, is_float
from onnxopt.verification.run import Failed
from onnxopt.verification.runtime import PLAIN, Runtime
from onnxopt.worker.serving import Refused

if TYPE_CHECKING:
    from onnxopt.verification.programs.stream import Streamed

Operators = frozenset[Name]


@dataclass(frozen=True)
class Foreign:
    """Operators that cannot run."""

    operators: Operators = frozenset()
    unseen: frozenset[str] = frozenset()  # values of unknown shape; nodes that depend on them are not run
    # Unknown nodes of the original, for naming the results of the other model's nodes.
    nodes: tuple[NodeProto, ...] = ()


NOTHING: Final = Foreign()
_NO_KERNEL: Final = r"(?:an implementation|kernel) for (?:([\w.]+)\.)?(\w+)\(\d+\)"


def unknown_operators(model: ModelProto, runtime: Runtime = PLAIN) -> Operators:
    """Return operators defined by neither the runtime nor the model, and functions that call them."""
    functions = Functions(model)
    called = map(operator_of, inside((*model.graph.node, *(n for f in model.functions for n in f.node))))
    unknown = frozenset(op for op in frozenset(called) - functions.names if not runtime.knows(*op))
    return unknown | functions.holding(lambda node: operator_of(node) in unknown)


def unknown_calls(model: ModelProto, runtime: Runtime = PLAIN) -> Operators:
    """Return unknown operators used in the graph: uncalled functions are not loaded."""
    return unknown_operators(model, runtime) & frozenset(map(operator_of, inside(model.graph.node)))


def refused_operators(why: str) -> Operators:
    """Return operators known to onnxruntime but refused here, according to its error.

    Causes: no kernel for a type; a StringNormalizer with a locale missing on the machine (en_US.UTF-8 by default).
    """
    if "Failed to construct locale" in why:
        return frozenset({("", "StringNormalizer")})
    found = re.search(_NO_KERNEL, why)
    return frozenset({(domain_of(found[1] or ""), found[2])} if found is not None else ())


def read_skeleton(
    path: str, foreign: Foreign = NOTHING, runtime: Runtime = PLAIN, view: View | None = None
) -> Skeleton:
    """Return the model at `path` without large weights and `foreign` operators.

    Raises OSError, ValueError, protobuf's DecodeError, and Refused if weights cannot be passed to parts.
    """
    skeleton = Skeleton(path, view, runtime.references)
    if skeleton.left_outside:
        size = f"{skeleton.left_outside / (1 << 30):.1f} GiB of weights that bodies read lie beside the model"
        raise Refused(f"{size}, and a part of it with them is more than protobuf's files hold")
    skeleton.foreign = cut_out(skeleton.proto.graph, foreign)
    return skeleton


def cut_out(graph: GraphProto, foreign: Foreign) -> list[NodeProto]:
    """Cut nodes that are or hold foreign operators out of the graph, in place, and return them in graph order.

    Results of the nodes become inputs, operands become outputs, ordered by names of results. Nodes without effect on an
    output are dropped.
    """
    unknown, unseen = foreign.operators, set(foreign.unseen)
    if not unknown:
        return []
    alive = _alive(graph)
    declared = {i.name: i.type for i in (*graph.value_info, *graph.output)}
    kept, found = [], []
    for node in graph.node:
        if unknown.isdisjoint(map(operator_of, inside([node]))):
            if unseen.isdisjoint(reads_of(node)):
                kept.append(node)
            else:
                unseen.update(node.output)
        elif not alive.isdisjoint(node.output):
            found.append(node)
    kept = _as_in(foreign.nodes, found, kept, declared) + kept
    del graph.node[:]
    graph.node.extend(kept)
    for node in sorted(found, key=_made):
        _add_border(graph, node, unseen, declared)
    return found


def _add_border(graph: GraphProto, node: NodeProto, unseen: Collection[str], declared: Mapping[str, TypeProto]) -> None:
    """Add the results of a node cut out as inputs, except `unseen`, and the operands as outputs."""
    for output in (o for o in node.output if o and o not in unseen):
        given = graph.input.add(name=output)
        if output in declared:
            given.type.CopyFrom(declared[output])
    for name in reads_of(node):
        graph.output.add(name=name)


def _as_in(
    originals: Iterable[NodeProto],
    nodes: Sequence[NodeProto],
    kept: Iterable[NodeProto],
    declared: dict[str, TypeProto],
) -> list[NodeProto]:
    """Rename results of `nodes` as in the original, if a rewrite downstream renamed the results.

    Returns Identities for readers. Nodes are matched if unique by operator, attributes, present results and either
    operands or their count.
    """
    taken, behind = {o for n in kept for o in n.output}, list[NodeProto]()
    for by_operands in (True, False):
        for original, node in _matches(originals, nodes, taken, by_operands):
            behind += _rename(node, original.output, declared)
    return behind


def _matches(
    originals: Iterable[NodeProto], nodes: Sequence[NodeProto], taken: set[str], by_operands: bool
) -> list[tuple[NodeProto, NodeProto]]:
    """Return (original, node with further names) for nodes unique in both. `taken`: names of the remaining nodes."""
    made = {tuple(n.output) for n in nodes}
    known = set[str]().union(*map(_made, originals))
    left = (n for n in originals if tuple(n.output) not in made and taken.isdisjoint(n.output))
    alone = _only(left, by_operands)
    others = _only((n for n in nodes if known.isdisjoint(n.output)), by_operands)
    return [(alone[key], node) for key, node in others.items() if key in alone]


def _rename(node: NodeProto, names: Iterable[str], declared: dict[str, TypeProto]) -> Iterator[NodeProto]:
    """Rename the results of a node, and their types. Yields Identities to the previous names."""
    for i, name in enumerate(names):
        own, node.output[i] = node.output[i], name
        if own:
            declared.update({name: declared[own]} if own in declared else {})
            yield type(node)(op_type="Identity", input=[name], output=[own])


def _only(nodes: Iterable[NodeProto], by_operands: bool) -> dict[tuple[Any, ...], NodeProto]:
    """Return the nodes unique by operator, attributes, present results and operands or their count, by this key."""
    found: dict[tuple[Any, ...], list[NodeProto]] = {}
    for n in nodes:
        found.setdefault((*_kind(n), *map(bool, n.output), *(n.input if by_operands else ())), []).append(n)
    return {key: some[0] for key, some in found.items() if len(some) == 1}


def _kind(node: NodeProto) -> tuple[Any, ...]:
    return node.op_type, node.domain, len(node.input), attribute_bytes(node)


def _made(node: NodeProto) -> list[str]:
    return list(node.output)


def _alive(graph: GraphProto) -> set[str]:
    """Return the values that outputs depend on."""
    found = {o.name for o in graph.output}
    for node in reversed(graph.node):
        if not found.isdisjoint(node.output):
            found.update(reads_of(node))
    return found


class Around:
    """An engine for a model without unknown nodes, with random values in place of their results.

    unseen: results of unknown shape, for which a guess was wrong. Values that depend on them are None.
    """

    name = "onnxruntime"

    def __init__(self, streamed: Streamed, unseen: frozenset[str] = frozenset()) -> None:
        self.unseen = unseen
        self._guesses: set[str] = set()
        self._streamed = streamed
        self._program = streamed.program
        self.nodes = self._program.skeleton.foreign
        self.nodes_left = len(self._program.cone(self._program.outputs, ()))
        self.outputs = streamed.outputs

    def rest(self) -> None:
        """Unload the segments until the next run."""
        self._streamed.rest()

    @property
    def own(self) -> list[str]:
        """Return the outputs of the original model."""
        return self.outputs[: len(self.outputs) - sum(1 for n in self.nodes for _ in reads_of(n))]

    def unlike(self, other: Around) -> str:
        """Return why unknown nodes of the result differ, or ""."""
        if len(self.nodes) != len(other.nodes):
            return f"{self._count} that cannot be run became {len(other.nodes)}"
        for x, y in zip(sorted(self.nodes, key=_made), sorted(other.nodes, key=_made)):
            if _kind(x) != _kind(y) or x.output != y.output:
                return f"{x.op_type} `{x.output[0]}`, which cannot be run, is not the same in both"
        return ""

    @property
    def _count(self) -> str:
        return f"{len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"

    @property
    def says(self) -> str:
        """Return, in words, the nodes left out; "" if no output depends on any."""
        if not self.nodes:
            return ""
        names = sorted({f"{n.domain}.{n.op_type}".removeprefix(".") for n in self.nodes})
        where = "before" if self.unseen else "before and behind"
        return f"{where} {self._count} that no runtime here can run ({few(names)})"

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """Return the outputs; None for values that depend on wrongly guessed shapes.

        Adds random results of unknown nodes to `feeds`. Raises ValueError for a result of unknown shape, and Failed.
        """
        self._stand_in_all(feeds)
        if not self.unseen:
            try:
                return self._streamed.run(feeds)
            except Failed:
                if not self._guesses:
                    raise
        for name in self._guesses:
            feeds.pop(name, None)
        found = [self._streamed.value(o, feeds) for o in self.outputs]
        self.unseen |= self._guesses
        return found

    def _stand_in_all(self, feeds: dict[str, Any]) -> None:
        """Add random results of unknown nodes to `feeds`. Raises ValueError for a result of unknown shape."""
        known = feeds.keys() | self.unseen
        waiting = [n for n in self.nodes if not known >= {*filter(None, n.output)}]
        while waiting:
            left = [n for n in waiting if not self._stand_in(n, feeds)]
            if len(left) == len(waiting):
                raise ValueError(f"the shape of `{left[0].output[0]}`, which {left[0].op_type} makes, is unknown")
            waiting = left

    def _stand_in(self, node: NodeProto, feeds: dict[str, Any]) -> bool:
        """Add random results of a node to `feeds`, of the declared type and shape, else like the first operand.

        Returns False if neither is known yet.
        """
        declared = {i.name: i.type.tensor_type for i in self._program.graph.input}
        sizes = _sizes(declared, feeds)
        made: dict[str, Any] = {}
        for output in filter(None, node.output):
            shape, dtype = _declared(declared[output], sizes)
            if dtype is None or shape is None:
                if (like := self._first_operand(node, feeds)) is None:
                    return False
                self._guesses.add(output)
                shape, dtype = like.shape if shape is None else shape, dtype or like.dtype
            is_number = element_kind(np.dtype(dtype)) in "fiub"
            # Strings are repeated from the operand.
            made[output] = _random(Draws(output), shape, dtype) if is_number else np.resize(like, shape)
        feeds.update(made)
        return True

    def _first_operand(self, node: NodeProto, feeds: dict[str, Any]) -> Any:
        """Return the first tensor that a node reads, of floats if possible; None if unknown yet."""
        read = [v for r in reads_of(node) if isinstance(v := self._streamed.value(r, feeds), np.ndarray)]
        return min(read, key=lambda v: not is_float(v), default=None)


def _random(rng: Draws, shape: Any, dtype: Any) -> Any:
    is_float_kind = element_kind(np.dtype(dtype)) == "f"
    return np.asarray(rng.normal(shape) if is_float_kind else rng.flags(shape)).astype(dtype)


def _sizes(declared: Mapping[str, Any], feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of named dims of the inputs, according to the feeds. `declared`: tensor types of inputs."""
    known = ((declared[name].shape.dim, np.shape(v)) for name, v in feeds.items() if name in declared)
    return {d.dim_param: n for dims, shape in known if len(dims) == len(shape) for d, n in zip(dims, shape)}


def _declared(tensor: Any, sizes: Mapping[str, int]) -> tuple[tuple[int, ...] | None, Any]:
    """Return (shape, numpy's type) of a tensor type; None for a shape not known completely, and for other types."""
    dims = tuple(d.dim_value or sizes.get(d.dim_param, 0) for d in tensor.shape.dim)
    kind = BY_CODE.get(tensor.elem_type)
    is_known = kind is not None and kind.kind in "fiub" and not kind.is_foreign
    return dims if tensor.HasField("shape") and all(dims) else None, kind.dtype if kind and is_known else None
