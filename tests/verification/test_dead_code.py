"""Nodes without a path to an output are left out: an unread branch in one model is no coverage gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import parser

from onnxopt.verification.model.nodes import inside
from onnxopt.verification.model.views import leave_out_unread
from tests.verification.pairs import verdict

HEAD = '<ir_version: 10, opset_import: ["" : 17, "my" : 1]> g (float[2, 7] x, bool b) => (float[2, 7] y) '
IF = "w = If (b) <then_branch = p () => (u) { u = Exp (x) }, else_branch = e () => (u) { u = Cos (x) }>"
SCAN = "s = Scan <num_scan_inputs = 1, body = l (float[7] k) => (t) { MORE t = Neg (k) }> (x)"
FUNCTION = '<domain: "my", opset_import: ["" : 17]> f (x, b) => (s) { MORE s = Neg (x) }'
END = "q = Mul (s, s) y = Round (q) }"


@pytest.mark.parametrize(
    "a",
    [
        f"{{ {SCAN.replace('s = Scan', 'a = Scan').replace('MORE', IF)} s = Neg (x) {END}",
        f"{{ {SCAN.replace('MORE', IF)} {END}",
        f"{{ s = my.f (x, b) {END} {FUNCTION.replace('MORE', IF)}",
        f"{{ {IF} v = Neg (w) s = Neg (x) {END}",
    ],
)
def test_an_unread_branch_is_no_coverage_gap(a: str, tmp_path: Path) -> None:
    """An unread If may be removed. The removal was "inconclusive": the If counted as a part without a case."""
    assert verdict(tmp_path, HEAD + a, f"{HEAD}{{ s = Neg (x) {END}").status == "equal"
    other = verdict(tmp_path, HEAD + a.replace("Neg (k)", "Sin (k)"), f"{HEAD}{{ s = Exp (x) {END}")
    assert other.status == "different"


@pytest.mark.parametrize(
    ("text", "stay"),
    [
        (f"{{ {IF} y = Neg (x) }}", ["Neg"]),
        (f"{{ {IF} y = Neg (w) }}", ["If", "Exp", "Cos", "Neg"]),
        (f"{{ y = Neg (w) {IF} }}", ["Neg", "If", "Exp", "Cos"]),  # nodes of a file are in any order
        (f"{{ k = Neg (x) {IF.replace('Exp (x)', 'Exp (k)').replace('u =', 'h = Sin (k) u =')} y = Abs (w) }}", None),
        (f"{{ {IF} v = Sin (w) z = my.send (v) y = Neg (x) }}", ["If", "Exp", "Cos", "Sin", "send", "Neg"]),
        (f"{{ {IF.replace('u = Exp', 'h = my.send (x) u = Exp')} y = Neg (x) }}", ["If", "send", "Exp", "Cos", "Neg"]),
        ("{ z = Exp (x) y = Neg (x) }", ["Exp", "Neg"]),  # a graph without subgraphs is not searched
        (f"{{ y = my.f (x, b) }} {FUNCTION.replace('MORE', IF)}", ["f", "Neg"]),
    ],
)
def test_nodes_kept_by_dead_code_elimination(text: str, stay: list[str] | None) -> None:
    model = parser.parse_model(HEAD + text)
    leave_out_unread(model)
    nodes = [*inside(model.graph.node), *inside(n for f in model.functions for n in f.node)]
    assert [n.op_type for n in nodes] == (stay or ["Neg", "If", "Exp", "Cos", "Abs"])
