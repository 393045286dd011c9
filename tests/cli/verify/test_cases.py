"""Inputs made by `onnxopt verify`: the cases, their purpose, and the tolerances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.conftest import Run
from tests.cli.verify.conftest import BATCH, VECTOR, compare, statuses


def test_a_model_has_all_the_cases_that_fit_its_inputs(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "{ y = Relu (x) }")
    write("b.onnx", BATCH, "<float z = {0}> { y = Max (x, z) }")
    code, found = compare(run)
    assert code == 0
    names = ["random", "ones", "zeros", "extremes", "below", "above", "dynamic-1", "dynamic-2", "dynamic-3", "uniform"]
    assert statuses(found) == dict.fromkeys(names, "equal")
    assert [c["dims"] for c in found["cases"][6:-1]] == [{"N": 1}, {"N": 2}, {"N": 3}]
    (output,) = found["cases"][0]["outputs"]
    figures = {key: output[key] for key in ("dtype", "shape", "max_abs", "max_rel", "ulp", "nan", "inf", "ok")}
    assert figures == {
        "dtype": "float32",
        "shape": [2, 4],
        "max_abs": 0,
        "max_rel": 0,
        "ulp": 0,
        "nan": [0, 0],
        "inf": [0, 0],
        "ok": True,
    }
    assert output["cosine"] == pytest.approx(1)


def test_one_line_an_output_in_a_pipe(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "{ y = Relu (x) }")
    write("b.onnx", BATCH, "<float k = {1.25}> { r = Relu (x) y = Mul (r, k) }")
    r = run("verify", "a.onnx", "b.onnx", "--cases", "ones,zeros")
    assert r.returncode == 1
    lines = r.stdout.splitlines()
    assert lines[0].startswith(
        "ones (N=2): y float32[2,4] max abs 0.25, max rel 0.25, cosine 1.000000, 2097152 ulp: DIFF"
    )
    assert lines[1] == "zeros (N=2): y float32[2,4] max abs 0, max rel 0, 0 ulp: ok"
    assert lines[2].startswith(
        "allowed at first of an output's largest magnitude: float32 7e-07 (+ 1e-12); other types"
    )
    assert any(line.startswith("✗ DIFFERENT: case ones: output `y` differs by 2.5e-01 of its range") for line in lines)


@pytest.mark.parametrize(
    ("case", "body"),
    [
        ("ones", "{ s = Sin (x) y = Mul (s, k) }"),
        ("extremes", "{ h = Clip (x, low, high) y = Sin (h) }"),
        ("dynamic-1", "{ s = Sin (x) n = Shape (x) m = Gather <axis = 0> (n, zero) e = Equal (m, one)"
         "f = Cast <to = 1> (e) y = Add (s, f) }"),
    ],
)  # fmt: skip
def test_each_case_finds_its_kind_of_difference(case: str, body: str, run: Run, write: Any) -> None:
    weights = "<float low = {-9}, float high = {9}, int64 zero = {0}, int64 one = {1}, float[4] k = {1, 1, 1, 1.5}>"
    write("a.onnx", BATCH, "{ y = Sin (x) }")
    write("b.onnx", BATCH, weights + body)
    code, found = compare(run)
    assert code == 1
    assert statuses(found)[case] == "different"
    assert statuses(found)["zeros"] == "equal"


def test_masks_are_padded_on_either_side(run: Run, write: Any) -> None:
    signature = "(int64[B, S] attention_mask, float[B, S] x) => (float[B, S] y)"
    write("a.onnx", signature, "{ m = Cast <to = 1> (attention_mask) y = Mul (x, m) }")
    # reads the first token only: right for masks with equal first and last tokens
    write(
        "b.onnx",
        signature,
        "<int64[1] z = {0}, int64[1] o = {1}> { f = Slice (attention_mask, z, o, o) n = Shape (x) e = Expand (f, n)"
        "m = Cast <to = 1> (e) y = Mul (x, m) }",
    )
    code, found = compare(run, "--cases", "masks")
    assert code == 1
    assert statuses(found) == {
        "mask-ones": "equal",
        "mask-right": "different",
        "mask-left": "different",
        "mask-one": "different",
    }


def test_integers_stay_within_the_table(run: Run, write: Any) -> None:
    body = "<float[3, 2] table = {1, 2, 3, 4, 5, 6}> { y = Gather (table, ids) }"
    for name in ("a.onnx", "b.onnx"):
        write(name, "(int64[S] ids) => (float[S, 2] y)", body)
    code, found = compare(run, "--cases", "all")
    assert code == 0
    assert set(statuses(found).values()) == {"equal"}


def test_an_unknown_case_lists_the_known_ones(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Relu (x) }")
    r = run("verify", "a.onnx", "a.onnx", "--cases", "one")
    assert r.returncode == 2
    assert "there is no case 'one'" in r.stderr
    assert "mask-left" in r.stderr


def test_a_named_case_that_does_not_fit_is_skipped(run: Run, write: Any) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, VECTOR, "{ y = Sin (x) }")
    code, found = compare(run, "--cases", "random,mask-one")
    assert code == 0
    assert statuses(found) == {"mask-one": "skipped", "random": "equal"}
    assert "no input that looks like a mask" in found["cases"][0]["note"]


def test_overridable_initializers_get_other_values(run: Run, write: Any, tmp_path: Path) -> None:
    """B right for the default of w only is "different"; a B without the input w is no difference in itself."""
    signature = "(float[2] x, float[2] w) => (float[2] y)"
    weight = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    write("a.onnx", signature, "{ y = Mul (x, w) }")
    write("b.onnx", signature, "<float[2] k = {2, 3}> { y = Mul (x, k) }")
    for name in ("a.onnx", "b.onnx"):
        model = onnx.load(tmp_path / name)
        model.graph.initializer.append(weight)
        onnx.save(model, tmp_path / name)
    code, found = compare(run)
    assert code == 1
    assert {name for name, status in statuses(found).items() if status != "equal"} == {"overrides"}
    write("b.onnx", "(float[2] x) => (float[2] y)", "<float[2] k = {2, 3}> { y = Mul (x, k) }")
    code, found = compare(run, "--cases", "random,overrides")
    assert (code, statuses(found)) == (0, {"overrides": "skipped", "random": "equal"})


def test_weak_evidence_is_reported_and_fails_when_strict(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "<float k = {0}> { y = Mul (x, k) }")
    write("b.onnx", VECTOR, "<float k = {0}> { i = Identity (x) y = Mul (i, k) }")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 0
    assert "? verification is inconclusive: " in r.stdout
    assert "output `y` is all zero" in r.stdout
    assert run("verify", "a.onnx", "b.onnx", "--strict").returncode == 1


def test_tolerances_can_be_given(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Sin (x) }")
    write("b.onnx", VECTOR, "<float k = {1.001}> { s = Sin (x) y = Mul (s, k) }")
    assert run("verify", "a.onnx", "b.onnx").returncode == 1
    assert run("verify", "a.onnx", "b.onnx", "--rtol", "0.01").returncode == 0
    assert run("verify", "a.onnx", "b.onnx", "--atol", "0.01").returncode == 0


def test_a_size_can_be_fixed(run: Run, write: Any) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, BATCH, "{ y = Sin (x) }")
    code, found = compare(run, "--cases", "random", "--dim", "N=7")
    assert (code, found["cases"][0]["outputs"][0]["shape"]) == (0, [7, 4])
    r = run("verify", "a.onnx", "b.onnx", "--dim", "M=7")
    assert r.returncode == 2
    assert "no input of the model has a dynamic dim 'M'\nhint: it has N" in r.stderr


def test_infinities_are_counted(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Reciprocal (x) }")
    write("b.onnx", VECTOR, "<float k = {1}> { y = Div (k, x) }")
    code, found = compare(run, "--cases", "zeros,random")
    assert code == 0
    assert found["cases"][0]["outputs"][0]["inf"] == [4, 4]


def test_only_cases_that_do_not_fit_are_an_error(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    r = run("verify", "a.onnx", "a.onnx", "--cases", "masks")
    assert r.returncode == 2
    assert (
        r.stderr.splitlines()[0] == "error: a.onnx has no case of masks: the model has no input that looks like a mask"
    )
    assert run("verify", "a.onnx", "a.onnx", "--cases", "masks,zeros").returncode == 0
