"""A branch in which the original always fails may be removed; a branch without a case that could run may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxopt import VerifyOptions
from onnxopt.verification.coverage import traces
from onnxopt.verification.coverage.conditions import BRANCHES
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.programs.program import Program
from tests.samples import parsed
from tests.verification.pairs import verdict

NUMBERS = [str((i * 7 % 11 - 5) / 4) for i in range(100)]
HEAD = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[S, N, 4, M] x) => (float[A, B, C, D] y)
<float[1, 20, 4] r = {{{", ".join(NUMBERS[:80])}}}, float[1, 20, 5] g = {{{", ".join(NUMBERS)}}},
 float[4, 4, 1] w = {{{", ".join(NUMBERS[:16])}}}, int64[1] single = {{1}}, int64[1] three = {{3}},
 float high = {{100}}>"""
SQUEEZED = """If (c) <
  then_branch = a () => (o) <int64[1] at = {3}> { o = Squeeze (x, at) },
  else_branch = b () => (i) { OTHER }
>"""
ASKED = "m = Shape <start = 3> (x) c = Equal (m, single)"
READ = {
    "LSTM": "y, h = LSTM <hidden_size = 5> (u, r, g)",
    "Conv": "k = Conv <kernel_shape = [1]> (u, w) y = Unsqueeze (k, three)",
    "pool": "k = MaxPool <kernel_shape = [1]> (u) y = Unsqueeze (k, three)",
    "Transpose": "t = Add (u, u) k = Transpose <perm = [2, 1, 0]> (t) y = Unsqueeze (k, three)",
}


def judge(folder: Path, one: str, other: str) -> tuple[str, str]:
    v = verdict(folder, *(f"{HEAD} {{ {nodes} }}" for nodes in (one, other)), options=VerifyOptions(dims={"M": 1}))
    return v.status, v.message


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_a_branch_of_a_rank_that_its_reader_rejects_may_be_removed(read: str, tmp_path: Path) -> None:
    given = SQUEEZED.replace("OTHER", "i = Identity (x)")
    status, message = judge(tmp_path, f"{ASKED} u = {given} {read}", f"u = Squeeze (x, three) {read}")
    assert status == "verified in pieces", message


@pytest.mark.parametrize(
    ("other", "read"),
    [
        ("z = ReduceMax <keepdims = 0, axes = [3]> (x) i = Identity (z)", READ["LSTM"]),  # the same number of axes
        ("i = Identity (x)", "k = Relu (u) y = Identity (k)"),  # Relu takes any number of axes
        ("i = Identity (x)", "k = Transpose (u) t = ReduceSum (k) s = Add (t, w) y = Unsqueeze (s, three)"),
        (
            "i = Identity (x)",  # the reader may not run
            """t = ReduceMax <keepdims = 0> (x) q = Greater (t, high) f = Neg (u)
            y = If (q) <then_branch = d () => (e) { e, h = LSTM <hidden_size = 5> (u, r, g) },
            else_branch = j () => (l) { l = Neg (f) }>""",
        ),
    ],
)
def test_a_branch_that_its_reader_accepts_may_not_be_removed(other: str, read: str, tmp_path: Path) -> None:
    given = SQUEEZED.replace("OTHER", other)
    read = read.replace("y = Identity (k)", "y = Unsqueeze (k, three)") if "Relu" in read else read
    status, message = judge(tmp_path, f"{ASKED} u = {given} {read}", f"u = Squeeze (x, three) {read}")
    assert status not in ("equal", "verified", "verified in pieces"), message


def test_the_remaining_branch_is_compared(tmp_path: Path) -> None:
    given = SQUEEZED.replace("OTHER", "i = Identity (x)")
    read = READ["LSTM"]
    one = f"{ASKED} u = {given} {read}"
    status, message = judge(tmp_path, one, f"n = Neg (x) u = Squeeze (n, three) {read}")
    assert status == "different", message


def test_shape_inference_runs_once_for_each_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape inference runs once for each branch, however often bodies and sets of cases ask.

    16 Ifs in a model of 1,000 nodes took minutes.
    """
    given = SQUEEZED.replace("OTHER", "i = Identity (x)")
    file = tmp_path / "a.onnx"
    onnx.save(parsed(f"{HEAD} {{ {ASKED} u = {given} {READ['Conv']} }}"), file)
    asked: list[bool] = []
    answer = traces._Failing._is_error

    def counted(self: traces._Failing, *args: Any) -> bool:
        asked.append(answer(self, *args))
        return asked[-1]

    monkeypatch.setattr(traces._Failing, "_is_error", counted)
    program = Program(Skeleton(file))
    i = next(k for k, node in enumerate(program.nodes) if node.op_type == "If")
    found = [traces.cannot_be_taken(program, i, name) for name in BRANCHES * 2]
    assert found == [False, True, False, True]
    assert len(asked) == 3  # one branch of the first If, both of the second
