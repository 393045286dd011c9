# ruff: noqa: E501
"""Small models that together have every construct of a model. Damaged models start as one of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

HEAD = '<ir_version: 8, opset_import: ["" : 17, "l" : 1]>'
TEXTS = {
    "chain": """g (float[N, 4] x) => (float[N, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2},
        float[4] b = {1, 2, 3, 4}>
        { i = Identity (x) m = MatMul (i, w) a = Add (m, b) r = Relu (a) q = Relu (r) y = Dropout (q) }""",
    "conv": """g (float[1, 2, 6, 6] x) => (float[1, 2, h, k] y) <float[2, 2, 1, 1] w = {1, 2, 3, 4},
        float[2] s = {1, 2}, float[2] b = {1, 2}, float[2] m = {0, 1}, float[2] v = {1, 2}>
        { c = Conv <pads = [1, 1, 1, 1], kernel_shape = [1, 1]> (x, w) n = BatchNormalization (c, s, b, m, v)
          p = MaxPool <kernel_shape = [2, 2]> (n) z = Transpose <perm = [0, 2, 3, 1]> (p)
          y = Transpose <perm = [0, 3, 1, 2]> (z) }""",
    "if": """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}>
        { d = If (c) < then_branch = t () => (float[2] e) { e = Add (x, w) },
          else_branch = f () => (float[2] h) { k = Constant <value_float = 2.0> () h = Mul (x, k) } > y = Relu (d) }""",
    "loop": """g (float[2] x) => (float[2] y, float[s, 2] z) <int64 n = {3}, bool t = {1}>
        { y, z = Loop (n, t, x) < body = b (int64 i, bool c, float[2] v) => (bool o, float[2] u, float[2] w)
          { o = Identity (c) u = Add (v, v) w = Relu (u) } > }""",
    "calls": """g (float[2] x) => (float[2] y) { a = l.f <k = 2.0> (x) y = l.h (a) }
        <domain: "l", opset_import: ["" : 17, "l" : 1]> f <k> (p) => (r)
        { c = Constant <value_float : float = @k> () q = l.h (p) r = Mul (q, c) }
        <domain: "l", opset_import: ["" : 17]> h (p) => (r) { q = Neg (p) r = Neg (q) }""",
    "shapes": """g (float[B, S, 8] x) => (float[] y) <int64 z = {0}, int64[1] m = {-1}, int64[1] o = {0}>
        { s = Shape (x) b = Gather (s, z) u = Unsqueeze (b, o) t = Concat <axis = 0> (u, m) r = Reshape (x, t)
          f = Slice (r, o, m, o) e = ConstantOfShape (t) k = Cast <to = 1> (e) y = Concat <axis = 0> (r, f) }""",
    "quantized": """g (float[1, 4] x) => (float[1, 4] y) <float s = {0.5}, uint8 z = {3}, int8[4] w = {1, 2, 3, 4},
        int8 i = {0}>
        { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) e = DequantizeLinear (w, s, i) y = Mul (d, e) }""",
    "sequence": """g (float[4, 2] x) => (float[4, 2] y) <int64 o = {1}>
        { s = SplitToSequence <axis = 0> (x) e = SequenceAt (s, o) f = SequenceInsert (s, e)
          y = ConcatFromSequence <axis = 0> (s) }""",
    "constants": """g (float[2, 3] x) => (float[2, 3] y) <int64[2] s = {2, 3}, int64 a = {0}, int64 b = {6}, int64 c = {1}>
        { r = Range (a, b, c) p = Reshape (r, s) f = Cast <to = 1> (p) e = Expand (f, s) g2 = Sqrt (e) h = Add (x, g2)
          k = Mul (h, g2) t = Tile (a, c) y = Softmax (k) }""",
    "attention": """g (float[1, S, 4] x) => (float[1, S, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2},
        float d = {2}, float[4] one = {1, 1, 1, 1}, float[4] zero = {0, 0, 0, 0}>
        { q = MatMul (x, w) k = MatMul (x, w) v = MatMul (x, w) t = Transpose <perm = [0, 2, 1]> (k) m = MatMul (q, t)
          n = Div (m, d) p = Softmax <axis = -1> (n) o = MatMul (p, v) e = LayerNormalization (o, one, zero)
          y = Add (e, x) }""",
    "scan": """g (float[1, 3, 2] x, float[1, 2] i) => (float[a, 2] y, float[b, c, 2] z)
        { y, z = Scan (i, x) < num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] t, float[2] o)
          { t = Add (s, e) o = Relu (t) } > }""",
}  # fmt: skip


@cache
def _model(name: str) -> bytes:
    if name in TEXTS:
        model = parser.parse_model(f"{HEAD} {TEXTS[name]}")
    else:
        model = everything() if name == "everything" else beside()
    return bytes(model.SerializeToString())


def base(name: str) -> ModelProto:
    return ModelProto.FromString(_model(name))


def everything() -> ModelProto:
    """Return a model with unusual parts: sparse, text, metadata, quantization notes, all types, training, overridable
    weights.
    """
    model = base("chain")
    graph = model.graph
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "")
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    graph.node.append(helper.make_node("Add", ["a", "sparse"], ["with_sparse"]))
    graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"\xff\x1b[31m"]))
    graph.node.append(helper.make_node("Identity", ["text"], ["text_out"]))
    graph.output.append(helper.make_tensor_value_info("text_out", TensorProto.STRING, [2]))
    graph.output.append(helper.make_tensor_value_info("with_sparse", TensorProto.FLOAT, ["N", 4]))
    graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [4]))
    for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.COMPLEX64,
                 TensorProto.FLOAT8E4M3FN, TensorProto.UINT4, TensorProto.INT32, TensorProto.UINT64):  # fmt: skip
        graph.initializer.append(helper.make_tensor(f"kind{kind}", kind, [2], [0, 1]))
        graph.node.append(helper.make_node("Identity", [f"kind{kind}"], [f"of{kind}"]))
    of = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 4])
    kinds = (helper.make_sequence_type_proto(of), helper.make_optional_type_proto(of))
    for i, kind in enumerate((*kinds, helper.make_map_type_proto(TensorProto.INT64, of))):
        graph.value_info.append(helper.make_value_info(f"v{i}", kind))
    note = graph.quantization_annotation.add(tensor_name="w")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    step = model.training_info.add()
    step.algorithm.name = "algorithm"
    step.algorithm.node.add(op_type="Identity", input=["w"], output=["w2"])
    step.update_binding.add(key="w", value="w2")
    helper.set_model_props(model, {"key": "value"})
    graph.metadata_props.add(key="k", value="v")
    graph.node[0].metadata_props.add(key="k", value="v")
    kept = graph.node.add(op_type="Foreign", domain="l", input=["a", ""], output=["foreign", ""], doc_string="what")
    for given in ({"f": 1.0}, {"i": 1}, {"s": b"s"}, {"fs": [1.0]}, {"is": [1]}, {"ss": [b"s"]}, {"t": values}):
        kept.attribute.extend(helper.make_attribute(k, v) for k, v in given.items())
    kept.attribute.append(helper.make_attribute("tp", of))
    kept.attribute.append(helper.make_attribute("st", graph.sparse_initializer[0]))
    model.producer_name = model.domain = model.doc_string = "d"
    return model


def beside() -> ModelProto:
    """Return a model with weights in a file `w.bin` of 64 bytes."""
    model = base("chain")
    for tensor, offset, length in zip(model.graph.initializer, (0, 0), (64, 16)):
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
    return model


NAMES = [*TEXTS, "everything", "beside"]
assert onnx.IR_VERSION >= 8
