"""Large models run in segments of fewer nodes; a value is released after its last reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import VerifyOptions
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.look import Look
from onnxopt.verification.pieces import walk
from onnxopt.verification.programs import stream
from onnxopt.verification.programs.runner import Runner
from onnxopt.verification.programs.stream import Stream, run_ahead
from onnxopt.verification.run import Failed
from onnxopt.worker.service import Died
from tests.verification.pairs import opened

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 8] x, bool c) => (float[M, 8] y)'
WIDE = 1 << 15


def saved(path: Path, body: str, weights: dict[str, np.ndarray] | None = None) -> str:
    model = parser.parse_model(f"{HEAD} {body}")
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in (weights or {}).items())
    onnx.save(model, path)
    return str(path)


def feeds(rows: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((rows, 8)).astype(np.float32), "c": np.array(True)}


def look(tmp_path: Path, a: str, b: str) -> Look:
    paths = (saved(tmp_path / "a", a), saved(tmp_path / "b", b))
    runners = (opened(path, label, tell=print) for path, label in zip(paths, "AB"))
    return Look(*runners, VerifyOptions(), make_plan(onnx.load(paths[0])))


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every node a segment, and keep no value beyond its last reader."""
    monkeypatch.setattr(stream, "_MIN_SEGMENT_NODES", 1)
    for room in (stream, walk):
        monkeypatch.setattr(room, "VALUES", 1)


def chain(nodes: int) -> str:
    return " ".join(f"v{i + 1} = Neg (v{i})" for i in range(nodes)).replace("(v0)", "(x)")


def sizes(path: str, rows: int) -> list[int]:
    """Return the number of nodes of each segment."""
    runner = opened(path, "A")
    values = Stream(runner, [feeds(rows)], {"x": "tensor(float)", "c": "tensor(bool)"})
    found = []
    for nodes in values.run_all(1 << 20, runner.program.made):
        found.append(len(nodes))
        values.keep(runner.program.made(nodes)[-1:])
    return found


def test_segments_are_limited_by_the_memory_of_their_values(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", f"{{ {chain(400)} y = Neg (v400) }}")
    assert sizes(path, 1) == [401]
    assert sizes(path, WIDE) == [20] * 20 + [1]  # 1 MB each


def test_segments_shrink_where_values_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "NODES", 100)
    text = f"{{ {chain(400)} y = Neg (v400) }}".replace("v100 = Neg (v99)", "v100 = Expand (v99, s)")
    path = saved(tmp_path / "a", text, {"s": np.array([WIDE, 8], np.int64)})
    assert sizes(path, 1) == [100] + [20] * 15 + [1]


def test_segments_grow_slowly_behind_large_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is sized by the last two segments, and grows by a limited factor.

    A segment with too much output is run in parts.
    """
    monkeypatch.setattr(stream, "VALUES", 60 << 20)
    text = f"{{ {chain(400)} y = Neg (v400) }}"
    steps = {"v21 = Neg (v20)": "v21 = Slice (v20, zero, one)", "v141 = Neg (v140)": "v141 = Expand (v140, s)"}
    for plain, step in steps.items():
        text = text.replace(plain, step)
    constants = {"s": np.array([WIDE, 8]), "zero": np.array([0]), "one": np.array([1])}
    path = saved(tmp_path / "a", text, constants)
    assert sizes(path, WIDE) == [20, 60, 60] + [60] * 4 + [21]  # 1 MB each, then almost nothing twice, then 1 MB each


@pytest.mark.usefixtures("tight")
def test_a_crash_is_blamed_on_the_model_of_the_segment(tmp_path: Path) -> None:
    path = saved(tmp_path / "a", "{ v1 = Neg (x) v2 = Neg (v1) y = Neg (v2) }")
    other = "{ v1 = Mul (x, m) v2 = Mul (v1, m) y = Mul (v2, m) }"
    paths = [path, saved(tmp_path / "b", other, {"m": np.array(-1, np.float32)})]
    told: list[str] = []
    a, b = (opened(path, label, tell=told.append) for path, label in zip(paths, "AB"))
    known = walk.Walk(a, b, [feeds()], {"x": "tensor(float)", "c": "tensor(bool)"})
    assert known.run().pieces.cuts == 3
    pairs = [(f"loading a piece of {label}", f"running a piece of {label}") for label in "ABABAB"]
    assert [state.partition(" as far as ")[0] for state in told] == [state for pair in pairs for state in pair]
    assert [Died(state, "died").is_about("B") for state in told] == [" of B " in state for state in told]


@pytest.mark.usefixtures("tight")
def test_an_unloadable_segment_fails_at_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = opened(saved(tmp_path / "a", "{ v1 = Neg (x) v2 = Neg (v1) y = Neg (v2) }"), "A")
    load = Runner._load

    def refusing(self: Runner, model: Any, *how: Any) -> Any:
        if model.graph.node[0].output[0] == "v2":
            raise RuntimeError("no such kernel")
        return load(self, model, *how)

    monkeypatch.setattr(Runner, "_load", refusing)
    values = Stream(runner, [feeds()], {"x": "tensor(float)", "c": "tensor(bool)"})
    parts = values.run_all(1 << 20, runner.program.made)
    assert next(parts) == [0]
    with pytest.raises(Failed, match="no such kernel"):
        next(parts)


def test_values_run_ahead_are_not_computed_again(tmp_path: Path) -> None:
    """Values run ahead serve the same cases; further cases are run."""
    told: list[str] = []
    runner = opened(saved(tmp_path / "a", "{ v1 = Neg (x) y = Abs (v1) }"), "A", tell=told.append)
    cases = [feeds(3), feeds(4)]
    types = {"x": "tensor(float)", "c": "tensor(bool)"}
    run_ahead(runner, cases, 1 << 20, lambda: False)
    for asked in ([cases[1]], [dict(cases[1]), cases[0]], [feeds()]):
        told.clear()
        known = Stream(runner, asked, types)
        assert list(known.run_all(1 << 20, lambda nodes: ["y"])) == [[0, 1]]
        assert bool(told) == (asked[0]["x"] is not cases[1]["x"])
        assert known.types["y"] == "tensor(float)"
        for case, values in zip(asked, known.values):
            assert values.keys() == {"x", "c", "y"}
            assert np.array_equal(values["y"], np.abs(case["x"]))
    assert runner.inside(runner.program).ahead is None


@pytest.mark.usefixtures("tight")
def test_a_request_ends_the_run_ahead(tmp_path: Path) -> None:
    runner = opened(saved(tmp_path / "a", "{ v1 = Neg (x) y = Exp (v1) }"), "A")
    run_ahead(runner, [feeds()], 1 << 20, lambda: True)
    assert runner.ahead.values[0].keys() == {"x", "c", "v1"}


@pytest.mark.usefixtures("tight")
def test_values_are_released_after_their_last_reader(tmp_path: Path) -> None:
    body = f"{{ {chain(20)} y = Exp (v20) }}"
    found = look(tmp_path, body, body)
    known = walk.Walk(found.a, found.b, [feeds()], {"x": "tensor(float)", "c": "tensor(bool)"})
    most = [0]
    keep = known.original.keep

    def keeping(names: set[str]) -> None:
        keep(names)
        most.append(len(known.original.values[0]))

    known.original.keep = keeping  # type: ignore[method-assign]
    assert known.run().pieces.cuts == 21
    assert 0 < max(most) <= 2


@pytest.mark.usefixtures("tight")
def test_rounded_values_are_kept_for_pending_cutpoints_only(tmp_path: Path) -> None:
    body = f"{{ {chain(3)} y = Exp (v3) }}"
    found = look(tmp_path, body, body)
    known = walk.Walk(found.a, found.b, [feeds()], {"x": "tensor(float)", "c": "tensor(bool)"})
    known.replay._against, known.pending = {"v1": [1], "v2": [2]}, ["v2", "v3"]
    known._forget(0)
    assert known.replay._against == {"v2": [2]}


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("most", [walk._OPEN, 0])
def test_a_fault_is_measured_although_its_operands_are_released(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault is measured at the end, or at once, although its operands have no further reader."""
    monkeypatch.setattr(walk, "_OPEN", most)
    a = """<float k = {3.0}, float two = {2.0}> { a = Exp (x) z = Neg (a) b = Mul (a, k) d = Mul (b, two) e = Tanh (d)
        f = Neg (e) g = Abs (f) u = Sqrt (g) y = Add (u, z) }"""
    b = a.replace("3.0", "3.001").replace("Mul (b, two)", "Mul (two, b)")
    places = look(tmp_path, a, b).pieces([Case("random", {}, feeds())])[1]
    assert [(p.value, p.record.shape) for p in places] == [("b", [3, 8])]
    assert places[0].noise is not None
    assert 0 < places[0].noise < 1e-6 < places[0].record.max_rel


@pytest.mark.usefixtures("tight")
def test_a_pending_cutpoint_keeps_its_operands(tmp_path: Path) -> None:
    """A pending value keeps its operands until its noise is measured.

    `q` is off by rounding, so its piece of A is run again at the end: from `a`, which B does not read. The reader `d`
    is wrong and unread in B, and is compared with A's `d` then.
    """
    a = """<float k = {10000.0}, float two = {2.0}> { a = Exp (x) n = Neg (x) t = Exp (n) z = Neg (a) s = Neg (t)
        p = Mul (a, k) q = Sin (p) d = Mul (q, two) w = Neg (d) f = Neg (z)
        g = Sub (f, s) h = Add (g, q) y = Tanh (h) }"""
    b = a.replace("p = Mul (a, k)", "m = Reciprocal (t) o = Mul (m, k)").replace("(p)", "(o)")
    b = b.replace("w = Neg (d)", "").replace("two = {2.0}", "two = {3.0}")
    pieces, places = look(tmp_path, a, b).pieces([Case("random", {}, feeds())])
    assert (places, pieces.complete, pieces.noisy) == ([], True, 1)
    assert pieces.shared - pieces.cuts == 1


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(("branch", "at"), [("n = Identity (b)", []), ("n = Abs (b)", ["n"])])
def test_branches_are_compared_after_their_operands_are_released(branch: str, at: list[str], tmp_path: Path) -> None:
    """Branches are compared at the end.

    B's branch reads a value that A's branch computes itself, and that has no other reader left.
    """
    text = """{ a = Exp (x) b = Neg (a) d = Tanh (b)
        i = If (c) <then_branch = t () => (float[N, 8] m) { m = Neg (d) },
                    else_branch = e () => (float[N, 8] n) { %s }>
        j = Neg (i) k = Abs (j) l = Exp (k) y = Sqrt (l) }"""
    case = Case("random", {}, feeds())
    pieces, places = look(tmp_path, text % "n = Neg (a)", text % branch).pieces([case])
    assert pieces.unseen == []
    assert [p.value for p in places] == at


@pytest.mark.usefixtures("tight")
def test_values_behind_a_moved_scale_may_be_released(tmp_path: Path) -> None:
    """Values behind a scale moved through `r` may be released, although they are classified as steps or not later."""
    a = """<float k = {3.0}, float l = {0.5}> { m = Mul (x, k) r = Relu (m) b = Mul (r, l) d = Tanh (b) e = Exp (d)
        f = Neg (e) y = Identity (f) }"""
    b = a.replace("(x, k)", "(x, one)").replace("(r, l)", "(r, both)").replace("{0.5}", "{0.5}, float one = {1.0}", 1)
    pieces, places = look(tmp_path, a, b.replace("{1.0}", "{1.0}, float both = {1.5}", 1)).pieces(
        [Case("case 1", {}, feeds()), Case("case 2", {}, feeds(4))]
    )
    assert (pieces.complete, pieces.unseen, places) == (True, [], [])
    assert pieces.cuts < pieces.shared
