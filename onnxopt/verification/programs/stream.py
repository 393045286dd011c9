"""A program run segment by segment: no more than its share of weights and values is in memory at once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from onnxopt.verification.programs.program import Program, narrowed, type_of
from onnxopt.verification.programs.runner import Opened, Runner, Values

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

NODES: Final = 600  # in a segment: runtimes take more than linear time for models with more inputs and outputs
_FEW: Final = 20  # whatever they make: each segment takes its time
_GROWTH: Final = 4  # times the last segment's nodes: behind a few sizes, which take nothing, may come an image
VALUES: Final = 16 << 20  # bytes that a segment makes, if more nodes than a few do


def segments(program: Program, weights: int, most: Callable[[], int] = lambda: NODES) -> Iterator[list[int]]:
    """The nodes in runs of a bounded number, and of at most so many bytes of weights where one node allows it. `most`:
    how many nodes the next may have, asked as it begins."""
    run: list[int] = []
    size = 0
    for i in range(len(program.nodes)):
        own = program.weights[i]
        if not run:
            nodes = most()
        elif len(run) >= nodes or size + own > weights:
            yield run
            run, size, nodes = [], 0, most()
        run.append(i)
        size += own
    if run:
        yield run


class Stream:
    """Values of a program in several cases, as they come up. `types`, as onnxruntime writes them."""

    def __init__(self, runner: Runner, cases: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
        self.runner = runner
        self.values: list[Values] = [dict(case) for case in cases]
        self.types = dict(types)
        self.size = sum(size_of(v) for values in self.values for v in values.values())  # bytes
        self._rate = 0.0  # bytes that a node of the last segment made
        # Of what is large already more is made of fewer nodes.
        self.most = NODES if self.size < VALUES >> 8 else _FEW  # nodes that the next segment should have
        self._ahead: Future[Opened] | None = None  # what is loaded in a thread of its own

    def run_all(self, weights: int, wanted: Callable[[Sequence[int]], Sequence[str]]) -> Iterator[list[int]]:
        """Run the program; the nodes of each segment, of so many bytes of `weights`, as soon as it was run.

        While the caller works on that the next is loaded, in C and without Python's lock. `wanted`: what is to be
        observed of nodes. Raises Failed.
        """
        parts = segments(self.runner.program, weights, lambda: self.most)
        nodes, opened = next(parts, None), None
        pool: ThreadPoolExecutor | None = None
        with contextlib.ExitStack() as stack:
            while nodes is not None:
                opened = opened or self.open(nodes, wanted(nodes))
                first = opened.run(self.values[0])
                if len(smaller := self._split(nodes, first)) > 1:
                    nodes, *rest = smaller
                    parts = itertools.chain(rest, parts)
                    opened = self.open(nodes, wanted(nodes))
                    first = opened.run(self.values[0])
                self.run(opened, first)
                opened = None
                del first  # what it has is let go of when nobody is going to read it
                if (following := next(parts, None)) is not None:
                    if pool is None:  # most models are one segment
                        from concurrent.futures import ThreadPoolExecutor

                        pool = stack.enter_context(ThreadPoolExecutor(1))
                    self.runner.tell_loading(following)
                    self._ahead = pool.submit(self.open, following, wanted(following), quiet=True)
                yield nodes
                if self._ahead is not None:
                    opened, self._ahead = self._ahead.result(), None
                nodes = following

    def told(self, state: str) -> str:
        """What is done in other words, if something is loaded beside it: who dies then may have died of either."""
        is_loading = self._ahead is not None and not self._ahead.done()
        return f"loading a piece of {self.runner.label} and {state}" if is_loading else state

    def open(self, nodes: Sequence[int], wanted: Sequence[str], *, quiet: bool = False) -> Opened:
        """What makes the `wanted` values of these nodes, from those that are known. `quiet`: nobody is told."""
        program = self.runner.program
        known = self.types.keys() - program.fixed
        nodes = program.cone(program.made(nodes), known)
        types = {r: self.types[r] for i in nodes for r in program.reads[i] if r in known}
        return self.runner.open(nodes, types, wanted, quiet=quiet)

    def _split(self, nodes: list[int], first: Values) -> list[list[int]]:
        """The nodes in runs that make about `VALUES` bytes, where the first case says that they make far more in all:
        behind many that make next to nothing may come an image."""
        sizes = {name: size_of(value) * len(self.values) for name, value in first.items()}
        if sum(sizes.values()) <= 2 * VALUES:
            return [nodes]
        runs, made = [list[int]()], 0
        for i in nodes:
            own = sum(sizes.get(o, 0) for o in self.runner.program.nodes[i].output)
            if len(runs[-1]) >= _FEW and made + own > VALUES:
                runs.append([])
                made = 0
            runs[-1].append(i)
            made += own
        return runs

    def run(self, opened: Opened, first: Values | None = None) -> None:
        """Learn its values; `first`: those of the first case, if they are known. Raises Failed."""
        before = self.size
        for values in self.values:
            found, first = first or opened.run(values), None
            values.update(found)
            self.size += sum(map(size_of, found.values()))
        self.types.update(opened.types)
        if opened.nodes:
            rate = (self.size - before) / opened.nodes
            self.most = int(min(max(VALUES / max(rate, self._rate, 1), _FEW), _GROWTH * max(opened.nodes, _FEW), NODES))
            self._rate = rate

    def keep(self, names: Collection[str]) -> None:
        """Let go of all others."""
        for values in self.values:
            for name in [n for n in values if n not in names]:
                self.size -= size_of(values.pop(name))


class Streamed:
    """An engine for a model that is too large to be loaded, or has so many nodes that loading it takes too long."""

    name = "onnxruntime"

    def __init__(self, runner: Runner, memory: int, *, keep: bool) -> None:
        """`memory`: bytes for weights and values. `keep`: the segments stay open between runs."""
        self._runner = runner
        self.program = runner.program
        self._memory = memory
        self._keep = keep
        self._open: dict[int, Opened] = {}

    @property
    def outputs(self) -> list[str]:
        return self._runner.program.outputs

    def rest(self) -> None:
        """Close the segments, until it is to run again."""
        self._open.clear()

    def value(self, name: str, feeds: Values) -> Any:
        """One value inside; None where more would have to be fed. Raises Failed."""
        program = self._runner.program
        if name in feeds or program.is_constant(name):
            return feeds[name] if name in feeds else program.constant(name)
        nodes = program.cone([name], feeds)
        entries = program.entries(nodes, feeds)
        if name not in program.maker or not feeds.keys() >= set(entries):
            return None
        opened = self._runner.open(nodes, {e: type_of(feeds[e]) for e in entries}, [name])
        return narrowed(opened.run(feeds)[name], opened.types[name])

    def run(self, feeds: Values) -> list[Any]:
        """The outputs. Raises Failed."""
        program = self._runner.program
        stream = Stream(self._runner, [feeds], {name: type_of(value) for name, value in feeds.items()})
        last = program.last_readers
        for nodes in segments(program, self._memory // 2):
            end = nodes[-1]
            opened = self._open.get(end)
            if opened is None:
                opened = stream.open(nodes, [o for o in program.made(nodes) if last.get(o, -1) > end])
                if self._keep:
                    self._open[end] = opened
            stream.run(opened)
            stream.keep({name for name in stream.values[0] if last.get(name, -1) > end})
        found = stream.values[0]
        return [narrowed(found[o], stream.types[o]) if o in found else program.constant(o) for o in program.outputs]


def size_of(value: Any) -> int:
    """Bytes of a value."""
    if isinstance(value, list):
        return sum(map(size_of, value))
    return int(value.nbytes) if isinstance(value, np.ndarray) else 0
