"""Values that no case tells apart: two Ifs of which a branch never runs may give the same wherever it does not.

What reads the one in A and the other in B, or neither, agrees in all cases, and says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from onnxopt.verification.coverage.conditions import runs
from onnxopt.verification.model.order import first_of
from onnxopt.verification.programs.program import Program, bodies

if TYPE_CHECKING:
    from onnxopt.verification.pieces.sameness import Sameness
    from onnxopt.verification.pieces.walk import Walk

_SIZES: Final = ("Shape", "Size")


def indistinct(
    walk: Walk, sameness: Sameness, is_open: Callable[[str], bool], taken: Collection[str]
) -> Iterator[tuple[str, str]]:
    """(what is made, one of those that only one of both reads). `taken`: conditions of which other cases took both."""
    half = [i for i in walk.a.hiding if _is_half_seen(walk, i, taken)]
    if not half:
        return
    numbers, of = sameness.numbers(half), walk.pairs.of
    fed = {name for name in walk.fed if of.get(name, name) in numbers}
    for value in (v for v in walk.b.maker if v in walk.cuts and v in of and not walk.pairs.is_same(v)):
        mine = _read(walk.a, of[value], walk.fed_of_a) & numbers.keys()
        theirs = {of.get(name, name) for name in _read(walk.b, value, walk.fed) & fed}
        other = _read_by_one(numbers, mine, theirs)
        if other and any(is_open(first_of(walk.a.nodes[walk.a.maker[name]])) for name in other):
            yield value, other[0]


def _is_half_seen(walk: Walk, i: int, taken: Collection[str]) -> bool:
    node = walk.a.nodes[i]
    if node.op_type == "If" and node.input[0] in taken:
        return False
    return not bodies(node) or not all(runs(walk, node, name) for name in bodies(node))


def _read(program: Program, value: str, fed: set[str]) -> set[str]:
    """What pieces start from and this is made of, but for its sizes."""
    nodes = (i for i in program.cone([value], fed) if program.nodes[i].op_type not in _SIZES)
    return {r for i in nodes for r in program.reads[i] if r in fed}


def _read_by_one(numbers: Mapping[str, int], mine: Collection[str], theirs: Collection[str]) -> list[str]:
    """One name for each number that only one of the two reads."""
    x, y = ({numbers[name]: name for name in names} for names in (mine, theirs))
    return [x[n] for n in x.keys() - y.keys()] + [y[n] for n in y.keys() - x.keys()]
