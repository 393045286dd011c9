"""Models that accept certain strings only are verified."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt import optimize_file
from onnxopt.verification import DIFFERENT, Verification, VerifyOptions, verify
from tests.verification.pairs import verdict

# With zeros = 0, an unknown word is an error.
MODEL = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]>
g (string[N, 1] x, string[N, 1] z, float[N, 1, 6] f, int64[N] n) => (float[N, 1, 6] y, int64[N] m)
{
  a = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b", "c"], zeros = 0> (x)
  b = ai.onnx.ml.OneHotEncoder <cats_strings = ["u", "v", "w"], zeros = 0> (z)
  i = Identity (a)
  c = Concat <axis = 2> (i, b)
  r = Clip (f)
  y = Add (c, r)
  m = Neg (n)
}
"""


def judge(tmp_path: Path, b: str, options: VerifyOptions | None = None) -> Verification:
    return verdict(tmp_path, MODEL, b, options)


def test_a_model_with_a_closed_vocabulary_is_verified(tmp_path: Path) -> None:
    judge(tmp_path, MODEL)
    report = optimize_file(tmp_path / "a.onnx", tmp_path / "c.onnx")
    assert report.verification is not None
    assert report.verification.status == "equal", report.verification.message
    assert all(n.op_type != "Identity" for n in onnx.load(tmp_path / "c.onnx").graph.node)


@pytest.mark.parametrize(
    "words", [('"a", "b"', '"b", "a"'), ('"v", "w"', '"v", "a"'), ('"u", "v", "w"', '"w", "v", "u"')]
)
def test_a_fault_in_one_word_is_found(words: tuple[str, str], tmp_path: Path) -> None:
    assert judge(tmp_path, MODEL.replace(*words)).status == DIFFERENT


def test_no_case_is_skipped(tmp_path: Path) -> None:
    names = ("random", "ones", "zeros", "extremes", "wide", "dynamic")
    found = judge(tmp_path, MODEL, VerifyOptions(cases=names))
    assert found.status == "equal"
    assert [c.note for c in found.cases if c.status == "skipped"] == []


def test_unknown_words_are_fed_if_accepted(tmp_path: Path) -> None:
    """Unknown words are fed if the model accepts them.

    An unknown word gives zeros in one model, the first word's vector in the other.
    """
    taking = MODEL.replace("zeros = 0", "zeros = 1")
    onnx.save(parser.parse_model(taking), tmp_path / "c")
    judge(tmp_path, taking.replace('["a", "b", "c"]', '["a", "b", "text"]'))
    assert verify(tmp_path / "c", tmp_path / "b.onnx").status == DIFFERENT
