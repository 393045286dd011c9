"""Properties of ONNX operators, as sets derived from `table.py`.

Rules query a property instead of listing operators, and so cover operators added to the table later.
"""

from __future__ import annotations

from typing import Final

from onnxopt.operators.table import FORMS, TRAITS


def of_form(*forms: str) -> frozenset[str]:
    """Return the operators of these forms (see `table.py`)."""
    return frozenset(op for op, form in FORMS.items() if form in forms)


def with_trait(trait: str) -> frozenset[str]:
    """Return the operators with a trait (see `table.py`)."""
    return frozenset(op for op, traits in TRAITS.items() if trait in traits)


ARITHMETIC: Final = with_trait("arithmetic")
UNARY: Final = of_form("unary")
IN_PLACE: Final = of_form("unary", "same")
BROADCASTING: Final = of_form("broadcast")
MULTIDIRECTIONAL: Final = BROADCASTING - with_trait("unidirectional")
SAME_ORDER: Final = tuple(sorted(of_form("order")))  # sorted: the choices in a pattern have an order
PICKS: Final = of_form("same", "order", "pick", "permute")
REDUCTIONS: Final = tuple(sorted(of_form("reduce")))
POOLS: Final = of_form("pool")
GLOBAL_POOLS: Final = of_form("whole")
PLACES: Final = of_form("places")
CONTROL_FLOW: Final = of_form("body")
RANDOM: Final = of_form("draw")
RECURRENT: Final = tuple(sorted(of_form("recurrent")))
COMMUTATIVE: Final = with_trait("commutative")
CONTRACTIONS: Final = of_form("contract")
CUTTING: Final = tuple(sorted(with_trait("cuts")))
COMPARISONS: Final = tuple(sorted(with_trait("comparison")))
VARIADIC: Final = with_trait("variadic")
ONE_RESULT: Final = frozenset(FORMS) - with_trait("results")
EXACT: Final = with_trait("exact")
HARMLESS: Final = with_trait("harmless")
LIKE_FIRST: Final = UNARY | of_form("same") | with_trait("like")
LINEAR: Final = with_trait("linear")
HOMOGENEOUS: Final = with_trait("positive")
NONNEGATIVE: Final = with_trait("nonnegative")
FRACTIONS: Final = tuple(sorted(with_trait("fraction")))
NEAR_ZERO: Final = with_trait("small")
TELLS_ZERO: Final = with_trait("telling")
IN_RANGE: Final = with_trait("ranged")


def broadcasts(op: str, opset: int) -> bool:
    """Whether operands of `op` broadcast without an attribute that says how."""
    return op in BROADCASTING and opset >= (8 if op in VARIADIC else 7)


__all__ = [
    "ARITHMETIC",
    "BROADCASTING",
    "COMMUTATIVE",
    "COMPARISONS",
    "CONTRACTIONS",
    "CONTROL_FLOW",
    "CUTTING",
    "EXACT",
    "FORMS",
    "FRACTIONS",
    "GLOBAL_POOLS",
    "HARMLESS",
    "HOMOGENEOUS",
    "IN_PLACE",
    "IN_RANGE",
    "LIKE_FIRST",
    "LINEAR",
    "MULTIDIRECTIONAL",
    "NEAR_ZERO",
    "NONNEGATIVE",
    "ONE_RESULT",
    "PICKS",
    "PLACES",
    "POOLS",
    "RANDOM",
    "RECURRENT",
    "REDUCTIONS",
    "SAME_ORDER",
    "TELLS_ZERO",
    "TRAITS",
    "UNARY",
    "VARIADIC",
    "broadcasts",
    "of_form",
    "with_trait",
]
