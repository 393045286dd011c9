"""Cases changed at random in one to three places, or put elsewhere: situations that guards did not foresee.

`ONNXOPT_FUZZ=20000 pytest tests/cases` (or `make fuzz`) runs more of them.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from itertools import count
from multiprocessing import get_context
from typing import Any, Final

import numpy as np
import onnx
import onnx.printer
import pytest

from onnxopt import OptimizeOptions, optimize_model
from onnxopt.graph import write_model
from onnxopt.io import from_proto
from onnxopt.pipeline.instruments import CheckEach
from onnxopt.verification.model.dataflow import is_random_model
from tests.cases.mutations import MUTATIONS, value_types
from tests.cases.surroundings import SURROUNDINGS
from tests.cases.test_cases import CASES, Case, make_feeds, turn
from tests.conftest import keeping_worker
from tests.rules.comparing import lies, same
from tests.runtime import plain_session, run_within

EXAMPLES = int(os.environ.get("ONNXOPT_FUZZ", "200"))
PARTS = 20
LONG: Final = 20.0  # seconds, in which each of the cases runs a thousand times


def mutants(part: int) -> Iterator[tuple[Case, onnx.ModelProto]]:
    """Yields mutants without end. A new case replaces at most one, the same on every machine."""
    cases = sorted((c for c in CASES if turn(c) % PARTS == part), key=turn)
    for again in count():
        for case in cases:
            drawn = random.Random(f"{case.name} {again}")
            model = case.build()
            mutations = drawn.choices((*MUTATIONS, *SURROUNDINGS), k=drawn.randint(1, 3))
            if all(mutation(model, drawn.choice) for mutation in mutations):
                yield case, model


@pytest.mark.parametrize("part", range(PARTS))
def test_mutants_of_cases(part: int) -> None:
    left = max(EXAMPLES // PARTS, 1)
    for case, proto in mutants(part):
        found = _Elsewhere.examine(case, proto.SerializeToString())
        assert not found, f"{case.name}\n{onnx.printer.to_text(proto)}\n{found}"
        left -= found is not None
        if not left:
            break


class _Elsewhere:
    """Examines in a separate process: a changed model may corrupt a runtime's memory."""

    _pool: ProcessPoolExecutor | None = None

    @classmethod
    def examine(cls, case: Case, data: bytes) -> str | None:
        if cls._pool is None:
            cls._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_keep_worker)
        try:
            return cls._pool.submit(examine, case, data).result()
        except BrokenProcessPool:
            cls._pool = None
            return None  # none for this runtime


_kept = ExitStack()


def _keep_worker() -> None:
    _kept.enter_context(keeping_worker())


def examine(case: Case, data: bytes) -> str | None:
    """Returns the fault of the results of a model, or empty; None for an invalid model, or one without a runtime."""
    proto = onnx.ModelProto.FromString(data)
    try:
        onnx.checker.check_model(proto, full_check=True)
        original = plain_session(proto)
        given_to = [make_feeds(original, case, seed, special=False) for seed in (0, 1)]
        expected = [run_within(LONG, original, feeds) for feeds in given_to]
        again = run_within(LONG, original, given_to[0])
    except Exception:
        return None
    if any(lies(o, a) for values in expected for o, a in zip(proto.graph.output, values, strict=True)):
        return None
    is_steady = all(same(a, b, exact=True) for a, b in zip(expected[0], again, strict=True))
    if not is_steady or is_random_model(proto):
        return None  # or in a branch that only some of these take
    if any(t.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for t in value_types(proto).values()):
        return None  # the runtime rounds it depending on what is next to it, and not at all between casts of its own
    if any(t.data_type == onnx.TensorProto.FLOAT and huge(t) for t in proto.graph.initializer):
        return None  # sums in another order overflow elsewhere
    try:
        for level in (1, 2, 3):
            compare(proto, level, given_to, expected)
    except Exception:
        return traceback.format_exc()
    return ""


def compare(proto: onnx.ModelProto, level: int, given_to: list[dict[str, Any]], expected: list[list[Any]]) -> None:
    model = from_proto(proto)
    optimize_model(model, OptimizeOptions(level=level), [CheckEach()])
    result = onnx.ModelProto()
    result.CopyFrom(write_model(model))
    onnx.checker.check_model(result, full_check=True)
    found = plain_session(result)
    for feeds, values in zip(given_to, expected, strict=True):
        for a, b in zip(values, found.run(None, feeds), strict=True):
            assert same(a, b, exact=level == 1, tolerance=1e-4), f"-O{level}"
    again = from_proto(result)
    optimize_model(again, OptimizeOptions(level=level))
    assert again.version == 0, f"-O{level}: a second run changes something"


def huge(tensor: onnx.TensorProto) -> bool:
    return bool(np.abs(onnx.numpy_helper.to_array(tensor)).max(initial=0) > 1e30)
