"""No level leaves more nodes than the one below it: what a pass adds is less than what it lets go.

`make fuzz` asks all cases, and real models where there are some.
"""

from __future__ import annotations

import os
from typing import Final

import onnx
import pytest

import onnxopt.passes  # noqa: F401 - registers them
from onnxopt.analysis import types
from onnxopt.graph import read_model
from onnxopt.passes.levels import LEVELS, pipeline_for
from onnxopt.pipeline import PassContext, execute
from tests.cases.test_cases import CASES, turn
from tests.samples import ROOT, build_text, sample

ALL: Final = int(os.environ.get("ONNXOPT_FUZZ", "0")) > 300
PARTS: Final = 4 if ALL else 12
REAL: Final = sorted((ROOT.parent / "shared" / "zoo").rglob("*.onnx")) if ALL else []


def nodes(proto: onnx.ModelProto, level: int) -> int:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    model = read_model(copy)
    execute(pipeline_for(level), model, PassContext(opt_level=level))
    return model.node_count()


def assert_none_more(model: onnx.ModelProto, name: str) -> None:
    found = [nodes(model, level) for level in range(len(LEVELS))]
    assert found == sorted(found, reverse=True), name


@pytest.mark.usefixtures("kept_worker")
@pytest.mark.parametrize("part", range(PARTS if ALL else 3))
def test_no_level_leaves_more_nodes_of_a_case(part: int) -> None:
    for case in (c for c in CASES if turn(c) % PARTS == part):
        assert_none_more(case.build(), case.name)


@pytest.mark.parametrize("name", sorted(f.stem for f in (ROOT / "models").glob("*.onnxtxt")))
def test_no_level_leaves_more_nodes_of_a_sample(name: str) -> None:
    assert_none_more(sample(name), name)


@pytest.mark.skipif(not REAL, reason="real models are asked by make fuzz, where there are some")
def test_no_level_leaves_more_nodes_of_a_real_model() -> None:
    for file in REAL:
        assert_none_more(onnx.load(file), file.stem)


@pytest.mark.parametrize("level", [2, 3])
def test_sums_before_a_normalization_have_rank_2(level: int) -> None:
    """onnxruntime makes Add and LayerNormalization of rank 3 one node, which takes several times as long as the two."""
    layer = """
  {i}p = MatMul ({x}, w1) {i}q = Add ({i}p, b1) {i}r = Relu ({i}q) {i}s = MatMul ({i}r, w2) {i}t = Add ({i}s, b2)
  {i}u = Add ({i}t, {x}) {y} = LayerNormalization <axis = -1> ({i}u, g, b2)"""
    model = build_text(f"""# weights: normal w1 w2 b1 b2 g
<ir_version: 8, opset_import: ["" : 17]>
post (float[N, 6, 8] x) => (float[N, 6, 8] y) <float[8, 16] w1, float[16, 8] w2, float[16] b1, float[8] b2, float[8] g>
{{ {layer.format(i="a", x="x", y="m")} {layer.format(i="b", x="m", y="y")} }}""")
    found = read_model(model)
    execute(pipeline_for(level), found, PassContext(opt_level=level))
    normalized = [n.inputs[0] for n in found.nodes() if n.op == "LayerNormalization"]
    assert [types.rank(v) for v in normalized if v is not None] == [2, 2]
