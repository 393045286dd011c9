"""Cases are examined a few at a time; the verdict does not depend on the groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions
from onnxopt.verification.coverage import probe
from onnxopt.verification.coverage.cones import Cone
from onnxopt.verification.inputs.planning import make_plan
from onnxopt.verification.inputs.values import Case
from onnxopt.verification.look import Look
from onnxopt.verification.records import Pieces
from tests.verification.pairs import opened

HEAD = """<ir_version: 9, opset_import: ["" : 19]> g (float[n, 64] x) => (float[n, 64] y)
    <float two = {2}, float more = {2.02}, float one = {1}, float high = {9e3}, float low = {-9e3}>"""
FLOOR = "f = Floor (m) y = Mul (f, two)"
SATURATES = "y = HardSigmoid <alpha = 1.0, beta = 0.0> (m)"
LESS = "c = Greater (x, high) f = Cast <to = 1> (c)"
# FAR is far from any breakpoint of the values computed from it, also times a power of two; the others are near one.
FAR, NEAR, HIGH = 0.25, 0.49, 4486.0
PAIRS = {
    "a step": (f"m = Mul (x, two) {FLOOR}", f"m = Mul (x, more) {FLOOR}", (FAR, NEAR, FAR / 2), True),
    "one that is right": (f"m = Mul (x, two) {FLOOR}", f"m = Add (x, x) {FLOOR}", (FAR, NEAR, FAR / 2), False),
    "what saturates": (f"m = Mul (x, two) {SATURATES}", f"m = Mul (x, more) {SATURATES}", (0.6, 5.0, 7.0), True),
    "a decision": (f"{LESS} n = Neg (f) y = Add (n, one)", f"{LESS} y = Max (f, one)", (FAR, NEAR, 1.0), True),
    "one that is computed differently": (
        "m = Mul (x, two) c = Greater (m, high) y = Where (c, one, x)",
        "m = Mul (x, more) c = Greater (m, high) y = Where (c, one, x)",
        (FAR, HIGH / 4096, 1.0),
        True,
    ),
}


def look(folder: Path, a: str, b: str) -> Look:
    paths = []
    for name, nodes in (("a", a), ("b", b)):
        paths.append(str(folder / f"{name}.onnx"))
        onnx.save(parser.parse_model(f"{HEAD} {{ {nodes} }}"), paths[-1])
    runners = (opened(path, label) for path, label in zip(paths, "AB"))
    return Look(*runners, VerifyOptions(), make_plan(onnx.load(paths[0])))


def case(number: float) -> Case:
    rows = np.linspace(0.99 * number, number, 128, dtype=np.float32).reshape(2, 64)
    return Case(f"{number}", {}, {"x": rows})


def groupings(cases: Sequence[Case]) -> Iterator[list[list[Case]]]:
    one, two, three = cases
    yield from ([[one, two, three]], [[three, two, one]], [[one], [two], [three]], [[three], [two], [one]])
    yield from ([[one, two], [three]], [[three], [one, two]], [[two, one], [three]], [[one], [two, three]])
    yield from ([[one, three], [two]], [[two], [three, one]])


@pytest.mark.parametrize(("a", "b", "numbers", "is_open"), PAIRS.values(), ids=PAIRS)
def test_unseen_parts_do_not_depend_on_groups(
    a: str, b: str, numbers: tuple[float, ...], is_open: bool, tmp_path: Path
) -> None:
    at, found = look(tmp_path, a, b), list[list[str]]()
    for groups in groupings([case(number) for number in numbers]):
        every = [at.pieces(group) for group in groups]
        assert not any(places for _, places in every)
        found.append(sorted(set(reduce(Pieces.joined, (pieces for pieces, _ in every)).unseen)))
    assert [bool(why) for why in found] == [is_open] * len(found)
    assert all(why == found[0] for why in found)


def test_a_part_run_by_one_group_is_seen() -> None:
    never = Pieces(["a"], complete=True, unseen=["a branch"])
    assert never.joined(Pieces(["b"], complete=True)).unseen == []
    assert Pieces(["b"], complete=True).joined(never).unseen == []
    assert never.joined(Pieces(["zeros"], complete=True), proves=False).unseen == ["a branch"]
    assert never.joined(Pieces(["b"])).unseen == ["a branch"]  # an incomplete group proves nothing of a part


def test_a_part_that_differs_on_drawn_numbers_stays_unseen() -> None:
    differs = Pieces(["a"], complete=True, unseen=["v, and it differs"], dead=["y"])
    silent = Pieces(["b"], complete=True, silent=["v", "y"])
    for found in (differs.joined(silent), silent.joined(differs)):
        assert (found.unseen, found.dead, found.silent) == (["v, and it differs"], ["y"], [])
    assert silent.joined(Pieces(["c"], complete=True)).joined(differs).unseen == []


def test_an_unsettled_value_of_one_group_stays_unseen() -> None:
    found = Pieces(["a"], complete=True, unseen=["v"], shown=["v"]).joined(Pieces(["b"], complete=True))
    assert (found.unseen, found.shown) == (["v"], ["v"])


def test_no_numbers_are_drawn_behind_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece is probed on drawn numbers once a place differs.

    Pieces behind a fault may be long, and drawn numbers accuse nobody.
    """
    asked: list[str] = []

    def agrees(cone: Cone, *how: object) -> bool:
        asked.append(cone.value)
        return True

    monkeypatch.setattr(probe, "probe", agrees)
    rest = "m = Mul (x, two) f = Floor (m) g = Mul (f, two) e = Exp (x) y = Add (g, e)"
    wrong = "m = Mul (x, more) f = Floor (m) g = Mul (f, two) e = {} (x) y = Add (g, e)"
    found, places = look(tmp_path, rest, wrong.format("Exp")).pieces([case(FAR)])
    assert (len(asked), places, found.complete) == (1, [], True)
    found, places = look(tmp_path, rest, wrong.format("Sin")).pieces([case(FAR)])
    assert (len(asked), [p.value for p in places], found.unseen) == (1, ["e"], [])
