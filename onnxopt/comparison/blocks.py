"""Grouping of nodes into collapsible blocks: by modules in their names, by repetition, else by position.

A level has at most a screenful of items: a longer list becomes repeated units, or sections.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from onnxopt.comparison.counterparts import Counterparts
from onnxopt.comparison.records import ABSENT, GraphRecord, NodeRecord

MOST: Final = 48  # items of a level
_SECTION: Final = 24  # items of a section without repetition
_MIN_BLOCK_NODES: Final = 3  # nodes of a block made from names
_SHORTEST: Final = 3  # nodes of a repeated unit
_MAX_PERIOD: Final = 1024
_MAX_NESTING: Final = 16  # nested modules


@dataclass
class Block:
    """A collapsible group of nodes."""

    label: str
    kind: str  # root, module, repeat, section, body or function
    items: list[Item] = field(default_factory=list)  # indices of nodes, and blocks

    def nodes(self) -> Iterator[int]:
        """Yield the nodes in the block and its inner blocks."""
        for item in self.items:
            if isinstance(item, Block):
                yield from item.nodes()
            else:
                yield item


Item = int | Block


def blocks(graph: GraphRecord) -> Block:
    """Return a model as nested blocks: bodies follow their owners, functions come last.

    A node that reads only constants, or nothing, is placed before its first reader, and in the reader's block unless
    its own name gives a block.
    """
    scopes: dict[int, list[int]] = defaultdict(list)
    followed = _followed(graph)
    for i in sorted(range(len(graph.nodes)), key=lambda i: (followed.get(i, i), i)):
        scopes[graph.nodes[i].scope].append(i)
    bodies: dict[int, list[Block]] = defaultdict(list)
    functions: list[Block] = []
    for number, scope in reversed([*enumerate(graph.scopes)][1:]):  # bodies follow their owners
        items = _scope(graph, scopes[number], bodies, followed)
        if scope.owner is None:
            functions.insert(0, Block(scope.label, "function", items))
        else:
            owner = graph.nodes[scope.owner]
            label = f"{owner.op} {owner.name} {scope.label}" if owner.name else f"{owner.op} {scope.label}"
            bodies[scope.owner].insert(0, Block(label, "body", items))
    return _named(Block("model", "root", [*_scope(graph, scopes[0], bodies, followed), *functions]))


def _followed(graph: GraphRecord) -> dict[int, int]:
    """Return {node that reads only constants: first reader of its result in the same scope, through similar nodes}."""
    makers = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs if v != ABSENT}
    still = _still(graph, makers)
    found: dict[int, int] = {}
    for i in reversed(range(len(graph.nodes))):
        for v in graph.nodes[i].inputs:
            if (maker := makers.get(v)) in still and graph.nodes[maker].scope == graph.nodes[i].scope:
                found[maker] = found.get(i, i)
    return found


def _still(graph: GraphRecord, makers: dict[int, int]) -> set[int]:
    """Return the nodes without a changing input: all operands are constants, or made by such nodes."""
    owners = {scope.owner for scope in graph.scopes}
    still: set[int] = set()
    for i, node in enumerate(graph.nodes):
        read = [v for v in node.inputs if v != ABSENT]
        if i not in owners and all(makers.get(v) in still or graph.values[v].constant for v in read):
            still.add(i)
    return still


def _scope(
    graph: GraphRecord, nodes: Sequence[int], bodies: dict[int, list[Block]], followed: dict[int, int]
) -> list[Item]:
    if len(nodes) <= MOST and not any(i in bodies for i in nodes):
        return list(nodes)
    top = Block("", "root")
    modules: dict[tuple[str, ...], Block] = {(): top}
    for i in nodes:
        path = _modules(graph, graph.nodes[i]) or _modules(graph, graph.nodes[followed.get(i, i)])
        for depth in range(1, len(path) + 1):
            if path[:depth] not in modules:
                modules[path[:depth]] = Block(path[depth - 1], "module")
                modules[path[: depth - 1]].items.append(modules[path[:depth]])
        modules[path].items.append(i)
        modules[path].items.extend(bodies.get(i, ()))
    return _folded(_simplified(top).items, graph)


# -- by name ---------------------------------------------------------------------------------------------


def _modules(graph: GraphRecord, node: NodeRecord) -> tuple[str, ...]:
    """Return the modules around a node: `/encoder/layer.3/MatMul` is in encoder, layer.3."""
    if node.namespace:
        parts = [part.split(":")[0].strip() for part in node.namespace.split("/") if ": aten." not in part]
        return tuple(_relative(parts))[:_MAX_NESTING]
    name = node.name if "/" in node.name else graph.output_name(node)
    return tuple(part for part in name.split("/")[:-1] if part)[:_MAX_NESTING]


def _relative(names: list[str]) -> Iterator[str]:
    """Yield nested module paths without the parent's prefix: `model`, `model.encoder` give `model`, `encoder`."""
    around = ""
    for name in names:
        if name:
            yield name.removeprefix(f"{around}.")
            around = name


def _simplified(block: Block) -> Block:
    """Return a block without tiny modules, and with a sole inner module merged into its parent."""
    items = [inner for item in block.items for inner in _without_tiny(item)]
    inner = items[0] if len(items) == 1 else None
    if isinstance(inner, Block) and inner.kind == "module" and block.kind in ("module", "root"):
        label = f"{block.label}/{inner.label}" if block.label else inner.label
        return Block(label if block.kind == "module" else block.label, block.kind, inner.items)
    return Block(block.label, block.kind, items)


def _without_tiny(item: Item) -> list[Item]:
    """Return a simplified module, or the items of a tiny module."""
    if not isinstance(item, Block) or item.kind != "module":
        return [item]
    small = _simplified(item)
    return [small] if sum(1 for _ in small.nodes()) >= _MIN_BLOCK_NODES else small.items


# -- by repetition and position --------------------------------------------------------------------------


def _folded(items: list[Item], graph: GraphRecord) -> list[Item]:
    """Return the items grouped so that no level has more than `MOST`."""
    for item in items:
        if isinstance(item, Block):
            item.items = _folded(item.items, graph)
    if len(items) <= MOST:
        return items
    tokens = [re.sub(r"\d+", "#", i.label) if isinstance(i, Block) else graph.nodes[i].op for i in items]
    return _sectioned(_repeats(items, tokens))


def _repeats(items: list[Item], tokens: list[str]) -> list[Item]:
    """Replace consecutive repetitions of a unit by blocks, the longest repetition first."""
    codes = np.unique(tokens, return_inverse=True)[1] if tokens else np.array([], int)
    found: list[tuple[int, int, int]] = []  # (start, period, units)
    ranges = [(0, len(items))]
    while ranges:
        start, stop = ranges.pop()
        run = _longest_run(codes[start:stop])
        if run is None:
            continue
        first, period, units = run
        found.append((start + first, period, units))
        ranges += [(start, start + first), (start + first + period * units, stop)]
    result: list[Item] = []
    at = 0
    for start, period, units in sorted(found):
        result += items[at:start]
        for k in range(units):
            at = start + (k + 1) * period
            unit = items[at - period : at]
            unit = unit if len(unit) <= MOST else _sectioned(_repeats(unit, tokens[at - period : at]))
            result.append(Block(f"repeat {k + 1} of {units}", "repeat", unit))
    return result + items[at:]


def _longest_run(codes: np.ndarray[tuple[int], np.dtype[np.intp]]) -> tuple[int, int, int] | None:
    """Return (start, period, units) of the longest consecutive repetition, with the shortest period; else None."""
    best: tuple[int, int, int] | None = None
    covered = _SECTION
    for period in range(_SHORTEST, min(len(codes) // 2, _MAX_PERIOD) + 1):
        equal = np.flatnonzero(np.diff(np.concatenate(([0], codes[:-period] == codes[period:], [0]))))
        starts, lengths = equal[::2], equal[1::2] - equal[::2]
        if not len(lengths):
            continue
        longest = int(lengths.argmax())
        units = int(lengths[longest]) // period + 1
        start = int(starts[longest])
        if units > 1 and units * period > covered and len(set(codes[start : start + period].tolist())) > 1:
            best, covered = (start, period, units), units * period
    return best


def sections(nodes: Sequence[int]) -> list[Item]:
    """Return nodes in nested sections of at most `MOST` items."""
    return _named(Block("", "root", _sectioned([*nodes]))).items


def _sectioned(items: list[Item]) -> list[Item]:
    while len(items) > MOST:
        items = _sections(items)
    return items


def _sections(items: list[Item]) -> list[Item]:
    """Return items in sections: only runs of nodes between blocks if sufficient, else all items."""
    runs: list[list[Item]] = []
    for item in items:
        if runs and isinstance(item, Block) == isinstance(runs[-1][0], Block):
            runs[-1].append(item)
        else:
            runs.append([item])
    loose = [part for run in runs for part in (run if isinstance(run[0], Block) else _parts(run))]
    return loose if len(loose) <= MOST else _parts(items)


def _parts(items: list[Item]) -> list[Item]:
    """Return sections of equal length, or the items of a short list."""
    if len(items) <= _SECTION // 3:
        return items
    number = -(-len(items) // _SECTION)
    size = -(-len(items) // number)
    return [Block("", "section", items[at : at + size]) for at in range(0, len(items), size)]


def _named(block: Block) -> Block:
    """Set the labels of sections, from the outside in: first and last item."""
    if block.kind == "section":
        first, last = block.items[0], block.items[-1]
        if isinstance(first, Block) and isinstance(last, Block) and first.label and last.label:
            block.label = f"{first.label} – {last.label}"
        else:
            inner = list(block.nodes())
            block.label = f"nodes {min(inner) + 1:,} – {max(inner) + 1:,}"
    for item in block.items:
        if isinstance(item, Block):
            _named(item)
    return block


# -- shared by two graphs -------------------------------------------------------------------------------


@dataclass
class SharedBlocks:
    """Blocks of one or two graphs."""

    blocks: list[tuple[Block, int]]  # (block, index of its parent or -1), parents first
    inside: list[list[int]]  # by graph: block of each node


def share_blocks(graphs: Sequence[GraphRecord], found: Counterparts) -> SharedBlocks:
    """Return the blocks of a graph, or of two graphs. Counterparts and merged nodes share a block."""
    base = max(range(len(graphs)), key=lambda side: len(graphs[side].nodes))
    known: list[tuple[Block, int]] = [(blocks(graphs[base]), -1)]
    for at, (block, _) in enumerate(known):
        known.extend((item, at) for item in block.items if isinstance(item, Block))
    own = {i: at for at, (block, _) in enumerate(known) for i in block.items if not isinstance(i, Block)}
    inside = [[own[i] for i in range(len(graphs[base].nodes))]]
    if len(graphs) > 1:
        links: tuple[dict[int, int], dict[int, int]] = (dict(found.pair), {j: i for i, j in found.pair.items()})
        for i, targets in found.merged.items():
            links[0].setdefault(i, targets[0])
            for j in targets:
                links[1].setdefault(j, i)
        inherited = _inherited(graphs[1 - base], links[1 - base], inside[0])
        inside.insert(1 - base, _spread(known, inherited))
    return SharedBlocks(known, inside)


def _inherited(graph: GraphRecord, links: Mapping[int, int], inside: list[int]) -> list[int]:
    """Return the block of each node: the counterpart's, else of its last operand, else of the preceding node."""
    makers = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    found: list[int] = []
    for i, node in enumerate(graph.nodes):
        if i in links:
            found.append(inside[links[i]])
        else:
            feeding = [found[makers[v]] for v in node.inputs if v in makers and makers[v] < i]
            found.append(feeding[-1] if feeding else found[-1] if found else 0)
    return found


def _spread(known: list[tuple[Block, int]], inherited: list[int]) -> list[int]:
    """Split blocks with too many inherited nodes into sections. Returns the new block of each node."""
    held: dict[int, list[int]] = defaultdict(list)
    for i, at in enumerate(inherited):
        held[at].append(i)
    for at, nodes in held.items():
        if len(nodes) <= 3 * MOST:
            continue
        stack = [(item, at) for item in sections(nodes)]
        while stack:
            item, parent = stack.pop()
            if isinstance(item, Block):
                known.append((item, parent))
                stack += [(inner, len(known) - 1) for inner in reversed(item.items)]
            else:
                inherited[item] = parent
    return inherited
