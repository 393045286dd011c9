"""`benchmarks/judge.py`: mutants are found, equivalent ones are told apart, right results are not accused."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from tests.samples import ROOT, build_text, sample


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(sample(name), path)
    return path


def test_mutants_are_found_and_what_is_right_is_not_accused(tmp_path: Path) -> None:
    from judging.records import COUNTED, Answer, Mutant, Settings
    from judging.trials import try_model

    records = list(try_model("sample", saved("residual_block", tmp_path), Settings(mutants=20, noise_runs=2)))
    answers = [r for r in records if isinstance(r, Answer)]
    assert {a.status for a in answers} <= {"equal", "verified"}
    amplified = [f"-O{n}, amplified" for n in (1, 2, 3)]
    assert [a.what for a in answers] == ["-O1", "-O2", "-O3", "after mutants", *amplified]
    counted = [r for r in records if isinstance(r, Mutant) and r.outcome == COUNTED]
    assert len(counted) == 20
    assert len({m.kind for m in counted}) > 8
    assert [m for m in counted if m.change > 1e-2 and not m.found] == []


def test_a_run_writes_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import judge

    path = saved("dense_batchnorm", tmp_path)
    monkeypatch.setattr(judge, "traps", list)
    monkeypatch.setattr(
        sys, "argv", ["judge.py", "--models", str(path), "--mutants", "3", "--goal", "0", "--json", f"{tmp_path}/j"]
    )
    assert judge.main() == 0
    written = json.loads((tmp_path / "j").read_text())
    assert [m["model"] for m in written["mutants"] if m["outcome"] == "counted"] == ["dense_batchnorm"] * 3
    assert "right rewrites  results  accused  not verified" in capsys.readouterr().out


def test_equivalent_mutants_are_told_apart() -> None:
    import mutations
    from judging.noise import measure
    from judging.surgery import Surgeon

    model = build_text("""# weights: normal w
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3] x) => (float[2, 4] y) <float[3, 4] w> {
            a = Abs(x)
            r = Relu(a)
            y = MatMul(r, w)
        }""")
    surgeon = Surgeon(measure(model, 2), model, set())
    effects = {
        mutations.name(kind): surgeon.effect(mutations.broken(model, place, edit))
        for kind, place, edit in surgeon.edits(random.Random(0))
        if place.op != "Abs"
    }
    assert effects["activation dropped"] == (0.0, 0.0, 0.0)
    assert effects["operands swapped"] is None
    for name in ("one channel scaled", "two channels swapped", "one weight changed", "narrowed"):
        times, change, usual = effects[name]
        assert times >= usual > 2 and change > 1e-5, name


@pytest.mark.parametrize("name", ["transformer_block", "loop_body", "if_branches", "qdq_conv", "residual_block"])
def test_a_mutant_is_broken_at_its_place_only(name: str, tmp_path: Path) -> None:
    import mutations
    from judging.noise import measure, shapes
    from mutations.place import scopes

    model = onnx.load(saved(name, tmp_path))
    known = mutations.know(model, shapes(model, measure(model, 0).cases[0]))
    found = 0
    for place in mutations.places(model, known, known, set()):
        for kind in mutations.KINDS:
            edit = kind(place, random.Random(0))
            if edit is None:
                continue
            found += 1
            broken = mutations.broken(model, place, edit)
            assert broken != model, kind
            before, after = (list(list(scopes(m.graph))[place.scope][0].node) for m in (model, broken))
            del before[place.index], after[place.index : place.index + len(edit.nodes)]
            assert before == after, kind
    assert found > 20


def test_a_verdict_names_the_broken_node_or_another() -> None:
    from judging.records import Mutant

    def judged(status: str, *named: str) -> Mutant:
        places = [SimpleNamespace(b=[SimpleNamespace(outputs=[name]) for name in named])] if named else []
        mutant = Mutant("model", 2, "bias dropped", "made", "Conv", "conv", "the bias is zero")
        mutant.judged(SimpleNamespace(status=status, message="", places=places), {"y"})
        return mutant

    assert (judged("different", "x", "y").right, judged("different", "x", "y").named) == (True, 2)
    assert judged("different", "x").right is False
    assert judged("different").right is False
    missed = judged("verified in pieces", "y")
    assert not missed.found and missed.right is None


def test_no_far_larger_inputs_are_made_of_a_size_that_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second case has another batch. Hundreds of millions of numbers were drawn for sizes that it does not take."""
    from judging.noise import measure

    from onnxopt.verification.inputs.values import InputMaker

    made: list[int] = []
    fill = InputMaker.fill

    def filled(self: InputMaker, recipe: Any, dims: dict[str, int], *args: Any, **options: Any) -> Any:
        made.append(self.plan.elements(dims))
        return fill(self, recipe, dims, *args, **options)

    monkeypatch.setattr(InputMaker, "fill", filled)
    model = build_text("""<ir_version: 8, opset_import: ["": 17]>
        g (float[b, t, 8] x) => (float[b, 3, 8] y) <int64[3] shape = {0, 3, 8}> { r = Reshape (x, shape) y = Neg (r) }
    """)
    found = measure(model, 1)
    assert {feeds["x"].shape[1] for feeds in found.cases} == {3}
    assert max(made) < 1 << 16


def test_what_is_wrong_for_large_sizes_only_counts_and_is_found(tmp_path: Path) -> None:
    """A mutant of which no usual case shows anything is judged by cases that reach beyond its threshold."""
    import mutations
    from judging.noise import measure
    from judging.surgery import Surgeon
    from judging.trials import Judge
    from mutations import reach

    model = build_text("""# weights: normal w
        <ir_version: 8, opset_import: ["": 17]>
        g (float[batch, 3] x) => (float[batch, 4] y) <float[3, 4] w> {
            r = Relu(x)
            y = MatMul(r, w)
        }""")
    onnx.save(model, tmp_path / "a.onnx")
    surgeon = Surgeon(measure(model, 1), model, set())
    edits = [e for e in (reach.wrong_beyond_size(p, random.Random(k)) for p in surgeon.places for k in range(6)) if e]
    batches = [(p, e) for p in surgeon.places for e in edits if "dim 0" in e.what and e.nodes[0].op_type == p.op]
    with Judge(tmp_path / "a.onnx", 60.0) as judge:
        for place, edit in batches[:4]:
            broken = mutations.broken(model, place, edit)
            effect = surgeon.effect(broken, edit.beyond)
            assert effect is not None and effect[1] > 0.1, edit.what
            onnx.save(broken, tmp_path / "b.onnx")
            assert judge.ask(tmp_path / "b.onnx").status == "different", edit.what
    assert len(batches) >= 2
