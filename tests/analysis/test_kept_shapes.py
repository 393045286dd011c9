"""Facts kept from an earlier sweep equal those of a new sweep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxopt import PassContext, optimize_model
from onnxopt.analysis import types
from onnxopt.analysis.shapes.sweep import ShapeData
from onnxopt.analysis.shapes.symbolic import Expr, Floor, symbol
from onnxopt.graph import Graph, Model, Node, read_model
from onnxopt.passes.shapes.shape_arithmetic import ShapeArithmetic
from tests.analysis.test_shapes import DYNAMIC
from tests.samples import build_text, value

SIZES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, S, 8] x, float[N, S, 8] z) => (float[A, B] y, float[C, D, E] w)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] eight = {8}>
{
  s = Shape (x)
  n = Slice (s, zero, one)
  rows = Mul (n, two)
  target = Concat <axis = 0> (rows, eight)
  y = Reshape (x, target)
  t = Shape (z)
  w = Reshape (z, t)
}
"""


def known(data: ShapeData, graph: Graph) -> dict[str, tuple[object, object]]:
    """By value, its dims and its content, but for what only got a name in this sweep."""
    found = {}
    for v in (v for n in graph for v in n.outputs if v is not None):
        content = data.contents.get(v)
        told = str(data.dims.get(v)), None if content is None else str(content.tolist())
        found[v.name] = tuple("" if "?" in str(t) else t for t in told)
    return found  # type: ignore[return-value]


def visited(data: ShapeData, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a sweep looks at."""
    names: list[str] = []
    visit = ShapeData._visit

    def spy(self: ShapeData, node: Node) -> None:
        names.append(node.output.name)
        visit(self, node)

    with monkeypatch.context() as patch:
        patch.setattr(ShapeData, "_visit", spy)
        list(data.sweep(graph))
    return names


def test_only_what_changed_is_looked_at_and_what_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model(build_text(SIZES))
    graph = model.graph
    types.update(model)
    data = ShapeData(kept=True)
    assert visited(data, graph, monkeypatch) == ["s", "n", "rows", "target", "y", "t", "w"]
    assert visited(data, graph, monkeypatch) == []
    rows = value(model, "rows")
    assert str(data.dims[value(model, "y")][0]) != "12"
    rows.producer.set_input(1, graph.constant(np.array([4])))  # type: ignore[union-attr]
    assert visited(data, graph, monkeypatch) == ["rows", "target", "y"]
    whole = ShapeData()
    list(whole.sweep(graph))
    assert known(data, graph) == known(whole, graph)


def test_the_first_sweep_visits_only_what_inference_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference alone follows the elements of an Expand."""
    added = "pair = Expand (one, two)\n  twice = Mul (pair, two)\n  t = Shape (z)"
    model = read_model(build_text(SIZES.replace("t = Shape (z)", added)))
    types.update(model)
    data, whole = model.sizes, ShapeData()
    assert data.contents[value(model, "twice")].tolist() == [2, 2]
    assert visited(data, model.graph, monkeypatch) == ["pair", "twice"]
    list(whole.sweep(model.graph))
    assert known(data, model.graph) == known(whole, model.graph)


def test_what_is_gone_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model(build_text(SIZES))
    data = ShapeData(kept=True)
    list(data.sweep(model.graph))
    t = value(model, "t")
    node = t.producer
    assert node is not None
    value(model, "w").producer.set_input(1, value(model, "s"))  # type: ignore[union-attr]
    model.graph.remove(node)
    assert visited(data, model.graph, monkeypatch) == []  # `s` has the elements of `t`
    assert t not in data.dims
    assert t not in data.contents


def test_an_equal_operand_of_another_type_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that fit 64 bits may not fit 32."""
    model = read_model(build_text(SIZES))
    data = ShapeData(kept=True)
    list(data.sweep(model.graph))
    reshape = value(model, "w").producer
    assert reshape is not None
    cast = model.graph.make("Cast", [value(model, "t")], before=reshape, to=onnx.TensorProto.INT32)
    reshape.set_input(1, cast)
    assert "w" in visited(data, model.graph, monkeypatch)


@pytest.mark.parametrize("path", [p for p in DYNAMIC if p.is_file()], ids=lambda p: p.stem)
def test_in_each_round_all_is_as_if_nothing_was_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, compared = ShapeArithmetic.run, []

    def watched(self: ShapeArithmetic, model: Model, ctx: PassContext) -> None:
        run(self, model, ctx)
        kept = model.sizes
        if kept is not None:
            list(kept.sweep(model.graph))
            whole = ShapeData()
            list(whole.sweep(model.graph))
            assert known(kept, model.graph) == known(whole, model.graph)
            compared.append(len(model.graph))

    monkeypatch.setattr(ShapeArithmetic, "run", watched)
    optimize_model(read_model(onnx.load(path)))
    assert len(compared) > 1


def test_a_floor_among_dims_is_a_size() -> None:
    """A Floor is a string; a size computed with it would repeat a string."""
    n = symbol("n")
    assert isinstance(n, Expr)
    (size,) = ShapeData()._sizes((Floor(n, 2),))
    assert isinstance(size, Expr)
