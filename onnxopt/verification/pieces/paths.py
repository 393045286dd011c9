"""How much is rounded between cuts: by A's own arithmetic, in A's own types, for B may not compute in narrower ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onnxopt.element_types import BY_NAME, TYPES
from onnxopt.verification.model.functions import domain_of
from onnxopt.verification.numbers.rounding import EPSILON, allowed, roundings
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.rounded import rounds

if TYPE_CHECKING:
    from onnx import NodeProto

_DTYPE: Final = {
    "tensor(double)": "float64", "tensor(float)": "float32", "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
}  # fmt: skip
_EXACT: Final = ("tensor(int", "tensor(uint", "tensor(bool")
_EXACT_CODES: Final = frozenset(t.code for t in TYPES if t.kind in "iub")
# Codes of TensorProto.DataType: floats and complex numbers but float32.
_OTHERS: Final = frozenset(t.code for t in TYPES if t.kind in "fc") - {BY_NAME["float32"].code}


def is_coarse(kind: str) -> bool:
    """Are floats of this type steps, which rounding does not explain but by jumps?"""
    return kind.startswith("tensor(float8")


def is_single(program: Program) -> bool:
    """Is float32 what a main graph computes with, as far as it does with floats? Then none of its types says more."""
    if any(not domain_of(f.domain) for f in program.skeleton.proto.functions):  # they may be called as operators are
        return False
    kinds = [i.type for i in program.graph.input[:] if i.name in program.given]
    if any(k.WhichOneof("value") != "tensor_type" or k.tensor_type.elem_type in _OTHERS for k in kinds):
        return False
    others = {name for name, t in program.constants.items() if t.data_type in _OTHERS}
    others |= {name for name, t in program.sparse.items() if t.values.data_type in _OTHERS}
    for node, reads in zip(program.nodes, program.reads):
        if _makes_others(node) or (node.op_type != "Cast" and not others.isdisjoint(reads)):
            others.update(node.output)
            if not program.fixed.issuperset(o for o in node.output if o):
                return False
    return True


def _makes_others(node: NodeProto) -> bool:
    """May it make floats of another type than it reads? An attribute would say so, unless it is no operator of the
    standard."""
    if domain_of(node.domain):
        return True
    for a in node.attribute[:]:
        kind = a.type
        if kind == a.INT:
            if a.i in _OTHERS and a.name != "group":
                return True
        elif kind == a.TENSOR:
            if a.t.data_type in _OTHERS:
                return True
        elif kind == a.GRAPH:
            body = a.g
            if any(t.data_type in _OTHERS for t in body.initializer[:]) or any(map(_makes_others, body.node[:])):
                return True
        elif kind in (a.SPARSE_TENSOR, a.TYPE_PROTO):
            return True
    return False


@dataclass(frozen=True)
class Path:
    """`depth`: roundings on it; `coarsest`: ε of the coarsest."""

    depth: float = 0.0
    coarsest: float = 0.0

    def joined(self, other: Path) -> Path:
        """What both explain."""
        return Path(max(self.depth, other.depth), max(self.coarsest, other.coarsest))

    @property
    def share(self) -> float:
        """Of a value's range, what they explain."""
        return allowed(self.coarsest, self.depth) if self.coarsest else 0.0


def paths(
    program: Program, wanted: Iterable[str], cuts: Collection[str], types: Mapping[str, str], *, casts: bool = False
) -> dict[str, Path]:
    """The path from cuts to each value on which most is rounded. `types`, as onnxruntime writes them. `casts`: a Cast
    to a narrower type rounds, too, because the other model has none there."""
    found: dict[str, tuple[float, float]] = {}
    names = list(wanted)
    for i in program.cone(names, cuts):
        node = program.nodes[i]
        depth = coarsest = 0.0
        for before in (found[r] for r in program.reads[i] if r in found and r not in cuts):
            depth, coarsest = max(depth, before[0]), max(coarsest, before[1])
        if node.op_type in ("Shape", "Size"):  # of whatever was rounded
            depth = coarsest = 0.0
        own = roundings(node, program.constants)
        for output in node.output[:]:
            kind = types.get(output, "").removeprefix("seq(").replace("))", ")")
            width = EPSILON.get(_DTYPE.get(kind, ""), EPSILON["float32"])
            if casts and node.op_type == "Cast" and width > EPSILON["float32"]:
                own = 1.0 if depth or not rounds(node) else 0.0  # what is moved only was rounded before
            if kind.startswith(_EXACT):
                own = 0.0 if own and _is_exact(program, node, types) else own
                width = width if own else 0.0
            step = min(own, 1.0) if width > EPSILON["float32"] else own  # sums of narrow numbers are kept wide
            found[output] = depth + step, max(coarsest, width) if own or coarsest else 0.0
    return {v: Path(*found.get(v, ())) for v in names}


def _is_exact(program: Program, node: NodeProto, types: Mapping[str, str]) -> bool:
    """Does it compute with integers and booleans only, sizes and positions: is nothing rounded? A quantized product
    is: its scales are floats."""
    if domain_of(node.domain) or any(a.HasField("g") for a in node.attribute[:]):
        return False
    reads = [r for r in node.input[:] if r]
    known = [r for r in reads if types.get(r, "").startswith(_EXACT)]
    known += [r for r in reads if r in program.constants and program.constants[r].data_type in _EXACT_CODES]
    return set(known) == set(reads)
