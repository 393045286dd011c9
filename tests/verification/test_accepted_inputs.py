"""The search for inputs accepted by the original ends when further attempts are useless."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import onnxopt
from onnxopt.verification import UNVERIFIED, Verifier
from onnxopt.verification.inputs import feeding
from onnxopt.verification.inputs.cases import OWN, sizes
from onnxopt.verification.inputs.feeding import Data, Search, feed
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.worker.serving import Refused

HEAD = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'
# The start of a worker that searches for one second of processor time.
BRIEFLY = """
from functools import partial
from onnxopt.verification import judge, original
original.Search = partial(original.Search, 1.0)
judge.main()
"""


def attempts(model: str, run: Any, search: Search) -> tuple[list[int], str]:
    """Return the attempted sizes of the first input (in elements), and the reason of refusal ("" if accepted)."""
    plan = make_plan(parser.parse_model(f"{HEAD} {model}"))
    tried: list[int] = []

    def count(feeds: dict[str, Any]) -> Any:
        tried.append(next(iter(feeds.values())).size)
        return run(tried[-1])

    try:
        feed(count, plan, OWN[0], Data({}), sizes(plan, OWN[0], None), search=search)
    except Refused as e:
        return tried, str(e)
    return tried, ""


def failing(error: Exception) -> Any:
    def run(size: int) -> Any:
        raise error

    return run


def test_a_failure_independent_of_sizes_ends_the_search_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "_SHORT", 60.0)  # the test counts attempts: their duration must not end the search
    model, search = "g (float[N, C, H] x) => (y) { y = Relu (x) }", Search()
    tried, why = attempts(model, failing(NotImplementedError("no kernel")), search)
    assert len(tried) == 8
    assert why.endswith("no kernel; no others were tried, as sizes do not matter to it")
    assert len(attempts(model, failing(NotImplementedError("no kernel")), search)[0]) == 1  # a further case
    assert len(attempts(model, failing(ValueError("too small")), Search())[0]) > 20


def test_attempted_sizes_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "_MAX_RETRIED_BYTES", 1 << 14)
    tried, _ = attempts("g (float[N, 3, H, W] x) => (y) { y = Relu (x) }", failing(ValueError("too small")), Search())
    assert 16 * 16 * 3 <= max(tried) < 1 << 12
    large = "g (float[50, 400] cache, float[N, H] x) => (y, c) { y = Relu (x) c = Relu (cache) }"
    assert len(attempts(large, failing(ValueError("too small")), Search())[0]) > 10


def test_the_search_ends_although_no_sizes_fit(tmp_path: Path) -> None:
    """The search ends after its time budget if no sizes fit. Each attempt is larger than the one before."""
    text = """g (float[batch, 128, h, w] x, float[batch, 32, s] z, int32 i) => (float[] y, int64[] o)
    { a = Shape (x) b = Reshape (z, a) y = Relu (b) r = Relu (y) o = Gather (a, i) }"""
    onnx.save(parser.parse_model(f"{HEAD} {text}"), tmp_path / "m.onnx")
    began = time.monotonic()
    with Verifier(tmp_path / "m.onnx", start=BRIEFLY) as verifier:
        verifier.submit(tmp_path / "m.onnx")
        found = verifier.finish()
    assert found.status == UNVERIFIED
    assert "the original fails on every input tried" in found.message
    assert "no others were tried after 0.5 s" in found.message
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "(float[N, C, H] x, int64[N] z) => (y) { b = Add (x, z) c = Relu (b) y = Relu (c) }",
            "bound to different types",
        ),
        (
            "(double[N, 1] x) => (y) { b = com.microsoft.Gelu (x) i = Identity (b) c = LpPool (i, x) y = Relu (c) }",
            "not in range",
        ),
    ],
)
def test_an_original_without_an_engine_is_refused_quickly(body: str, says: str, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(f"{HEAD} g {body}"), tmp_path / "in.onnx")
    began = time.monotonic()
    report = onnxopt.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.verification is not None
    assert "onnxruntime cannot load the original" in report.verification.message, report.verification.message
    assert says in report.verification.message, report.verification.message
    assert time.monotonic() - began < 5


def test_reshape_targets_of_a_trace_demand_sizes() -> None:
    """A target of the input's rank that repeats the known dims demands its other numbers as sizes."""
    body = "g (float[b, 1, s, 8] x, float[n, 4] z) => (y, v) <int64[4] t = {2, 1, 5, 8}, int64[2] u = {8, 2}>"
    text = f"{HEAD} {body} {{ c = Reshape (x, t) y = Relu (c) d = Reshape (z, u) v = Relu (d) }}"
    plan = make_plan(parser.parse_model(text))
    assert plan.demanded == {"b": 2, "s": 5}


def test_repeated_failures_with_one_message_get_less_time() -> None:
    model, search = "g (float[N, C, H] x) => (y) { y = Relu (x) }", Search()
    attempts(model, failing(ValueError("never")), search)
    assert search.seconds == 0.5 and search.why == " after 0.5 s"
    taken = Search()
    attempts(model, lambda _: None, taken)
    assert taken.taken
    attempts(model, failing(ValueError("not this one")), taken)
    assert taken.seconds == 10.0, "of an original that took some, other cases are tried as long as ever"


def test_floats_that_become_sizes() -> None:
    """A float input that becomes a shape is fed with whole numbers of at least 1.

    Segmentation models have such an input: the size of the picture.
    """
    text = """g (float[1, 1, 8, 8] x, float[2] size) => (y) <int64[2] ones = {1, 1}> {
      h = Cast <to = 7> (size) s = Concat <axis = 0> (ones, h) y = Resize <mode = "linear"> (x, , , s) }"""
    plan = make_plan(parser.parse_model(f"{HEAD} {text}"))
    case, _ = feed(lambda feeds: feeds, plan, OWN[0], Data({}), sizes(plan, OWN[0], None))
    assert (case.feeds["size"] >= 1).all() and (case.feeds["size"] == case.feeds["size"].round()).all()
