"""Extraction of the nodes between values of the main graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxopt.analysis.body_cut import Opened, in_bodies, innermost, the_one
from onnxopt.analysis.submodel import is_stored, reads
from onnxopt.errors import UsageError, few, nearest
from onnxopt.graph.model import Model
from onnxopt.graph.node import Node
from onnxopt.graph.value import Value


@dataclass(frozen=True)
class Cut:
    """The nodes that compute `outputs` from `inputs`.

    `unneeded`: named inputs not needed by any output; `left_out`: unnamed model outputs not computable from the inputs.
    `scope`: the place among the model's scopes of the body with these values, whose nodes are in the main graph now.
    """

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    unneeded: list[str]
    left_out: list[str]
    scope: int


def cut(model: Model, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Cut:
    """Return the nodes between values of the main graph, or of a body and what is around it.

    Without `inputs` the cut starts at the inputs of model and body, as far as needed; without `outputs` it ends at the
    outputs of the model, or of the body, computable from the inputs. The nodes of such a body are in the main graph
    afterwards. Raises UsageError for unknown names, and for outputs that need further inputs.
    """
    if not inputs and not outputs:
        raise UsageError("neither inputs nor outputs are named", "name the values to cut at: one of both is enough")
    values = _values(model)
    named, ends = _find(model, values, inputs), _find(model, values, outputs)
    inner = innermost(model, [*named, *ends])
    scope = [*model.scopes()].index(inner)
    opened = Opened(model, inner)
    named, ends = ([opened.inputs.get(v, v) for v in some] for some in (named, ends))
    begins = named or [v for v in model.graph.inputs if not v.constant]
    given, own = set(begins), opened.ends
    for v in ends:
        if v in given or (v.is_input and not is_stored(v)):
            raise UsageError(f"{model.name}: `{v.name}` is an input, which nothing computes", "name a value behind it")
    known = _computed(model, given)
    wanted = ends or [v for v in own if v not in given]
    found = [v for v in wanted if v in known or is_stored(v)]
    if not found or (ends and len(found) < len(ends)):
        raise _lack(model, [v for v in wanted if v not in found], given, "input" if opened.owners else "graph input")
    nodes, seen = _behind(found, given)
    opened.refuse_owners(model, nodes, found)
    return Cut(
        nodes=[node for node in model.graph if node in nodes],
        inputs=[v for v in begins if v in seen],
        outputs=found,
        unneeded=[v.name for v in named if v not in seen],
        left_out=[] if ends else [v.name for v in own if v not in found],
        scope=scope,
    )


def opened_as(model: Model, found: Cut) -> Model:
    """Return another copy of the model that was cut, with the nodes of the same body in the main graph."""
    Opened(model, [*model.scopes()][found.scope])
    return model


def _values(model: Model) -> dict[str, Value]:
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values(), *graph.outputs)}
    for node in graph:
        values |= {v.name: v for v in (*reads(node), *node.outputs) if v is not None}
    return values


def _find(model: Model, values: dict[str, Value], names: Iterable[str]) -> list[Value]:
    found: dict[Value, None] = {}
    for name in [names] if isinstance(names, str) else names:
        inner = {} if name in values else in_bodies(model)
        if name in values:
            found[values[name]] = None
        elif name in inner:
            found[the_one(model, name, inner[name])] = None
        else:
            where = "the main graph or a body" if inner else "the main graph"
            raise UsageError(
                f"{model.name}: no value of {where} is called {name!r}", _near(model, [*values, *inner], name)
            )
    return list(found)


def _near(model: Model, values: Sequence[str], name: str) -> str:
    for scope in model.scopes():
        for node in scope:
            results = [v.name for v in node.outputs if v is not None]
            if not scope.root.is_function and node.name == name:
                return f"it is a node, which computes {' and '.join(f'`{n}`' for n in results)}"
            if name in results:
                flat = "`onnxopt optimize MODEL FLAT -O0 --inline-functions`"
                return f"it is in {scope.path}, where the model cannot be cut: {flat} puts it in the main graph"
    cut_up = [known for known in values if "," in known and name.strip() in (part.strip() for part in known.split(","))]
    if cut_up:
        return f"it has `{cut_up[0]}`: on a command line a comma in a name is written `\\,`"
    begins, ends = ([v.name for v in values] for values in (model.graph.inputs, model.graph.outputs))
    return nearest(name, values, f"it has the inputs {few(begins)}, the outputs {few(ends)}")


def _computed(model: Model, given: set[Value]) -> set[Value]:
    """Return the values computable from `given` and stored constants."""
    known = set(given)
    for node in model.graph:
        if all(v in known or is_stored(v) for v in reads(node)):
            known.update(v for v in node.outputs if v is not None)
    return known


def _behind(ends: Iterable[Value], given: set[Value]) -> tuple[set[Node], set[Value]]:
    """Return (nodes needed by `ends`, values read), stopping at `given`."""
    nodes: set[Node] = set()
    seen: set[Value] = set()
    waiting = list(ends)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer
        if value not in given and node is not None and node not in nodes:
            nodes.add(node)
            waiting.extend(reads(node))
    return nodes, seen


def _lack(model: Model, ends: list[Value], given: set[Value], kind: str) -> UsageError:
    seen = _behind(ends, given)[1]
    missing = [v.name for v in model.graph.inputs if v in seen and v not in given and not is_stored(v)]
    if not missing:
        return UsageError(f"{model.name}: no output lies behind these inputs", "name the outputs, or other inputs")
    who = f"{few([f'`{v.name}`' for v in ends])} also need{'s' * (len(ends) == 1)}"
    what = f"the {kind}{'s' * (len(missing) > 1)} {', '.join(f'`{n}`' for n in missing)}"
    return UsageError(f"{model.name}: {who} {what}", "add them to the inputs, or values computed from them")
