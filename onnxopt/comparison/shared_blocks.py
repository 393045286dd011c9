"""Blocks shared by two graphs: made for the larger, and inherited by nodes of the smaller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from onnxopt.comparison.blocks import MOST, Block, blocks, sections
from onnxopt.comparison.counterparts import Counterparts
from onnxopt.comparison.records import GraphRecord


@dataclass
class SharedBlocks:
    """Blocks of two graphs."""

    blocks: list[tuple[Block, int]]  # (block, index of its parent or -1), parents first
    inside: tuple[list[int], list[int]]  # by graph: block of each node


def share_blocks(before: GraphRecord, after: GraphRecord, found: Counterparts) -> SharedBlocks:
    """Return the blocks of both graphs. Counterparts and merged nodes share a block."""
    links: tuple[dict[int, int], dict[int, int]] = (dict(found.pair), {j: i for i, j in found.pair.items()})
    for i, targets in found.merged.items():
        links[0].setdefault(i, targets[0])
        for j in targets:
            links[1].setdefault(j, i)
    graphs, base = (before, after), int(len(after.nodes) > len(before.nodes))
    other = 1 - base
    known, inside = own_blocks(graphs[base])
    inherited = _spread(known, _inherited(graphs[other], links[other], inside))
    return SharedBlocks(known, (inherited, inside) if base else (inside, inherited))


def own_blocks(graph: GraphRecord) -> tuple[list[tuple[Block, int]], list[int]]:
    """Return (blocks as in `SharedBlocks`, block of each node) of a graph."""
    known: list[tuple[Block, int]] = [(blocks(graph), -1)]
    for at, (block, _) in enumerate(known):
        known.extend((item, at) for item in block.items if isinstance(item, Block))
    own = {i: at for at, (block, _) in enumerate(known) for i in block.items if not isinstance(i, Block)}
    return known, [own[i] for i in range(len(graph.nodes))]


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
