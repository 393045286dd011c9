"""The parts of the API that the command shares: settings, the run from file to file, messages for the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from onnxopt.arguments import all_in, dict_in
from onnxopt.optimizer import DifferentResult, OptimizeOptions, Report
from onnxopt.plaintext import cleaned, line
from onnxopt.rollback import optimize_or_roll_back
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnxopt.conversion.extraction import Extraction


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


if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict:
        """Keeps annotations as text. `typing.TypedDict` compiles each annotation, in a millisecond of each start."""

        def __init_subclass__(cls, total: bool) -> None:
            cls.__annotations__ = {**cls.__base__.__annotations__, **cls.__annotations__}


class Settings(TypedDict, total=False):
    """Settings for passes and changes of the model, of each function that optimizes."""

    level: int
    pipeline: str | None
    extra: Sequence[str]
    disable: Sequence[str]
    config: Mapping[str, Any] | None
    target: str | Sequence[str]
    plugins: Sequence[str | os.PathLike[str]]
    freeze_initializers: bool
    dims: Mapping[str, int] | None
    shapes: Mapping[str, Sequence[int]] | None
    make_dynamic: Mapping[str, str] | None
    target_opset: int | None
    dtype: str | None
    int32: bool
    keep_io: bool
    infer_shapes: bool
    inline_functions: bool
    strip_qdq: bool
    keep: Sequence[str]
    max_constant_bytes: int | None
    memory: int
    work: float
    allow_domains: Sequence[str]


class OfAResult(Settings, total=False):
    """Further settings for a written result."""

    max_rewrites: int | None
    provenance: bool
    external: str
    rename: Mapping[str, str] | None
    name_nodes: bool


def make_options(**settings: Unpack[OfAResult]) -> OptimizeOptions:
    """Returns the options; loads the plugins, and warns of passes for other targets.

    Raises UsageError for an invalid setting.
    """
    given: dict[str, Any] = {**settings}
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
