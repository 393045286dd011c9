"""Traces: both models with taken branches in place of Ifs; and branches that always fail.

A rewrite that assumes a branch leaves nothing to compare the If, or Ifs inside it, with. Ifs present in only one model,
or different, are therefore compared as the cases run them. The cases must take all possible branches, in all possible
combinations: two Ifs that always take the same branch could be confused.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxopt.verification.coverage.conditions import BRANCHES, asked, opened
from onnxopt.verification.model.nodes import value_of
from onnxopt.verification.model.views import forget_defaults
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.programs.program import Program, bodies
from onnxopt.verification.programs.runner import Runner

_MAX_NESTED_IFS: Final = 8
_MAX_PARTS: Final = 16  # nodes with parts, in models given to inference
_MAX_ASKED: Final = 48  # models given to inference
Feeds = Sequence[Mapping[str, Any]]
Unanswered = tuple[frozenset[str], frozenset[str]]


@dataclass(frozen=True)
class Trace:
    """Both models as run by some cases."""

    a: Runner
    b: Runner
    cases: list[int]  # indices
    # Conditions of A, and only of B, with a single value in all cases, although A may accept both.
    unanswered: Unanswered = (frozenset(), frozenset())


@dataclass(frozen=True)
class _Condition:
    """A condition of Ifs in a model."""

    truths: tuple[bool, ...]  # by case
    ifs: dict[int, bool]  # {node: whether its condition is equal, not negated}

    @property
    def is_open(self) -> bool:
        """Whether the condition changes between the cases."""
        return len({*self.truths}) > 1

    def branches(self, k: int) -> dict[int, str]:
        """Return {If: branch taken in case `k`}."""
        return {i: BRANCHES[self.truths[k] is not is_so] for i, is_so in self.ifs.items()}


Conditions = Mapping[str, _Condition]  # by root


def traces(a: Runner, b: Runner, feeds: Feeds, types: Mapping[str, str]) -> list[Trace]:
    """Return a trace for each set of cases with equal branches.

    [] if nothing can be replaced, or the cases do not take all possible branches. Raises Failed.
    """
    whole = Trace(a, b, list(range(len(feeds))))
    found = _traced(whole, feeds, types, _MAX_NESTED_IFS) or [whole]
    return [] if found[0] is whole or any(map(_may_be_otherwise, found)) else found


def _traced(trace: Trace, feeds: Feeds, types: Mapping[str, str], most: int) -> list[Trace] | None:
    """Return the traces with Ifs replaced, `most` deep; None if the cases do not take all possible branches."""
    parts = _parts(trace, feeds, types) if most else []
    inner = [_traced(part, feeds, types, most - 1) for part in parts or ()]
    if parts is None or None in inner:
        return None
    return [one for found in inner for one in found or ()] or [trace]


def _parts(trace: Trace, feeds: Feeds, types: Mapping[str, str]) -> list[Trace] | None:
    """Return the traces with the next Ifs replaced, by conditions in the cases.

    [] if none remain, or names collide; None if the cases do not take every combination of changing conditions.
    Conditions of both models become outputs, for comparison.
    """
    pairs = Pairs(trace.a.program, trace.b.program)
    apart = pairs.by_name.changed(pairs.a.hiding, pairs.b.hiding)
    some = [feeds[k] for k in trace.cases]
    mine, theirs = (_conditions(r, nodes, some, types) for r, nodes in zip((trace.a, trace.b), apart))
    same = _same(pairs, mine, theirs)
    only = {y: c for y, c in theirs.items() if y not in same}
    open_ = [c for c in (*mine.values(), *only.values()) if c.is_open]
    if not _are_all_taken(open_, len(some)):
        return None
    closed = {x for x in _closed(mine) if not _is_proven(pairs.a, mine[x])}
    unanswered = trace.unanswered[0] | closed, trace.unanswered[1] | _closed(only)
    kept = {y: x for y, x in same.items() if x in pairs.a.maker and y in pairs.b.maker}
    return _replaced(trace, mine, theirs, kept, unanswered)


def _closed(conditions: Conditions) -> set[str]:
    """Return the roots of conditions that are equal in all cases."""
    return {root for root, c in conditions.items() if not c.is_open}


def _same(pairs: Pairs, mine: Conditions, theirs: Conditions) -> dict[str, str]:
    """Return {condition of B: corresponding condition of A} where both are equal in all cases."""
    of = {y: pairs.of.get(y, y if y in pairs.a.given else "") for y in theirs}
    return {y: x for y, x in of.items() if x in mine and mine[x].truths == theirs[y].truths}


def _are_all_taken(conditions: Sequence[_Condition], cases: int) -> bool:
    """Return whether the cases take every combination of the conditions."""
    return len({tuple(c.truths[k] for c in conditions) for k in range(cases)}) == 1 << len(conditions)


def _replaced(
    trace: Trace, mine: Conditions, theirs: Conditions, kept: Mapping[str, str], unanswered: Unanswered
) -> list[Trace]:
    """Return a trace for each set of cases with equal branches; [] if names collide. `kept`: further outputs."""
    groups: dict[tuple[bool, ...], list[int]] = {}
    for k in range(len(trace.cases)) if mine or theirs else ():
        groups.setdefault(tuple(c.truths[k] for c in (*mine.values(), *theirs.values())), []).append(k)
    found = []
    for group in groups.values():
        a = _with_branches(trace.a, mine, group[0], kept.values())
        b = _with_branches(trace.b, theirs, group[0], kept.keys())
        if a is None or b is None:
            return []
        found.append(Trace(a, b, [trace.cases[n] for n in group], unanswered))
    return found


def _conditions(runner: Runner, nodes: Sequence[int], feeds: Feeds, types: Mapping[str, str]) -> Conditions:
    """Return the conditions of Ifs among `nodes`, by root; {} if unknown in a case."""
    program, found = runner.program, dict[str, _Condition]()
    ifs = {i: program.nodes[i].input[0] for i in nodes if program.nodes[i].op_type == "If"}
    made = [name for name in dict.fromkeys(ifs.values()) if name in program.maker]
    part = runner.open(program.cone(made, ()), types, made) if made else None
    feeds = [{**fed, **part.run(fed)} for fed in feeds] if part is not None else feeds
    for i, name in ifs.items():
        root, is_so = asked(program, name)
        truths = _truths(program, name, feeds)
        if None in truths:
            return {}
        found.setdefault(root, _Condition(tuple(truth is is_so for truth in truths), {})).ifs[i] = is_so
    return found


def _truths(program: Program, name: str, feeds: Feeds) -> list[bool | None]:
    """Return the truth of a condition in each case; None if unknown."""
    default = program.constant(name) if name in program.constants else None
    values = (known.get(name, default) for known in feeds)
    return [None if v is None else bool(np.all(v)) for v in values]


def _is_proven(program: Program, condition: _Condition) -> bool:
    """Return whether A fails with the opposite value of the condition."""
    taken = condition.branches(0)
    return any(cannot_be_taken(program, i, BRANCHES[name == BRANCHES[0]]) for i, name in taken.items())


def _may_be_otherwise(trace: Trace) -> bool:
    """Return whether inputs may change an unanswered condition.

    Tested with all branches in place, when inference knows most sizes.
    """
    sides = zip(trace.unanswered, (trace.a, trace.b))
    some = ((names, r.program.changing) for names, r in sides if names)
    return any(found is None or not names.isdisjoint(found.values) for names, found in some)


def _with_branches(runner: Runner, conditions: Conditions, case: int, kept: Collection[str]) -> Runner | None:
    """Return the main graph with the branches of a case in place of Ifs, and `kept` values as further outputs.

    None if names collide.
    """
    program = runner.program
    branches = {i: name for c in conditions.values() for i, name in c.branches(case).items()}
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
        body = bodies(node)[branches[i]]
        made = _defined(body)
        if not names.isdisjoint(made):
            return None
        names |= made
        graph.node.extend(opened(node, branches[i]))
        graph.initializer.extend(body.initializer)
        graph.sparse_initializer.extend(body.sparse_initializer)
    for name in kept:
        graph.output.add(name=name)
    return runner.inside(Program(skeleton, fed=program.given & program.constants.keys()))


def _defined(body: GraphProto) -> set[str]:
    """Return the values that a body holds or makes."""
    held = *(t.name for t in body.initializer), *(t.values.name for t in body.sparse_initializer)
    return {*held, *(o for n in body.node for o in n.output if o)}


# -- branches that always fail ---------------------------------------------------------------------------


def cannot_be_taken(program: Program, i: int, name: str) -> bool:
    """Return whether the model fails whenever node `i`, an If of the main graph, takes this branch, for any sizes.

    Example: branches of different rank, before an operator that accepts only one. Decided by onnx's inference on the
    original alone, independent of any rewrite. False if the opposite branch fails too.
    """
    known, nodes = program.impossible, program.nodes  # cached, as each set of cases tests the same branches
    if (i, name) not in known:
        is_asked = program.graph is program.skeleton.proto.graph and len(program.hiding) <= _MAX_PARTS
        branches = bodies(nodes[i]) if is_asked and nodes[i].op_type == "If" else {}
        tried = dict.fromkeys((name, *branches))
        fails = (_Failing(program).fails(nodes, i, other) is (other == name) for other in tried)
        known[i, name] = name in branches and all(fails)
    return known[i, name]


class _Failing:
    """Test for shape errors with a branch in place of an If, for tensors of any size."""

    def __init__(self, program: Program) -> None:
        self._left = _MAX_ASKED
        self._model = ModelProto()
        self._model.CopyFrom(program.skeleton.proto)
        forget_defaults(self._model)
        graph = self._model.graph
        for info in graph.input:  # declared shapes are not binding
            for dim in info.type.tensor_type.shape.dim:
                dim.Clear()
        del graph.node[:], graph.value_info[:], graph.output[:]

    def fails(self, nodes: Sequence[NodeProto], i: int, branch: str, initializers: Sequence[TensorProto] = ()) -> bool:
        """Return whether nodes with a branch in place of node `i` fail, perhaps in all branches of a further If."""
        initializers = [*initializers, *bodies(nodes[i])[branch].initializer]
        nodes = [*nodes[:i], *opened(nodes[i], branch), *nodes[i + 1 :]]
        made = [o for n in nodes for o in filter(None, n.output)]
        if len(made) > len(set(made)):
            return False  # names of two branches may collide
        if self._is_error(nodes, initializers):
            return True
        ifs = (k for k in range(i, len(nodes)) if nodes[k].op_type == "If" and bodies(nodes[k]))
        # Once too many models were given to inference, no further If is tried.
        return any(self._left > 0 and all(self.fails(nodes, k, n, initializers) for n in bodies(nodes[k])) for k in ifs)

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
    infos = (i for i in (*graph.input, *graph.value_info, *graph.output) if i.type.tensor_type.HasField("shape"))
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in infos}
    turned = (n for n in graph.node if n.op_type == "Transpose" and not n.domain and n.input)
    perms = ((n.input[0], len(value_of(n, "perm", ()))) for n in turned)
    return any(count and ranks.get(name, count) != count for name, count in perms)
