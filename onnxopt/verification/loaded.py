"""Original and result in the worker: loaded, unloaded while pieces run, and read for a comparison in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onnxopt.errors import ModelError, UsageError
from onnxopt.verification import UNLOADED, VerifyOptions
from onnxopt.verification.inputs.cases import OF_BOTH, Recipe, missing
from onnxopt.verification.inputs.feeding import Read
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.planning import own_cases
from onnxopt.verification.inputs.sizes import Run, Side, of_both
from onnxopt.verification.job import Step
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.model.views import renaming, views
from onnxopt.verification.original import Original
from onnxopt.verification.run import Failed, OnnxRuntime, Reference, blame_system, is_starved, reason
from onnxopt.worker.serving import Refused, Tell

if TYPE_CHECKING:
    from onnxopt.verification.look import Look

T = TypeVar("T")
_WORK: Final = 1 << 33  # bytes of weights read, once per row of a large batch
UNSEEN: Final = (OSError, ValueError, MemoryError, Refused)  # errors raised by looking into a file


class Composition:
    """Files run in order, in place of a model. Each is opened in each run: all together are as large as the model."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[str], opened: Callable[[str], Any]) -> None:
        """outputs: of the model; opened: returns the engine of a file."""
        self.outputs, self._steps, self._opened = list(outputs), steps, opened

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """Return the outputs. Raises the errors of loading and running a file."""
        values = dict(feeds)
        for step in self._steps:
            engine = self._opened(str(step.file))
            given = {name: values[name] for name in step.inputs if name in values}
            values.update(zip(engine.outputs, engine.run(given), strict=True))
        return [values[name] for name in self.outputs]


class Loaded(Original):
    """The original, and one result after the other."""

    def __init__(self, tell: Tell = lambda state: None) -> None:
        super().__init__(tell)
        self.b: Any = None  # engine of the result
        self._uneven: set[str] = set()  # cases with an output channel that differs by much of its own range
        self._look: Look | None = None
        self._alone: Plan | None = None  # the original's own plan, while a plan for both models replaces it
        self._is_computed = False  # whether the result calls references in Python
        self._unrun: OnnxRuntime | None = None  # narrow result loaded as a file, whose kernels have not run yet

    def result(self, path: str, options: VerifyOptions) -> str:
        """Load the result. Returns the reason for a refusal, or "".

        options: those of the current result; tolerances may differ from the last.
        """
        self.options = options
        self.release()
        self.planned, self._alone = self._alone or self.planned, None
        self._uneven.clear()
        if self.kept:  # outputs of the original are kept
            self.rest()
        b = self.labels[1]
        self.tell(f"loading {b}")
        try:
            composed = Composition(self.steps, self.outputs, self.opened) if self.steps else None
            self.b = composed or self._with_room(partial(self.opened, path))
        except UsageError:  # of what the user brings: a library, a reference
            raise
        except Exception as e:
            blame_system(e)
            self._blame_room(e, getattr(self.engine, "wake", lambda: None))
            return f"{b}{UNLOADED}: {reason(e)}"
        return self._unlike(b)

    def _unlike(self, b: str) -> str:
        """Return why the result's outputs are not the original's, or "". Raises Refused for unknown operators."""
        if self.unknown and (why := self.engine.unlike(self.b)):
            raise Refused(why)
        own = len(self.engine.own) if self.unknown else None
        if self.b.outputs[:own] != self.outputs[:own]:
            return f"the outputs of {b} are {self.b.outputs}, those of {self.labels[0]} {self.outputs}"
        return ""

    def _with_room(self, run: Callable[[], T]) -> T:
        """Call `run`; if memory is short, unload the engines and call `run` again (engines reload on use)."""
        try:
            return run()
        except Exception as e:
            if not is_starved(e):
                raise
        self.rest(deeply=True)
        return run()

    def _blame_room(self, error: Exception, original: Callable[[], object]) -> None:
        """Raise Refused if the original is refused memory in the result's place too.

        original: runs or loads the original, beside the kept outputs. Other errors than lack of memory are ignored.
        """
        if not is_starved(error):
            return
        self.rest(deeply=True)
        try:
            original()
        except Exception as e:
            if is_starved(e):
                a, b = self.labels
                why = f"there is no memory for {b} beside the values of {a} that it is compared with (--memory)"
                raise Refused(why) from error

    def opened(self, path: str) -> Any:
        """Return the engine of a result. Raises UsageError, Refused and the runtime's errors."""
        self.paths[1], self._is_computed = path, self.runtime.computes(path)
        self._sides.pop(1, None)
        is_narrow = self.options.dtype and not isinstance(self.engine, Reference)
        if self.unknown:
            return type(self.engine)(self._open_narrow(path) if is_narrow else self._stream(1), self.engine.unseen)
        if is_narrow:
            return self._open_narrow(path)
        if isinstance(self.engine, Reference):
            return Reference(path, renaming(self.options), self.runtime.kernels)
        if self.streamed or self._is_computed:
            return self._stream(1)
        return self._loaded(path)

    def _open_narrow(self, path: str) -> Any:
        """Return the engine of a result in a narrower type: each operator rounds its results (`transforms.py`).

        The file itself is loaded too, and later run once: some kernels refuse a type only on the first run.
        """
        from onnxopt.verification.programs.stream import Streamed

        if self._is_loadable and not self.streamed:
            loaded = self._loaded(path)
            self._unrun = loaded if not self.unknown else None
        return Streamed(self.looked().b, self.options.memory, keep=not self.streamed)

    def _loaded(self, path: str) -> OnnxRuntime:
        view = renaming(self.options)
        return OnnxRuntime(path, stateful=self.planned.stateful, runtime=self.runtime, view=view)

    @property
    def _is_loadable(self) -> bool:
        """Return whether the runtime could load the result.

        No kernels exist for bfloat16, nor for references in Python.
        """
        return self.options.dtype != "bfloat16" and not self._is_computed

    def finish(self) -> bool:
        """Free all memory after a comparison. Returns whether onnxruntime's optimizations may be asked about."""
        is_one = isinstance(self.engine, OnnxRuntime) and not self.streamed and self._is_loadable
        if is_one:
            self.release()
            self.engine.rest()
        return is_one

    def unloaded(self, path: str, label: str, optimize: bool) -> str:
        """Return why onnxruntime does not load the file at `path`, or "".

        A lack of memory says nothing, except of a result with optimizations.
        """
        self.tell(f"loading {label}{' with optimizations' if optimize else ''}")
        try:
            if not self.runtime.computes(path):
                OnnxRuntime(path, optimize=optimize, runtime=self.runtime)
        except Exception as e:
            blame_system(e)
            is_asked = optimize and label == self.labels[1]
            return reason(e) if is_asked or not is_starved(e) else ""
        return ""

    def read_ahead(self, is_asked: Callable[[], bool]) -> None:
        """Analyse the original for `of_both` and for the second look, while the result is being made."""
        with contextlib.suppress(Failed, *UNSEEN):  # reported when asked
            from onnxopt.verification.programs import foreign  # noqa: F401  reads the result

            plan, side = self.planned, self.side(0)
            _ = side.sizes if plan.symbols else side.uses
            if (plan.muted or plan.rare) and not plan.decides:
                _ = side.shapes
            if plan.hides or plan.decides or plan.rare:
                self._look_ahead(is_asked)

    def _look_ahead(self, is_asked: Callable[[], bool]) -> None:
        """Run the original's pieces on the known cases, and read its constants, until a result is there."""
        from onnxopt.verification.look import Look  # noqa: F401  a fifth of the time to look
        from onnxopt.verification.pieces.pairs import Pairs
        from onnxopt.verification.programs.stream import run_ahead

        plan, runner, feeds = self.planned, self.runner(0), [case.feeds for case, _ in self.kept.values()]
        program = runner.program
        _ = program.changing if plan.hides else None, program.ranges
        _ = self.work  # decides whether the files are compared before pieces
        if feeds and not (self.streamed or plan.random or self.options.dtype or runner.reference):
            run_ahead(runner, feeds, self.options.memory // 4, is_asked)
        if not is_asked():
            Pairs(program, program).by_name.a.number(range(len(program.nodes)))

    def of_both(self, given: Sequence[str]) -> list[Recipe]:
        """Return recipes of cases for constants present in one of the two models. `given`: inputs not to be drawn.

        The plan for both models replaces the original's until the next result.
        """
        if self.steps:
            return []
        try:
            known = Run(self.work, self.base or {}) if self.planned.symbols else None
            both = of_both(self.planned, self.side(0), self.side(1), _WORK, known)
        except UNSEEN:
            return []
        is_alike = both.inputs == self.planned.inputs
        if is_alike and not both.other_sizes:
            return []
        # Usual integers are among the numbers compared with, of both models now: words of a table with a changed row.
        meets = any(i.compared != j.compared for i, j in zip(both.inputs, self.planned.inputs))
        self.planned, self._alone = both, self.planned
        asked = (r for r in OF_BOTH if r.beyond or (meets if r.values == "another" else not is_alike))
        return [r for r in asked if not missing(r, both, given)]

    def rest(self, *, deeply: bool = False) -> None:
        """Unload both whole models, as pieces load from the files. `deeply`: unload segments too."""
        engines: tuple[Any, ...] = (self.engine, self.b, self._unrun)
        for engine in engines:
            if isinstance(engine, OnnxRuntime) or (deeply and hasattr(engine, "rest")):
                engine.rest()

    def release(self) -> None:
        """Drop the result: on systems without renaming of mapped files, the writer waits for the release."""
        self.b = self._look = self._unrun = None
        self._sides.pop(1, None)

    # -- files ----------------------------------------------------------------------------------------------

    def own_cases(self) -> tuple[Plan, list[tuple[Recipe, Read]]]:
        """Return the plan of the original, derived from the file, and its cases.

        Raises the errors of `Skeleton`, and ModelError for an input without a type.
        """
        skeleton = Skeleton(self.paths[0], views(self.options)[0])
        side = Side(skeleton)
        if not (self.runtime.references or skeleton.left_outside):
            self._sides[0] = side
        ask = (skeleton.proto, skeleton.values, self.options)
        try:
            return own_cases(*ask, override=self.override, is_long=self.figures or bool(self.steps), side=side)
        except ValueError as e:
            raise ModelError(f"{self.paths[0]}: not a valid model: {e}", "export it anew, or repair it") from e

    def looked(self) -> Look:
        """Return the `Look` into both files, made on first use."""
        if self.steps:
            raise Refused("there are several files in place of a result")
        if self._look is None:
            from onnxopt.verification.look import Look

            self._look = Look(self.runner(0), self.runner(1), self.options, self.planned)
        return self._look
