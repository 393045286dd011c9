"""`onnxopt.report` and `onnxopt.diff`: the commands that write an HTML page, as functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.api.arguments import model_file, refuse
from onnxopt.api.settings import SETTINGS, make_options
from onnxopt.errors import UsageError, WriteError
from onnxopt.io import Staged, blaming, refuse_overwriting_input

if TYPE_CHECKING:
    from onnxopt.api.arguments import AnyModel


@dataclass
class Page:
    """An HTML page without network access; notebooks display the page. `doubts`: reasons why the result may belong to
    another run than the page, and sections that failed. `verification`: the verdict as in JSON."""

    html: str
    doubts: list[str]
    verification: dict[str, Any] | None

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 640px; border: 0"></iframe>'


def report(
    original: AnyModel,
    result: AnyModel | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    record: str | os.PathLike[str] | None = None,
    verify: bool = True,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
    times: bool = True,
    progress: Callable[[str], None] = lambda name: None,
    **settings: Any,
) -> Page:
    """Return an HTML page about the changes from a model to `result`, or about the model; `output`: file to write.

    The changes of each pass are read from `record`, a file of `onnxopt optimize --report`, or from a repeated
    optimization: give the `settings` of the first. `verify`: compare both models, with these `custom_op_libraries`.
    `times`: show measured times. Raises UsageError, ModelError, WriteError, and TypeError for an unknown keyword.
    """
    refuse("report", settings, SETTINGS)
    if result is None:
        libraries = ["custom_op_libraries"] * bool(custom_op_libraries)
        if given := ["record"] * (record is not None) + libraries + [*settings]:
            raise UsageError(f"{given[0]} is about two models: the page of one shows no run", "leave it out")
        with _opened([original], output) as (files, staged):
            from onnxopt.comparison import compare_files

            return _page(compare_files(files[0]).to_dict(), staged, progress)
    with _opened([original, result], output, record) as ((a, b), staged):
        from onnxopt.comparison import compare_files, read_history
        from onnxopt.comparison.history import judge, repeat

        options = make_options(**settings)
        history = read_history(Path(record)) if record is not None else repeat(a, options, progress)
        progress("comparing")
        found = compare_files(a, b, history)
        verdict = history.report["verification"] if not found.doubts else None
        if verdict is None and verify:
            progress("verifying")
            journal, allowed = history.journal if not found.doubts else (), history.report["pipeline"]["tolerances"]
            verdict = judge(a, b, options, journal, allowed, custom_op_libraries).to_dict()
        return _page(found.to_dict(verdict), staged, progress, found.doubts, times)


def diff(
    a: AnyModel,
    b: AnyModel,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str], None] = lambda name: None,
) -> Page:
    """Return an HTML page about the differences of any two models.

    The page has operators, inputs and outputs, weights and both graphs, and is written to `output`. The models are not
    run. Raises ModelError and WriteError.
    """
    with _opened([a, b], output) as ((before, after), staged):
        from onnxopt.comparison import compare_files

        progress("comparing")
        return _page(compare_files(before, after).to_dict(), staged, progress)


@contextmanager
def _opened(
    models: Sequence[AnyModel], output: str | os.PathLike[str] | None, record: str | os.PathLike[str] | None = None
) -> Iterator[tuple[list[Path], Staged | None]]:
    """Yield the files of models, and the place of the page, if there is one. Errors name the models."""
    with ExitStack() as stack:
        files = [stack.enter_context(model_file(model)) for model in models]
        staged = None
        if output is not None:
            for path in (*files, *([Path(record)] if record is not None else [])):
                if os.path.realpath(path) == os.path.realpath(output):
                    raise WriteError(f"{output} is one of the files to read", "write the page to another name")
            for path in files:
                refuse_overwriting_input(path, Path(output))
            staged = stack.enter_context(Staged(Path(output)))
        for path in files:
            stack.enter_context(blaming(path))
        yield files, staged


def _page(
    data: dict[str, Any],
    staged: Staged | None,
    progress: Callable[[str], None],
    doubts: Sequence[str] = (),
    times: bool = True,
) -> Page:
    """Return the page with this data, and writes the page to `staged`."""
    from onnxopt import __version__
    from onnxopt.reporting.html import page

    progress("writing")
    text = page(data | {"times": times, "version": __version__})
    if staged is not None:
        staged.write_bytes(text.encode())
        staged.commit()
    return Page(text, [*doubts, *data["failures"].lines()], data["verification"])
