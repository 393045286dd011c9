"""Conditions on sizes that are equal in any run decide nothing."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import VerifyOptions, verify
from onnxopt.verification.model.facts import can_change
from onnxopt.verification.model.skeleton import Skeleton


@pytest.mark.parametrize(("asked", "status"), [(1, "equal"), (3, "inconclusive")])
def test_a_dim_that_is_always_one_decides_nothing(asked: int, status: str, tmp_path: Path) -> None:
    """A condition on a dim that a Reshape sets to one decides nothing; a condition on the free width does.

    Exporters test a dim before a Squeeze.
    """
    constants = "int64[1] zero = {0}, int64[1] two = {2}, int64[1] one = {1}, int64[1] four = {4}, int64 single = {1}"
    models = [
        parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]>
            g (float[b, 4, h] x) => (float[?] y) <{constants}, int64 at = {{{asked}}}>
            {{
              s = Shape (x)  d = Gather (s, zero)  e = Gather (s, two)  t = Concat <axis = 0> (d, one, four, e)
              r = Reshape (x, t)  m = Neg (r)  {body}  y = Abs (f)
            }}"""
        )
        for body in (
            """u = Shape (m)  k = Gather (u, at)  c = Equal (k, single)
            f = If (c) <
              then_branch: graph = th () => (float[?] p) { p = ReduceSum <keepdims = 0> (m) },
              else_branch: graph = el () => (float[?] q) { q = ReduceMax <keepdims = 0> (m) }>""",
            f"f = Reduce{'Sum' if asked == 1 else 'Max'} <keepdims = 0> (m)",
        )
    ]
    for model, name in zip(models, "ab", strict=True):
        onnx.save(model, tmp_path / f"{name}.onnx")
    options = VerifyOptions(dims={"h": 3})
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx", options).status == status


def test_a_declared_dim_is_no_proof(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, int64[2] s) => (float[?] y) <float[1, 1] m, int64 zero = {0}, int64 one = {1}> {
          m = Reshape (x, s)  u = Shape (m)  k = Gather (u, zero)  c = Equal (k, one)
          f = If (c) <
            then_branch: graph = th () => (float[?] p) { p = ReduceSum <keepdims = 0> (m) },
            else_branch: graph = el () => (float[?] q) { q = ReduceMax <keepdims = 0> (m) }>
          y = Abs (f) }"""
    )
    assert model.graph.value_info[0].name == "m"
    onnx.save(model, tmp_path / "a.onnx")
    assert can_change(Skeleton(tmp_path / "a.onnx").proto).possible("f") == {True, False}


def test_equal_names_in_two_bodies_are_two_values(tmp_path: Path) -> None:
    """One name in two bodies is two values: the shape of a fixed tensor, and a free value."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x, int64[2] k, bool c) => (float[?] y) <int64 one = {1}, int64 three = {3}> {
          y = If (c) <
            then_branch: graph = th () => (float[?] p) {
              s = Shape (x)  d = Gather (s, one)  e = Equal (d, three)
              p = If (e) <then_branch: graph = t1 () => (float[?] p1) { p1 = ReduceSum <keepdims = 0> (x) },
                          else_branch: graph = e1 () => (float[?] p2) { p2 = ReduceMax <keepdims = 0> (x) }> },
            else_branch: graph = el () => (float[?] q) {
              s = Add (k, one)  d = Gather (s, one)  e = Equal (d, three)
              q = If (e) <then_branch: graph = t2 () => (float[?] q1) { q1 = ReduceSum <keepdims = 0> (x) },
                          else_branch: graph = e2 () => (float[?] q2) { q2 = ReduceMax <keepdims = 0> (x) }> }> }"""
    )
    onnx.save(model, tmp_path / "a.onnx")
    assert can_change(onnx.load(tmp_path / "a.onnx")).open == {"y", "q"}


@pytest.mark.parametrize("form", ["a Constant", "an initializer"])
def test_a_constant_index_inside_a_body_picks_a_dim(form: str, tmp_path: Path) -> None:
    """A condition on a fixed dim, picked by a constant inside a body, decides nothing.

    PyTorch scripts squeeze in a loop if a dim is one. In the other body the index is computed.
    """
    held = {"a Constant": ("", "k = Constant <value = int64 {1}> ()"), "an initializer": ("<int64 k = {1}>", "")}[form]
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 1, 4] x, bool go, int64 from) => (float[?] y, float[?] z)
        <int64 one = {{1}}, int64 three = {{3}}, int64[1] at = {{1}}> {{
          y = Loop (three, go, x) <body = l (int64 i, bool on, float[n, 1, 4] v) => (bool o, float[?] w) {held[0]} {{
              o = Identity (on)  {held[1]}  s = Shape (x)  d = Gather (s, k)  e = Equal (d, one)
              w = If (e) <then_branch: graph = t1 () => (float[?] w1) {{ w1 = Neg (v) }},
                          else_branch: graph = e1 () => (float[?] w2) {{ w2 = Abs (v) }}> }}>
          z = Loop (three, go, x) <body = m (int64 j, bool on, float[n, 1, 4] v) => (bool o, float[?] u) {{
              o = Identity (on)  k = Identity (from)  s = Shape (x)  d = Gather (s, k)  e = Equal (d, one)
              u = If (e) <then_branch: graph = t2 () => (float[?] u1) {{ u1 = Neg (v) }},
                          else_branch: graph = e2 () => (float[?] u2) {{ u2 = Abs (v) }}> }}> }}"""
    )
    onnx.save(model, tmp_path / "a.onnx")
    assert can_change(onnx.load(tmp_path / "a.onnx")).open == {"y", "z", "u"}
