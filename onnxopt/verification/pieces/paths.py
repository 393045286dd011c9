"""Rounding between cutpoints, by A's arithmetic in A's types, and values of A read later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import AttributeProto, NodeProto

from onnxopt.proto.element_types import BY_NAME, TYPES
from onnxopt.verification.model.nodes import domain_of, inside
from onnxopt.verification.model.operators import MEASURING
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.programs.program import Program, bodies
from onnxopt.verification.programs.transforms import rounds
from onnxopt.verification.rounding import EPSILON, allowed, roundings

# -- rounding between cutpoints ---------------------------------------------------------------------------
# B may compute in narrower types, so A's arithmetic counts.

_EPSILON: Final = {f"tensor({t.onnx})": t.epsilon for t in TYPES if t.kind == "f" and t.bits > 8}
_EXACT_TYPES: Final = ("tensor(int", "tensor(uint", "tensor(bool")
_EXACT_CODES: Final = frozenset(t.code for t in TYPES if t.kind in "iub")
# Codes of TensorProto.DataType: floats and complex types except float32.
_OTHERS: Final = frozenset(t.code for t in TYPES if t.kind in "fc") - {BY_NAME["float32"].code}


def is_coarse(kind: str) -> bool:
    """Return whether floats of a type are steps, compared as discrete values."""
    return kind.startswith("tensor(float8")


def is_single(program: Program) -> bool:
    """Return whether all floats computed in a main graph are float32, so types need not be observed."""
    if any(not domain_of(f.domain) for f in program.skeleton.proto.functions):  # may be called like standard operators
        return False
    kinds = [i.type for i in program.graph.input[:] if i.name in program.given]
    if any(k.WhichOneof("value") != "tensor_type" or k.tensor_type.elem_type in _OTHERS for k in kinds):
        return False
    others = _constant_others(program)
    for node, reads in zip(program.nodes, program.reads):
        if _makes_others(node) or (node.op_type != "Cast" and not others.isdisjoint(reads)):
            others.update(node.output)
            if not program.fixed.issuperset(filter(None, node.output)):
                return False
    return True


def _constant_others(program: Program) -> set[str]:
    others = {name for name, t in program.constants.items() if t.data_type in _OTHERS}
    return others.union(name for name, t in program.sparse.items() if t.values.data_type in _OTHERS)


def _makes_others(node: NodeProto) -> bool:
    """Return whether a node may make floats of a type different from its operands'.

    Either an attribute gives a type, or the operator is custom.
    """
    return any(domain_of(n.domain) or any(map(_gives_others, n.attribute[:])) for n in inside([node]))


def _gives_others(a: AttributeProto) -> bool:
    if a.type in (a.SPARSE_TENSOR, a.TYPE_PROTO) or (a.type == a.INT and a.name != "group" and a.i in _OTHERS):
        return True
    tensors = (a.t,) if a.type == a.TENSOR else a.g.initializer[:] if a.type == a.GRAPH else ()
    return any(t.data_type in _OTHERS for t in tensors)


@dataclass(frozen=True)
class Path:
    """Rounding on a path."""

    depth: float = 0.0  # number of roundings
    coarsest: float = 0.0  # largest epsilon of the types

    def joined(self, other: Path) -> Path:
        """Return the maximum of both."""
        return Path(max(self.depth, other.depth), max(self.coarsest, other.coarsest))

    @property
    def share(self) -> float:
        """Return the relative difference explained."""
        return allowed(self.coarsest, self.depth) if self.coarsest else 0.0


def paths(
    program: Program, wanted: Iterable[str], cuts: Collection[str], types: Mapping[str, str], *, casts: bool = False
) -> dict[str, Path]:
    """Return, by value, the path from cutpoints with most rounding.

    types: as written by onnxruntime; casts: count a Cast to a narrower type, which A does not have.
    """
    found: dict[str, tuple[float, float]] = {}
    names = list(wanted)
    for i in program.cone(names, cuts):
        node = program.nodes[i]
        reads = () if node.op_type in MEASURING else program.reads[i]  # sizes are exact
        depth, coarsest = map(max, zip((0.0, 0.0), *(found[r] for r in reads if r in found and r not in cuts)))
        count = roundings(node, program.constants)
        for output in node.output[:]:
            kind = types.get(output, "").removeprefix("seq(").replace("))", ")")
            own, width = count, _EPSILON.get(kind, EPSILON["float32"])
            if casts and node.op_type == "Cast" and width > EPSILON["float32"]:
                own = float(depth > 0 or not rounds(node))  # moved numbers were rounded before
            is_exact = kind.startswith(_EXACT_TYPES) and (not own or _is_exact(program, node, types))
            found[output] = (depth, coarsest) if is_exact else _rounded(depth, coarsest, own, width)
    return {v: Path(*found.get(v, ())) for v in names}


def _rounded(depth: float, coarsest: float, own: float, width: float) -> tuple[float, float]:
    """Return (depth, coarsest epsilon) after roundings. Sums of narrow numbers are accumulated in a wider type."""
    step = min(own, 1.0) if width > EPSILON["float32"] else own
    return depth + step, max(coarsest, width) if own or coarsest else 0.0


def _is_exact(program: Program, node: NodeProto, types: Mapping[str, str]) -> bool:
    """Return whether a node computes with integers and booleans only. A quantized product has float scales."""
    if domain_of(node.domain) or any(a.HasField("g") for a in node.attribute[:]):
        return False
    others = [r for r in node.input[:] if r and not types.get(r, "").startswith(_EXACT_TYPES)]
    return all(r in program.constants and program.constants[r].data_type in _EXACT_CODES for r in others)


# -- later reads ------------------------------------------------------------------------------------------


class Needs:
    """Needed values of A."""

    def __init__(self, pairs: Pairs) -> None:
        self.a, self.b = pairs.a, pairs.b
        self._of, self._by_original = pairs.of, pairs.by_original
        self.always: set[str] = set()  # values needed to describe a fault
        # Last reader by value; for outputs and values captured by bodies, the number of nodes.
        inside = (r for i in self.a.holding for r in self.a.reads[i])
        self._last = self.a.last_readers | dict.fromkeys(inside, len(self.a.nodes))
        self._into_parts = {r for i in self.a.hiding for r in self.a.reads[i]}
        self._is_single = not self.a.is_body and is_single(self.a)

    def observed(self, made: Sequence[str], end: int) -> list[str]:
        """Return the values among `made` needed after node `end`: by B, by A, or in bodies.

        All, unless types are known without observing them.
        """
        if not self._is_single:
            return list(made)
        of_b, last, inside = self._by_original, self._last, self._into_parts
        return [o for o in made if o in of_b or last.get(o, -1) > end or o in inside]

    def after(
        self, end: int, known: Collection[str], pending: Iterable[str], fed: set[str], fed_of_a: set[str]
    ) -> set[str]:
        """Return the values among `known` needed after node `end` of A.

        pending: undecided candidates of B; fed: cutpoints of B; fed_of_a: their names in A.
        """
        ahead = {name for name in known if self._last.get(name, -1) > end}
        # Other values are computed again from cutpoints, and their noise measured.
        waiting = {self._of[v] for v in pending} | (ahead - fed_of_a)
        behind = set(self.a.entries(self.a.cone(waiting, fed_of_a), fed_of_a))
        readers, of_b = self.b.readers, self._by_original
        open_ = {n for n in known if any(self._is_open(i, fed) for i in readers.get(of_b.get(n, n), ()))}
        return self.always | ahead | waiting | behind | open_

    def _is_open(self, i: int, fed: set[str]) -> bool:
        """Return whether a node of B may run again, as results are no cutpoints, or has bodies to compare."""
        node = self.b.nodes[i]
        return bool(bodies(node)) or not fed.issuperset(filter(None, node.output))
