"""Places of the results of a batch, and reports on them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from onnxopt.batch import Outcome, worst_code
from onnxopt.batch.places import destinations
from onnxopt.errors import UsageError
from onnxopt.reporting.batch import junit, workflow_commands


def test_models_of_one_folder_lie_side_by_side(tmp_path: Path) -> None:
    sources = [str(tmp_path / n) for n in ("a.onnx", "b.onnx")]
    assert destinations(sources, "build") == ["build/a.onnx", "build/b.onnx"]


def test_folders_that_distinguish_models_are_kept(tmp_path: Path) -> None:
    sources = [str(tmp_path / n) for n in ("v1/m.onnx", "v2/m.onnx", "v2/x/n.onnx")]
    assert destinations(sources, "build") == ["build/v1/m.onnx", "build/v2/m.onnx", "build/v2/x/n.onnx"]


def test_urls_keep_their_scheme() -> None:
    assert destinations(["s3://b/in/a.onnx", "s3://b/in/c.onnx"], "s3://b/out") == [
        "s3://b/out/a.onnx",
        "s3://b/out/c.onnx",
    ]


def test_paths_and_urls_may_be_mixed() -> None:
    assert destinations(["/data/in/a.onnx", "s3://data/in/c.onnx", "file:///data/b.onnx"], "out") == [
        "out/in/a.onnx",
        "out/in/c.onnx",
        "out/b.onnx",
    ]
    assert destinations(["s3://one/m.onnx", "s3://two/m.onnx"], "out") == ["out/one/m.onnx", "out/two/m.onnx"]


def test_a_model_named_twice_and_a_result_over_its_model(tmp_path: Path) -> None:
    source = str(tmp_path / "a.onnx")
    with pytest.raises(UsageError, match="written twice"):
        destinations([source, source], "build")
    with pytest.raises(UsageError, match="is the input itself"):
        destinations([source], str(tmp_path))


def test_a_result_over_another_model_and_a_folder_that_is_a_file(tmp_path: Path) -> None:
    sources = [str(tmp_path / n) for n in ("a.onnx", "build/a.onnx")]
    with pytest.raises(UsageError, match=r"the result of .*/a\.onnx, is one of the models"):
        destinations(sources, str(tmp_path / "build"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        destinations(sources, str(tmp_path / "file"))


def test_the_worst_exit_code() -> None:
    assert worst_code([]) == 0
    assert worst_code([0, 3, 0]) == 3
    assert worst_code([3, 1]) == 1
    assert worst_code([1, 2, 3]) == 2
    assert worst_code([2, 4, 1]) == 4


def test_workflow_commands_escape_what_would_end_them() -> None:
    bad = Outcome("a,b:c.onnx", "", "failed", 2, "100% wrong\nsecond line", "try, again")
    left_out = Outcome("b.onnx", "", "optimized", 3, "a rule was left out")
    fine = Outcome("c.onnx", "", "optimized", 0)
    assert list(workflow_commands([o.to_dict() for o in (bad, left_out, fine)])) == [
        "::error file=a%2Cb%3Ac.onnx,title=onnxopt::100%25 wrong\\nsecond line%0Atry, again",
        "::warning file=b.onnx,title=onnxopt::a rule was left out",
    ]


def test_junit_counts_failures_and_errors_apart() -> None:
    outcomes = [
        Outcome("a.onnx", "", "optimized", 0, seconds=1.5),
        Outcome("b.onnx", "", "failed", 1, 'differs: "y" <\x07>', "hint"),
        Outcome("c.onnx", "", "failed", 4, "a bug"),
    ]
    root = ElementTree.fromstring(junit([o.to_dict() for o in outcomes]))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    cases = root.findall("testsuite/testcase")
    assert [c.get("name") for c in cases] == ["a.onnx", "b.onnx", "c.onnx"]
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.get("message") == 'differs: "y" <\\x07>'
    assert cases[2].find("error") is not None


def test_outcomes_are_json() -> None:
    assert json.loads(json.dumps(Outcome("a", "b").to_dict()))["status"] == "failed"
