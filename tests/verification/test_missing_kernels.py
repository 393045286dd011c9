"""A kernel missing in this onnxruntime is no fault of the result, if the caller asked for the operator."""

from __future__ import annotations

import pytest

from onnxopt.verification import DIFFERENT, UNVERIFIED, Verification, let_in
from onnxopt.verification.runtime import missing

LACKS = (
    "the result cannot be loaded: NOT_IMPLEMENTED : Could not find an implementation for Mish(22) node with name 'm'"
)
KERNEL = "the result cannot be loaded: …to find kernel for Mish(22) (node:'m' ep:'CPUExecutionProvider')"
FOREIGN = "the result cannot be loaded: lite:f(-1) is not a registered function/op"


@pytest.mark.parametrize(
    ("domains", "message", "status"),
    [(("lite",), FOREIGN, UNVERIFIED), (("other",), FOREIGN, DIFFERENT), (("lite",), LACKS, DIFFERENT)],
)
def test_a_missing_kernel_of_a_requested_domain_is_excused(domains: tuple[str, ...], message: str, status: str) -> None:
    verdict = let_in(Verification(DIFFERENT, message), domains)
    assert verdict.status == status
    assert (verdict.message == message) == (status == DIFFERENT)


def test_the_missing_kernel_is_read_from_the_message() -> None:
    assert missing(LACKS) == missing(KERNEL) == "onnxruntime does not implement Mish of opset 22 for its types"
    assert missing(FOREIGN) == missing("the result cannot be loaded: 1 : FAIL") == ""
