"""Nodes of the original are paired with their counterparts in the result."""

from __future__ import annotations

import onnxopt.passes  # noqa: F401
from onnxopt.comparison.counterparts import Counterparts, match
from onnxopt.comparison.records import GraphRecord, graph_record
from onnxopt.io import from_proto
from onnxopt.pipeline import PassContext, parse_pipeline
from onnxopt.pipeline.journal import Journal
from tests.samples import build_text

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x)'


def record(body: str) -> GraphRecord:
    return graph_record(from_proto(build_text(f"{HEAD} {body}")))


def told(found: Counterparts) -> tuple[list[str], list[str]]:
    return [f.value for f in found.before], [f.value for f in found.after]


def rewritten(body: str, pipeline: str) -> tuple[GraphRecord, GraphRecord, Journal]:
    proto, journal = build_text(f"{HEAD} {body}"), Journal()
    model = from_proto(proto)
    with PassContext(instruments=[journal]):
        parse_pipeline(pipeline)(model)
    return graph_record(from_proto(proto)), graph_record(model), journal


def test_nodes_that_make_the_same_value_are_paired() -> None:
    before = record("=> (float[N, 4] y) { a = Neg (x) b = Identity (a) y = Relu (b) }")
    after = record("=> (float[N, 4] y) { a = Neg (x) y = Relu (a) }")
    found = match(before, after)
    assert told(found) == (["kept", "gone", "kept"], ["kept", "kept"])
    assert found.pair == {0: 0, 2: 1}
    assert found.counts() == {"kept": 2, "changed": 0, "merged": 0, "gone": 1, "new": 0}


def test_a_renamed_output_is_found_by_the_name_of_its_node() -> None:
    before = record("=> (float[N, 4] y) { [n] a = Neg (x) y = Identity (a) }")
    after = record("=> (float[N, 4] y) { [n] y = Neg (x) }")
    found = match(before, after)
    assert told(found) == (["changed", "merged"], ["changed"])  # Neg makes the value of the Identity
    assert (found.pair, found.merged) == ({0: 0}, {1: [0]})


def test_another_attribute_or_constant_is_a_change() -> None:
    body = "=> (float[N, 4] y) <float w = {2}> { s = Softmax <axis = %s> (x) y = Mul (s, w) }"
    assert told(match(record(body % 1), record(body % 0)))[0] == ["changed", "kept"]
    renamed = (body % 1).replace("w = {2}", "v = {2}").replace("(s, w)", "(s, v)")
    assert told(match(record(body % 1), record(renamed)))[0] == ["kept", "kept"]
    other = renamed.replace("{2}", "{3}")
    assert told(match(record(body % 1), record(other)))[0] == ["kept", "changed"]


def test_merged_nodes_are_read_from_the_journal() -> None:
    body = "=> (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {1, 2}>"
    body += " { m = MatMul (x, w) y = Add (m, b) }"
    before, after, journal = rewritten(body, "gemm-fusion")
    found = match(before, after, journal.entries)
    assert [n.op for n in after.nodes] == ["Gemm"]
    assert told(found) == (["merged", "merged"], ["new"])
    assert found.merged == {0: [0], 1: [0]}
    assert found.rewrites_after[0].name.startswith("gemm-fusion/")
    assert str(found.rewrites_before[0]) == str(found.rewrites_after[0])
    assert told(match(before, after)) == (["gone", "merged"], ["new"])  # by names only the output is known


def test_rewrites_that_removed_nodes_are_read_from_the_journal() -> None:
    body = "=> (float[N, 4] y) { a = Identity (x) dead = Cos (x) y = Neg (a) }"
    before, after, journal = rewritten(body, "elim-identity,dead-code")
    found = match(before, after, journal.entries)
    assert told(found)[0] == ["gone", "gone", "kept"]
    assert {i: r.name for i, r in found.rewrites_before.items()} == {0: "elim-identity/identity", 1: "dead-code"}


def test_a_node_of_a_body_is_found_outside() -> None:
    head = HEAD.replace("(float[N, 4] x)", "(float[N, 4] x, bool c)")
    body = "=> (float[N, 4] y) { y = If (c) <then_branch = t () => (float[N, 4] p) { [p] p = Neg (x) }, "
    body += "else_branch = e () => (float[N, 4] q) { [q] q = Abs (x) }> }"
    before = graph_record(from_proto(build_text(f"{head} {body}")))
    after = graph_record(from_proto(build_text(f"{head} => (float[N, 4] y) {{ [p] y = Neg (x) }}")))
    found = match(before, after)
    neg = [n.op for n in before.nodes].index("Neg")
    assert found.pair == {neg: 0}
    assert found.merged == {0: [0]}
