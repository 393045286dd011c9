"""Execution of a program in segments, which bounds the weights and values in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from onnxopt.verification.programs.program import Program, narrowed, type_of, types_of
from onnxopt.verification.programs.runner import Opened, Runner, Values

NODES: Final = 600  # in a segment: loading takes superlinear time in the number of inputs and outputs
_MIN_SEGMENT_NODES: Final = 20  # nodes in a segment regardless of value sizes, as each segment has a fixed cost
_GROWTH: Final = 4  # times the nodes of the last segment: an image may follow cheap nodes that compute sizes
VALUES: Final = 16 << 20  # bytes made by a segment, unless it has few nodes


def segments(program: Program, weights: int, most: Callable[[], int] = lambda: NODES) -> Iterator[list[int]]:
    """Yield consecutive nodes in segments of bounded size.

    weights: bytes of weights in a segment, unless a single node exceeds the limit; most: returns the maximum of nodes,
    called at the start of each segment.
    """
    run: list[int] = []
    size = 0
    for i in range(len(program.nodes)):
        own = program.weight([i])
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
    """Values of a program in several cases, computed segment by segment."""

    def __init__(self, runner: Runner, cases: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> None:
        self.runner = runner
        self.values: list[Values] = [dict(case) for case in cases]  # by case
        self.types = dict(types)  # as written by onnxruntime
        self.size = sum(size_of(v) for values in self.values for v in values.values())  # bytes
        self._rate = 0.0  # bytes made per node in the last segment
        # Large inputs: begin with few nodes.
        self.most = NODES if self.size < VALUES >> 8 else _MIN_SEGMENT_NODES  # nodes in the next segment
        self._ahead = _values_of(cases, getattr(runner.ahead, "values", ()))  # by case, if all are known

    def run_all(self, weights: int, wanted: Callable[[Sequence[int]], Sequence[str]]) -> Iterator[list[int]]:
        """Run the program, and yield the nodes of each segment once run.

        weights: bytes per segment; wanted: returns the values to observe of given nodes. Raises Failed.
        """
        parts = segments(self.runner.program, weights, lambda: self.most)
        while (nodes := next(parts, None)) is not None:
            opened = self.open(nodes, wanted(nodes))
            first = opened.run(self.values[0])
            if len(smaller := self._split(nodes, first)) > 1:
                nodes, *rest = smaller
                parts = itertools.chain(rest, parts)
                del opened, first  # before the smaller part takes memory
                opened = self.open(nodes, wanted(nodes))
                first = opened.run(self.values[0])
            self.run(opened, first)
            del opened, first  # release the session, and values without further readers
            yield nodes

    def open(self, nodes: Sequence[int], wanted: Sequence[str]) -> Opened:
        """Return a part that makes the `wanted` values of `nodes` from known values."""
        program = self.runner.program
        known = self.types.keys() - program.fixed
        nodes = program.cone(program.made(nodes), known)
        if self._ahead and self._ahead[0].keys() >= {*wanted}:
            return _Known(self.runner, nodes, wanted, self._ahead)
        types = {r: self.types[r] for i in nodes for r in program.reads[i] if r in known}
        return self.runner.open(nodes, types, wanted)

    def _split(self, nodes: list[int], first: Values) -> list[list[int]]:
        """Return the nodes in groups that make about `VALUES` bytes, if the first case shows far more in total.

        An image may follow many nodes with tiny results.
        """
        sizes = {name: size_of(value) * len(self.values) for name, value in first.items()}
        if sum(sizes.values()) <= 2 * VALUES:
            return [nodes]
        runs, made = [list[int]()], 0
        for i in nodes:
            own = sum(sizes.get(o, 0) for o in self.runner.program.nodes[i].output)
            if len(runs[-1]) >= _MIN_SEGMENT_NODES and made + own > VALUES:
                runs.append([])
                made = 0
            runs[-1].append(i)
            made += own
        return runs

    def run(self, opened: Opened, first: Values | None = None) -> None:
        """Run a part on all cases, and store its values. `first`: values of the first case if known. Raises Failed."""
        before = self.size
        for values in self.values:
            found, first = first or opened.run(values), None
            values.update(found)
            self.size += sum(map(size_of, found.values()))
        self.types.update(opened.types)
        if opened.nodes:
            rate = (self.size - before) / opened.nodes
            fitting = max(VALUES / max(rate, self._rate, 1), _MIN_SEGMENT_NODES)
            self.most = int(min(fitting, _GROWTH * max(opened.nodes, _MIN_SEGMENT_NODES), NODES))
            self._rate = rate

    def everywhere(self, names: Iterable[str]) -> set[str]:
        """Return the names of values still in memory in all cases."""
        return {name for name in names if all(name in known for known in self.values)}

    def keep(self, names: Collection[str]) -> None:
        """Release all values not in `names`."""
        for values in self.values:
            for name in [n for n in values if n not in names]:
                self.size -= size_of(values.pop(name))


def _values_of(cases: Sequence[Mapping[str, Any]], ahead: Sequence[Values]) -> list[Values]:
    """Return the values that ran ahead of the same cases; [] unless all did."""
    found = [known for case in cases for known in ahead if all(known.get(n) is v for n, v in case.items())]
    return found if len(found) == len(cases) else []


class _Known(Opened):
    """A part whose values are known. A run returns those of the next case."""

    def __init__(self, runner: Runner, nodes: Sequence[int], wanted: Sequence[str], cases: Sequence[Values]) -> None:
        self.nodes, self.types = len(nodes), {name: runner.ahead.types[name] for name in wanted}
        self._found = ({name: known[name] for name in wanted} for known in cases)

    def run(self, values: Mapping[str, Any]) -> Values:
        """Return the values of the next case."""
        return next(self._found)


def run_ahead(runner: Runner, cases: Sequence[Mapping[str, Any]], weights: int, is_asked: Callable[[], bool]) -> None:
    """Run a program on cases that a comparison in pieces asks for, unless values are large, until something is asked.

    weights: bytes per segment. Raises Failed.
    """
    stream = Stream(runner, cases, types_of(cases[0]))
    for _ in stream.run_all(weights, runner.program.made):
        if stream.size > VALUES or is_asked():
            break
    runner.ahead = stream


class Streamed:
    """An engine in segments, for a model too large to load, or with so many nodes that loading is too slow."""

    name = "onnxruntime"

    def __init__(self, runner: Runner, memory: int, *, keep: bool) -> None:
        """Create without loading. `memory`: bytes for weights and values; `keep`: segments stay loaded between runs."""
        self._runner = runner
        self.program, self.outputs = runner.program, runner.program.outputs
        self._memory = memory
        self._keep = keep
        self._open: dict[int, Opened] = {}

    def rest(self) -> None:
        """Unload the segments until the next run."""
        self._open.clear()

    def value(self, name: str, feeds: Values) -> Any:
        """Return an inner value; None if the feeds are insufficient. Raises Failed."""
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
        """Return the outputs. Raises Failed."""
        program = self._runner.program
        stream = Stream(self._runner, [feeds], types_of(feeds))
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
    """Return the bytes of a value."""
    if isinstance(value, list):
        return sum(map(size_of, value))
    return int(value.nbytes) if isinstance(value, np.ndarray) else 0
