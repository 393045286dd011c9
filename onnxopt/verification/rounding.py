"""Bounds of rounding errors, and the perturbation of last bits, which shows the effect of rounding.

Every operation rounds its result, with an error of at most ε/2 (Higham, Accuracy and Stability of Numerical Algorithms,
2002, chapter 2; sums of n terms in blocks or pairs: chapter 4, factor log2 n). Errors of either sign add up as a
random walk: R roundings on a path leave about √R of a single error. No estimate covers amplification (cancellation,
division by almost zero, thresholds). Noise is then measured by perturbing the last bits of inputs and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from onnxopt.proto.element_types import TYPES, element_kind, of
from onnxopt.verification.model.operators import EXACT

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


# -- random numbers ---------------------------------------------------------------------------------------
# Bits come from the standard library's Mersenne Twister: importing numpy's generators would take a twentieth of a small
# model's time, and 2 MB. Numbers are computed exactly from the bits, so no processor rounds differently.

Shape = Sequence[int]
_BITS: Final = 21  # bits of each of the three terms in a 64-bit word
_CHUNK: Final = 1 << 16  # elements; temporary values take several times the memory of the result


class Draws:
    """A stream of random numbers determined by the seeds."""

    def __init__(self, *seeds: int | str) -> None:
        self._random = Random(" ".join(map(str, seeds)))

    def _words(self, count: int) -> Any:
        return np.frombuffer(self._random.randbytes(8 * count), "<u8")

    def _made(self, shape: Shape, kind: Any, of: Callable[[Any], Any]) -> Any:
        """Return an array of dtype `kind`; `of` maps 64-bit words to numbers."""
        found = np.empty(math.prod(shape), kind)
        for start in range(0, len(found), _CHUNK):
            some = found[start : start + _CHUNK]
            some[:] = of(self._words(len(some)))
        return found.reshape(shape)

    def uniform(self, shape: Shape) -> Any:
        """Return float64 numbers in [0, 1)."""
        return self._made(shape, np.float64, _uniform)

    def normal(self, shape: Shape) -> Any:
        """Return float32 numbers of mean 0 and deviation 1 in [-3, 3]: scaled sums of three uniform numbers."""
        return self._made(shape, np.float32, _normal)

    def integers(self, low: int, high: int, shape: Shape) -> Any:
        """Return int64 numbers in [low, high)."""
        return self._made(shape, np.int64, lambda words: low + (_uniform(words) * (high - low)).astype(np.int64))

    def flags(self, shape: Shape) -> Any:
        """Return booleans."""
        count = math.prod(shape)
        bits = np.frombuffer(self._random.randbytes(-(-count // 8)), np.uint8)
        return np.unpackbits(bits, count=count).view(np.bool_).reshape(shape)

    def orders(self, rows: int, count: int) -> Any:
        """Return an array (rows, count) with a permutation of range(count) in each row."""
        return self._words(rows * count).reshape(rows, count).argsort(axis=1)


def _uniform(words: Any) -> Any:
    return (words >> 11) * 2.0**-53


def _normal(words: Any) -> Any:
    mask = (1 << _BITS) - 1
    total = (words & mask) + (words >> _BITS & mask) + (words >> 2 * _BITS & mask)
    return (total - 1.5 * mask) * (2.0 / mask)


# -- bounds -----------------------------------------------------------------------------------------------

EPSILON: Final = {t.name: t.epsilon for t in TYPES if t.kind == "f"}
NO_NUMBER: Final = "NaN in other places"
INFINITE: Final = "infinities in other places"
OTHER_SIGN: Final = "infinities of the other sign"
NOTHING: Final = ", and holds nothing in either"
_WALK: Final = 2.0  # times the random walk
_MAX_TRUSTED_ROUNDINGS: Final = 16.0  # roundings accepted for a piece without measuring noise
_DEEPEST_NARROW: Final = 3.0  # for types narrower than float32
_DEEPEST_WHOLE: Final = 64.0  # for a whole model, whose paths are longer
NOISE: Final = 4.0  # times the effect of changed last bits, as the largest of a few samples is no bound

_ASSUMED_TERMS: Final = 256  # terms of a sum of unknown length
_SUMS: Final = frozenset(("LSTM", "GRU", "RNN", "Einsum", "Attention", "CumSum", "STFT", "DFT", "Gelu", "Conv", "LRN"))


def roundings(node: NodeProto, weights: Mapping[str, TensorProto]) -> float:
    """Return the estimated number of roundings between the inputs and results of `node`. `weights`: by name."""
    op = node.op_type
    if op in EXACT or not node.input:
        return 0.0
    return 1.0 + math.log2(max(_terms(node, [weights[n].dims[:] if n in weights else () for n in node.input[:]]), 1.0))


def _terms(node: NodeProto, dims: Sequence[Sequence[int]]) -> float:
    """Return the estimated number of terms in a sum. `dims`: by operand, () if unknown."""
    op = node.op_type
    if op in ("Conv", "ConvTranspose") and any(dims[1:2]):
        return math.prod(dims[1][1:])
    if op in ("MatMul", "Gemm"):
        return next((max(d[-2:]) for d in dims[:2] if d), _ASSUMED_TERMS)
    is_unknown = node.domain not in ("", "ai.onnx") or any(a.HasField("g") for a in node.attribute[:])
    return _ASSUMED_TERMS if is_unknown or _is_sum(op) else 1.0


def _is_sum(op: str) -> bool:
    return op in _SUMS or op.startswith(("Reduce", "Global", "Average")) or op.endswith(("Normalization", "Softmax"))


def allowed(epsilon: float, depth: float) -> float:
    """Return the relative difference allowed after `depth` roundings on the path to a value."""
    deepest = _DEEPEST_NARROW if epsilon > EPSILON["float32"] else _MAX_TRUSTED_ROUNDINGS
    return _walk(epsilon, min(depth, deepest))


def allowed_of_whole(depth: float) -> float:
    """Return the relative difference allowed for a float32 output of a whole model after `depth` roundings."""
    return _walk(EPSILON["float32"], min(depth, _DEEPEST_WHOLE))


def _walk(epsilon: float, depth: float) -> float:
    return _WALK * epsilon * math.sqrt(1.0 + depth)


MOST_OF_WHOLE: Final = allowed_of_whole(_DEEPEST_WHOLE)


class Difference(NamedTuple):
    """Difference between a value of B and of A."""

    largest: float = 0.0  # largest difference of elements; of discrete values, the share of differing elements
    span: float = 0.0  # largest magnitude of A; 1 for discrete values
    discrete: bool = False
    note: str = ""  # why elements cannot be compared, or ""
    unseen: bool | None = None  # of noise in discrete values: differing elements of B take values seen in no sample
    uneven: bool = False  # a row or channel differs by much of its range; of noise: by more than in any sample
    beside: float | None = None  # largest difference outside a mask, if A has a mask

    @property
    def relative(self) -> float:
        """The largest difference divided by the range: infinite if elements cannot be compared."""
        return self.largest / self.span if self.span else math.inf if self.largest or self.note else 0.0

    @property
    def words(self) -> str:
        """Return a description of a float difference. Zeros have no range."""
        if not self.span and math.isfinite(self.largest):
            return f"differs by {self.largest:.1e} from zeros"
        return f"differs by {self.relative:.1e} of its range"

    def within(self, share: float) -> bool:
        """Return whether the difference is at most `share` of the range. Discrete values must be equal."""
        is_small = not self.largest if self.discrete else self.largest <= share * self.span
        return is_small and not self.note and not self.uneven

    def explained(self, noise: Difference, times: float = NOISE) -> bool:
        """Return whether noise of last bits explains the difference, at most `times` the noise.

        For discrete noise, each differing element must take a value seen in a sample. Noise of a mask (64 for -1e9)
        explains no difference outside the mask.
        """
        if self.note or noise.note or noise.uneven:
            return False
        is_beside = self.beside is not None and self.beside >= self.largest and noise.beside is not None
        largest = noise.beside if is_beside and noise.beside is not None else noise.largest
        return self.largest <= times * largest if noise.unseen is None else not noise.unseen


# Times the remaining magnitudes: no activation stands out as far, with equal numbers in several places.
MASK: Final = 1e3
# Times the remaining magnitudes: float32 keeps nothing beside the number, so a single place suffices.
_ALONE: Final = 2.0**26
_SAMPLE: Final = 64  # sampled elements, approximately


def difference(a: Any, b: Any, *, coarse: bool = False) -> Difference:
    """Return the difference of two values, element by element.

    coarse: count differing elements, as the type has few bits.
    """
    if isinstance(a, list) or isinstance(b, list):
        return _of_sequences(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        same = list(a) == list(b)
        return difference(*(np.array(list(m.values())) for m in (a, b))) if same else Difference(note="other keys")
    if a is None or b is None:
        return Difference(note="" if a is b else "absent in one of the two")
    return _of_arrays(np.asarray(a), np.asarray(b), coarse)


def _of_arrays(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], coarse: bool) -> Difference:
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
    """Return whether a value is a tensor of floats or complex numbers."""
    return isinstance(value, np.ndarray) and element_kind(value) in "fc"


def overflows(value: Any) -> bool:
    """Return whether a value is a float tensor with NaN or infinities."""
    return isinstance(value, np.ndarray) and element_kind(value) == "f" and not np.isfinite(value).all()


def _of_sequences(a: Any, b: Any) -> Difference:
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return Difference(note="sequences differ in length")
    return worst([difference(x, y) for x, y in zip(a, b)])


def _of_floats(a: Any, b: Any) -> Difference:
    a, b = as_single(a), as_single(b)
    with np.errstate(all="ignore"):
        largest, span = _largest(a - b), _largest(a)
    if math.isfinite(largest) and math.isfinite(span):
        return _unmasked(a, b, largest, span)
    finite = np.isfinite(a)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return Difference(note=NO_NUMBER)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return Difference(note=OTHER_SIGN if np.array_equal(finite, np.isfinite(b)) else INFINITE)
    a, b = a[finite], b[finite]
    with np.errstate(over="ignore"):
        largest, span = _largest(a - b), _largest(a)
    return _unmasked(a, b, largest, span)


def as_single(value: Any) -> Any:
    """Return narrower floats in float32, and others unchanged."""
    return value.astype(np.float32) if value.dtype.itemsize < 4 else value


def _largest(a: Any) -> float:
    """Return the largest absolute value: NaN if any, 0 if empty."""
    a = np.asarray(a)  # the difference of arrays without axes is a scalar
    if element_kind(a) == "c":
        return float(np.abs(a).max(initial=0))
    # Without copying a large activation; `abs` avoids -0.
    return abs(float(np.maximum(a.max(initial=0), -a.min(initial=0))))


def _unmasked(a: Any, b: Any, largest: float, span: float) -> Difference:
    """Return the difference relative to the range outside a mask, if the mask is equal in both."""
    masked, rest = _mask(a, span) if largest else (None, 0.0)
    if masked is None:
        return Difference(largest, span)
    with np.errstate(over="ignore"):
        beside = _largest((a - b)[~masked])
    return Difference(largest, rest if np.array_equal(a[masked], b[masked]) else span, beside=beside)


def masked(a: Any) -> Any:
    """Return the boolean mask of finite floats that mark masked places; None if no mask."""
    return _mask(a, _largest(a))[0]


def _mask(a: Any, span: float) -> tuple[Any, float]:
    """Return (places of a repeated huge number, or None; range of the remaining numbers).

    A single place suffices beside numbers lost in float32: a causal mask over two words has only one -3.4e38.
    """
    some = np.abs(a.reshape(-1)[:: a.size // _SAMPLE + 1]).astype(np.float64)
    # Intermediate magnitudes exclude a mask; most activations return here.
    if ((some < span / 2) & (some * MASK >= span)).any():
        return None, span
    sizes = np.abs(a)
    found = sizes >= span / 2
    rest = float(sizes[~found].max(initial=0))
    if not 0 < MASK * rest < span:
        return None, span
    huge = a[found]
    is_mask = (huge.size > 1 or _ALONE * rest < span) and (huge == huge[0]).all()
    return (found, rest) if is_mask else (None, span)


def unexplained(
    differences: Sequence[Difference], noise: Sequence[Difference], share: float, times: float = NOISE
) -> list[int]:
    """Return the cases with a difference beyond `share` of the range and beyond `times` the noise.

    noise: by case; () if unknown.
    """
    every = zip(differences, noise or [Difference()] * len(differences))
    return [i for i, (d, n) in enumerate(every) if not (d.within(share) or d.explained(n, times))]


def noisier(x: Difference, y: Difference) -> Difference:
    """Return the worse of two noise samples, for all numbers and outside a mask."""
    every = [d.beside for d in (x, y) if d.beside is not None]
    return worst([x, y])._replace(beside=max(every, default=None))


def worst(found: list[Difference]) -> Difference:
    """Return the largest relative difference of several; no difference for an empty list."""
    return max(found, key=lambda d: (bool(d.note), d.uneven, d.relative), default=Difference())


# -- last bits --------------------------------------------------------------------------------------------

_CHANCE: Final = 12  # trailing bits zero by chance in 1 of 4096 rounded numbers
# Trailing bits zero after cancellation, as in x + 100 - 37.
_CANCELLED: Final = {"bfloat16": 1, "float16": 2, "float32": 6, "float64": 12}
_PREFIX: Final = 256
_HUGE: Final = 1e4


def last_bit(value: Any, rng: Draws, dtype: str = "", times: float = 1.0) -> Any:
    """Return the value with each float moved to a neighbour, up or down, or `times` as far.

    Equal elements move alike, as the same roundings would. Zeros, infinities, masks, exact values (`is_exact`) and
    other types are unchanged. dtype: narrower type of a float32 array.
    """
    if isinstance(value, list):
        return [last_bit(v, rng, dtype, times) for v in value]
    if not isinstance(value, np.ndarray) or element_kind(value) != "f" or not value.size:
        return value
    flags = rng.flags(value.shape)
    if (value.flat[:_PREFIX] == value.flat[0]).all() and (value == value.flat[0]).all():
        flags = flags.flat[0]
    if is_exact(value):
        return value
    with np.errstate(all="ignore"):
        step = _step(value, dtype, times)
        found = (value + np.where(flags, step, -step)).astype(value.dtype)
    keep = (value == 0) | ~np.isfinite(value) | ~np.isfinite(found) | _is_mask(value)
    return np.where(keep, value, found)


def _step(value: Any, dtype: str, times: float) -> Any:
    """Return the distance to the neighbour of each float, in the narrower type `dtype` if given, `times` as far."""
    if dtype and value.dtype == np.float32:
        return np.abs(value) * np.float32(EPSILON[dtype] * times)
    return np.spacing(np.abs(value)) * value.dtype.type(times)


def is_exact(value: Any) -> bool:
    """Return whether floats are exact: all multiples of a power of two too large to be the result of rounding.

    True for integers, sizes, positions, pixels, results of Round or Mod, and many constant factors. A sum after
    cancellation also has trailing zero bits, but was rounded, so a few are not enough.
    """
    if value.dtype.name not in _CANCELLED:
        return False
    bits, flat = of(value.dtype).digits, value.reshape(-1)
    largest = float(np.abs(flat).max(initial=0, where=np.isfinite(flat)))
    empty = max(math.ceil(_CHANCE / max(int(np.count_nonzero(flat)), 1)), _CANCELLED[value.dtype.name])
    if not largest or empty >= bits:
        return not largest
    for part in (flat[:_PREFIX], flat):  # the first elements suffice for most
        scaled = np.ldexp(part.astype(np.float64), bits - empty - math.frexp(largest)[1])
        if not ((scaled == np.trunc(scaled)) | np.isnan(scaled)).all():
            return False
    return True


def are_integers(value: Any) -> bool:
    """Return whether floats are almost certainly integers, which jump by steps."""
    if not isinstance(value, np.ndarray) or element_kind(value) != "f" or value.dtype.name not in _CANCELLED:
        return False
    largest = float(np.abs(value).max(initial=0))
    return 4 * largest <= 2.0 ** of(value.dtype).digits and bool((value == np.trunc(value)).all())


def _is_mask(value: Any) -> Any:
    """Return where a repeated number is huge beside all remaining numbers, or the only nonzero number.

    The last bit of -1e9 is larger than any score.
    """
    sizes = np.abs(value)
    span = float(sizes.max())
    found = sizes == span
    rest = float(sizes[~found].max(initial=0))
    if found.all() or np.count_nonzero(found) < 2 or not (value[found] == value[found][0]).all():
        return np.zeros_like(found)
    return found & (rest == 0 or (span >= _HUGE and MASK * rest < span))
