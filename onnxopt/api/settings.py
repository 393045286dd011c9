"""The parts of the API that the command shares: settings, the run from file to file, messages for the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxopt.arguments import all_in, dict_in
from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report
from onnxopt.plaintext import cleaned, line
from onnxopt.rollback import optimize_or_roll_back
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnxopt.conversion.extraction import Extraction


def log(report: Report, remarks: Iterable[str], *, verified: bool) -> None:
    """Log the report. Warnings are `remarks` and, if verification was requested (`verified`), an unproven verdict."""
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


_OF_A_FILE: Final = frozenset(("max_rewrites", "provenance", "external", "rename", "name_nodes"))
# Keywords for passes and changes of the model, in each function that optimizes; and with those of a written result.
SETTINGS: Final = (OptimizeOptions.__annotations__.keys() - _OF_A_FILE - {"excluded", "limits"}) | {
    *("plugins", "max_constant_bytes", "memory", "work")
}
OF_A_RESULT: Final = SETTINGS | _OF_A_FILE


def make_options(**settings: Any) -> OptimizeOptions:
    """Return the options, load the plugins, and warn of passes for other targets. Raises UsageError."""
    given = {**settings}
    for plugin in all_in(given.pop("plugins", ()), "plugins", "files and modules"):
        from onnxopt.pipeline.registry import load_module

        load_module(os.fspath(plugin))
    config = dict_in(given.pop("config", None), "config", "VALUE")
    if (most := given.pop("max_constant_bytes", None)) is not None:
        config = {**config, "constant-folding.max-bytes": most}
    limits = Limits(given.pop("memory", 0), given.pop("work", Limits.work))
    options = OptimizeOptions(**given | {"dtype": given.get("dtype") or ""}, config=config, limits=limits)
    if options.pipeline is not None or options.extra:
        from onnxopt.optimizer.remarks import not_for_target

        warn(not_for_target(options))
    return options


def run(
    source: Path,
    destination: Path,
    options: OptimizeOptions,
    *,
    called: tuple[str, str],
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    cut: Callable[[Extraction], None] = lambda found: None,
    began: float | None = None,
    **given: Any,
) -> Report:
    """Optimize `source` into `destination`; the report uses the names in `called`.

    `inputs` and `outputs`: values at the ends of the part; `cut` gets the extraction. `began`: start time of the caller
    by `time.perf_counter`, for the report. Further keywords and errors: as of `optimize_or_roll_back`; errors of
    `extract_file`, too.
    """
    start = time.perf_counter() if began is None else began
    found: Extraction | None = None

    def complete(report: Report) -> Report:
        report.source, report.destination = called
        report.seconds = time.perf_counter() - start
        if found is not None:
            report.pipeline.nodes_before, report.bytes_before = found.nodes_before, found.bytes_before
        return report

    with ExitStack() as stack:
        if inputs or outputs:
            from onnxopt.conversion.extraction import cut_off

            source, found = stack.enter_context(cut_off(source, destination, inputs, outputs))
            cut(found)
        try:
            return complete(optimize_or_roll_back(source, destination, options, **given))
        except DifferentResult as e:
            complete(e.report)
            raise
