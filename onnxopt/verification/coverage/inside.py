"""Bodies compared: both branches of an If, the first turn of a Loop or Scan, on the values that A captures there; and
functions of the model, on what they are called with."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import element_kind
from onnxopt.verification.coverage.branches import counterparts
from onnxopt.verification.numbers.draws import Draws
from onnxopt.verification.pieces.walk import Walk
from onnxopt.verification.programs.program import Program, type_of
from onnxopt.verification.programs.runner import Failed

if TYPE_CHECKING:
    from onnx import NodeProto


_MOST: Final = 50  # nodes that are run for what is no cut
Nodes = tuple["NodeProto", "NodeProto"]  # of A and B
Programs = tuple[Program, Program]


def walk_bodies(outer: Walk, i: int, j: int, turn: int = 0, *, assuming: bool = False) -> Iterator[tuple[str, Walk]]:
    """(attribute, walk) of each body of node i of A and what stands for it in node j of B (`counterparts`), on cases of
    the walk around them; of a loop, its first `turn`, or a later one on states that are drawn. `assuming`: of branches
    that no case takes and that read their condition themselves, as if it were as it has to be there.

    Nothing for bodies whose values are not known any more, or that do not run on them.
    """
    x, y = outer.a.nodes[i], outer.b.nodes[j]
    made = dict[str, list[Any]]()
    for part in counterparts(outer, i, j):
        a, b = Program(outer.a.skeleton, part.mine, outer.a), Program(outer.b.skeleton, part.theirs, outer.b)
        told = [body.given & names.keys() for body, names in zip((a, b), part.assumed)]
        if assuming and not any(told):
            continue
        given = functools.partial(_given, outer, (x, y), (a, b), made, turn)
        try:
            known = [given(case) for case in part.enclosing.cases]
            known = [_assumed(values, told, part.assumed) for values in known] if assuming else known
        except (_Unknown, Failed, KeyError):
            continue
        if not known:
            continue
        kinds = outer.original.types
        carried = {inner: outer.pairs.of.get(name, name) for inner, name in _carried(y, b)} | dict(_carried(x, a))
        types = {n: kinds.get(n) or kinds.get(carried.get(n, "")) or type_of(v) for n, v in known[0].items()}
        walk = Walk(
            outer.runner.inside(a),
            outer.replay.runner.inside(b),
            known,
            types,
            memory=outer.memory,
            seed=outer.seed,
            held=outer.held,
            dtype=outer.dtype,
            outputs=_outputs(outer, (x, y), (a, b)) if part.outputs is None else part.outputs,
            enclosing=part.enclosing,
        )
        try:
            walk.run()
        except (Failed, ValueError):  # or a type that no input has
            continue
        yield part.enclosing.name, walk


def _carried(node: NodeProto, body: Program) -> Iterator[tuple[str, str]]:
    """(name inside, name outside) of what a node hands to its body. Empty sequences tell no type of their own."""
    names = [i.name for i in body.graph.input]
    yield from zip(names[2:], node.input[2:]) if node.op_type == "Loop" else zip(names, node.input)


def _outputs(outer: Walk, nodes: Nodes, programs: Programs) -> list[tuple[str, str]]:
    """The outputs of bodies that make what stands for each other outside; of the rest, those of one order."""
    (x, y), of = nodes, outer.pairs.of
    first = int(x.op_type == "Loop")  # whether it goes on
    mine, theirs = (p.outputs[first:] for p in programs)
    places = {name: k for k, name in enumerate(x.output) if name}
    found = {k: places[of[name]] for k, name in enumerate(y.output) if of.get(name) in places}
    rest = [[k for k in range(len(o)) if k not in taken] for o, taken in ((mine, found.values()), (theirs, found))]
    if len(rest[0]) == len(rest[1]):
        found |= dict(zip(rest[1], rest[0]))
    return [*zip(*(p.outputs[:first] for p in programs)), *((mine[i], theirs[k]) for k, i in found.items())]


class _Unknown(Exception):
    """A value that bodies are given is not known, or they give different ones one name."""


def _given(
    outer: Walk, nodes: Nodes, programs: Programs, made: dict[str, list[Any]], turn: int, case: int
) -> dict[str, Any]:
    """What the bodies of nodes are given in a turn: what they capture, and their inputs. What B's are given is A's
    value of what stands for it, or `made` by B. Raises _Unknown, Failed, and KeyError for what is forgotten."""
    known, pairs, views = outer.original.values[case], outer.pairs, outer.replay.views
    is_one_node = any(o and pairs.of.get(o) in nodes[0].output for o in nodes[1].output)  # of one name

    def mine(name: str) -> Any:
        return outer.a.constant(name) if outer.a.is_constant(name) else known.get(name)

    def theirs(name: str) -> Any:
        if outer.b.is_constant(name):
            return outer.b.constant(name)
        if name in outer.cuts:
            value = known.get(pairs.of.get(name, name))
            return value if value is None or name not in views else views[name](value, case)
        if (
            is_one_node
            and name in outer.b.maker
            and name not in made
            and len(outer.b.cone([name], outer.fed, _MOST)) < _MOST
        ):
            made[name] = outer.replay.run([name], outer.fed)[name]
        return made[name][case] if name in made else None

    found: dict[str, Any] = {}
    for node, body, value in zip(nodes, programs, (mine, theirs)):
        names = [i.name for i in body.graph.input]
        given = _turn(node, value, turn, outer.seed) if names else []
        if len(given) != len(names):
            raise _Unknown
        read = [*zip(names, given), *((name, value(name)) for name in body.given.difference(names))]
        for name, one in read:
            if not isinstance(one, (np.ndarray, list)) or not _is_one(found.setdefault(name, one), one):
                raise _Unknown
    return found


def _assumed(
    found: dict[str, Any], told: Sequence[Collection[str]], conditions: Sequence[Mapping[str, bool]]
) -> dict[str, Any]:
    """What a branch is given, and its conditions as they have to be. Raises _Unknown where one name would say both."""
    truths: dict[str, bool] = {}
    for names, known in zip(told, conditions):
        if any(truths.setdefault(name, known[name]) != known[name] for name in names):
            raise _Unknown
    told_of = {name: truth for name, truth in truths.items() if found[name].dtype == np.bool_}
    return found | {name: np.full_like(found[name], truth) for name, truth in told_of.items()}


def _turn(node: NodeProto, value: Callable[[str], Any], turn: int, seed: int) -> list[Any]:
    """What a body is given in a turn, or a function when it is called."""
    if node.op_type == "Loop":
        handed = [value(name) for name in node.input[2:]]
        return [np.array(turn, np.int64), np.array(True), *(_later(v, seed) if turn else v for v in handed)]
    given = [value(name) for name in node.input]
    if node.op_type == "Scan":
        states = len(given) - next((x.i for x in node.attribute if x.name == "num_scan_inputs"), 0)
        says = {x.name: x.ints for x in node.attribute}
        axes, ways = (says.get(f"scan_input_{kind}", ()) for kind in ("axes", "directions"))
        taken = itertools.zip_longest(given[states:], axes, ways, fillvalue=0)
        given[states:] = [_first(v, axis, -1 if way else 0) for v, axis, way in taken]
    return given


def _first(value: Any, axis: int, place: int) -> Any:
    """What a Scan takes first of what it goes along; None where that is nothing."""
    is_there = isinstance(value, np.ndarray) and -value.ndim <= axis < value.ndim and value.shape[axis]
    return np.ascontiguousarray(value.take(place, axis)) if is_there else None


def _later(value: Any, seed: int) -> Any:
    """What a turn could make of a state; equal ones have equal."""
    if not isinstance(value, np.ndarray) or element_kind(value) != "f":
        return value
    return np.asarray(Draws(seed, zlib.crc32(value.tobytes())).normal(value.shape), value.dtype)


def _is_one(a: Any, b: Any) -> bool:
    """Are they one value?"""
    if a is b:
        return True
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and all(map(_is_one, a, b))
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
