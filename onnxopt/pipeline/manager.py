"""A list of passes ordered by constraints, with checks after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from graphlib import CycleError

from onnxopt.errors import UsageError
from onnxopt.graph import Model
from onnxopt.graph.reader import stable_order
from onnxopt.pipeline.base import Pass
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.decorators import as_pass, as_passes
from onnxopt.pipeline.execute import execute
from onnxopt.pipeline.instruments import CheckEach
from onnxopt.pipeline.records import PipelineReport
from onnxopt.pipeline.registry import current_name
from onnxopt.pipeline.sequence import Sequential

Check = Callable[[Model], None]


def in_order(passes: Sequence[Pass]) -> list[Pass]:
    """Return `passes` ordered so that each comes after passes in its `after`, and before passes in its `before`.

    Stable topological sort. Raises UsageError with the cycle.
    """
    index: dict[str, list[int]] = {}
    for i, p in enumerate(passes):
        index.setdefault(p.name, []).append(i)
    needs: list[set[int]] = [set() for _ in passes]
    for i, p in enumerate(passes):
        for name in map(current_name, p.info.after):
            needs[i].update(index.get(name, ()))
        for name in map(current_name, p.info.before):
            for j in index.get(name, ()):
                needs[j].add(i)
    try:
        return [passes[i] for i in stable_order(needs)]
    except CycleError as e:
        cycle = " before ".join(passes[i].name for i in e.args[1])
        hint = "change one of their `after` and `before`"
        raise UsageError(f"the passes cannot be put in order: {cycle}", hint) from None


class PassManager:
    """Runs passes in the order of their constraints, each followed by checks (ExecuTorch's PassManager).

    Plain functions `f(model)` or `f(model, ctx)` are passes, too. `run_checks_after_each_pass` adds the graph's
    invariants to the checks. With `suppress_check_failures` failed checks become warnings of the report.
    """

    def __init__(
        self,
        passes: Iterable[Pass | Callable[..., object]] = (),
        *,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
    ) -> None:
        self._passes = list(as_passes(passes, "PassManager"))
        self._checks: list[Check] = []
        self.run_checks_after_each_pass = run_checks_after_each_pass
        self.suppress_check_failures = suppress_check_failures

    def add_pass(self, p: Pass | Callable[..., object]) -> None:
        """Add a pass, or a function as a pass. Raises UsageError for anything else."""
        self._passes.append(as_pass(p, "PassManager"))

    def add_checks(self, check: Check) -> None:
        """Call `check(model)` after each pass; the check raises on errors."""
        if not callable(check):
            raise UsageError(f"add_checks takes a function, not {check!r}", "it gets the model, and raises")
        self._checks.append(check)

    @property
    def passes(self) -> list[Pass]:
        """The passes in execution order. Raises UsageError for a cycle."""
        return in_order(self._passes)

    def __call__(self, model: Model, ctx: PassContext | None = None) -> PipelineReport:
        """Run the passes on `model`, in place, in `ctx` or the current context."""
        ctx = (ctx or PassContext.current()).fork()
        if self._checks or self.run_checks_after_each_pass:
            each = CheckEach(
                self._checks, invariants=self.run_checks_after_each_pass, suppress=self.suppress_check_failures
            )
            ctx.instruments = (*ctx.instruments, each)
        return execute(Sequential(tuple(self.passes)), model, ctx)
