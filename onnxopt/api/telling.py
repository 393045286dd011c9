"""Messages of the command, for `logging.getLogger("onnxopt")`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnxopt.plaintext import cleaned, line

if TYPE_CHECKING:
    from onnxopt.optimizer import Report


def log(report: Report, remarks: Iterable[str], *, verified: bool) -> None:
    """Log the report line by line.

    `verified`: verification was requested, so an unproven verdict is a warning; so are `remarks`.
    """
    import logging  # most commands print, and need not import it

    from onnxopt.reporting import plain

    logger, doubtful = logging.getLogger("onnxopt"), verified and not report.ok
    if doubtful or logger.isEnabledFor(logging.INFO):  # the lines of a small model take a tenth of its passes' time
        data = report.to_dict()
        warnings = set(plain.verdict(cleaned(data))) if doubtful else set()
        for text in plain.lines(data):
            logger.log(logging.WARNING if text in warnings else logging.INFO, "%s", line(text))
    warn(remarks)


def warn(texts: Iterable[str]) -> None:
    """Log each line as a warning, which Python prints on stderr by default."""
    for text in texts:
        import logging

        logging.getLogger("onnxopt").warning("%s", line(text))
