"""The rewriting engine: patterns, the matcher, rules, the builder, the driver."""

from onnxopt.rewrite.driver import Decline, Driver, Fuel, RuleRecord
from onnxopt.rewrite.guards import quantized, require_order_kept
from onnxopt.rewrite.match import Match
from onnxopt.rewrite.pattern import Call, Pattern, const, either, falsy, one_of, op, text, var
from onnxopt.rewrite.replace import remove_dead
from onnxopt.rewrite.rule import Declined, Rule, rewrite
from onnxopt.rewrite.subgraph import Replaced, SubgraphMatch, SubgraphMatcher, replace_pattern

__all__ = [
    "Call",
    "Decline",
    "Declined",
    "Driver",
    "Fuel",
    "Match",
    "Pattern",
    "Replaced",
    "Rule",
    "RuleRecord",
    "SubgraphMatch",
    "SubgraphMatcher",
    "const",
    "either",
    "falsy",
    "one_of",
    "op",
    "quantized",
    "remove_dead",
    "replace_pattern",
    "require_order_kept",
    "rewrite",
    "text",
    "var",
]
