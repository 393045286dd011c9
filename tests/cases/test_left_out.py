"""Each rewrite of the cases can be excluded by name; nothing else happens in its place."""

from __future__ import annotations

import onnx
import pytest

from onnxopt.graph import Model, read_model, write_model
from onnxopt.pipeline import Fixpoint, PassContext, execute
from onnxopt.pipeline.instruments import CheckEach
from onnxopt.pipeline.journal import Journal
from onnxopt.pipeline.records import Site
from tests.cases.test_cases import CASES, Case, assert_same_results

FIRED = [c for c in CASES if c.hits and c.runs]


def run(case: Case, *sites: Site) -> tuple[Model, Journal, list[Site]]:
    model, journal = read_model(case.build()), Journal()
    ctx = PassContext(opt_level=3, instruments=[CheckEach(), journal], excluded=sites)
    report = execute(Fixpoint(tuple(case.pipeline())), model, ctx)
    return model, journal, report.left_out


@pytest.mark.usefixtures("kept_worker")
@pytest.mark.parametrize("case", FIRED, ids=lambda c: c.name)
def test_a_rewrite_is_left_out(case: Case) -> None:
    _, journal, left_out = run(case)
    assert not left_out
    sites = [e.site for e in journal.entries if e.fuel]
    assert None not in sites, "a rewrite that does not say where it is"
    assert [e.fuel for e in journal.entries if e.fuel] == list(range(1, len(sites) + 1)), "one entry each"
    for site in dict.fromkeys([*sites[:1], *sites[-1:]]):
        assert site is not None
        model, again, left_out = run(case, site)
        assert left_out == [site]
        assert site not in [e.site for e in again.entries]
        after = onnx.ModelProto()
        after.CopyFrom(write_model(model))
        assert_same_results(case, case.build(), after, exact=False)
