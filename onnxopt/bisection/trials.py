"""What a pipeline makes of a model if it is stopped early, verified; each result once.

Passes are deterministic, so the first n rewrites of a run are the same however far it goes on after them.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from onnxopt.errors import ModelError
from onnxopt.io import save
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline import Instrument, PassContext, execute
from onnxopt.verification import UNVERIFIED, Verification, Verifier, VerifyOptions

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.pipeline import Pass


def run(
    source: str | Path, given: OptimizeOptions, instruments: Sequence[Instrument], rewrites: int | None = None
) -> Model:
    """The pipeline up to so many rewrites."""
    model = given.load_converted(source)
    options = given if rewrites is None else dataclasses.replace(given, max_rewrites=rewrites)
    execute(options.passes(), model, options.context(instruments))
    return model


@dataclass
class Outcome:
    model: Model
    texts: list[str]  # the passes that ran
    taken: list[int]  # rewrites before each of them
    rewrites: int

    @property
    def runs(self) -> int:
        return len(self.texts)


class Trials:
    """Results of one pipeline. A context manager: the verifier, which starts with the first of them, ends with it.

    `known`: the verdicts, by runs of passes and by rewrites (None: all). `verified` counts results.
    """

    def __init__(
        self,
        source: str | Path,
        options: OptimizeOptions,
        verify_options: VerifyOptions | None,
        whole: Verification | None = None,
    ) -> None:
        """`whole`: the verdict on the whole result, if somebody knows it."""
        self.source = source
        self.options = options
        self.verified = 0
        self.known: dict[tuple[int | None, int | None], Verification] = {}
        if whole is not None:
            self.known[None, None] = whole
        self._verifier = Verifier(source, verify_options)
        self._started = False
        self._folder = tempfile.TemporaryDirectory()

    def run(self, runs: int | None = None, rewrites: int | None = None, watch: Sequence[Instrument] = ()) -> Outcome:
        """The pipeline up to so many runs of passes and so many rewrites."""
        limit = _Limit(runs)
        model = run(self.source, self.options, [limit, *watch], rewrites)
        return Outcome(model, limit.texts, limit.taken, limit.rewrites)

    def verdict(
        self, runs: int | None = None, rewrites: int | None = None, outcome: Outcome | None = None
    ) -> Verification:
        """On the result of such a run, which is `outcome` if that is at hand. Raises ModelError if there is none."""
        if (runs, rewrites) not in self.known:
            self.known[runs, rewrites] = self._verify(outcome or self.run(runs, rewrites))
        return self.known[runs, rewrites]

    def start(self) -> None:
        """Have the original run already."""
        if not self._started:
            self._started = True
            original, override = self.options.load_specialised(self.source), not self.options.freeze_initializers
            self._verifier.describe(original.proto, original.data_of, override=override)

    def _verify(self, outcome: Outcome) -> Verification:
        self.start()
        path = Path(self._folder.name) / "trial.onnx"
        save(outcome.model, path)
        self.verified += 1
        self._verifier.submit(path, outcome.model.tolerances)
        verdict = self._verifier.finish()
        if verdict.status == UNVERIFIED and not self._seeks_unloaded:
            raise ModelError(f"{self.source}: {verdict.message}", verdict.hint)
        return verdict

    @property
    def _seeks_unloaded(self) -> bool:
        """Is a result looked for that cannot be loaded? Then one that can be is right, whatever else is known."""
        whole = self.known.get((None, None))
        return whole is not None and whole.is_unloaded

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._verifier.close()
        self._folder.cleanup()


class _Limit(Instrument):
    """Lets the first so many runs of passes happen, and no others; knows what ran, and the rewrites before each."""

    def __init__(self, runs: int | None) -> None:
        self.runs = runs
        self.texts: list[str] = []
        self.taken: list[int] = []
        self.rewrites = 0

    def should_run(self, model: Model, p: Pass) -> bool:
        return bool(p.children) or self.runs is None or len(self.texts) < self.runs

    def before(self, model: Model, p: Pass) -> None:
        if not p.children:
            self.texts.append(str(p))
            self.taken.append(PassContext.current().fuel.taken)

    def end(self, model: Model) -> None:
        self.rewrites = PassContext.current().fuel.taken
