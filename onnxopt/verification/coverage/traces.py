"""Traces: both models with taken branches in place of Ifs; and branches that always fail.

A rewrite that assumes a branch leaves nothing to compare the If, or Ifs inside it, with. Ifs present in only one model,
or different, are therefore compared as the cases run them. The cases must take all possible branches, in all possible
combinations: two Ifs that always take the same branch could be confused.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.verification.coverage.conditions import BRANCHES, asked, opened
from onnxopt.verification.coverage.decisions import changed
from onnxopt.verification.model.views import forget_defaults
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.programs.program import Program, bodies
from onnxopt.verification.programs.runner import Runner

_MAX_NESTED_IFS: Final = 8
_MAX_PARTS: Final = 16  # nodes with parts, in models given to inference
_MAX_ASKED: Final = 48  # models given to inference
Feeds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Trace:
    """Both models as run by some cases."""

    a: Runner
    b: Runner
    cases: list[int]  # indices
    # Conditions of A, and only of B, with a single value in all cases, although A may accept both.
    unanswered: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


@dataclass
class _Condition:
    """A condition of Ifs in a model."""

    name: str
    truths: tuple[bool, ...]  # by case
    ifs: dict[int, bool] = field(default_factory=dict)  # {node: whether its condition is equal, not negated}

    @property
    def is_open(self) -> bool:
        """Whether the condition changes between the cases."""
        return len({*self.truths}) > 1

    def branches(self, k: int) -> Iterator[tuple[int, str]]:
        """Yield (If, branch taken in case `k`)."""
        return ((i, BRANCHES[self.truths[k] is not is_so]) for i, is_so in self.ifs.items())


def traces(a: Runner, b: Runner, feeds: Feeds, types: Mapping[str, str]) -> list[Trace]:
    """Return a trace for each set of cases with equal branches.

    [] if nothing can be replaced, or the cases do not take all possible branches. Raises Failed.
    """
    found: list[Trace] = []
    left = [Trace(a, b, list(range(len(feeds))))]
    for _ in range(_MAX_NESTED_IFS):
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
    """Return the traces with the next Ifs replaced, [] if none remain; None if untaken combinations are possible."""
    asked = _Questions(trace, feeds, types)
    if not asked.mine and not asked.theirs:
        return []
    if not asked.are_answered:
        return None
    found = [asked.opened(places) for places in asked.alike()]
    return [one for one in found if one is not None] if None not in found else []


class _Questions:
    """Conditions of different Ifs in a trace: of A, of B, and only of B."""

    def __init__(self, trace: Trace, feeds: Feeds, types: Mapping[str, str]) -> None:
        self._trace = trace
        self._pairs = pairs = Pairs(trace.a.program, trace.b.program)
        apart = changed(pairs, pairs.by_name)
        self.mine = _conditions(trace.a, apart[0], feeds, types, trace.cases)
        self.theirs = _conditions(trace.b, apart[1], feeds, types, trace.cases)
        self._same = dict(self._called_alike())
        self._only = [c for c in self.theirs if c.name not in self._same]

    def _called_alike(self) -> Iterator[tuple[str, str]]:
        """Yield (name in B, name in A) of corresponding conditions equal in all cases."""
        known = {c.name: c.truths for c in self.mine}
        for c in self.theirs:
            name = self._pairs.of.get(c.name, c.name if c.name in self._pairs.a.given else "")
            if known.get(name) == c.truths:
                yield c.name, name

    @property
    def are_answered(self) -> bool:
        """Whether the cases take every combination of changing conditions."""
        open_ = [c for c in (*self.mine, *self._only) if c.is_open]
        return len({tuple(c.truths[k] for c in open_) for k in range(len(self._trace.cases))}) == 1 << len(open_)

    def alike(self) -> list[list[int]]:
        """Return groups of cases with equal conditions."""
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
        """Return the trace of a group of cases. Common conditions become outputs, for comparison."""
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
    """Return the conditions of Ifs among `nodes`; [] if unknown in a case."""
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
    """Return {name: values by case}, None if neither computed, fed nor a default."""
    program = runner.program
    made = [name for name in names if name in program.maker]
    part = runner.open(program.cone(made, ()), types, made) if made else None
    known = [{**fed, **(part.run(fed) if part is not None else {})} for fed in feeds]
    defaults = {name: program.constant(name) for name in names if name in program.constants}
    return {name: [values.get(name, defaults.get(name)) for values in known] for name in names}


def _is_proven(program: Program, condition: _Condition) -> bool:
    """Return whether A fails with the opposite value of the condition."""
    taken = condition.branches(0)
    return any(cannot_be_taken(program, i, BRANCHES[name == BRANCHES[0]]) for i, name in taken)


def _may_be_otherwise(trace: Trace) -> bool:
    """Return whether inputs may change an unanswered condition.

    Tested with all branches in place, when inference knows most sizes.
    """
    sides = zip(trace.unanswered, (trace.a, trace.b))
    some = ((names, r.program.changing) for names, r in sides if names)
    return any(found is None or not names.isdisjoint(found.values) for names, found in some)


def _with_branches(runner: Runner, branches: Mapping[int, str], kept: Collection[str]) -> Runner | None:
    """Return the main graph with branches in place of Ifs, and `kept` values as further outputs.

    branches: by node. None if names collide.
    """
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


# -- branches that always fail ---------------------------------------------------------------------------


def cannot_be_taken(program: Program, i: int, name: str) -> bool:
    """Return whether the model fails whenever node `i`, an If of the main graph, takes this branch, for any sizes.

    Example: branches of different rank, before an operator that accepts only one. Decided by onnx's inference on the
    original alone, independent of any rewrite. False if the opposite branch fails too.
    """
    known = program.impossible  # cached, as each set of cases tests the same branches
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
    """Test for shape errors with a branch in place of an If, for tensors of any size."""

    def __init__(self, program: Program) -> None:
        self._nodes = program.nodes
        self._left = _MAX_ASKED
        self._model = ModelProto()
        self._model.CopyFrom(program.skeleton.proto)
        forget_defaults(self._model)
        graph = self._model.graph
        for info in graph.input:  # declared shapes are not binding
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
        del graph.node[:], graph.value_info[:], graph.output[:]

    def fails(self, i: int, branch: str) -> bool:
        """Return whether the graph fails with `branch` in place of node `i`."""
        return self._fail(self._nodes, i, branch, [])

    def _fail(self, nodes: Sequence[NodeProto], i: int, branch: str, initializers: Sequence[TensorProto]) -> bool:
        """Return whether nodes with a branch in place fail, perhaps in all branches of a further If."""
        initializers = [*initializers, *bodies(nodes[i])[branch].initializer]
        nodes = [*nodes[:i], *opened(nodes[i], branch), *nodes[i + 1 :]]
        made = [o for n in nodes for o in n.output if o]
        if len(made) > len(set(made)):
            return False  # names of two branches may collide
        if self._is_error(nodes, initializers):
            return True
        ifs = (k for k in range(i, len(nodes)) if nodes[k].op_type == "If" and bodies(nodes[k]))
        return any(
            self._left > 0 and all(self._fail(nodes, k, other, initializers) for other in bodies(nodes[k])) for k in ifs
        )

    def _is_error(self, nodes: Sequence[NodeProto], initializers: Sequence[TensorProto]) -> bool:
        """Return whether inference fails. Nodes with bodies are opaque."""
        from onnxopt.proto.inference import InferenceError, infer_shapes, inferable

        self._left -= 1
        model = type(self._model)()
        model.CopyFrom(self._model)
        # Nodes with bodies become unknown operators.
        model.graph.node.extend(NodeProto(input=n.input, output=n.output) if bodies(n) else n for n in nodes)
        model.graph.initializer.extend(initializers)
        try:
            inferred = infer_shapes(inferable(model), strict=True)
        except InferenceError:
            return True
        except Exception:
            return False  # inference is impossible
        return _has_odd_transpose(inferred.graph)


def _has_odd_transpose(graph: GraphProto) -> bool:
    """Return whether a Transpose permutes fewer axes than present: accepted by onnx, rejected by runtimes."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in infos if i.type.tensor_type.HasField("shape")}
    turned = [n for n in graph.node if n.op_type == "Transpose" and not n.domain and n.input]
    axes = [(n.input[0], len(a.ints)) for n in turned for a in n.attribute if a.name == "perm"]
    return any(count and ranks.get(name, count) != count for name, count in axes)
