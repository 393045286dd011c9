"""Heads of attention: split and joined inside Attention, and grouped keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from onnxopt.analysis import types
from onnxopt.graph import Node, Value
from onnxopt.graph.node import present, producer, sole_reader
from onnxopt.graph.value import Shape
from onnxopt.pipeline import PassInfo, RewritePass, option, register
from onnxopt.proto.messages import Array
from onnxopt.rewriting import Match, const, op, rewrite, var
from onnxopt.rewriting.attention import PROBABILITIES, is_regular, scores_behind

# Permutations that exchange [batch, rows, heads, width] and [batch, heads, rows, width], and the same without a batch.
_TURNS: Final = ([0, 2, 1, 3], [1, 0, 2])
_MAX_BLOCKS: Final = 8  # each is an operator more
_FEW_SCORES: Final = 512  # bytes, for the rule without its pass
_OF_UNKNOWN: Final = "the number of queries or keys is unknown"
_OTHER_TURN = "not rows and heads are exchanged"


@rewrite(op.Transpose(op.Attention(var("q"), var("k"), var("v"), ..., name="attention", shared=True), name="back"))
def attention_of_rows(m: Match, q: Value, k: Value, v: Value) -> tuple[Value, ...]:
    """Attention(qᵀ, kᵀ, vᵀ)ᵀ = Attention(q, k, v) of rows with the heads side by side, where ᵀ turns rows and heads.

    Batches of a single head, turned with the rows, become heads of a single batch.
    """
    m.require(_is_turn(m.back), _OTHER_TURN)
    m.require(m.attention.output.only_user is m.back, "the result is used elsewhere")
    (_, heads, _, _), (_, keys, _, _), (_, _, _, width) = (_known_dims(m, x) for x in (q, k, v))
    splits: dict[Node, Sequence[Value]] = {}
    rows = [_rows_of(m, x, splits) for x in (q, k, v)]
    like, outputs, given = m.attention, m.attention.outputs, m.attention.inputs[3:]
    if m.rank(q) == 3:
        alone = {*given[1:], *outputs[1:]} <= {None}
        m.require(alone and like.attr("q_num_heads", 0) == 1, "several heads, or a past")
        given = [_of_one_batch(m, v) for v in given]
    reads = *rows, *given
    made = m.op.Attention(*reads, like=like, q_num_heads=heads, kv_num_heads=keys, outputs=len(outputs))
    result, *others = made if isinstance(made, tuple) else [made]
    kept = [(old, new) for old, new in zip(outputs[1:], others) if old is not None]
    m.results = [m.back.output, *(old for old, _ in kept)]
    m.bindings.roots = (m.back,)
    m.before = m.attention  # what reads present keys may stand between the two
    shape = [0, 0, heads, width] if m.rank(q) == 4 else [-1, heads, width]
    return m.op.Reshape(result, m.ints(shape)), *(new for _, new in kept)


def _of_one_batch(m: Match, mask: Value | None) -> Value | None:
    """Return a mask of batches with a single head as a mask of heads in a single batch."""
    m.require(mask is None or m.rank(mask), "a mask of unknown rank")
    return m.op.Transpose(mask, perm=[1, 0, 2, 3]) if mask is not None and len(m.dims(mask)) == 4 else mask


def _rows_of(m: Match, x: Value, splits: dict[Node, Sequence[Value]]) -> Value:
    """Return `x`, [batch, heads, rows, width], as [batch, rows, heads * width]: what a Transpose turned, also in front
    of a Split of the heads or of a RotaryEmbedding. `splits`: the parts of each Split made so far."""
    node = m.known(producer(x, "Transpose", "Split", "RotaryEmbedding"), "operands come with the heads in front")
    _, heads, _, width = _known_dims(m, x)
    m.require(all(map(_is_read_as_rows, node.results)), "the turned operands are used elsewhere")
    source, rank = node.operands[0], len(m.dims(x))
    if node.op == "Transpose":
        m.require(_is_turn(node), _OTHER_TURN)
        return m.op.Reshape(source, m.ints([0, 0, heads * width] if rank == 4 else [1, -1, heads * width]))
    if node.op == "RotaryEmbedding":
        return m.op.RotaryEmbedding(_rows_of(m, source, splits), *node.inputs[1:], like=node, num_heads=heads)
    if node not in splits:
        m.require(node.attr("axis") in (rank - 3, -3), "not heads are split")
        sizes = [_known_dims(m, v)[1] * width for v in node.results]
        splits[node] = m.op.Split(_rows_of(m, source, splits), m.ints(sizes), axis=2, outputs=len(sizes))
    return splits[node][node.outputs.index(x)]


def _is_turn(node: Node) -> bool:
    return list(node.attr("perm") or ()) in _TURNS


def _known_dims(m: Match, x: Value) -> tuple[int, int, int, int]:
    """Return the dims of heads; the first and third may be unknown. A single batch need have no axis."""
    dims = (1,) * (m.rank(x) == 3) + m.dims(x)
    m.require(
        len(dims) == 4 and all(isinstance(n, int) and n > 0 for n in dims[1::2]),
        "the heads, or their width, are unknown",
    )
    return dims  # type: ignore[return-value]


def _is_read_as_rows(value: Value) -> bool:
    """Whether `value` is unused, or only an Attention whose result is turned back reads it, as far as is seen here."""
    if value.output_count or len(value.users) > 1:
        return False
    reader = value.only_user
    if reader is not None and reader.op in ("Split", "RotaryEmbedding"):
        return all(map(_is_read_as_rows, reader.results))
    back = sole_reader(reader.output, "Transpose") if reader is not None and reader.op == "Attention" else None
    return reader is None or (back is not None and _is_turn(back))


@rewrite(op.Attention(var("q"), var("k"), ..., name="attention"))
def attention_of_blocks(m: Match, q: Value, k: Value) -> Value:
    """Attention(q, k, v, mask) = Concat(Attention(qᵢ, k, v, maskᵢ)), with blocks qᵢ of the queries."""
    most = _FEW_SCORES if m.options is None else m.options.scores << 20
    if most <= 0:
        m.skip()
    node, dims = m.attention, m.dims(q)
    m.require(len(dims) == 3, "the heads are in front: their scores may be turned to rows")
    queries = m.known(types.length_of(q, 1), _OF_UNKNOWN)
    scores = node.attr("q_num_heads", 1) * queries * m.known(types.length_of(k, 1), _OF_UNKNOWN)
    count = min(-(-4 * scores * (types.length_of(q, 0) or 1) // most), _MAX_BLOCKS, queries)
    m.require(count > 1, "the scores are few")
    alone = len(node.results) == 1 and not any(node.inputs[4:]) and not node.attr("is_causal", 0)
    m.require(alone, "a past, the scores or the position of a query are needed")
    mask = node.input(3)
    m.require(mask is None or types.length_of(mask, -2) == queries, "a mask of unknown rows")
    sizes = m.ints([queries * (i + 1) // count - queries * i // count for i in range(count)])
    blocks = m.op.Split(q, sizes, axis=1, outputs=count)
    masks = [None] * count if mask is None else m.op.Split(mask, sizes, axis=len(m.dims(mask)) - 2, outputs=count)
    return m.op.Concat(*(m.op.Attention(b, *node.inputs[1:3], z, like=node) for b, z in zip(blocks, masks)), axis=1)


@register
@dataclass(eq=False, repr=False)
class AttentionHeads(RewritePass):
    """Attention(qᵀ, kᵀ, vᵀ)ᵀ = Attention(q, k, v) of rows with adjacent heads: four Transposes less.

    Applies when: queries, keys, values and the result are transposed, each alone or before a Split of their heads, also
    in front of a RotaryEmbedding; the transposed values have no other readers. Past and present keys keep their layout.
    Batches of one head are turned to heads of one batch.
    With the option `scores`: Attention(q, k, v) = Concat(Attention(qᵢ, k, v)) for blocks qᵢ of known queries, with
    scores of at most `scores` MiB each, or an eighth of all.
    """

    info = PassInfo("attention-heads", opt_level=3, after=("fuse-attention",), ops=("Attention",))
    scores: int = option(0, "above zero: MiB of scores in one Attention; more are computed in blocks")
    rules = (attention_of_rows, attention_of_blocks)


@rewrite(op.MatMul(PROBABILITIES, op.Gather(var("v"), const("heads"), name="values")))
def grouped_heads(m: Match, x: Value, v: Value, heads: Array, guarded: Value | None = None) -> Value:
    """Softmax(q k[:, heads]ᵀ + mask) v[:, heads] = Softmax(q' kᵀ + mask') v.

    In q' the queries sharing a head are additional rows, likewise in mask'.
    """
    s = scores_behind(m, x, guarded)
    shapes = queries, turned, given, values = [m.dims(x) for x in (s.q, s.keys, v, m.values.output)]
    m.require(s.turned and all(len(d) == 4 for d in shapes), "not batches of heads")
    (batch, many, rows, width), (_, few, _, size) = queries, given
    m.require(
        turned[:2] == values[:2] == (batch, many) and batch is not None, "batches or heads may differ, and broadcast"
    )
    m.require(all(isinstance(n, int) and n for n in (many, few, width, size)), "sizes that are not known")
    assert isinstance(many, int) and isinstance(few, int)
    m.require(
        m.values.attr("axis") in (1, -3) and is_regular(heads, few), "not as many queries for each head, in order"
    )
    keys = _few(m, s.keys, few)
    group = many // few
    count = rows if isinstance(rows, int) else -1
    scores = m.op.MatMul(m.op.Reshape(s.q, m.ints([0, few, max(group * count, -1), width])), keys)
    p = m.op.Softmax(_through(m, s.through, scores, queries, group), axis=-1)
    if guarded is not None:
        p = m.op.Where(m.op.IsNaN(p), m.guard.inputs[1], p)
    return m.op.Reshape(m.op.MatMul(p, v), m.ints([0, many, count, size]))


def _through(m: Match, steps: Sequence[Value], scores: Value, queries: Shape, group: int) -> Value:
    """Return the scores after the operators between product and Softmax."""
    for old, part in pairwise(steps):
        node = part.producer
        assert node is not None
        reads = [scores if i is old else None if i is None else _for_group(m, i, queries, group) for i in node.inputs]
        scores = m.op[node.op](*reads, like=node)
    return scores


def _few(m: Match, turned: Value, few: int) -> Value:
    """Return the keys, with the last axes swapped, before heads were copied."""
    transpose = producer(turned, "Transpose") if turned.only_user is not None else None
    perm = [0, 1, 2, 3] if transpose is None else list(transpose.attr("perm") or ())
    m.require(len(perm) == 4, "not batches of heads")
    copied = turned if transpose is None else transpose.inputs[0]
    node = m.known(producer(copied, "Gather"), "the keys are not copied for each head")
    source, heads = present(node.inputs)
    m.require(node.output.only_user is not None, "something else reads the copied keys")
    same = heads.constant and node.attr("axis") % 4 == perm[1] and is_regular(heads.array, few)
    m.require(same, "not as many queries for each head, in order")
    dims = m.dims(source)
    m.require(len(dims) == 4 and dims[perm[1]] == few, "keys and values have other heads")
    return source if transpose is None else m.op.Transpose(source, perm=perm)


def _for_group(m: Match, value: Value, sizes: Shape, group: int) -> Value:
    """Return an operand of the scores for all queries sharing a head: a single row, or tiled."""
    m.require(m.rank(value) in range(5), "a mask of unknown rank")
    dims = m.dims(value)
    rank = len(dims)
    full = (1,) * (4 - rank) + dims
    m.require(full[0] in (1, sizes[0]) and full[1] == 1, "a mask for each head")
    m.require(full[2] in (1, sizes[2]), "the mask may widen the scores")
    return value if full[2] == 1 else m.op.Tile(value, m.ints([*[1] * (rank - 2), group, 1]))


@register
class GroupHeads(RewritePass):
    """Queries that share a head of keys and values become rows of one product, without copies of the head.

    Applies when: a Gather of keys and of values with constant indices repeats each head equally often, in order; inner
    values have no other readers; masks are equal for all heads. A mask with a row for each query is tiled, once for all
    its readers.
    Keeps: biases for each head; heads picked in another order.
    Not done: an empty batch, which runtimes cannot reshape if the number of queries is not constant.
    """

    # After: an Attention reads shared heads directly.
    info = PassInfo("group-heads", opt_level=2, after=("fuse-attention",), ops=("Gather",))
    rules = (grouped_heads,)
