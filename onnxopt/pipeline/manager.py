"""A list of passes ordered by constraints, with checks after each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from onnxopt.errors import UsageError
from onnxopt.graph import Model
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
    following: list[set[int]] = [set() for _ in passes]
    for i, p in enumerate(passes):
        for name in map(current_name, p.info.after):
            for j in index.get(name, ()):
                following[j].add(i)
        for name in map(current_name, p.info.before):
            following[i].update(index.get(name, ()))
    waiting = [0] * len(passes)
    for later in following:
        for j in later:
            waiting[j] += 1
    ready = [i for i, n in enumerate(waiting) if not n]
    order: list[Pass] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(passes[i])
        for j in following[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, j)
    if len(order) < len(passes):
        raise UsageError(
            f"the passes cannot be put in order: {' before '.join(_cycle(passes, following, waiting))}",
            "change one of their `after` and `before`",
        )
    return order


def _cycle(passes: Sequence[Pass], following: list[set[int]], waiting: list[int]) -> list[str]:
    """Return a cycle, by walking backwards among waiting passes until a pass repeats."""
    stuck = {i for i, n in enumerate(waiting) if n}
    i, walk = min(stuck), []
    while i not in walk:
        walk.append(i)
        i = next(j for j in sorted(stuck) if i in following[j])
    cycle = [*walk[walk.index(i) :], i]
    return [passes[j].name for j in reversed(cycle)]


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
