"""Opsets, missing kernels and measured times of forms by version of onnxruntime (measured.json).

benchmarks/forms.py writes the file.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Final

_DATA: Final = json.loads(files("onnxopt.pipeline").joinpath("measured.json").read_text("utf-8"))

# The newest opset that a version loads.
LOADS: Final[dict[str, int]] = _DATA["loads"]
# By operator, the first opset in which a version lacks a kernel that it has for an older one.
LACKS: Final[dict[str, dict[str, int]]] = _DATA["lacks"]
# By form and size: [time in place of 1, from, to], a 95 % interval. docs/forms.md shows the same.
FORMS: Final[dict[str, dict[str, dict[str, list[float]]]]] = _DATA["forms"]
