"""Parts without a rewrite are kept: a model with every field keeps them at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxopt
from tests.runtime import plain_session


def tensor(name: str, *shape: int, seed: int = 0) -> TensorProto:
    data = np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)
    result = numpy_helper.from_array(data, name)
    result.doc_string = f"about {name}"
    result.metadata_props.add(key="tensor", value=name)
    return result


def everything() -> onnx.ModelProto:
    """Conv, BatchNormalization (folds), a call of a function, a sparse bias, training, quantization, denotations."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", doc_string="about conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], name="bn"),
        helper.make_node("Twice", ["n"], ["t"], name="call", domain="local"),
        helper.make_node("Add", ["t", "sparse"], ["s"], name="add"),
        helper.make_node("Identity", ["s"], ["i"], name="clutter"),
        helper.make_node("Relu", ["i"], ["y"], name="relu"),
    ]
    for node in nodes:
        node.metadata_props.add(key="node", value=node.name)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2, 4, 4]) for n in "xy")
    for info in (x, y):
        info.doc_string = f"about {info.name}"
        info.metadata_props.add(key="value", value=info.name)
        info.type.denotation = "IMAGE"
        for dim, meaning in zip(info.type.tensor_type.shape.dim, ("BATCH", "CHANNEL", "HEIGHT", "WIDTH")):
            dim.denotation = f"DATA_{meaning}"
    weights = [
        tensor("w", 2, 2, 1, 1),
        *(tensor(n, 2) for n in ("scale", "shift", "mean", "var")),
        tensor("q_scale", 1),
    ]
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(2, np.float32), "sparse"),
        numpy_helper.from_array(np.array([0, 5], np.int64), "sparse_indices"),
        [2, 4, 4],
    )
    inner = helper.make_tensor_value_info("s", TensorProto.FLOAT, ["N", 2, 4, 4])
    inner.metadata_props.add(key="value", value="s")
    graph = helper.make_graph(nodes, "g", [x], [y], weights, "about g", [inner], sparse_initializer=[sparse])
    graph.metadata_props.add(key="graph", value="g")
    annotation = graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="q_scale")
    body = [helper.make_node("Add", ["a", "a"], ["b"], name="double")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, opsets[:1], doc_string="about Twice")
    function.metadata_props.add(key="function", value="Twice")
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    model.producer_name, model.producer_version, model.domain = "test", "1.2", "org.example"
    model.model_version, model.doc_string = 7, "about the model"
    model.metadata_props.add(key="model", value="m")
    training = model.training_info.add()
    training.algorithm.name = "step"
    training.update_binding.add(key="q_scale", value="updated")
    return model


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_field_survives(level: int, tmp_path: Path) -> None:
    before = everything()
    onnx.save(before, tmp_path / "in.onnx")
    onnxopt.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", level=level)
    after = onnx.load(tmp_path / "out.onnx")
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(after, field) == getattr(before, field), field
    for field in ("opset_import", "metadata_props", "training_info", "functions"):
        assert list(getattr(after, field)) == list(getattr(before, field)), field
    a, b = after.graph, before.graph
    assert (a.name, a.doc_string) == (b.name, b.doc_string)
    for field in ("metadata_props", "input", "output", "sparse_initializer", "quantization_annotation"):
        assert list(getattr(a, field)) == list(getattr(b, field)), field
    kept = {t.name: t for t in a.initializer}
    assert kept["q_scale"] == next(t for t in b.initializer if t.name == "q_scale")
    nodes = {n.name: n for n in a.node}
    originals = {n.name: n for n in b.node}
    assert len(a.node) == {0: 6, 1: 5}.get(level, 4)
    for name in ("conv", "call", "add", "relu"):
        assert nodes[name].doc_string == originals[name].doc_string
        assert list(nodes[name].metadata_props) == list(originals[name].metadata_props), name
    assert [i for i in a.value_info if i.name == "s"] == list(b.value_info)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_annotations_of_what_goes_keep_nothing(level: int) -> None:
    """The parameters of a value that went stayed until a second run, which found no annotation any more."""
    model = everything()
    noted = {"i": "unread", "unread": "unread too", "y": "q_scale", "nobody": "foreign"}  # `i` and `unread` go
    del model.graph.quantization_annotation[:]
    for about, parameter in noted.items():
        note = model.graph.quantization_annotation.add(tensor_name=about)
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=parameter)
        note.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value=parameter)
    model.graph.initializer.extend(tensor(n, 1) for n in ("unread", "unread too", "foreign"))
    once = onnxopt.optimize(model, level=level, verify=False)
    assert [a.tensor_name for a in once.model.graph.quantization_annotation] == ["y", "nobody"]
    names = {t.name for t in once.model.graph.initializer}
    assert {"q_scale", "foreign"} <= names and names.isdisjoint({"unread", "unread too"})
    again = onnxopt.optimize(once.model, level=level, verify=False)
    assert not again.report.changed and again.model == once.model


def test_what_becomes_an_initializer_was_not_kept_by_its_name() -> None:
    """It was counted as an output less than none, and was merged with its equal by a second run only."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y, float[2] z) <float two = {2}> {
            i = Identity (x) c = Constant <value_float = 2.0> () y = Pow (i, c) z = Mod <fmod = 1> (x, two)
        }""")
    note = model.graph.quantization_annotation.add(tensor_name="i")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="c")
    once = onnxopt.optimize(model, level=1, verify=False)
    assert len(once.model.graph.initializer) == 1 and not once.model.graph.quantization_annotation
    assert not onnxopt.optimize(once.model, level=1, verify=False).report.changed


TRAINED = """<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
g (float[N, 4] x) => (float[N, 4] y)
<float[4] w = {1, 2, 3, 4}, float[4] v = {1, 1, 1, 1}, float[4] two = {2, 2, 2, 2}>
{
  a = Mul (x, w)
  h = Identity (a)
  b = Neg (h)
  c = Neg (b)
  d = Add (c, v)
  e = Mul (d, two)
  f = Mul (e, two)
  y = Relu (f)
}
<domain: "my", opset_import: ["" : 21]> step (a, unread) => (b) { b = Neg (a) }
"""
STEP = """step () => (float[4] w1) {
  l = ReduceMean <keepdims = 0> (c)
  k = Greater (l, l)
  e_1 = If (k) <
    then_branch = t () => (float[N, 4] p) { p = Mul (v, e) },
    else_branch = e () => (float[N, 4] q) { r = my.step (h, h) q = Add (r, y) }>
  w1 = Sub (w, e_1)
}"""


@pytest.mark.parametrize(
    "options",
    [{"level": 1}, {"level": 3}, {"inline_functions": True}, {"rename": {"y": "z"}}, {"dtype": "float16"}],
    ids=str,
)
def test_values_and_functions_of_a_training_step_stay(options: dict[str, Any]) -> None:
    """A step runs the nodes of the main graph and of the training graph as one graph."""
    model = onnx.parser.parse_model(TRAINED)
    training = model.training_info.add()
    training.algorithm.CopyFrom(onnx.parser.parse_graph(STEP))
    training.update_binding.add(key="w", value="w1")
    feeds = {"x": np.arange(-8, 8, dtype=np.float32).reshape(4, 4)}
    result = onnxopt.optimize(model, verify=False, **options).model
    assert len(result.graph.node) < len(model.graph.node)
    np.testing.assert_allclose(_trained(result, feeds), _trained(model, feeds), rtol=1e-6)


def _trained(model: ModelProto, feeds: dict[str, np.ndarray]) -> Any:
    both, step = ModelProto.FromString(model.SerializeToString()), model.training_info[0].algorithm
    both.graph.node.extend(step.node)
    both.graph.output.extend(step.output)
    return plain_session(both).run(["w1"], feeds)[0]
