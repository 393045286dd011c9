"""What the command prints, for `logging.getLogger("onnxopt")`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxopt.plaintext import cleaned, line

if TYPE_CHECKING:
    from onnxopt.optimizer import Report


def log(report: Report, remarks: Sequence[str], *, verified: bool) -> None:
    """Log the report line by line. `verified`: somebody wants to know whether the result is right: a verdict that does
    not say so is a warning, and so are the `remarks`."""
    from onnxopt.reporting import plain

    logger = logging.getLogger("onnxopt")
    data = report.to_dict()
    doubtful = set(plain.verdict(cleaned(data))) if verified and not report.ok else set()
    for text in plain.lines(data):
        logger.log(logging.WARNING if text in doubtful else logging.INFO, "%s", line(text))
    for text in remarks:
        logger.warning("%s", line(text))
