"""Forms of the same computation: as exporters write it (A), and rewritten (B). forms.py measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

OPSET = 23
_LAYER, _HEADS, _WIDTH, _SHARED = 768, 12, 64, 4


@dataclass(frozen=True)
class Pair:
    """`name`: the key of a choice; `form`: B in place of A, in words; `size`: in words."""

    name: str
    form: str
    size: str
    a: ModelProto
    b: ModelProto


def pairs() -> Iterator[Pair]:
    for name, form, make, sizes in FORMS:
        for size in sizes:
            given = {key: int(number) for key, number in (text.split(" = ") for text in size.split(", "))}
            a, b = make(**given)
            yield Pair(name, form, size, a, b)


def model(given: str, made: str, body: str, opset: int = OPSET, **weights: tuple[int, ...]) -> ModelProto:
    """`weights`: shapes of constants, which are drawn."""
    found = parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g ({given}) => ({made}) {{ {body} }}')
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        array = rng.standard_normal(shape).astype(np.float32) / np.sqrt(shape[0] if len(shape) == 2 else 1)
        found.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return found


def constant(name: str, kind: str, numbers: str) -> str:
    return f"{name} = Constant <value = {kind} {{{numbers}}}> () "


_SCALE = constant("z", "float", "0.125")
_NO_NUMBER = constant("zero", "float", "0") + constant("hidden", "float", "-inf")


def attention(S: int, mask: bool = False, guard: bool = False) -> tuple[ModelProto, ModelProto]:
    shape = f"float[1, {_HEADS}, {S}, {_WIDTH}]"
    allowed = f", bool[1, 1, {S}, {S}] allowed" if guard else f", float[1, 1, {S}, {S}] mask" if mask else ""
    bias = "mask = Where (allowed, zero, hidden) " if guard else ""
    masked = "s = Add (scaled, mask) " if mask else "s = Identity (scaled) "
    checked = "w = IsNaN (p) p2 = Where (w, zero, p) " if guard else "p2 = Identity (p) "
    formula = (
        f"{_SCALE}{_NO_NUMBER}{bias}t = Transpose <perm = [0, 1, 3, 2]> (k) raw = MatMul (q, t) scaled = Mul (raw, z) "
    )
    formula += f"{masked}p = Softmax <axis = -1> (s) {checked}y = MatMul (p2, v)"
    operator = f"{_NO_NUMBER}{bias}y = Attention <scale = 0.125> (q, k, v{', mask' if mask else ''})"
    given = f"{shape} q, {shape} k, {shape} v{allowed}"
    return model(given, f"{shape} y", formula), model(given, f"{shape} y", operator)


def of_rows(S: int) -> tuple[ModelProto, ModelProto]:
    """With the heads of a row side by side, as products make and take them."""
    rows, width = f"float[1, {S}, {_LAYER}]", _HEADS * _WIDTH
    given = f"{rows} q, {rows} k, {rows} v, float[1, 1, {S}, {S}] mask"
    turned = constant("heads", "int64[4]", f"1, {S}, {_HEADS}, {_WIDTH}") + constant(
        "row", "int64[3]", f"1, {S}, {width}"
    )
    for x in "qkv":
        turned += f"{x}4 = Reshape ({x}, heads) {x}t = Transpose <perm = [0, 2, 1, 3]> ({x}4) "
    turned += "yt = Attention <scale = 0.125> (qt, kt, vt, mask) y4 = Transpose <perm = [0, 2, 1, 3]> (yt) "
    turned += "y = Reshape (y4, row)"
    operator = f"y = Attention <scale = 0.125, q_num_heads = {_HEADS}, kv_num_heads = {_HEADS}> (q, k, v, mask)"
    return model(given, f"{rows} y", turned), model(given, f"{rows} y", operator)


def in_blocks(S: int) -> tuple[ModelProto, ModelProto]:
    """B computes the queries in blocks with scores of at most 64 MiB."""
    rows, count = f"float[1, {S}, {8 * _WIDTH}]", 4 * 8 * S * S >> 26
    given, operator = f"{rows} q, {rows} k, {rows} v", "Attention <q_num_heads = 8, kv_num_heads = 8>"
    blocks, parts = ([f"{x}{i}" for i in range(count)] for x in "by")
    body = f"{', '.join(blocks)} = Split <axis = 1, num_outputs = {count}> (q) "
    body += " ".join(f"{y} = {operator} ({b}, k, v)" for b, y in zip(blocks, parts))
    body += f" y = Concat <axis = 1> ({', '.join(parts)})"
    return model(given, f"{rows} y", f"y = {operator} (q, k, v)"), model(given, f"{rows} y", body)


def masked(S: int) -> tuple[ModelProto, ModelProto]:
    return attention(S, mask=True)


def guarded(S: int) -> tuple[ModelProto, ModelProto]:
    return attention(S, mask=True, guard=True)


def cached(tokens: int, past: int) -> dict[str, ModelProto]:
    """16 heads of queries on 4 of keys, with the keys of earlier tokens, by the form they have."""
    q, new = f"float[1, 16, {tokens}, {_WIDTH}]", f"float[1, {_SHARED}, {tokens}, {_WIDTH}]"
    old, all_keys = (f"float[1, {_SHARED}, {n}, {_WIDTH}]" for n in (past, past + tokens))
    given = f"{q} q, {new} k, {new} v, {old} old_k, {old} old_v, float[1, 1, {tokens}, {past + tokens}] mask"
    made = f"{q} y, {all_keys} all_k, {all_keys} all_v"
    joined = f"{_SCALE}all_k = Concat <axis = 2> (old_k, k) all_v = Concat <axis = 2> (old_v, v) "
    heads = constant("heads", "int64[16]", ", ".join(str(i // 4) for i in range(16)))
    copied = "each_k = Gather <axis = 1> (all_k, heads) each_v = Gather <axis = 1> (all_v, heads) "
    copied += "t = Transpose <perm = [0, 1, 3, 2]> (each_k) raw = MatMul (q, t) scaled = Mul (raw, z) "
    copied += "s = Add (scaled, mask) p = Softmax <axis = -1> (s) y = MatMul (p, each_v)"
    groups = constant("two", "int64[1]", "2") + constant("groups", "int64[5]", f"1, 4, 4, {tokens}, {_WIDTH}")
    groups += constant("back", "int64[4]", f"1, 16, {tokens}, {_WIDTH}")
    five = "q5 = Reshape (q, groups) t = Transpose <perm = [0, 1, 3, 2]> (all_k) t5 = Unsqueeze (t, two) "
    five += "raw = MatMul (q5, t5) scaled = Mul (raw, z) m5 = Unsqueeze (mask, two) s = Add (scaled, m5) "
    five += "p = Softmax <axis = -1> (s) v5 = Unsqueeze (all_v, two) y5 = MatMul (p, v5) y = Reshape (y5, back)"
    operator = "y, all_k, all_v = Attention <scale = 0.125> (q, k, v, mask, old_k, old_v)"
    scaled = f"{_SCALE}zq = Mul (q, z) {operator.replace('0.125', '1.0').replace('(q,', '(zq,')}"
    return {
        "copied": model(given, made, joined + heads + copied),
        "five axes": model(given, made, joined + groups + five),
        "operator": model(given, made, operator),
        "unscaled": model(given, made, scaled),
    }


def unscaled(tokens: int, past: int) -> tuple[ModelProto, ModelProto]:
    """B multiplies the queries; a scale in their weights costs nothing."""
    found = cached(tokens, past)
    return found["operator"], found["unscaled"]


def five_axes(tokens: int, past: int) -> tuple[ModelProto, ModelProto]:
    found = cached(tokens, past)
    return found["copied"], found["five axes"]


def with_past(tokens: int, past: int) -> tuple[ModelProto, ModelProto]:
    found = cached(tokens, past)
    return found["copied"], found["operator"]


def past_or_five_axes(tokens: int, past: int) -> tuple[ModelProto, ModelProto]:
    found = cached(tokens, past)
    return found["five axes"], found["operator"]


def rotary(S: int) -> tuple[ModelProto, ModelProto]:
    x, half = f"float[1, {_HEADS}, {S}, {_WIDTH}]", f"float[1, {S}, {_WIDTH // 2}]"
    given = f"{x} x, {half} cos, {half} sin"
    twice = "c2 = Concat <axis = -1> (cos, cos) s2 = Concat <axis = -1> (sin, sin) "
    twice += f"{constant('one', 'int64[1]', '1')}c = Unsqueeze (c2, one) s = Unsqueeze (s2, one) "
    formula = "a, b = Split <axis = -1, num_outputs = 2> (x) n = Neg (b) turned = Concat <axis = -1> (n, a) "
    formula += "u = Mul (x, c) w = Mul (turned, s) y = Add (u, w)"
    operator = "y = RotaryEmbedding (x, cos, sin)"
    return model(given, f"{x} y", twice + formula), model(given, f"{x} y", operator)


_EPS = constant("eps", "float", "0.00001") + constant("two", "float", "2") + constant("last", "int64[1]", "-1")


def rms_normalization(rows: int, more: str = "") -> tuple[ModelProto, ModelProto]:
    """`more`: the computation of x from an input h."""
    x = f"float[1, {rows}, 1024]"
    given = f"{x} h, {x} residual" if more else f"{x} x"
    made = f"{x} x, {x} y" if more else f"{x} y"
    formula = f"{more}{_EPS}q = Pow (x, two) m = ReduceMean (q, last) e = Add (m, eps) r = Sqrt (e) d = Div (x, r) "
    formula += "y = Mul (w, d)"
    operator = f"{more}y = RMSNormalization <epsilon = 0.00001> (x, w)"
    return model(given, made, formula, w=(1024,)), model(given, made, operator, w=(1024,))


def add_rms_normalization(rows: int) -> tuple[ModelProto, ModelProto]:
    return rms_normalization(rows, "x = Add (h, residual) ")


def layer_normalization(rows: int) -> tuple[ModelProto, ModelProto]:
    x, weights = f"float[1, {rows}, {_LAYER}]", {"w": (_LAYER,), "b": (_LAYER,)}
    formula = (
        f"{_EPS}m = ReduceMean (x, last) c = Sub (x, m) q = Pow (c, two) v = ReduceMean (q, last) e = Add (v, eps) "
    )
    formula += "r = Sqrt (e) d = Div (c, r) f = Mul (d, w) y = Add (f, b)"
    operator = "y = LayerNormalization <epsilon = 0.00001> (x, w, b)"
    return tuple(model(f"{x} x", f"{x} y", body, **weights) for body in (formula, operator))  # type: ignore[return-value]


def add_normalization(rows: int) -> tuple[ModelProto, ModelProto]:
    x, weights = f"float[1, {rows}, {_LAYER}]", {"w": (_LAYER,), "b": (_LAYER,)}
    cube = "s = Add (x, r) y = LayerNormalization <epsilon = 0.00001> (s, w, b)"
    sizes = constant("flat", "int64[2]", f"-1, {_LAYER}") + constant("back", "int64[3]", f"1, {rows}, {_LAYER}")
    matrix = f"{sizes}x2 = Reshape (x, flat) r2 = Reshape (r, flat) s = Add (x2, r2) "
    matrix += "y2 = LayerNormalization <epsilon = 0.00001> (s, w, b) y = Reshape (y2, back)"
    return tuple(model(f"{x} x, {x} r", f"{x} y", body, **weights) for body in (cube, matrix))  # type: ignore[return-value]


def gelu(rows: int) -> tuple[ModelProto, ModelProto]:
    given, made = f"float[1, {rows}, {_LAYER}] x", f"float[1, {rows}, 3072] y"
    product = "p = MatMul (x, w) h = Add (p, b) "
    numbers = constant("root", "float", "1.4142135") + constant("one", "float", "1") + constant("half", "float", "0.5")
    formula = f"{product}{numbers}d = Div (h, root) e = Erf (d) f = Add (e, one) u = Mul (h, f) y = Mul (u, half)"
    weights = {"w": (_LAYER, 3072), "b": (3072,)}
    return tuple(model(given, made, body, **weights) for body in (formula, f"{product}y = Gelu (h)"))  # type: ignore[return-value]


def gemm(rows: int) -> tuple[ModelProto, ModelProto]:
    x, weights = f"float[1, {rows}, {_LAYER}]", {"w": (_LAYER, _LAYER), "b": (_LAYER,)}
    sizes = constant("flat", "int64[2]", f"-1, {_LAYER}") + constant("back", "int64[3]", f"1, {rows}, {_LAYER}")
    matrix = f"{sizes}x2 = Reshape (x, flat) y2 = Gemm (x2, w, b) y = Reshape (y2, back)"
    return tuple(  # type: ignore[return-value]
        model(f"{x} x", f"{x} y", body, **weights) for body in ("p = MatMul (x, w) y = Add (p, b)", matrix)
    )


def parallel(rows: int) -> tuple[ModelProto, ModelProto]:
    x = f"float[1, {rows}, {_LAYER}]"
    made = ", ".join(f"{x} y{i}" for i in range(3))
    three = " ".join(f"p{i} = MatMul (x, w{i}) y{i} = Add (p{i}, b{i})" for i in range(3))
    each = {f"{name}{i}": shape for i in range(3) for name, shape in (("w", (_LAYER, _LAYER)), ("b", (_LAYER,)))}
    one = "p = MatMul (x, w) s = Add (p, b) y0, y1, y2 = Split <axis = -1, num_outputs = 3> (s)"
    return model(f"{x} x", made, three, **each), model(f"{x} x", made, one, w=(_LAYER, 3 * _LAYER), b=(3 * _LAYER,))


def group_normalization(size: int) -> tuple[ModelProto, ModelProto]:
    x, channels = f"float[2, 320, {size}, {size}]", {"w": (320, 1, 1), "b": (320, 1, 1)}
    groups = constant("groups", "int64[3]", "0, 32, -1") + constant("back", "int64[4]", f"2, 320, {size}, {size}")
    ones = constant("ones", "float[32]", ", ".join(["1"] * 32)) + constant("zeros", "float[32]", ", ".join(["0"] * 32))
    formula = f"{groups}{ones}r = Reshape (x, groups) n = InstanceNormalization (r, ones, zeros) "
    formula += "f = Reshape (n, back) s = Mul (f, w) y = Add (s, b)"
    operator = "y = GroupNormalization <num_groups = 32> (x, w, b)"
    return model(f"{x} x", f"{x} y", formula, **channels), model(f"{x} x", f"{x} y", operator, w=(320,), b=(320,))


def convolution(size: int) -> tuple[ModelProto, ModelProto]:
    given, made = f"float[1, 64, {size}, {size}] x", f"float[1, 64, {size // 2}, {size // 2}] y"
    body = "c = Conv <pads = [1, 1, 1, 1]> (x, w, b) r = Relu (c) "
    body += "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)"
    weights = {"w": (64, 64, 3, 3), "b": (64,)}
    return model(given, made, body, 17, **weights), model(given, made, body, **weights)


_ROWS = ("rows = 1", "rows = 128")
_TOKENS = ("tokens = 1, past = 512", "tokens = 1, past = 2048", "tokens = 128, past = 512")
FORMS: tuple[tuple[str, str, Callable[..., tuple[ModelProto, ModelProto]], tuple[str, ...]], ...] = (
    ("attention", "Attention in place of the formula", attention, ("S = 128", "S = 197")),
    ("attention-mask", "Attention with a mask in place of the formula", masked, ("S = 128", "S = 512")),
    (
        "attention-guard",
        "Attention in place of the formula with a Where for rows of NaN",
        guarded,
        ("S = 128", "S = 384"),
    ),
    ("attention-rows", "Attention of rows in place of Transposes around it", of_rows, ("S = 1", "S = 128", "S = 384")),
    ("attention-past", "Attention with past keys in place of Concat, Gather and the formula", with_past, _TOKENS),
    ("attention-blocks", "Attention of blocks of queries in place of one", in_blocks, ("S = 2048", "S = 4096")),
    ("attention-scale", "Attention of scaled queries in place of a scale", unscaled, _TOKENS),
    ("heads-five-axes", "products of five axes in place of a Gather of shared heads", five_axes, _TOKENS),
    (
        "attention-past-or-five",
        "Attention with past keys in place of products of five axes",
        past_or_five_axes,
        _TOKENS,
    ),
    ("rotary-embedding", "RotaryEmbedding in place of the formula", rotary, ("S = 1", "S = 128")),
    ("rms-normalization", "RMSNormalization in place of the formula", rms_normalization, _ROWS),
    ("add-rms-normalization", "Add and RMSNormalization in place of Add and the formula", add_rms_normalization, _ROWS),
    ("layer-normalization", "LayerNormalization in place of the formula", layer_normalization, _ROWS),
    ("add-normalization", "Add and LayerNormalization of a matrix in place of rank 3", add_normalization, _ROWS),
    ("gelu", "Gelu in place of the formula, behind a product", gelu, _ROWS),
    ("gemm", "Gemm of a matrix in place of MatMul and Add", gemm, _ROWS),
    ("parallel-products", "a product and a Split in place of three products", parallel, _ROWS),
    ("group-normalization", "GroupNormalization in place of the formula", group_normalization, ("size = 32",)),
    ("convolution-opset", f"Conv, Relu and MaxPool of opset {OPSET} in place of 17", convolution, ("size = 56",)),
)
