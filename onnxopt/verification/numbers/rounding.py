"""How much rounding may change: what a piece's arithmetic explains, and what its last bits do when they are changed.

Every operation rounds its result, off by at most ε/2 of it (Higham, Accuracy and Stability of Numerical Algorithms,
2002, chapter 2; sums of n terms in blocks or pairs: chapter 4, a factor of log2 n). Errors of either sign add up like a
random walk, so R roundings on a path leave about √R of one. What a piece amplifies (a difference of near equals, a
division by what is almost zero, a threshold) no such estimate knows: there its inputs and weights are changed by their
last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.element_types import TYPES, element_kind
from onnxopt.record import record

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

EPSILON: Final = {t.name: t.epsilon for t in TYPES if t.kind == "f"}
NO_NUMBER: Final = "NaN in other places"
INFINITE: Final = "infinities in other places"
NOTHING: Final = ", and holds nothing in either"
_WALK: Final = 2.0  # times the random walk is allowed
_DEEPEST: Final = 16.0  # roundings that are taken on trust: for more, the noise is measured;
_DEEPEST_NARROW: Final = 3.0  # of types that have less than float32
_DEEPEST_WHOLE: Final = 64.0  # of a whole model, whose paths are longer than a piece's
NOISE: Final = 4.0  # times what a change of the last bits does is allowed: the largest of a few samples is no bound


# Operators that hand numbers on as they are, or decide upon them.
_MOVES: Final = frozenset((
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat", "Split", "Gather",
    "GatherElements", "GatherND", "Expand", "Tile", "Pad", "Relu", "Neg", "Abs", "Max", "Min", "Clip", "Where",
    "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Shape", "Size", "Cast", "Constant", "ConstantOfShape",
    "DepthToSpace", "SpaceToDepth", "ScatterND", "ScatterElements", "Sign", "Floor", "Ceil", "Round", "Not", "And",
    "Or", "TopK", "NonMaxSuppression", "ArgMax", "ArgMin", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "NonZero", "QuantizeLinear", "Hardmax", "Unique", "CastLike", "Xor", "IsNaN", "IsInf",
    "OneHot", "Trilu", "EyeLike", "Compress", "ReverseSequence", "SequenceAt", "SequenceConstruct",
    "SplitToSequence", "ConcatFromSequence", "SequenceInsert", "SequenceErase", "SequenceEmpty", "SequenceLength",
    "Optional", "OptionalGetElement", "OptionalHasElement", "Dropout", "BitShift",
))  # fmt: skip
_MANY: Final = 256  # terms of a sum whose length only the run knows


def roundings(node: NodeProto, weights: Mapping[str, TensorProto]) -> float:
    """About how many roundings a result of `node` has behind it that its inputs do not have; `weights` by name."""
    op = node.op_type
    if op in _MOVES:
        return 0.0
    dims = [tuple(weights[n].dims[:]) if n in weights else () for n in node.input[:]]
    terms: float = 1
    if op in ("Conv", "ConvTranspose") and len(dims) > 1 and dims[1]:
        terms = math.prod(dims[1][1:])
    elif op in ("MatMul", "Gemm"):
        known = [max(d[-2:]) for d in dims[:2] if d]
        terms = known[0] if known else _MANY
    elif node.domain not in ("", "ai.onnx") or any(a.HasField("g") for a in node.attribute[:]):
        terms = _MANY  # a function, or bodies: whatever they do
    elif (
        op.startswith(("Reduce", "Global", "Average"))
        or op.endswith(("Normalization", "Softmax"))
        or op in ("LSTM", "GRU", "RNN", "Einsum", "Attention", "CumSum", "STFT", "DFT", "Gelu", "Conv", "LRN")
    ):
        terms = _MANY
    return 1.0 + math.log2(max(terms, 1.0))


def allowed(epsilon: float, depth: float) -> float:
    """The share of a value's range that is allowed with so many roundings on the path to it."""
    deepest = _DEEPEST_NARROW if epsilon > EPSILON["float32"] else _DEEPEST
    return _walk(epsilon, min(depth, deepest))


def allowed_of_whole(epsilon: float, depth: float) -> float:
    """The share of an output's range that is allowed of a whole model. Types that have less than float32 are held to
    what their noise is: steps of theirs decide more."""
    return _walk(epsilon, min(depth, _DEEPEST_WHOLE)) if epsilon == EPSILON["float32"] else 0.0


def _walk(epsilon: float, depth: float) -> float:
    return _WALK * epsilon * math.sqrt(1.0 + depth)


MOST_OF_WHOLE: Final = allowed_of_whole(EPSILON["float32"], _DEEPEST_WHOLE)


@record(frozen=True)
class Difference:
    """How a value of B compares with A's: the largest difference of two elements, and the largest magnitude of A.

    For what is not a float: the share of elements that differ, of 1. `note`: why they cannot be compared at all.
    `unseen`, of noise in what jumps: are there elements that differ in B, and in no sample became what B has? `uneven`:
    a row or channel differs by much of its own range; of noise: by more than it does in any sample. `beside`: the
    largest of what is beside a mask, where A has one; if that is the same in both, all that counts.
    """

    largest: float = 0.0
    span: float = 0.0
    discrete: bool = False
    note: str = ""
    unseen: bool | None = None
    uneven: bool = False
    beside: float | None = None

    @property
    def relative(self) -> float:
        return self.largest / self.span if self.span else math.inf if self.largest or self.note else 0.0

    @property
    def words(self) -> str:
        """By how much floats differ. Of nothing but zeros there is no range."""
        if not self.span and math.isfinite(self.largest):
            return f"differs by {self.largest:.1e} from zeros"
        return f"differs by {self.relative:.1e} of its range"

    def within(self, share: float) -> bool:
        """Is it at most this share of the range? What is discrete has to be equal."""
        return (
            not self.note
            and not self.uneven
            and (self.largest <= share * self.span if not self.discrete else not self.largest)
        )

    def explained(self, noise: Difference, times: float = NOISE) -> bool:
        """Is it what a change of the last bits does, too, so many times? Of what jumps, to each element: how many do
        says nothing of where to. What the last bits of a mask do (64, of -1e9) explains nothing beside it."""
        if self.note or noise.note or noise.uneven:
            return False
        is_beside = self.beside is not None and self.beside >= self.largest and noise.beside is not None
        largest = noise.beside if is_beside and noise.beside is not None else noise.largest
        return self.largest <= times * largest if noise.unseen is None else not noise.unseen


MASK: Final = 1e3  # times the rest: no activation stands out by so much, and exactly so in several places
_ALONE: Final = 2.0**26  # times the rest: beside that no float32 would be left, so one place is enough
_SAMPLE: Final = 64  # elements, and a few more


def difference(a: Any, b: Any, *, coarse: bool = False) -> Difference:
    """Of two values, element by element. `coarse`: floats of so few bits that they are steps, which count as such."""
    if isinstance(a, list) or isinstance(b, list):
        return _of_sequences(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        same = list(a) == list(b)
        return difference(*(np.array(list(m.values())) for m in (a, b))) if same else Difference(note="other keys")
    if a is None or b is None:
        return Difference(note="" if a is b else "absent in one of the two")
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return Difference(note=f"type {a.dtype} became {b.dtype}")
    if a.shape != b.shape:
        nothing = "" if a.size or b.size else NOTHING
        return Difference(note=f"shape {list(a.shape)} became {list(b.shape)}{nothing}")
    if coarse or not is_float(a):
        share = float(np.count_nonzero(a != b) / a.size) if a.size else 0.0
        return Difference(share, 1.0, discrete=True)
    return _of_floats(a, b)


def is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and element_kind(value) in "fc"


def overflows(value: Any) -> bool:
    return isinstance(value, np.ndarray) and element_kind(value) == "f" and not np.isfinite(value).all()


def _of_sequences(a: Any, b: Any) -> Difference:
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return Difference(note="sequences differ in length")
    found = [difference(x, y) for x, y in zip(a, b)]
    return max(found, key=lambda d: (bool(d.note), d.uneven, d.relative), default=Difference())


def _of_floats(a: Any, b: Any) -> Difference:
    if a.dtype.itemsize < 4:
        a, b = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(all="ignore"):
        largest, span = _largest(a - b), _largest(a)
    if math.isfinite(largest) and math.isfinite(span):
        return _unmasked(a, b, largest, span)
    finite = np.isfinite(a)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return Difference(note=NO_NUMBER)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return Difference(note=INFINITE)
    a, b = a[finite], b[finite]
    with np.errstate(over="ignore"):
        largest, span = _largest(a - b), _largest(a)
    return _unmasked(a, b, largest, span)


def _largest(a: Any) -> float:
    """The largest absolute value, NaN if one is; 0 of none."""
    a = np.asarray(a)  # of arrays without axes a difference is none
    if element_kind(a) == "c":
        return float(np.abs(a).max(initial=0))
    # An activation is large: no copy of it. And no -0, which nobody calls a difference.
    return abs(float(np.maximum(a.max(initial=0), -a.min(initial=0))))


def _unmasked(a: Any, b: Any, largest: float, span: float) -> Difference:
    """Of the range of what is left beside a mask, where that is the same in both."""
    masked, rest = _mask(a, span) if largest else (None, 0.0)
    if masked is None:
        return Difference(largest, span)
    with np.errstate(over="ignore"):
        beside = _largest((a - b)[~masked])
    return Difference(largest, rest if np.array_equal(a[masked], b[masked]) else span, beside=beside)


def masked(a: Any) -> Any:
    """Where a mask stands among these floats, which are finite; None where none does."""
    return _mask(a, _largest(a))[0]


def _mask(a: Any, span: float) -> tuple[Any, float]:
    """Where one huge number stands, again and again, and the range of what is left. Beside -3.4e38 no score would
    count, be it in one place only: two words under a causal mask have one."""
    some = np.abs(a.reshape(-1)[:: a.size // _SAMPLE + 1]).astype(np.float64)
    if ((some < span / 2) & (some * MASK >= span)).any():  # neither huge nor next to nothing: most activations end here
        return None, span
    sizes = np.abs(a)
    found = sizes >= span / 2
    rest = float(sizes[~found].max(initial=0))
    if not 0 < MASK * rest < span:
        return None, span
    huge = a[found]
    is_mask = (huge.size > 1 or _ALONE * rest < span) and (huge == huge[0]).all()
    return (found, rest) if is_mask else (None, span)


def noisier(x: Difference, y: Difference) -> Difference:
    """The worse of two samples of noise, of all numbers and of those beside a mask."""
    every = [d.beside for d in (x, y) if d.beside is not None]
    return replace(worst([x, y]), beside=max(every, default=None))


def worst(found: list[Difference]) -> Difference:
    """Of several cases the one with the largest share; none: no difference."""
    return max(found, key=lambda d: (bool(d.note), d.uneven, d.relative), default=Difference())
