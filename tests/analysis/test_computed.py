"""Types given by rules instead of onnx's inference: never others than those of onnx."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import onnx
import pytest
from onnx import ModelProto, ValueInfoProto

from onnxopt.analysis import facts, types
from onnxopt.graph import Model, read_model
from onnxopt.graph.dims import as_symbol
from onnxopt.graph.value import Shape
from onnxopt.proto.inference import infer_shapes, inferable
from onnxopt.proto.messages import tensor_type
from tests import node_cases
from tests.samples import ROOT, parsed, sample

ZOO = ROOT.parent / "shared" / "zoo"
NEWEST = onnx.defs.onnx_opset_version()
OPSETS = sorted({9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24, NEWEST})
LARGEST = 9_000_000  # bytes of a file
INVENTED = "unk__"  # begin of a name for an unknown size


def asked_onnx(proto: ModelProto) -> dict[str, tuple[int, Shape | None]]:
    """Type and shape of each value, where onnx's inference finds them; sizes invented by onnx are unknown."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    outputs = [o.name for o in proto.graph.output]
    for declared in (copy.graph.value_info, copy.graph.output):
        del declared[:]
    copy.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
    inferred = infer_shapes(inferable(copy)).graph
    found = {}
    for info in (*inferred.value_info, *inferred.output):
        kind, dims = tensor_type(info.type)
        found[info.name] = kind, None if dims is None else tuple(map(_known, dims))
    return found


def _known(dim: int | str | None) -> int | str | None:
    return dim if not isinstance(dim, str) else None if dim.startswith(INVENTED) else as_symbol(dim)


def are_types_computed(model: Model) -> bool:
    """Whether rules give the types of all values; they are facts then."""
    asked = []
    with patch.object(facts, "believed_types", lambda node: asked.append(node) or {}):
        types.infer(model)
    return not asked and not model.graph.owners and not model.functions


def computed(protos: Iterable[ModelProto]) -> list[Model]:
    """The models whose types the rules give. Asserts that they are those of onnx, wherever onnx has one."""
    found = []
    for proto in protos:
        model = read_model(proto)
        if not are_types_computed(model):
            continue
        found.append(model)
        told = asked_onnx(proto)
        for v in (v for node in model.graph for v in node.results if not v.constant):
            kind, dims = told.get(v.name, (0, None))
            assert kind in (0, v.dtype), (proto.graph.name, v)
            assert v.shape is not None
            assert dims is None or len(dims) == len(v.shape), (proto.graph.name, v)
            assert all(theirs in (None, ours) for theirs, ours in zip(dims or (), v.shape)), (proto.graph.name, v)
    return found


def moved(proto: ModelProto, opset: int, *, named: bool) -> ModelProto:
    """The model in another opset, and with names instead of sizes."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    copy.opset_import[0].version = opset
    for info in copy.graph.input if named else ():
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"of_{dim.dim_value}"
    return copy


def plain_cases() -> list[ModelProto]:
    return [m for m in node_cases.models() if len(m.opset_import) == 1 and not m.opset_import[0].domain]


@pytest.mark.parametrize("opset", OPSETS)
def test_rules_and_onnx_agree_on_each_operator(opset: int) -> None:
    """In opsets where the call is invalid, too."""
    for named in (False, True):
        found = computed(moved(proto, opset, named=named) for proto in plain_cases())
        assert len(found) > (250 if opset > 10 else 150)
        if opset == NEWEST and not named:
            ops = {op for model in found for op in model.graph.by_op}
            assert ops >= {"Add", "AveragePool", "Conv", "Gemm", "MaxPool", "Softmax", "Transpose"}


def test_rules_and_onnx_agree_on_the_samples() -> None:
    paths = sorted((ROOT / "models").glob("*.onnxtxt"))
    assert computed(sample(path.stem) for path in paths)


@pytest.mark.skipif(not ZOO.exists(), reason="no models")
def test_rules_and_onnx_agree_on_real_models() -> None:
    paths = [p for p in sorted(ZOO.rglob("*.onnx")) if p.stat().st_size < LARGEST]
    found = computed(onnx.load(path, load_external_data=False) for path in paths)
    assert found


ATTRIBUTES = """<ir_version: 6, opset_import: ["" : 11]>
g (float[2, 1, n, 6] x, float[n, 2, 4] seq, float[1, 12, 4] w, float[1, 12, 3] r, float[6] s) => (float o) <
  float low = {0.0}, int64[8] pads = {0, 0, 1, 1, 0, 0, -1, 2}
> {
  a, b = Split <axis = -1, split = [2, 4]> (x)
  c, d = Split <axis = 3> (x)
  e = Squeeze <axes = [-3]> (x)
  f = Unsqueeze <axes = [-1, 0]> (e)
  h = ReduceSum <axes = [1, -1], keepdims = 0> (x)
  h2 = ReduceSum (x)
  h3 = ReduceMean <axes = [-1]> (x)
  i = Pad (x, pads)
  i2 = Pad <mode = "reflect"> (x, pads, low)
  j = Softmax (x)
  k = Clip (x, low)
  l, l2, l3 = LSTM <hidden_size = 3> (seq, w, r)
  m = BatchNormalization (i, s, s, s, s)
  q = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (x)
  t = Identity (q)
  u = Flatten <axis = -2> (x)
  v = Concat <axis = -1> (x, x)
  y = Shape (v)
  z = Reshape (v, y)
  g1 = Gather <axis = -2> (x, y)
  g2 = Relu (g1)
  o = LogSoftmax <axis = 0> (g2)
}"""


def test_rules_and_onnx_agree_on_operands_that_were_attributes() -> None:
    assert computed([parsed(ATTRIBUTES)])


LATER = """
import sys
import onnx.defs, onnx.shape_inference
from onnxopt import optimize

def refuse(*args, **kwargs):
    raise AssertionError(args)

onnx.defs.get_schema = onnx.defs.get_all_schemas = refuse
onnx.shape_inference.infer_node_outputs = refuse
onnx.shape_inference.C = None
print(len(optimize(sys.argv[1], verify=False).model.graph.node))
"""


def test_a_small_network_needs_no_schema_and_no_inference(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    command = [sys.executable, "-c", LATER, str(tmp_path / "in.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < len(sample("residual_block").graph.node)


SIZES = """<ir_version: 8, opset_import: ["" : 19]>
g (float[b, 4, t] x, float[4, 4, 4] w) => (int64[r] y) <
  int64 zero = {0}, int64 one = {1}, float two = {2}, int64[1] last = {-1}, int64[1] first = {-9223372036854775807},
  int64[1] at = {2}, int64 place = {2}
> {
  c = Conv (x, w)  reversed = Slice (c, last, first, at, last)  sum = CumSum (reversed, place)
  s = Shape (sum)  length = Gather (s, place)  range = Range (zero, length, one)
  count = CastLike (two, one)  pair = Expand (count, at)  twos = Transpose (pair)  filled = ConstantOfShape (twos)
  front = Shape <start = 0, end = 1> (x)  size = Squeeze (front)  y = Range (zero, size, one)
}"""


def test_sizes_that_a_running_model_has_are_computed() -> None:
    """A dim of a tensor is not negative, though its expression may be; an axis taken backwards keeps its size."""
    model = read_model(parsed(SIZES))
    assert are_types_computed(model)
    found = {v.name: v.shape for node in model.graph for v in node.results}
    assert found["c"] == found["reversed"] == found["sum"] == ("b", 4, "{-3+t}")
    assert (found["range"], found["filled"], found["size"], found["y"]) == (("{-3+t}",), (2, 2), (), ("b",))
