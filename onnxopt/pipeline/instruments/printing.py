"""Output of the model between passes: as text or files."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from onnxopt.errors import unwritable
from onnxopt.pipeline.instrument import Instrument
from onnxopt.pipeline.registry import check_names

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline.base import Pass

CHANGED: Final = "changed"
ALL: Final = "all"


def _names(given: str | Collection[str]) -> set[str]:
    return {name.replace("_", "-") for name in ([given] if isinstance(given, str) else given)}


class _Selected(Instrument):
    """Calls `show` after the passes in `after` (and before those in `before`): names, `all`, or `changed`.

    Raises UsageError for an unknown pass.
    """

    def __init__(self, after: str | Collection[str] = CHANGED, before: str | Collection[str] = ()) -> None:
        self._after, self._before = _names(after), _names(before)
        check_names((self._after | self._before) - {ALL, CHANGED}, type(self).__name__)
        self._version = 0
        self._count = 0

    def before(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        self._version = model.version
        self._count += 1
        if self._before & {p.name, ALL}:
            self.show(model, p, "before")

    def after(self, model: Model, p: Pass) -> None:
        if p.children:
            return
        changed = CHANGED in self._after and model.version != self._version
        if changed or self._after & {p.name, ALL}:
            self.show(model, p, "after" if model.version != self._version else "after (unchanged)")

    def show(self, model: Model, p: Pass, when: str) -> None:
        raise NotImplementedError


class PrintIR(_Selected):
    """Prints the model as text to `file` (default: stderr)."""

    def __init__(
        self,
        after: str | Collection[str] = CHANGED,
        before: str | Collection[str] = (),
        file: TextIO | None = None,
    ) -> None:
        super().__init__(after, before)
        self.file = file

    def show(self, model: Model, p: Pass, when: str) -> None:
        from onnxopt.graph.text import model_text

        print(f"-- {when} {p} --\n{model_text(model)}", file=self.file or sys.stderr)


class DumpModels(_Selected):
    """Writes the model into `folder`, a file for each pass, numbered by run: `003-canonicalize.onnx`."""

    def __init__(
        self,
        folder: str | Path,
        after: str | Collection[str] = CHANGED,
        before: str | Collection[str] = (),
    ) -> None:
        super().__init__(after, before)
        self.folder = Path(folder)

    def begin(self, model: Model) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise unwritable(self.folder, e, "name another folder") from None

    def show(self, model: Model, p: Pass, when: str) -> None:
        from onnxopt.io import refuse_overwriting_input, save

        suffix = "-before" if when == "before" else ""
        file = self.folder / f"{self._count:03}-{p.name}{suffix}.onnx"
        if model.path is not None:
            refuse_overwriting_input(model.path, file)
        save(model, file)
