"""What this onnxruntime does not have is no fault of a result, if a caller asked for it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import DIFFERENT, UNVERIFIED, Verification, let_in

LACKS = (
    "the result cannot be loaded: NOT_IMPLEMENTED : Could not find an implementation for Mish(22) node with name 'm'"
)
KERNEL = "the result cannot be loaded: …to find kernel for Mish(22) (node:'m' ep:'CPUExecutionProvider')"


@pytest.mark.parametrize(
    ("domains", "opset", "op", "message", "status"),
    [
        ((), 22, "Mish", LACKS, UNVERIFIED),
        ((), 22, "Mish", KERNEL, UNVERIFIED),
        ((), 22, "Bernoulli", LACKS.replace("Mish", "RandomUniformLike"), UNVERIFIED),  # of which the runtime makes it
        ((), 22, "Mish", LACKS.replace("Mish", "RandomUniformLike"), DIFFERENT),
        ((), None, "Mish", LACKS, DIFFERENT),  # nobody asked for another opset
        ((), 22, "Relu", LACKS, DIFFERENT),  # a rewrite brought it in,
        ((), 22, "Mish", LACKS.replace("(22)", "(18)"), DIFFERENT),  # or one of its types
        ((), 22, "Mish", "the result cannot be loaded: 1 : FAIL", DIFFERENT),
        (
            ("lite",),
            None,
            "Relu",
            "the result cannot be loaded: lite:f(-1) is not a registered function/op",
            UNVERIFIED,
        ),
        (("other",), 22, "Relu", "the result cannot be loaded: lite:f(-1) is not a registered function/op", DIFFERENT),
    ],
)
def test_what_was_asked_for_is_let_in(
    domains: tuple[str, ...], opset: int | None, op: str, message: str, status: str, tmp_path: Path
) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {{ y = {op} (x) }}'
    onnx.save(parser.parse_model(text), tmp_path / "in.onnx")
    verdict = let_in(Verification(DIFFERENT, message), tmp_path / "in.onnx", domains, opset)
    assert verdict.status == status
    assert (verdict.message == message) == (status == DIFFERENT)
