"""Places of differences as text: short, aligned, and no name moves the cursor."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onnxopt.plaintext import cleaned, printable, short
from onnxopt.reporting import batch, verdict
from onnxopt.reporting.batch import junit, workflow_commands


def side(op: str, *inputs: str, node: str = "") -> dict[str, Any]:
    return {"node": node, "op": op, "inputs": list(inputs), "outputs": [f"{op}_out"]}


def place(value: str = "r", **given: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"value": value, "case": "random", "scope": "main", "noise": 1e-7, "entries": ["q"]}
    made |= {"record": {"note": "differs by 2.5e-01 of its range"}, "rewrites": []}
    return made | {"a": [side("Mul", "q", "k")], "b": [side("Div", "q", "k_1", node="d")]} | given


def found(*parted: dict[str, Any], **given: Any) -> dict[str, Any]:
    made = {"status": "different", "message": "it goes wrong at `r`", "hint": "", "pieces": None, "noise": {}}
    return made | {"places": list(parted)} | given


def test_a_place_is_a_few_aligned_lines() -> None:
    assert list(verdict.lines(found(place(rewrites=["3 some-pass/rule: main: replaced Mul -> r by Div -> r"])))) == [
        "✗ DIFFERENT: it goes wrong at `r`",
        "  at `r`: differs by 2.5e-01 of its range, rounding alone by 1.0e-07, case random",
        "    original  Mul(q, k)",
        '    result    Div "d"(q, k_1)',
        "    from      q, which agrees",
        "    made by   3 some-pass/rule: main: replaced Mul -> r by Div -> r",
    ]


def test_what_is_long_is_counted_unless_it_is_asked_for() -> None:
    nodes = [side("Op", f"x{i}", node=f"n{i}") for i in range(8)]
    wide = side("Concat", *(f"v{i}" for i in range(9)), node="layers/" + 80 * "x" + "/last")
    many = place(
        a=[*nodes, wide], b=[], entries=[f"e{i}" for i in range(6)], rewrites=[f"{i} p: main: m" for i in "123"]
    )
    lines = list(verdict.place_lines(found(*[many] * 6)))
    assert len(lines) == 4 * 7 + 1
    assert lines[1] == (
        f'  original  Concat "layers/{"x" * 7}…{"x" * 24}/last"(v0, v1, v2, v3, …) after Op "n7", Op "n6", Op "n5" '
        "and 5 more"
    )
    assert lines[2:7] == [
        "  result    no node",
        "  from      e0, e1, e2, e3 and 2 more, which agree",
        "  made by   1 p: main: m",
        "            2 p: main: m",
        "            and 1 more rewrite",
    ]
    assert lines[-1] == "and 2 more places"
    told = list(verdict.place_lines(found(*[many] * 6), verbose=1))
    assert len(told) == 6 * (1 + 9 + 1 + 1 + 3)
    assert "v8)" in told[9]


def test_one_line_has_all_that_matters() -> None:
    inside = place(scope='main / If "if" / then_branch', noise=0.0, rewrites=["1 p: main: m", "2 p: main: m"])
    assert verdict.line(inside) == (
        '`r` in main / If "if" / then_branch: differs by 2.5e-01 of its range, rounding alone changes nothing, case '
        'random; original: Mul(q, k); result: Div "d"(q, k_1); made by 1 p: main: m and 1 more'
    ).replace("`r`", "at `r`", 1)


def test_figures_say_what_was_seen_in_pieces_and_what_rounding_does() -> None:
    pieces = {"cuts": 347, "shared": 357, "same": 120, "noisy": 0, "blank": 2, "largest": 5, "worst": "v", "note": ""}
    noise = {f"y{i}": i * 1e-3 for i in range(6)}
    assert list(verdict.figures(found(pieces=pieces | {"worst_rel": 4.7e-7, "branches": ["c"]}, noise=noise))) == [
        ("pieces", "347 of 357 shared values agree (120 made by the same nodes, 2 zero or NaN everywhere); the largest "
         "piece has 5 nodes"),
        ("pieces", "the largest difference of one is 4.7e-07 of the range of `v`"),
        ("pieces", "both branches on `c` agree, although no case takes both"),
        *(("noise", f"rounding alone changes `y{i}` by {i}.0e-03 of its range") for i in (5, 4, 3, 2)),
        ("noise", "and 2 more outputs by less"),
    ]  # fmt: skip


@given(st.text(st.characters(exclude_categories=[])))
def test_no_name_moves_the_cursor(name: str) -> None:
    assert printable(f"{name}\x1b[2J\u202e\x85\r\n").isprintable()
    assert len(short(name, 9)) <= max(9, min(len(name), 9))
    parted = found(place(name, scope=name, entries=[name], a=[side(name, name, node=name)], rewrites=[name]))
    for line in verdict.lines(cleaned(parted | {"message": name, "hint": name}), 1):
        assert line.isprintable()
    report = {"verification": parted | {"message": name}, "rolled_back": []}
    report |= {
        "pipeline": {"nodes_before": 1, "nodes_after": 1, "passes": [], "warnings": [name]},
        "bytes_before": 1,
        "bytes_after": 1,
    }
    outcome = {"source": "m.onnx", "destination": "o.onnx", "status": "failed", "code": 1, "report": report}
    outcome |= {"message": f"m.onnx: {name}", "hint": name, "seconds": 0.0}
    texts = [*batch.lines(outcome), *batch.markdown([outcome]).split("\n"), *workflow_commands([outcome])]
    texts += junit([outcome]).decode().split("\n")
    assert all(text.replace("\t", "").isprintable() for text in texts)


def test_names_are_cut_in_the_middle() -> None:
    assert short("abcdefghij", 10) == "abcdefghij"
    assert short("abcdefghijk", 10) == "abc…fghijk"
