"""The original in the worker: loaded, planned, and run on accepted inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.errors import few
from onnxopt.verification.compare import differ, evidence, is_dull
from onnxopt.verification.inputs.cases import OWN, Recipe, sizes
from onnxopt.verification.inputs.feeding import Data, Search, feed
from onnxopt.verification.inputs.plan import Plan
from onnxopt.verification.inputs.planning import least, products
from onnxopt.verification.inputs.sizes import Side
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.job import Answer, Job, Opened
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.model.views import views
from onnxopt.verification.records import CaseRecord
from onnxopt.verification.rounding import is_float, overflows
from onnxopt.verification.run import OnnxRuntime, Outgrown, TooLarge, is_starved, open_original, reason
from onnxopt.verification.run import Reference as Evaluator
from onnxopt.verification.runtime import PLAIN, find_runtime
from onnxopt.worker import spare, unused
from onnxopt.worker.serving import Refused, Tell

if TYPE_CHECKING:
    from onnxopt.verification.programs.foreign import Foreign, Operators
    from onnxopt.verification.programs.runner import Runner

KEPT: Final = 16  # cases with inputs and outputs kept in memory
_FACTORS: Final = (8.0, 64.0, 0.125, -8.0)
_RUNTIME: Final = 1 << 28  # bytes used by a runtime and small values
_DRAWS: Final = 16
_TELLING: Final = 1 << 12  # elements; equal by chance in two random runs is unlikely
_PICTURE: Final = 1 << 15  # input elements; work is not measured below
_HEAVY: Final = 1 << 31  # multiplications in a run, about 0.1 s; above, batches are small
_ONCE: Final = 1 << 30  # multiplications; above, a model of fixed sizes has a single case
_TRIES: Final = 1 << 32  # multiplications in all attempts to find livelier outputs
_NODES: Final = 7000  # nodes; larger models run in segments, as loading takes quadratic time


class Original:
    """A model in a runtime, with graph optimizations off."""

    def __init__(self, tell: Tell = lambda state: None) -> None:
        """Create without loading."""
        self.tell = tell
        self.runtime = PLAIN
        self.kept: dict[str, tuple[Case, list[Any]]] = {}
        self.base: dict[str, int] | None = None
        self._first: dict[str, Any] = {}  # feeds of the first case
        self._work: int | None = None  # see `work`
        self._sides: dict[int, Side] = {}  # files read (0: original, 1: result)
        self.factor = 0.0  # scale of livelier inputs; 1: none found, 0: not searched yet

    def open(self, job: Job) -> None:
        """Prepare to load the original (see `plan`). Raises UsageError."""
        self.options, self.labels, self.steps, self.override = job.options, job.labels, job.steps, job.override
        self.figures = job.stepwise  # measure outputs in addition to comparing
        options = job.options
        self.search = Search(most=options.memory // 2)
        # Whether a run may exceed `options.memory`: yes if memory is unlimited, or device memory is mapped.
        self.is_large = bool(options.provider) or not unused()
        self.paths = [job.original, ""]
        self.engine: Any = None
        self.unknown: Operators = frozenset()  # operators unknown to every engine
        self.refused = ""
        self.tell("at its start")
        runtime = find_runtime(options.provider, options.custom_op_libraries)
        missing = (r for r in job.references if not runtime.knows(r.domain, r.name))
        self.runtime = replace(runtime, references=tuple(missing))

    def with_references(self, files: Iterable[str]) -> str:
        """Return the references called by these files, in words; empty if none."""
        found = [r for path in files for r in self.runtime.refers(path)]
        names = [str(r) for r in self.runtime.references if r in found]
        return f", with the reference of {few(names)}" if names else ""

    def plan(self, plan: Plan) -> Opened:
        """Load the original. Raises Refused."""
        self.planned = plan
        is_large = 2 * plan.bytes > self.options.memory or plan.nodes >= _NODES
        self.streamed = is_large or self.runtime.computes(self.paths[0])
        if self.streamed:
            self.engine = self._stream(0)
            if not self.steps:
                from onnxopt.verification.programs.foreign import unknown_calls

                self._leave_out(unknown_calls(self.engine.program.skeleton.proto, self.runtime))
        else:
            self._load(plan)
        if plan.narrow and not self.steps and isinstance(self.engine, OnnxRuntime):  # the runtime takes no such values
            self.streamed, self.engine = True, self._stream(0)
        if self.steps and plan.stateful:  # onnxruntime would write into weights copied to several files
            self.engine = Evaluator(self.paths[0])
        self.outputs = self.engine.outputs
        return Opened(self.engine.name, self.runtime.provider, self.refused, self.around())

    def _load(self, plan: Plan) -> None:
        """Load the original into a session of its own. Raises Refused."""
        self.tell(f"loading {self.labels[0]}")
        ask = (plan.stateful, self.runtime, self.options.without, views(self.options)[0])
        try:
            self.engine, self.refused = open_original(self.paths[0], *ask)
        except Refused as e:
            self._open_parts(e)
        if self.refused and not self.options.without:
            self.search.slow_down()

    def around(self) -> str:
        """Return, in words, the unknown operators left out."""
        return getattr(self.engine, "says", "")

    def _open_parts(self, refused: Refused) -> None:
        """Open the parts independent of unknown operators. Raises `refused` if none remain."""
        from onnxopt.verification.programs.foreign import refused_operators, unknown_operators

        self.engine = None  # until parts are found
        proto = Skeleton(self.paths[0], None, self.runtime.references).proto
        found = unknown_operators(proto, self.runtime) | refused_operators(str(refused))
        if self.steps or not self._leave_out(found):
            raise refused
        self.streamed = True

    def _leave_out(self, operators: Operators) -> bool:
        """Run only nodes independent of `operators`.

        Returns False, unchanged, if no nodes remain or no operators are given.
        """
        from onnxopt.verification.programs.foreign import Around

        if not operators:
            return False
        self.unknown = operators
        engine = Around(self._stream(0))
        if not engine.nodes_left:
            self.unknown = frozenset()
            return False
        self.engine = engine
        return True

    def original(self, recipe: Recipe, data: Data) -> Answer:
        """Run the original on the first accepted inputs of a case. Status "skipped" if none are accepted."""
        if self.engine is None:  # requested before any load succeeded
            raise Refused(f"{self.labels[0]} is not open")
        try:
            case, values = self._fed(recipe, data)
        except Refused as e:
            return Answer(CaseRecord(recipe.name, {}, status="skipped", note=str(e)), ran=False)
        self._first = self._first or case.feeds
        if recipe.drawn and not recipe.single and any(map(is_dull, values)):
            case, values = self._livelier(case, values, data.inputs)
        self.base = self.base or case.dims
        if len(self.kept) >= KEPT:
            del self.kept[next(iter(self.kept))]
        self.kept[recipe.name] = case, values
        # Of each output, a summary of a few bytes.
        shown = {name: evidence(v) for name, v in zip(self.outputs, values) if name not in case.feeds}
        return Answer(CaseRecord(recipe.name, case.dims), recipe.proves, shown)

    @property
    def work(self) -> int:
        """The multiplications in the first case; 0 without a case, and for few inputs."""
        if self._work is None and self._first:
            is_picture = _numbers(self._first.values()) >= _PICTURE
            self._work = products(self.paths[0], self._first) if is_picture else 0
        return self._work or 0

    def _fed(self, recipe: Recipe, data: Data) -> tuple[Case, list[Any]]:
        """Return (case, outputs) for the first accepted inputs. Raises Refused."""
        p = self.planned
        says_more = p.symbols or p.cuts or p.decides or p.hides
        if recipe == OWN[1] and not says_more and self.work > _ONCE:
            raise Refused("one case of so much work is enough")
        plan, known = p.give(data.inputs), self.base or {}
        base = {s: known[s] for s in plan.symbols} if known.keys() >= {*plan.symbols} else None
        choices = sizes(plan, recipe, base, is_heavy=bool(plan.symbols) and self.work > _HEAVY)
        run, seed = partial(self._run_accepted, recipe, plan), self.options.seed
        case, values = feed(run, plan, recipe, data, choices, seed, self.labels[0], self.search)
        case.dims = plan.fixed | case.dims
        return case, values

    def _livelier(self, case: Case, values: list[Any], given: Mapping[str, Any]) -> tuple[Case, list[Any]]:
        """Return the case with inputs rescaled to make fewer outputs zero, empty or saturated."""
        free = [i.name for i in self.planned.inputs if i.name not in given and is_float(case.feeds[i.name])]
        least, chosen = sum(map(is_dull, values)), 1.0
        for factor in self._factors() if free else ():
            if self.search.ended or not least:
                break
            began = self.search.begin()
            with contextlib.suppress(Exception):  # the original rejects these inputs
                feeds = _rescaled(case.feeds, free, factor)
                found = self._run_original(feeds)
                if not differ(values, found) and _has_numbers(values):
                    break  # outputs do not depend on the inputs
                if (dull := sum(map(is_dull, found))) < least:
                    least, chosen, case, values = dull, factor, replace(case, feeds=feeds), found
            self.search.spend(began)
        self.factor = self.factor or chosen
        return case, values

    def _factors(self) -> Sequence[float]:
        """Return the scales to try: the scale of an earlier case, if known."""
        if self.factor:
            return (self.factor,) if self.factor != 1 else ()
        return _FACTORS[: int(_TRIES / (self.work or 1))]

    def _run_original(self, feeds: dict[str, Any]) -> list[Any]:
        """Run the original within the planned memory, then, if insufficient, without limit.

        The second run needs an estimate of sizes that fits into free memory. Raises Outgrown in segments, TooLarge by
        the estimate.
        """
        self.tell(f"running {self.labels[0]}")
        if not self.is_large:
            try:
                with spare(max(self.options.memory, _RUNTIME)):
                    return list(self.engine.run(feeds))
            except Exception as e:
                if not is_starved(e):
                    raise
                if self.streamed:
                    raise Outgrown from e
            needed = least(self.paths[0], feeds)
            if 0 < unused() < needed:
                raise TooLarge(f"at least {needed / (1 << 30):.1f} GiB") from None
            self.is_large = True
        return list(self.engine.run(feeds))

    def _run_accepted(self, recipe: Recipe, plan: Plan, feeds: dict[str, Any]) -> list[Any]:
        """Run the inputs of a recipe.

        Raises Refused if wide values overflow, unlike the first case, and if all outputs are empty: inputs smaller than
        windows prove nothing.
        """
        values = self._run_original(feeds)
        if recipe.wide or recipe.amplified(plan):
            first = next(iter(self.kept.values()), (None, values))[1]
            # Overflow of inputs is intended.
            if any(map(overflows, values)) and not any(map(overflows, (*feeds.values(), *first))):
                raise Refused("wide values overflow")
        elif recipe.size and plan.windows and all(isinstance(v, np.ndarray) and not v.size for v in values):
            raise Refused("its outputs are empty")
        return values

    def deterministic(self) -> bool:
        """Return whether outputs repeat. Few elements may be equal by chance, so these run several times."""
        if not self.kept:
            return True
        case, first = next(iter(self.kept.values()))
        times = _DRAWS if _numbers(first) < _TELLING else 1
        return not any(differ(first, self._run_original(case.feeds)) for _ in range(times))

    # -- files ----------------------------------------------------------------------------------------------

    @property
    def _foreign(self) -> Foreign | None:
        if not self.unknown:
            return None
        from onnxopt.verification.programs.foreign import Foreign

        known = self.engine
        return Foreign(self.unknown, getattr(known, "unseen", frozenset()), tuple(getattr(known, "nodes", ())))

    def side(self, which: int) -> Side:
        """Return a file (0: original, 1: result), read once. Raises `UNSEEN`."""
        foreign, side = self._foreign, self._sides.get(which)
        if side is None or side.foreign != foreign:
            from onnxopt.verification.programs.foreign import NOTHING, read_skeleton

            ask = (foreign or NOTHING, self.runtime, views(self.options)[which])
            side = self._sides[which] = Side(read_skeleton(self.paths[which], *ask), foreign)
        return side

    def runner(self, which: int) -> Runner:
        """Return a runner of parts of a file, as read by `side`."""
        side = self.side(which)
        if side.runner is None:
            from onnxopt.verification.programs.program import Program
            from onnxopt.verification.programs.runner import Runner

            how = (isinstance(self.engine, Evaluator), self.planned.stateful, self.runtime)
            side.runner = Runner(Program(side.skeleton), *how, self.labels[which], self.tell)
        found: Runner = side.runner
        return found

    def _stream(self, which: int) -> Any:
        from onnxopt.verification.programs.stream import Streamed

        self.tell(f"loading {self.labels[which]}")
        try:
            runner = self.runner(which)
        except Exception as e:
            raise Refused(f"{self.labels[which]} cannot be read: {reason(e)}") from e
        return Streamed(runner, self.options.memory, keep=2 * self.planned.bytes <= self.options.memory)


def _rescaled(feeds: dict[str, Any], names: Sequence[str], factor: float) -> dict[str, Any]:
    return feeds | {name: (feeds[name] * factor).astype(feeds[name].dtype) for name in names}


def _numbers(values: Iterable[Any]) -> int:
    """Return the number of elements in tensors and sequences."""
    return sum(v.size if isinstance(v, np.ndarray) else _numbers(v) if isinstance(v, list) else 1 for v in values)


def _has_numbers(values: Sequence[Any]) -> bool:
    """Return whether a value has a number other than zero."""
    return any(v.any() for v in values if isinstance(v, np.ndarray))
