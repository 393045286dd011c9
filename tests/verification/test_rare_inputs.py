"""Results wrong for few inputs only are found: at a bound, for one sign, for ties, at a size, by one weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.verification import VerifyOptions, verify

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '
ROWS, IMAGE = "(float[n, 8] x) => (float[n, m] y)", "(float[n, 4, h, w] x) => (float[n, 4, i, j] y)"
CHOSEN, TOKENS = "(float[n, 8] x) => (int64[k] y)", "(int64[n, t] x) => (float[n, t] y)"
WHOLE, SCORES = "(int64[n, 8] x) => (int64[n, 8] y)", "(float[n, t, 8] x, bool[n, 1, t] mask) => (float[n, t, 8] y)"
ATTENTION = """k = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, k) f = Where (mask, s, low)
    p = Softmax (f) y = MatMul (p, x)"""
FLOOR = "f = Cast <to = 11> (x) g = Cast <to = 11> (four) d = Div (f, g) e = Floor (d) y = Cast <to = 7> (e)"
HALF = "c = Greater (x, zero) f = Cast <to = 1> (c) t = Add (f, f) y = Sub (t, one)"
CASES = [
    ("slope", ROWS, "y = LeakyRelu <alpha = 0.01> (x)", ("0.01", "0.011")),
    ("bound behind a layer", ROWS, "h = MatMul (x, w) k = Clip (h, zero, six) y = MatMul (k, w)", ("six", "more")),
    ("no bound", ROWS, "h = MatMul (x, w) y = Clip (h, zero, six)", ("Clip (h, zero, six)", "Relu (h)")),
    ("approximation", ROWS, "h = MatMul (x, w) y = Gelu (h)", ("Gelu ", 'Gelu <approximate = "tanh"> ')),
    ("guard of a logarithm", ROWS, "r = Relu (x) l = Log (r) i = IsInf (l) y = Where (i, zero, l)",
     ("Where (i, zero, l)", "Identity (l)")),
    ("no number", ROWS, "s = Sqrt (x) y = Max (s, zero)",
     ("y = Max (s, zero)", "c = Greater (s, zero) y = Where (c, s, zero)")),
    ("sign of zero", ROWS, "y = Sign (x)", ("y = Sign (x)", HALF)),
    ("cube", ROWS, "y = Pow (x, three)", ("y = Pow (x, three)", "a = Abs (x) y = Pow (a, three)")),
    ("zero point", ROWS, "q = QuantizeLinear (x, scale, z) y = DequantizeLinear (q, scale, z)", ("z)", "z2)")),
    ("epsilon", ROWS, "y = LayerNormalization <epsilon = 0.00001> (x, v)", ("0.00001", "0.000001")),
    ("epsilon that is added", ROWS, "q = ReduceL2 (x, last) c = Clip (q, tiny) y = Div (x, c)",
     ("c = Clip (q, tiny)", "c = Identity (q)")),
    ("small bias", ROWS, "h = MatMul (x, w) y = Add (h, bias)", ("Add (h, bias)", "Identity (h)")),
    ("square weight", ROWS, "y = MatMul (x, w)", ("y = MatMul (x, w)", "t = Transpose (w) y = MatMul (x, t)")),
    ("first of ties", CHOSEN, "h = MatMul (x, w) r = Relu (h) y = ArgMax <axis = 1, keepdims = 0> (r)",
     ("keepdims = 0", "keepdims = 0, select_last_index = 1")),
    ("division of what is negative", WHOLE, "y = Div (x, four)", ("y = Div (x, four)", FLOOR)),
    ("sign of a remainder", WHOLE, "y = Mod (x, four)", ("Mod ", "Mod <fmod = 1> ")),
    ("32 bits", WHOLE, "y = Mul (x, four)", ("y = Mul (x, four)",
     "i = Cast <to = 6> (x) f = Cast <to = 6> (four) k = Mul (i, f) y = Cast <to = 7> (k)")),
    ("padding of another token", TOKENS, "e = Equal (x, pad) g = Gather (table, x) y = Where (e, zero, g)",
     ("pad", "other")),
    ("what an average counts", IMAGE,
     "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x)",
     ("pads", "count_include_pad = 1, pads")),
    ("side that is padded", IMAGE, "y = MaxPool <kernel_shape = [3, 3], pads = [0, 0, 1, 1], strides = [2, 2]> (x)",
     ("[0, 0, 1, 1]", "[1, 1, 0, 0]")),
    ("coordinates", IMAGE, 'y = Resize <mode = "linear"> (x, , scales)',
     ("<mode", '<coordinate_transformation_mode = "asymmetric", mode')),
    ("mask that hides little", SCORES, ATTENTION, ("low", "little")),
    ("axis of a Softmax", SCORES, ATTENTION, ("Softmax (f)", "Softmax <axis = 1> (f)")),
]  # fmt: skip


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    floats = {"zero": 0, "one": 1, "three": 3, "six": 6, "more": 6.5, "scale": 0.05, "tiny": 1e-12, "low": -1e9}
    floats |= {"little": -10, "w": rng.standard_normal((8, 8)), "v": np.ones(8), "bias": np.full(8, 1e-5)}
    floats |= {"table": rng.standard_normal(50), "scales": [1, 1, 2, 2]}
    integers = {"four": 4, "last": [1], "pad": 3, "other": 4}
    found = {name: np.array(v, np.float32) for name, v in floats.items()}
    found |= {name: np.array(v, np.int64) for name, v in integers.items()}
    return found | {"z": np.array(128, np.uint8), "z2": np.array(127, np.uint8)}


@pytest.mark.parametrize(("interface", "body", "wrong"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_fault_for_few_inputs_is_found(interface: str, body: str, wrong: tuple[str, str], tmp_path: Path) -> None:
    assert wrong[0] in body
    for name, text in (("a", body), ("b", body.replace(*wrong))):
        model = parser.parse_model(f"{HEAD}{interface} {{ {text} }}")
        reads = {r for n in model.graph.node for r in n.input}
        kept = {name: v for name, v in constants().items() if name in reads}
        model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in kept.items())
        onnx.save(model, tmp_path / f"{name}.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", VerifyOptions(cases=("all",)))
    assert found.status == "different", found.message
