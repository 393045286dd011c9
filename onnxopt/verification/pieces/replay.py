"""B run on A's values: from those that it is fed to those that are observed, held against A's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.pieces.runner import Failed, Runner
from onnxopt.verification.pieces.stream import Stream
from onnxopt.verification.pieces.views import View, views
from onnxopt.verification.rounding import EPSILON, Difference, allowed, cast_target, difference, roundings

if TYPE_CHECKING:
    from onnx import NodeProto

Found = dict[str, list[Any] | Failed]

_DTYPE: Final = {
    "tensor(double)": "float64", "tensor(float)": "float32", "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16", "tensor(float8e4m3fn)": "float8_e4m3fn", "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e4m3fnuz)": "float8_e4m3fnuz", "tensor(float8e5m2fnuz)": "float8_e5m2fnuz",
}  # fmt: skip
_TARGET: Final = {1: 2.0**-23, 10: 2.0**-10, 11: 2.0**-52, 16: 2.0**-7}  # by TensorProto.data_type


class Replay:
    """`original` has A's values. `views`: how B holds those that it holds in another shape or order."""

    def __init__(self, runner: Runner, original: Stream, pairs: Pairs) -> None:
        self.runner = runner
        self.program = runner.program
        self.original = original
        self.pairs = pairs
        self.views: dict[str, View] = {}
        self._given = set(original.types)

    def mine(self, value: str) -> list[Any]:
        """A's values of what B calls so, by case."""
        name = self.pairs.of.get(value, value)
        return [known[name] for known in self.original.values]

    def kind(self, value: str) -> str:
        """Its type, as onnxruntime writes it."""
        return self.original.types.get(self.pairs.of.get(value, value), "")

    def run(self, wanted: Sequence[str], fed: Collection[str]) -> dict[str, list[Any]]:
        """What B makes of A's values of `fed`, by case. Raises Failed."""
        nodes = self.program.cone(wanted, fed)
        types = {r: self.kind(r) for i in nodes for r in self.program.reads[i] if r in fed}
        opened = self.runner.open(nodes, types, wanted)
        found: dict[str, list[Any]] = {v: [] for v in wanted}
        given = {r: self.mine(r) for r in types}
        for i in range(len(self.original.values)):
            feeds = {r: self.views[r](v[i], i) if r in self.views else v[i] for r, v in given.items()}
            for name, value in opened.run(feeds).items():
                found[name].append(value)
        return found

    def run_each(self, wanted: Sequence[str], fed: Collection[str]) -> Found:
        """The same; Failed for what cannot be had."""
        try:
            return dict(self.run(wanted, fed))
        except Failed as e:
            if len(wanted) == 1:
                return {wanted[0]: e}
        half = len(wanted) // 2
        return self.run_each(wanted[:half], fed) | self.run_each(wanted[half:], fed)

    def hold(self, value: str, found: list[Any] | Failed, share: float) -> tuple[bool, list[Difference], View | None]:
        """Do B's values agree with A's, up to this share of their range, in every case; how they differ; and the view
        through which they are held."""
        if isinstance(found, Failed):
            return False, [Difference(note=f"B fails: {found}")] * len(self.original.values), None
        mine = self.mine(value)
        differences = [difference(x, y) for x, y in zip(mine, found, strict=True)]
        if all(d.within(share) for d in differences):
            return True, differences, None
        if value in self.runner.program.outputs:  # what callers get has no other shape
            return False, differences, None
        best: tuple[list[Difference], View] | None = None
        for view in views(mine, found):
            held = [difference(view(x, i), y) for i, (x, y) in enumerate(zip(mine, found))]
            if all(d.within(share) for d in held):
                return True, held, view
            if best is None or _sum(held) < _sum(best[0]):
                best = held, view
        if best is not None and any(d.note for d in differences):  # another shape: the view that comes nearest
            return False, *best
        return False, differences, None

    def paths(self, wanted: Iterable[str], fed: Collection[str]) -> dict[str, Path]:
        """The path from what is fed to each value on which most is rounded."""
        found: dict[str, Path] = {}
        names = list(wanted)
        for i in self.program.cone(names, fed):
            node = self.program.nodes[i]
            before = [found[r] if r in found and r not in fed else self._start(r) for r in self.program.reads[i]]
            for output in node.output:
                found[output] = self._step(node, before, self._epsilon(output))
        return {v: found.get(v, Path()) for v in names}

    def _step(self, node: NodeProto, before: list[Path], known: float) -> Path:
        """Behind one more node; `known`: ε of what it makes, 0 where that is unknown or no float."""
        width = known or _TARGET.get(cast_target(node), 0.0) or max((p.width for p in before), default=0.0)
        depth = max((p.depth for p in before), default=0.0)
        coarsest = max((p.coarsest for p in before), default=0.0)
        own = roundings(node, self.program.constants)
        if own:
            own = min(own, 1.0) if width > EPSILON["float32"] else own  # sums of narrow numbers are kept wide
            coarsest = max(coarsest, width)
        elif coarsest:  # rounded to a narrower type
            coarsest = max(coarsest, width)
        return Path(depth + own, coarsest, width)

    def _start(self, name: str) -> Path:
        """Nothing is rounded yet."""
        return Path(width=self._epsilon(name))

    def _epsilon(self, name: str) -> float:
        """Of a value's type; 0 where that is unknown, or no float."""
        if self.program.is_constant(name):
            tensor = self.program.constants.get(name)
            return _TARGET.get(tensor.data_type, 0.0) if tensor is not None else 0.0
        return EPSILON.get(_DTYPE.get(self.kind(name), ""), 0.0)


@dataclass(frozen=True)
class Path:
    """`depth`: roundings on it; `coarsest`: ε of the coarsest; `width`: ε of the type that it ends in."""

    depth: float = 0.0
    coarsest: float = 0.0
    width: float = 0.0

    @property
    def share(self) -> float:
        """Of a value's range, what they explain."""
        return allowed(self.coarsest, self.depth) if self.coarsest else 0.0


def _sum(found: list[Difference]) -> float:
    return sum(float("inf") if d.note else d.relative for d in found)
