"""Calls in a separate process: a drawn model may corrupt a runtime's memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from onnx import ModelProto

from tests.rules.judging import Outcome, examine

STAGES: Final = ("pass", "original", "result", "again")
PATIENCE: Final = 60.0  # seconds
T = TypeVar("T")

_kept = ExitStack()
_stage: Any = None


class Died(Exception):
    """The process did, or did not end in time, at a stage."""

    def __init__(self, stage: str, how: str) -> None:
        super().__init__(f"the {stage} {how}")
        self.stage = stage


def note(stage: str) -> None:
    """Tell the parent the step that runs next."""
    if _stage is not None:
        _stage.value = STAGES.index(stage)


def _begin(stage: Any) -> None:
    from tests.conftest import keeping_worker

    global _stage
    _stage = stage
    _kept.enter_context(keeping_worker())


def _call(function: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
    note("pass")
    return function(*args, **options)


def _examine(data: bytes, args: tuple[Any, ...], options: dict[str, Any]) -> Outcome:
    return examine(ModelProto.FromString(data), *args, note=note, **options)


class Apart:
    """`with Apart() as apart: apart.examine(model, "gather-axes", "pick_of_all", seed=3)`"""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Returns the result of `function`, which reports progress by `note`. Raises Died."""
        if self._pool is None:
            context = get_context("spawn")
            self._stage = context.Value("i", 0)
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(self._stage,))
        try:
            return self._pool.submit(_call, function, args, options).result(PATIENCE)
        except (BrokenProcessPool, TimeoutError) as e:
            how = "crashes" if isinstance(e, BrokenProcessPool) else f"does not end in {PATIENCE:.0f} s"
            for process in list((self._pool._processes or {}).values()):
                process.kill()
            self.close()
            raise Died(STAGES[self._stage.value], how) from e

    def examine(self, model: ModelProto, pass_name: str, rule_name: str | None = None, **options: Any) -> Outcome:
        """As `judging.examine`.

        A runtime that dies of the original is not used; one that dies of the result is a fault.
        """
        try:
            return self.call(_examine, model.SerializeToString(), (pass_name, rule_name), options)
        except Died as e:
            if e.stage != "original":
                return Outcome(1, f"crash: {e}", "crash")
            if options.get("empty", True):  # what onnxruntime dies of most
                return self.examine(model, pass_name, rule_name, **{**options, "empty": False})
            return Outcome(1, left_out=f"not runnable: {e}")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
