"""The rewriting engine: patterns, the matcher, rules, the builder, the driver."""

from onnxopt.rewrite.driver import Decline, Driver, Fuel, RuleRecord
from onnxopt.rewrite.match import Match
from onnxopt.rewrite.pattern import const, either, falsy, one_of, op, text, var
from onnxopt.rewrite.rule import Declined, Rule, rewrite

__all__ = [
    "Decline",
    "Declined",
    "Driver",
    "Fuel",
    "Match",
    "Rule",
    "RuleRecord",
    "const",
    "either",
    "falsy",
    "one_of",
    "op",
    "rewrite",
    "text",
    "var",
]
