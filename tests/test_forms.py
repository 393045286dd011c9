"""docs/forms.md and the choices of the optimizer: each has a row, the rules exist, the page shows the data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnxruntime as rt
import pytest

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.optimizer.forms import CHOICES, chosen_for
from onnxopt.pipeline import is_rule
from onnxopt.pipeline.measured import FORMS, LACKS, LOADS
from onnxopt.pipeline.settings import declared
from tests.samples import ROOT


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import forms

    return forms


def test_each_choice_names_its_rows_and_rules() -> None:
    for form in CHOICES:
        assert form.rows
        assert all(row in FORMS[version] for row in form.rows for version in FORMS), form.name
        assert all(is_rule(rule) for rule in form.rules), form.name
        assert form.rules or all(declared(key) for key in form.options)


def test_every_version_is_known_in_full() -> None:
    assert LOADS.keys() == LACKS.keys() == FORMS.keys()
    for version, rows in FORMS.items():
        for sizes in rows.values():
            assert all(0 < low <= ratio <= high for ratio, low, high in sizes.values()), version


def test_the_page_shows_what_is_chosen_by(forms: Any) -> None:
    page = (ROOT / "docs" / "forms.md").read_text()
    assert forms.forms_table() in page
    assert forms.versions_table() in page
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)) == set(FORMS[forms.newest_first(FORMS)[0]])


def test_both_of_a_pair_compute_the_same(forms: Any) -> None:
    """Else nothing would follow from their times."""
    rng = np.random.default_rng(0)
    seen = set()
    for pair in forms.pairs():
        if pair.name in seen or pair.name == "parallel-products":  # whose weights are drawn otherwise
            continue
        seen.add(pair.name)
        feeds = {}
        for given in pair.a.graph.input:
            drawn = rng.standard_normal([d.dim_value for d in given.type.tensor_type.shape.dim])
            is_bool = given.type.tensor_type.elem_type == onnx.TensorProto.BOOL
            feeds[given.name] = drawn > -1 if is_bool else drawn.astype(np.float32)
        made = [rt.InferenceSession(m.SerializeToString()).run(None, feeds) for m in (pair.a, pair.b)]
        for a, b in zip(*made):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=pair.name)


def test_versions_differ_in_what_is_fast() -> None:
    """SkipLayerNormalization became slow, LayerNormalization fast: nothing that anybody could have believed."""
    key = "flatten-rows.normalizations"
    assert chosen_for("1.32", 2).config[key] > 0 > chosen_for("1.29", 2).config[key]
    assert "group_normalization" in chosen_for("1.32", 3).rules
    assert chosen_for("1.32", 1).config == {}
