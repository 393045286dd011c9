"""Traces: two models with the branches that some cases take in place of their Ifs; and branches that no run can take.

Whoever takes a branch for granted leaves nothing that the If could be compared with, nor those inside it. So Ifs that
only one of two models has, or that they do not have alike, are compared as these cases run them: if the cases take all
branches that data may take, and all together that may be taken together. Of two Ifs that always take the same one may
have been taken for the other.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.coverage.changes import changed
from onnxopt.verification.coverage.conditions import BRANCHES, asked
from onnxopt.verification.coverage.counterparts import opened
from onnxopt.verification.model.decisions import can_change
from onnxopt.verification.model.leave_out import forget_defaults
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.sameness import Sameness
from onnxopt.verification.programs.program import Program, bodies
from onnxopt.verification.programs.runner import Runner

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

_MAX_DEPTH: Final = 8  # Ifs in Ifs
_MAX_PARTS: Final = 16  # of each of which inference would be asked
_MAX_ASKED: Final = 48  # models that inference is asked about
Feeds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Trace:
    """What runs the two models as some `cases` do. `unanswered`: what decides upon Ifs of A, or of B only, and has one
    answer in all of them, though nothing says that A fails with the other."""

    a: Runner
    b: Runner
    cases: list[int]
    unanswered: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


@dataclass
class _Condition:
    """What decides upon Ifs of one model: its truth in each case. `ifs`: do they ask so, or the opposite?"""

    name: str
    truths: tuple[bool, ...]
    ifs: dict[int, bool] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return len({*self.truths}) > 1

    def branches(self, k: int) -> Iterator[tuple[int, str]]:
        """(If, the branch that it takes in the case at place k)."""
        return ((i, BRANCHES[self.truths[k] is not is_so]) for i, is_so in self.ifs.items())


def traces(a: Runner, b: Runner, feeds: Feeds, types: Mapping[str, str]) -> list[Trace]:
    """One for all cases that take the same branches; none where nothing can be put in place, or the cases do not take
    all that others may. Raises Failed."""
    found: list[Trace] = []
    left = [Trace(a, b, list(range(len(feeds))))]
    for _ in range(_MAX_DEPTH):
        following: list[Trace] = []
        for trace in left:
            parts = _parts(trace, feeds, types)
            if parts is None:
                return []
            following += parts
            found += [] if parts or trace.a is a else [trace]
        left = following
    found += left
    return [] if any(map(_may_be_otherwise, found)) else found


def _parts(trace: Trace, feeds: Feeds, types: Mapping[str, str]) -> list[Trace] | None:
    """The trace with its next Ifs opened, by what cases take; None if other data may take what none of them does."""
    asked = _Questions(trace, feeds, types)
    if not asked.mine and not asked.theirs:
        return []
    if not asked.are_answered:
        return None
    found = [asked.opened(places) for places in asked.alike()]
    return [one for one in found if one is not None] if None not in found else []


class _Questions:
    """What decides upon the Ifs that the models of a trace have not alike: of A, of B, and of B only."""

    def __init__(self, trace: Trace, feeds: Feeds, types: Mapping[str, str]) -> None:
        self._trace = trace
        self._pairs = pairs = Pairs(trace.a.program, trace.b.program)
        apart = changed(pairs, Sameness.of_files(pairs))
        self.mine = _conditions(trace.a, apart[0], feeds, types, trace.cases)
        self.theirs = _conditions(trace.b, apart[1], feeds, types, trace.cases)
        self._same = dict(self._called_alike())
        self._only = [c for c in self.theirs if c.name not in self._same]

    def _called_alike(self) -> Iterator[tuple[str, str]]:
        """(name in B, name in A) of what is called so and is the same in all cases."""
        known = {c.name: c.truths for c in self.mine}
        for c in self.theirs:
            name = self._pairs.of.get(c.name, c.name if c.name in self._pairs.a.given else "")
            if known.get(name) == c.truths:
                yield c.name, name

    @property
    def are_answered(self) -> bool:
        """Are those that are not the same in all cases answered in each way in which they may be answered together?"""
        open_ = [c for c in (*self.mine, *self._only) if c.is_open]
        return len({tuple(c.truths[k] for c in open_) for k in range(len(self._trace.cases))}) == 1 << len(open_)

    def alike(self) -> list[list[int]]:
        """The places of cases in which all conditions are the same."""
        found: dict[tuple[bool, ...], list[int]] = {}
        for k in range(len(self._trace.cases)):
            found.setdefault(tuple(c.truths[k] for c in (*self.mine, *self.theirs)), []).append(k)
        return [*found.values()]

    @functools.cached_property
    def _unanswered(self) -> tuple[frozenset[str], frozenset[str]]:
        a, (mine, theirs) = self._trace.a.program, self._trace.unanswered
        open_ = {c.name for c in self.mine if not c.is_open and not _is_proven(a, c)}
        return mine | open_, theirs | {c.name for c in self._only if not c.is_open}

    def opened(self, places: Sequence[int]) -> Trace | None:
        """The trace of the cases at these places. Conditions of both become outputs, to be compared."""
        trace, pairs = self._trace, self._pairs
        both = [(x, y) for y, x in self._same.items() if x in pairs.a.maker and y in pairs.b.maker]
        a = _with_branches(trace.a, _branches(self.mine, places[0]), [x for x, _ in both])
        b = _with_branches(trace.b, _branches(self.theirs, places[0]), [y for _, y in both])
        return None if a is None or b is None else Trace(a, b, [trace.cases[k] for k in places], self._unanswered)


def _branches(conditions: Sequence[_Condition], k: int) -> dict[int, str]:
    return {i: name for c in conditions for i, name in c.branches(k)}


def _conditions(
    runner: Runner, nodes: Sequence[int], feeds: Feeds, types: Mapping[str, str], cases: Sequence[int]
) -> list[_Condition]:
    """What decides upon those of these nodes that are Ifs; none if a value is not known in a case."""
    program, found = runner.program, dict[str, _Condition]()
    ifs = {i: program.nodes[i].input[0] for i in nodes if program.nodes[i].op_type == "If"}
    known = _values(runner, dict.fromkeys(ifs.values()), [feeds[k] for k in cases], types)
    for i, name in ifs.items():
        if any(v is None for v in known[name]):
            return []
        root, is_so = asked(program, name)
        truths = tuple(bool(np.all(v)) is is_so for v in known[name])
        found.setdefault(root, _Condition(root, truths)).ifs[i] = is_so
    return [*found.values()]


def _values(runner: Runner, names: Collection[str], feeds: Feeds, types: Mapping[str, str]) -> dict[str, list[Any]]:
    """By name, the value in each case; None where it is neither made, fed nor a default."""
    program = runner.program
    made = [name for name in names if name in program.maker]
    part = runner.open(program.cone(made, ()), types, made) if made else None
    known = [{**fed, **(part.run(fed) if part is not None else {})} for fed in feeds]
    defaults = {name: program.constant(name) for name in names if name in program.constants}
    return {name: [values.get(name, defaults.get(name)) for values in known] for name in names}


def _is_proven(program: Program, condition: _Condition) -> bool:
    """Does A come to no end where this condition has its other answer?"""
    taken = condition.branches(0)
    return any(cannot_be_taken(program, i, BRANCHES[name == BRANCHES[0]]) for i, name in taken)


def _may_be_otherwise(trace: Trace) -> bool:
    """May callers give what has another answer, where all else is as these cases have it? Asked when all branches are
    in place: before, less is known of sizes."""
    sides = zip(trace.unanswered, (trace.a, trace.b))
    return any(names and not names.isdisjoint(_changing(r.program)) for names, r in sides)


def _changing(program: Program) -> Collection[str]:
    """The values that data, or sizes, can change; all where that is not known."""
    proto = type(program.skeleton.proto)()
    proto.CopyFrom(program.skeleton.proto)
    with contextlib.suppress(Exception):  # of inference, which is no source of verdicts
        return can_change(proto).values
    return {*program.maker, *program.given}


def _with_branches(runner: Runner, branches: Mapping[int, str], kept: Collection[str]) -> Runner | None:
    """The same main graph with these branches, by node, in place of Ifs, which gives out what is to be `kept`, too.
    None where they have names that others have."""
    from onnx import ModelProto

    program = runner.program
    if not branches and not kept:
        return runner.inside(program)
    skeleton = copy.copy(program.skeleton)
    skeleton.proto = ModelProto()
    skeleton.proto.CopyFrom(program.skeleton.proto)
    graph = skeleton.proto.graph
    del graph.node[:]
    names = {*program.maker, *program.given, *program.constants, *program.sparse}
    for i, node in enumerate(program.nodes):
        if i not in branches:
            graph.node.append(node)
            continue
        made = _made_in(node, branches[i])
        if not names.isdisjoint(made):
            return None
        names.update(made)
        body = bodies(node)[branches[i]]
        graph.node.extend(opened(node, branches[i]))
        graph.initializer.extend(body.initializer)
        graph.sparse_initializer.extend(body.sparse_initializer)
    for name in kept:
        graph.output.add(name=name)
    return runner.inside(Program(skeleton, fed=program.given & program.constants.keys()))


def _made_in(node: NodeProto, branch: str) -> list[str]:
    body = bodies(node)[branch]
    made = [o for n in body.node for o in n.output if o]
    return made + [t.name for t in body.initializer] + [t.values.name for t in body.sparse_initializer]


# -- branches that no run can take ------------------------------------------------------------------------


def cannot_be_taken(program: Program, i: int, name: str) -> bool:
    """Does the model fail whenever node i, an If of the main graph, takes this branch, whatever the sizes, and not for
    the other's sake? As where an If gives one number of axes or another, before what takes only one. onnx's inference
    is asked, of the original alone: it knows nothing of how a rewrite came to the same."""
    known = program.impossible  # each set of cases asks of the same branches
    if (i, name) not in known:
        known[i, name] = _can_be_asked(program, i, name) and _fails_alone(program, i, name)
    return known[i, name]


def _can_be_asked(program: Program, i: int, name: str) -> bool:
    is_main = program.graph is program.skeleton.proto.graph
    node = program.nodes[i]
    return is_main and node.op_type == "If" and name in bodies(node) and len(program.hiding) <= _MAX_PARTS


def _fails_alone(program: Program, i: int, name: str) -> bool:
    others = [other for other in bodies(program.nodes[i]) if other != name]
    return _Failing(program).fails(i, name) and not any(_Failing(program).fails(i, other) for other in others)


class _Failing:
    """Is there an error, of tensors of any size, with a branch in place of an If?"""

    def __init__(self, program: Program) -> None:
        from onnx import ModelProto

        self._nodes = program.nodes
        self._left = _MAX_ASKED
        self._model = ModelProto()
        self._model.CopyFrom(program.skeleton.proto)
        forget_defaults(self._model)
        graph = self._model.graph
        for info in graph.input:  # nor is what the file says of shapes known, which nobody has to keep
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
        del graph.node[:], graph.value_info[:], graph.output[:]

    def fails(self, i: int, branch: str) -> bool:
        return self._fail(self._nodes, i, branch, [])

    def _fail(self, nodes: Sequence[NodeProto], i: int, branch: str, initializers: Sequence[TensorProto]) -> bool:
        """Do these nodes fail so? Or does another of their Ifs, whichever branch that takes?"""
        initializers = [*initializers, *bodies(nodes[i])[branch].initializer]
        nodes = [*nodes[:i], *opened(nodes[i], branch), *nodes[i + 1 :]]
        made = [o for n in nodes for o in n.output if o]
        if len(made) > len(set(made)):
            return False  # branches of two Ifs may call what they make alike
        if self._is_error(nodes, initializers):
            return True
        ifs = (k for k in range(i, len(nodes)) if nodes[k].op_type == "If" and bodies(nodes[k]))
        return any(
            self._left > 0 and all(self._fail(nodes, k, other, initializers) for other in bodies(nodes[k])) for k in ifs
        )

    def _is_error(self, nodes: Sequence[NodeProto], initializers: Sequence[TensorProto]) -> bool:
        """Of what hides other parts, which may not run, nothing is known."""
        from onnx import NodeProto

        from onnxopt.inferring import InferenceError, infer_shapes, inferable

        self._left -= 1
        model = type(self._model)()
        model.CopyFrom(self._model)
        # What has bodies becomes an operator that onnx does not know.
        model.graph.node.extend(NodeProto(input=n.input, output=n.output) if bodies(n) else n for n in nodes)
        model.graph.initializer.extend(initializers)
        try:
            inferred = infer_shapes(inferable(model), strict=True)
        except InferenceError:
            return True
        except Exception:
            return False  # it cannot be asked
        return _has_odd_transpose(inferred.graph)


def _has_odd_transpose(graph: GraphProto) -> bool:
    """Does a Transpose put fewer axes in order than there are? onnx does not mind, runtimes do."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in infos if i.type.tensor_type.HasField("shape")}
    turned = [n for n in graph.node if n.op_type == "Transpose" and not n.domain and n.input]
    axes = [(n.input[0], len(a.ints)) for n in turned for a in n.attribute if a.name == "perm"]
    return any(count and ranks.get(name, count) != count for name, count in axes)
