"""What the cases of a pass do without one of its guards: `python -m tests.cases.guards [PASS…]` lists them all.

A guard is a line of a pass, `m.require(…)` or `m.skip()`, or of `rewriting/rule.py` for the passes that use it. It is
removed by letting that one call return, whatever its condition. Where a pass without rules says `ctx.decline(…)`, the
reason goes. Only cases in which a guard declined something can tell, so that only these run again.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
import onnx

import onnxopt.passes
from onnxopt.errors import OnnxOptError
from onnxopt.graph import write_model
from onnxopt.pipeline import PassContext
from onnxopt.rewriting import Match, rule
from onnxopt.rewriting.rule import Declined
from tests.cases.test_cases import CASES, Case, assert_same_results, check_what_happened, run

PASSES: Final = sorted(Path(onnxopt.passes.__file__).parent.rglob("*.py"))
_NAMES_OF: Final = {module.rpartition(".")[2]: names for module, names in onnxopt.passes.MODULES.items()}
SHARED: Final = Path(rule.__file__)
GUARDS: Final = ("ctx.decline", "m.known", "m.require", "m.skip", "self.ctx.decline")
_NAMES: Final = frozenset(guard.rpartition(".")[2] for guard in GUARDS)


@dataclass(frozen=True, order=True)
class Guard:
    file: Path
    line: int

    def __str__(self) -> str:
        source = self.file.read_text(encoding="utf-8").splitlines()
        return f"{self.file.name}:{self.line}: {source[self.line - 1].strip()}"


@cache
def guards_of(file: Path) -> list[Guard]:
    """Those of a pass, and the shared ones that it calls."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    called = {n.id for n in nodes if isinstance(n, ast.Name)}
    shared = [Guard(SHARED, line) for name, lines in _shared().items() if name in called for line in lines]
    return sorted([*(Guard(file, line) for line in _lines(nodes)), *shared])


@cache
def _shared() -> dict[str, list[int]]:
    """The lines of guards in each function of `rewriting/rule.py`."""
    tree = ast.parse(SHARED.read_text(encoding="utf-8"))
    return {f.name: _lines(ast.walk(f)) for f in tree.body if isinstance(f, ast.FunctionDef)}


def _lines(nodes: Iterable[ast.AST]) -> list[int]:
    calls = (n.func for n in nodes if isinstance(n, ast.Call))
    named = (f for f in calls if isinstance(f, ast.Attribute) and f.attr in _NAMES)
    return [f.lineno for f in named if ast.unparse(f) in GUARDS]


def cases_of(file: Path) -> list[Case]:
    """The cases of all passes of a module."""
    names = {name.replace("-", "_") for name in _NAMES_OF.get(file.stem, ())}
    return [c for c in CASES if c.name.partition(":")[0] in names]


@contextmanager
def without(removed: Guard | None) -> Iterator[set[Guard]]:
    """Match without a guard; the others say where they declined."""
    declined: set[Guard] = set()
    say = PassContext.decline

    def is_there() -> bool:
        caller = sys._getframe(2)
        guard = Guard(Path(caller.f_code.co_filename), caller.f_lineno)
        declined.add(guard)
        return guard != removed

    def require(self: Match, condition: object, reason: str, stays: bool = False) -> None:
        if not condition and is_there():
            declined_here = Declined(reason)
            declined_here.stays = stays
            raise declined_here

    def known(self: Match, found: object, reason: str) -> object:
        if found is None and is_there():
            raise Declined(reason)
        assert found is not None, reason
        return found

    def skip(self: Match) -> None:
        if is_there():
            raise Declined("")

    def decline(self: PassContext, what: str, reason: str, example: str) -> None:
        if is_there():
            say(self, what, reason, example)

    with (
        patch.multiple(Match, require=require, known=known, skip=skip),
        patch.object(PassContext, "decline", decline),
        np.errstate(all="ignore"),
    ):
        yield declined


def reached(cases: Sequence[Case]) -> dict[Guard, list[Case]]:
    """The cases in which each guard declines something."""
    found: dict[Guard, list[Case]] = defaultdict(list)
    for case in cases:
        with without(None) as declined:
            run(case.build(), case.pipeline())
        for guard in declined:
            found[guard].append(case)
    return found


def effect(guard: Guard, case: Case) -> str:
    """What the case shows without the guard, the worst first; empty if nothing is different."""
    before, after = case.build(), onnx.ModelProto()
    with without(guard):
        try:
            model, report = run(before, case.pipeline())
            after.CopyFrom(write_model(model))
            again, _ = run(after, case.pipeline())
        except (OnnxOptError, MemoryError) as e:
            return f"fails: {e}"

    def check(test: Callable[[], None]) -> str:
        try:
            test()
        except Exception as e:  # whatever a checker or a runtime raises
            return str(e).strip() or type(e).__name__
        return ""

    exact = all(p.info.opt_level <= 1 for p in case.pipeline())
    if case.runs and (wrong := check(lambda: onnx.checker.check_model(after, full_check=True))):
        return f"no model: {wrong}"
    if case.runs and (wrong := check(lambda: assert_same_results(case, before, after, exact))):
        return f"wrong: {wrong}"
    if again.version:
        return "a second run changes something"
    if check(lambda: check_what_happened(case, model, report)):
        hits = sum(r.hits for p in report.passes for r in p.rules.values())
        return f"fires: {hits} for {sum(case.hits.values())}" if hits != sum(case.hits.values()) else "another reason"
    return ""


@cache
def _reached(file: Path) -> dict[Guard, list[Case]]:
    return reached(cases_of(file))


def is_tried(file: Path, guard: Guard) -> bool:
    """Is a case of the pass another without the guard?"""
    return any(effect(guard, c) for c in _reached(file)[guard])


class Trials:
    """Tries guards in a process of its own: what a pass makes without one may be a model that takes a runtime's memory
    apart, and whoever runs after it."""

    def __init__(self) -> None:
        self._pool = self._start()

    @staticmethod
    def _start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=get_context("spawn"))

    def untried(self, file: Path) -> list[Guard]:
        """Guards of a pass without which all its cases are as they are."""
        return [g for g in guards_of(file) if not self._is_tried(file, g)]

    def _is_tried(self, file: Path, guard: Guard) -> bool:
        for _ in range(2):  # it may have been the one before
            try:
                return self._pool.submit(is_tried, file, guard).result()
            except BrokenProcessPool:
                self._pool = self._start()
        return True

    def close(self) -> None:
        self._pool.shutdown()


def main(names: Sequence[str]) -> None:
    for file in PASSES:
        if names and not {*names} & {file.stem, *_NAMES_OF.get(file.stem, ())}:
            continue
        cases = reached(cases_of(file))
        for guard in guards_of(file):
            print(f"{file.stem}: {guard}")
            seen = dict.fromkeys(effect(guard, c)[:150].partition("\n")[0] or "nothing" for c in cases[guard])
            print("".join(f"    {text}\n" for text in seen or ["NO CASE"]), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
