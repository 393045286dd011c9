"""The rewriting engine: patterns, the matcher, rules, the builder, the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxopt.rewriting.driver import Driver, Fuel, RuleReport
from onnxopt.rewriting.match import Match
from onnxopt.rewriting.pattern import Call, Pattern, about, const, either, one_of, op, text, var
from onnxopt.rewriting.rule import (
    Declined,
    Rule,
    ends_formula,
    keeps_shape,
    only_read_by,
    quantized,
    rewrite,
    scales_formula,
    shifts_formula,
    widens,
    without_ones,
)
from onnxopt.startup import lazy, listing

if TYPE_CHECKING:
    from onnxopt.rewriting.subgraph import Replaced, SubgraphMatch, SubgraphMatcher, replace_pattern

__all__ = [
    "Call",
    "Declined",
    "Driver",
    "Fuel",
    "Match",
    "Pattern",
    "Replaced",
    "Rule",
    "RuleReport",
    "SubgraphMatch",
    "SubgraphMatcher",
    "about",
    "const",
    "either",
    "ends_formula",
    "keeps_shape",
    "one_of",
    "only_read_by",
    "op",
    "quantized",
    "replace_pattern",
    "rewrite",
    "scales_formula",
    "shifts_formula",
    "text",
    "var",
    "widens",
    "without_ones",
]

__dir__ = listing(__name__)
__getattr__ = lazy(__name__, {"subgraph": ("Replaced", "SubgraphMatch", "SubgraphMatcher", "replace_pattern")})
