"""Lookups in constant tables, with the table in the form needed."""

from __future__ import annotations

from typing import Final

import numpy as np

from onnxopt.graph import Value
from onnxopt.pipeline import PassInfo, RewritePass, register
from onnxopt.proto.element_types import is_float
from onnxopt.proto.messages import Array, numpy_dtype
from onnxopt.rewriting import Match, const, one_of, op, rewrite, var

_EXTRACTOR: Final = "ai.onnx.ml::ArrayFeatureExtractor"
# types supported by both operators; float16 is chosen for its size
_LOOKUP_TYPES: Final = frozenset({"f4", "f8", "i4", "i8"})
_MAX_TABLE_BYTES: Final = 1 << 16  # bytes: larger tables must not grow


@rewrite(op.Cast(one_of("Gather", _EXTRACTOR)(const("table"), var("at"), name="pick"), name="cast"))
def cast_of_lookup(m: Match, table: Array, at: Value) -> Value:
    """Cast(Gather(c, i)) = Gather(Cast(c), i); so for ArrayFeatureExtractor."""
    to = numpy_dtype(m.cast.attr("to"))
    m.require({table.dtype.str[1:], to.str[1:]} <= _LOOKUP_TYPES, "not from numbers to numbers")
    m.require(is_float(to) or ((table > -(2.0**31)) & (table < 2.0**31)).all(), "a number may not fit")
    grows = table.size * to.itemsize > max(_MAX_TABLE_BYTES, table.nbytes)
    m.require(not grows and len(m.value("table").users) == 1, "the table would grow, or be stored twice")
    return m.op[m.pick.op](m.const(table.astype(to)), at, like=m.pick)


@rewrite(
    op.Reshape(
        op[_EXTRACTOR](const("table"), op.ArgMax(var("x"), name="best")),
        const("shape"),
    )
)
def label_of_best(m: Match, x: Value, table: Array, shape: Array) -> Value:
    """Reshape(ArrayFeatureExtractor(c, ArgMax(x)), [-1]) = Gather(c, ArgMax(x, keepdims = 0))."""
    m.require(shape.reshape(-1).tolist() == [-1] and m.rank(x) == 2, "not one label for each row")
    m.require(m.best.attr("axis") in (1, -1), "not the best of each row")
    m.require(table.shape[-1:] == (table.size,), "several rows of labels, or none")
    best = m.best.output if not m.best.keeps_dims else m.op.ArgMax(x, like=m.best, keepdims=0)
    labels = m.value("table") if table.ndim == 1 else m.const(table.reshape(-1))
    return m.op.Gather(labels, best, axis=0)


@rewrite(op.Gather(const("table"), one_of("ArgMax", "ArgMin")(var("x"), ..., name="best", shared=True)))
def label_that_counts(m: Match, x: Value, table: Array) -> Value:
    """Gather([0, 1, …], ArgMax(x)) = ArgMax(x), for indices within the table."""
    m.require(table.ndim == 1 and table.dtype == np.int64, "not one label of 64 bits for each place")
    m.require((table == np.arange(table.size)).all(), "the labels do not count from 0")
    return m.best.output


@register
class TableLookups(RewritePass):
    """Cast(Gather(c, i)) = Gather(Cast(c), i), c constant; gathers the label of the best class directly; labels
    that count from 0 are the indices.

    Applies when: the table is small, or does not grow, and table and inner values have no other readers.
    Classifiers of scikit-learn look up labels in this way, through floats.
    """

    info = PassInfo("table-lookups", opt_level=1, ops=("Cast", "ArgMax", "ArgMin"))
    rules = (cast_of_lookup, label_of_best, label_that_counts)
