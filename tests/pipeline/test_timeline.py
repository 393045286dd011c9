"""Each run of each pass, with the number of nodes after it."""

from __future__ import annotations

import time

from onnxopt.graph import Model
from onnxopt.io import from_proto
from onnxopt.pipeline import Instrument, Pass, PassContext, parse_pipeline
from onnxopt.pipeline.instruments import Timeline
from tests.samples import build_text


def test_runs_follow_each_other() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y)'
    model = from_proto(build_text(f"{text} {{ a = Identity (x) b = Identity (a) y = Neg (b) }}"))
    timeline = Timeline()
    with PassContext(instruments=[timeline]):
        report = parse_pipeline("fixpoint(elim-identity,dead-code)")(model)
    assert [r.name for r in timeline.runs][:2] == ["elim-identity", "dead-code"]
    assert len(timeline.runs) == sum(p.runs for p in report.passes)
    assert timeline.runs[0].nodes == 1 == timeline.runs[-1].nodes
    ends = [0.0, *(r.start + r.seconds for r in timeline.runs)]
    assert all(r.start >= end for r, end in zip(timeline.runs, ends))
    assert timeline.to_list()[0]["name"] == "elim-identity"
    with PassContext(instruments=[timeline]):
        parse_pipeline("dead-code")(model)
    assert [r.name for r in timeline.runs] == ["dead-code"]


class Slow(Instrument):
    """Takes its time around every pass."""

    def before(self, model: Model, p: Pass) -> None:
        time.sleep(0.03)

    after = before


def test_what_other_instruments_take_is_no_pass_s() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { a = Identity (x) y = Neg (a) }'
    for order in (1, -1):
        timeline = Timeline()
        with PassContext(instruments=[timeline, Slow()][::order]):
            report = parse_pipeline("fixpoint(elim-identity,dead-code)")(from_proto(build_text(text)))
        spent = {p.name: p.seconds for p in report.passes}
        for name, seconds in spent.items():
            found = sum(r.seconds for r in timeline.runs if r.name == name)
            assert abs(found - seconds) < 1e-6, order
        ends = [0.0, *(r.start + r.seconds for r in timeline.runs)]
        assert all(r.start >= end - 1e-9 for r, end in zip(timeline.runs, ends))
