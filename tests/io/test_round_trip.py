"""Unknown parts are never touched: loading and saving without a pass gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxopt.graph import check_model, read_model, write_model
from onnxopt.io import load, save
from tests import node_cases
from tests.samples import ROOT

INSTALLED = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))
ZOO = sorted((ROOT.parent / "shared" / "zoo").rglob("*.onnx"))


def rewritten(data: bytes) -> bytes:
    """Through the index and back, every scope and every node written anew."""
    model = read_model(onnx.ModelProto.FromString(data))
    check_model(model)
    for scope in model.scopes():
        scope.nodes_changed = scope.initializers_changed = True
        for node in scope:
            node.stale = True
    return bytes(write_model(model).SerializeToString())


@pytest.mark.parametrize("path", INSTALLED + ZOO, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_same_bytes(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    save(load(path), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == data
    canonical = onnx.ModelProto.FromString(data)
    for graph in [canonical.graph]:  # the writer drops absent trailing names, which mean nothing
        for node in graph.node:
            while node.input and not node.input[-1]:
                node.input.pop()
    assert rewritten(data) == canonical.SerializeToString()


def test_onnx_node_tests_survive_the_index() -> None:
    seen = 0
    for model in node_cases.models():
        assert read_model(onnx.ModelProto.FromString(model.SerializeToString())).version == 0
        seen += 1
    assert seen > 1000


def everything() -> onnx.ModelProto:
    """A model that has every field ONNX knows, and some it does not."""
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 18, "local" : 1], producer_name: "p", domain: "d", model_version: 3,
         doc_string: "doc">
        g (float[N] x, float[2] w) => (float[N] y, float[N] z)
        <float[2] w = {1, 2}, float[1] unused = {0}>
        {
            a = local.f <alpha = 0.5> (x)
            [named] y = Clip (a, , w2)
            w2 = Constant <value_float = 3.0> ()
            z = If (c) <then_branch = t () => (float[N] p) { p = Identity (x) },
                        else_branch = e () => (float[N] q) { q = Neg (a) }>
            c = Constant <value = bool {1}> ()
        }
        <domain: "local", opset_import: ["" : 18]>
        f <alpha> (v) => (u) { u = Elu <alpha: float = @alpha> (v) }
        """
    )
    graph = model.graph
    sparse = onnx.SparseTensorProto(dims=[4])
    sparse.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [2]))
    graph.sparse_initializer.append(sparse)
    graph.input.append(
        helper.make_value_info("m", helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, [2])))
    )
    graph.input.append(
        helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2])))
    )
    opaque = onnx.TypeProto()
    opaque.ParseFromString(b"\x3a\x07\x0a\x01d\x12\x02nm")  # opaque_type {domain, name}
    graph.input.append(helper.make_value_info("opaque", opaque))
    graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="SCALE", value="unused")
    graph.metadata_props.add(key="graph", value="1")
    graph.node[0].metadata_props.add(key="node", value="2")
    graph.node[0].device_configurations.add(configuration_id="dev")
    model.configuration.add(name="dev", num_devices=2)
    graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N"]))
    graph.value_info[0].metadata_props.add(key="value", value="3")
    model.metadata_props.add(key="model", value="4")
    training = model.training_info.add()
    training.algorithm.node.add(op_type="Neg", input=["w"], output=["w_new"])
    training.update_binding.add(key="w", value="w_new")
    unknown = b"\xfa\x3e\x05extra"  # field 1007, which no version of ONNX has
    for message in (graph.node[0], graph.initializer[0], graph, model):
        message.MergeFromString(unknown)
    return model


def test_every_field_survives(tmp_path: Path) -> None:
    data = everything().SerializeToString()
    (tmp_path / "in.onnx").write_bytes(data)
    save(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == data
    model = read_model(onnx.ModelProto.FromString(data))
    assert [n.op for n in model.graph] != [n.op_type for n in everything().graph.node], "unsorted nodes are sorted"
    before, after = everything(), onnx.ModelProto.FromString(rewritten(data))
    assert sorted(n.SerializeToString() for n in after.graph.node) == sorted(
        n.SerializeToString() for n in before.graph.node
    )
    del before.graph.node[:], after.graph.node[:]
    assert after == before, "everything but the order of the nodes"


def test_a_foreign_encoding_is_copied_not_encoded_again(tmp_path: Path) -> None:
    tensor = b"\x0a\x02\x02\x01" + b"\x10\x01" + b"\x42\x01w" + b"\x4a\x08" + b"\0" * 8  # dims packed: legal, not ours
    graph = b"\x12\x01g" + b"\x2a" + bytes([len(tensor)]) + tensor
    data = b"\x3a" + bytes([len(graph)]) + graph + b"\x08\x08" + b"\x42\x02\x10\x11"  # the IR version comes last
    (tmp_path / "in.onnx").write_bytes(data)
    assert load(tmp_path / "in.onnx").proto.SerializeToString() != data
    save(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == data
