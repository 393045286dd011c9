"""Comparison of bodies as functions of captured values, on A's values.

Bodies are branches of an If, an iteration of a Loop or Scan, and functions of the model.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxopt.proto.element_types import element_kind
from onnxopt.verification.coverage.conditions import counterparts, value_of
from onnxopt.verification.pieces.outcome import Enclosing
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program, type_of
from onnxopt.verification.rounding import Draws, difference
from onnxopt.verification.run import Failed

Nodes = tuple["NodeProto", "NodeProto"]  # of A and B
Programs = Sequence[Program]  # likewise


def walk_bodies(outer: Walk, i: int, j: int, turn: int = 0) -> Iterator[tuple[str, Walk]]:
    """Yield (attribute, walk) for each body of A's node `i` and its counterpart in B's node `j`.

    Bodies run on the cases of the enclosing walk; of a loop, iteration `turn`, with drawn states unless 0. An untaken
    branch that reads its own condition runs again with the condition that it requires. Bodies with unknown inputs, or
    that fail, are left out.
    """
    for part in counterparts(outer, i, j):
        if (walk := _walked(part, turn)) is not None:
            yield part.names[0], walk


def _walked(part: Enclosing, turn: int) -> Walk | None:
    outer, nodes = part.outer, part.nodes
    a, b = programs = tuple(Program(p.skeleton, g, p) for p, g in zip((outer.a, outer.b), part.graphs))
    if part.assumed and part.assumed.keys().isdisjoint(a.given | b.given):
        return None
    try:
        known = [_assumed(_given(outer, nodes, programs, turn, case), part.assumed) for case in part.cases]
        types = _types(outer, nodes, programs, known[0])
        outputs = _outputs(outer, nodes, programs) if part.outputs is None else part.outputs
        runners = outer.runner.inside(a), outer.replay.runner.inside(b)
        return Walk(*runners, known, types, Pairs(a, b, outputs), part, **outer.how).run()
    except (_Unknown, Failed, KeyError, ValueError):  # or released, or a type impossible as an input
        return None


def _types(outer: Walk, nodes: Nodes, programs: Programs, known: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of inputs. The type of an empty sequence is taken from the enclosing graph."""
    kinds = outer.original.types
    carried: dict[str, str] = {}
    for node, body in zip(reversed(nodes), reversed(programs)):
        of = outer.pairs.of if body is programs[1] else {}
        names = [i.name for i in body.graph.input]
        handed = zip(names[2:], node.input[2:]) if node.op_type == "Loop" else zip(names, node.input)
        carried.update((inner, of.get(name, name)) for inner, name in handed)
    return {n: kinds.get(n) or kinds.get(carried.get(n, "")) or type_of(v) for n, v in known.items()}


def _outputs(outer: Walk, nodes: Nodes, programs: Programs) -> list[tuple[str, str]]:
    """Return pairs of corresponding outputs: by corresponding values outside, the rest in order."""
    (x, y), of = nodes, outer.pairs.of
    first = int(x.op_type == "Loop")  # the condition output of a Loop
    mine, theirs = (p.outputs[first:] for p in programs)
    places = {name: k for k, name in enumerate(x.output) if name}
    found = {k: places[of[name]] for k, name in enumerate(y.output) if of.get(name) in places}
    rest = [i for i in range(len(mine)) if i not in found.values()], [k for k in range(len(theirs)) if k not in found]
    if len(rest[0]) == len(rest[1]):
        found |= dict(zip(rest[1], rest[0]))
    return [*zip(*(p.outputs[:first] for p in programs)), *((mine[i], theirs[k]) for k, i in found.items())]


class _Unknown(Exception):
    """An input of the bodies is unknown, or has different values in A and B under the same name."""


def _given(outer: Walk, nodes: Nodes, programs: Programs, turn: int, case: int) -> dict[str, Any]:
    """Return the inputs and captured values of the bodies in an iteration: A's values; of B, only cutpoints are known.

    Raises _Unknown, Failed, and KeyError for released values.
    """
    found: dict[str, Any] = {}
    for node, body, of in zip(nodes, programs, (value_of, _of_b)):
        value = functools.partial(of, outer, case=case)
        names = [i.name for i in body.graph.input]
        given = _turn(node, value, turn, outer.replay.seed) if names else []
        if len(given) != len(names):
            raise _Unknown
        for name, one in (*zip(names, given), *((name, value(name)) for name in body.given.difference(names))):
            known = found.setdefault(name, one)
            if not isinstance(one, (np.ndarray, list)) or (known is not one and not difference(known, one).within(0.0)):
                raise _Unknown
    return found


def _of_b(outer: Walk, name: str, case: int) -> Any:
    if outer.b.is_constant(name):
        return outer.b.constant(name)
    return outer.replay.fed_as(name, case) if name in outer.cuts else None


def _assumed(found: dict[str, Any], conditions: Mapping[str, bool]) -> dict[str, Any]:
    """Return the inputs of a branch with conditions set as the branch requires."""
    told = {n: truth for n, truth in conditions.items() if n in found and found[n].dtype == np.bool_}
    return found | {name: np.full_like(found[name], truth) for name, truth in told.items()}


def _turn(node: NodeProto, value: Callable[[str], Any], turn: int, seed: int) -> list[Any]:
    """Return the inputs of a body in an iteration, or of a function."""
    if node.op_type == "Loop":
        handed = [*map(value, node.input[2:])]
        return [np.array(turn, np.int64), np.array(True), *(_later(v, seed) if turn else v for v in handed)]
    given = [*map(value, node.input)]
    return _scanned(node, given) if node.op_type == "Scan" else given


def _scanned(node: NodeProto, given: list[Any]) -> list[Any]:
    """Return the states and the first slices of a Scan's inputs."""
    says = {x.name: x for x in node.attribute}
    states = len(given) - (says["num_scan_inputs"].i if "num_scan_inputs" in says else 0)
    axes, ways = (says[name].ints if name in says else () for name in ("scan_input_axes", "scan_input_directions"))
    taken = itertools.zip_longest(given[states:], axes, ways, fillvalue=0)
    return [*given[:states], *(_first(v, axis, -1 if way else 0) for v, axis, way in taken)]


def _first(value: Any, axis: int, place: int) -> Any:
    """Return a slice of a value; None if missing."""
    is_there = isinstance(value, np.ndarray) and -value.ndim <= axis < value.ndim and value.shape[axis]
    return np.ascontiguousarray(value.take(place, axis)) if is_there else None


def _later(value: Any, seed: int) -> Any:
    """Return a random state with the shape of `value`; equal states give equal results."""
    if not isinstance(value, np.ndarray) or element_kind(value) != "f":
        return value
    return np.asarray(Draws(seed, zlib.crc32(value.tobytes())).normal(value.shape), value.dtype)
