"""`onnxopt.report`: the command `onnxopt report IN OUT -o FILE` as a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from onnxopt.api.files import model_file
from onnxopt.api.keywords import refuse
from onnxopt.api.settings import Settings, make_options
from onnxopt.errors import WriteError
from onnxopt.io import Staged, blaming, refuse_overwriting_input
from onnxopt.record import record

if TYPE_CHECKING:
    from onnxopt.api.files import AnyModel


@record
class Page:
    """An HTML page that needs no network; a notebook shows it. `doubts`: why the result may not be that of the run that
    the page shows; `verification`: the verdict, as JSON has it."""

    html: str
    doubts: list[str]
    verification: dict[str, Any] | None

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 640px; border: 0"></iframe>'


def report(
    original: AnyModel,
    result: AnyModel,
    output: str | os.PathLike[str] | None = None,
    *,
    record: str | os.PathLike[str] | None = None,
    verify: bool = True,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
    times: bool = True,
    progress: Callable[[str], None] = lambda name: None,
    **settings: Unpack[Settings],
) -> Page:
    """Show in an HTML page, which is written to `output`, what became of a model in the optimized `result`.

    What the passes did is read from `record`, which `onnxopt optimize --report` wrote, or found out by optimizing again
    with the `settings` of `optimize` that `result` was made with. `verify`: compare the two, with these
    `custom_op_libraries`. `times`: show measured times. Raises UsageError, ModelError, WriteError, and TypeError
    for a keyword that does not exist.
    """
    refuse("report", settings, Settings.__annotations__)
    with ExitStack() as stack:
        a, b = (stack.enter_context(model_file(model)) for model in (original, result))
        staged = None
        if output is not None:
            for path in (a, b, *([Path(record)] if record is not None else [])):
                if os.path.realpath(path) == os.path.realpath(output):
                    raise WriteError(f"{output} is one of the files to read", "write the page to another name")
            for path in (a, b):
                refuse_overwriting_input(path, Path(output))
            staged = stack.enter_context(Staged(Path(output)))
        for path in (a, b):
            stack.enter_context(blaming(path))
        from onnxopt import __version__
        from onnxopt.comparison import compare_files, judge, read_history, repeat
        from onnxopt.reporting.html import page

        options = make_options(**settings)
        history = read_history(Path(record)) if record is not None else repeat(a, options, progress)
        progress("comparing")
        found = compare_files(a, b, history)
        verdict = history.report["verification"] if not found.doubts else None
        if verdict is None and verify:
            progress("verifying")
            journal, allowed = history.journal if not found.doubts else (), history.report["pipeline"]["tolerances"]
            verdict = judge(a, b, options, journal, allowed, custom_op_libraries).to_dict()
        progress("writing")
        made = Page(page(found.to_dict(verdict) | {"times": times, "version": __version__}), found.doubts, verdict)
        if staged is not None:
            staged.write_bytes(made.html.encode())
            staged.commit()
        return made
