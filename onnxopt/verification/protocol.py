"""What the parent and its worker tell each other."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from onnxopt.record import record
from onnxopt.verification.records import JudgedCase

if TYPE_CHECKING:
    from onnxopt.verification.inputs.cases import Recipe
    from onnxopt.verification.inputs.datasets import Data
    from onnxopt.verification.numbers.compare import Evidence


class Opened(NamedTuple):
    """What runs the original: why onnxruntime does not, or what it was run `around`, where that is so."""

    engine: str = "onnxruntime"
    provider: str = ""
    refused: str = ""
    around: str = ""


@record
class Request:
    """One case: a recipe, values that are given, and the outputs that are expected with them.

    `base`: sizes of dynamic dims that the original is known to take, if the worker does not know.
    """

    recipe: Recipe
    data: Data
    base: dict[str, int] | None = None


@record
class Answer:
    """What came of it, and what the parent judges the whole by, if it `proves` anything."""

    case: JudgedCase
    proves: bool = True
    evidence: dict[str, Evidence | None] = field(default_factory=dict)
    branches: dict[str, bool] = field(default_factory=dict)
