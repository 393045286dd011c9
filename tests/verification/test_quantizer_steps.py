"""Dequantized values differ by whole steps, as the integers behind them do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxopt.verification import AGREES, DIFFERENT, verify
from onnxopt.verification.model.skeleton import Skeleton
from onnxopt.verification.pieces.noise import Jumps, noise_of
from onnxopt.verification.programs.program import Program
from onnxopt.verification.programs.runner import Runner, is_stepped, shake_dequantized
from onnxopt.verification.programs.stream import Stream
from tests.samples import parsed
from tests.verification.pairs import with_constants

HEAD = "g (float[1, 16, 40, 40] x) => (float[1, 16, 38, 38] y)"
FIRST, LAST = "q = QuantizeLinear (x, sx, z)", "y = DequantizeLinear ({}, sz, z)"
FLOATS = f"""{HEAD} {{ {FIRST} d = DequantizeLinear (q, sx, z)
  w = DequantizeLinear <axis = 0> (wq, sw, zw) b = DequantizeLinear <axis = 0> (bq, sb)
  c = Conv (d, w, b) cq = QuantizeLinear (c, sy, z) e = DequantizeLinear (cq, sy, z)
  v = DequantizeLinear (vq, sv, z) f = Conv (e, v) fq = QuantizeLinear (f, sz, z) {LAST.format("fq")} }}"""
INTEGERS = f"""{HEAD} {{ {FIRST} k = QLinearConv (q, sx, z, wq, sw, zw, sy, z, bq)
  l = QLinearConv (k, sy, z, vq, sv, z, sz, z) {LAST.format("l")} }}"""


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    sx, sw = np.float32(0.0237), rng.uniform(0.003, 0.008, 16).astype(np.float32)
    return {
        "sx": sx,
        "sw": sw,
        "sb": sx * sw,
        "sy": np.float32(0.0471),
        "sv": np.float32(0.00613),
        "sz": np.float32(0.0377),
        "z": np.int8(0),
        "zw": np.zeros(16, np.int8),
        "wq": rng.integers(-127, 128, (16, 16, 3, 3)).astype(np.int8),
        "bq": rng.integers(-9000, 9000, 16).astype(np.int32),
        "vq": rng.integers(-127, 128, (16, 16, 1, 1)).astype(np.int8),
    }


def made(path: Path, text: str, **others: np.ndarray) -> Path:
    model = parsed(text)
    reads = {name for n in model.graph.node for name in n.input}
    found = {name: v for name, v in {**constants(), **others}.items() if name in reads}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in found.items())
    onnx.save(model, path)
    return path


def on_edges() -> dict[str, np.ndarray]:
    """Return constants with which one sum in 64 lies on the edge between two steps."""
    sx, sw = constants()["sx"], np.full(16, 0.0047, np.float32)
    return {"sw": sw, "sb": sx * sw, "sy": np.float32(np.float32(sx * sw[0]) * 64)}


@pytest.mark.parametrize(("wrong", "verdicts"), [(0, AGREES), (8, (DIFFERENT,)), (32, (DIFFERENT,))])
def test_integer_kernels_may_round_an_edge_to_either_side(
    wrong: int, verdicts: tuple[str, ...], tmp_path: Path
) -> None:
    """Sums on an edge may round to either step. A bias of one channel that is off by 1/8 step or 1/2 step is found."""
    bias = {"bq": constants()["bq"] + np.int32(wrong) * (np.arange(16) == 3)}
    a = made(tmp_path / "a.onnx", FLOATS, **on_edges())
    b = made(tmp_path / "b.onnx", INTEGERS, **on_edges(), **bias)
    found = verify(a, b)
    assert found.status in verdicts, found.message


def off(name: str) -> dict[str, np.ndarray]:
    """Return constants of which one is slightly wrong."""
    known = constants()
    step = known["sy"] / known["sb"]
    first = np.arange(16) == 3
    return {
        "bias": {"bq": (known["bq"] + first * step / 2).astype(np.int32)},
        "scale": {"sw": (known["sw"] * np.where(first, 1.01, 1.0)).astype(np.float32)},
        "weight": {"wq": known["wq"] + np.int8(3) * (np.arange(16 * 16 * 9).reshape(16, 16, 3, 3) == 700)},
        "zero point": {"zw": first.astype(np.int8)},
    }[name]


@pytest.mark.parametrize("name", ["bias", "scale", "weight", "zero point"])
def test_a_constant_off_by_less_than_a_step_is_found(name: str, tmp_path: Path) -> None:
    a, b = made(tmp_path / "a.onnx", FLOATS), made(tmp_path / "b.onnx", INTEGERS, **off(name))
    found = verify(a, b)
    assert found.status == DIFFERENT
    assert [p.value for p in found.places] == ["y"]


def test_a_jump_on_an_edge_excuses_no_other_number(tmp_path: Path) -> None:
    """All elements off by one step are "different", although some inputs are on an edge of the quantizer."""
    head = "g (float[1, 16, 200, 200] x) => (float[1, 16, 200, 200] y)"
    texts = [
        f"{head} {{ {q} = QuantizeLinear (x, sx, {z}) y = DequantizeLinear ({q}, sx, z) }}"
        for q, z in (("p", "z"), ("q", "o"))
    ]
    a, b = (made(tmp_path / f"{i}.onnx", text, o=np.int8(1)) for i, text in enumerate(texts))
    assert verify(a, b).status == DIFFERENT


def test_stepped_values_come_from_computed_integers(tmp_path: Path) -> None:
    text = FLOATS.replace("c = Conv", "t = Transpose (d) r = Relu (t) c = Conv").replace(
        "cq = ", "g = Add (d, d) cq = "
    )
    program = Program(Skeleton(made(tmp_path / "a.onnx", text)))
    assert {v for v in program.maker if is_stepped(program, v)} == {"d", "t", "r", "e", "y"}


@pytest.mark.parametrize(
    ("nodes", "is_step"),
    [
        ("d = Round (x) y = Mul (d, sx)", True),
        ("d = Floor (x) c = Clip (d, sx, sy) n = Neg (c) y = Div (n, sx)", True),
        ("d = Round (x) a = Add (d, sx) c = Clip (a, sx, sy) s = Sub (c, sx) y = Mul (s, sx)", True),
        ("d = Round (x) m = Mul (d, sx) y = Add (m, sy)", False),
        ("q = QuantizeLinear (x, sx, z) d = DequantizeLinear (q, sx, z) y = Add (d, sy)", False),
        ("d = Round (x) y = Mul (d, x)", False),
        ("d = Round (sx) y = Mul (d, sy)", False),
        ("d = Mul (x, sx) y = Sqrt (d)", False),
    ],
)
def test_rounded_and_scaled_values_are_stepped(nodes: str, is_step: bool, tmp_path: Path) -> None:
    program = Program(Skeleton(made(tmp_path / "a.onnx", f"{HEAD} {{ {nodes} }}")))
    assert is_stepped(program, "y") is is_step


@pytest.mark.parametrize(("factor", "verdicts"), [(42.333334, AGREES), (42.8, (DIFFERENT,))])
def test_a_step_rounded_to_the_other_side_in_float16(factor: float, verdicts: tuple[str, ...], tmp_path: Path) -> None:
    """Merged factors of a float16 quantizer of Round may move few elements by a step."""
    head = "g (float16[n, 16] x) => (float16[n, 16] y)"
    back, numbers = "y = Mul (r, s)", {"p": 127.0, "q": 1 / 3, "f": factor, "s": 3 / 127}
    constants = {name: np.float16(number) for name, number in numbers.items()}
    split = f"{head} {{ t = Tanh (x) u = Mul (t, p) v = Mul (u, q) r = Round (v) {back} }}"
    merged = f"{head} {{ t = Tanh (x) w = Mul (t, f) o = Round (w) {back.replace('(r', '(o')} }}"
    paths = [tmp_path / f"{k}.onnx" for k in (0, 1)]
    for path, text in zip(paths, (split, merged)):
        onnx.save(
            with_constants(text, {k: v for k, v in constants.items() if f"{k})" in text or f"{k} " in text}), path
        )
    found = verify(*paths)
    assert found.status in verdicts, found.message


def test_last_bits_of_a_quantized_weight_change_independently(tmp_path: Path) -> None:
    model = onnx.load(made(tmp_path / "a.onnx", FLOATS))
    rng = np.random.default_rng(0)
    shake_dequantized(model, lambda a: np.nextafter(a, np.where(rng.integers(0, 2, a.shape), 9, -9).astype(a.dtype)))
    factors = {n.output[0]: n.input[1] for n in model.graph.node if n.op_type == "Mul"}
    assert factors.keys() == {"w", "b", "v"}
    found = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == factors["w"])
    assert found.shape == (16, 16, 3, 3)
    assert ((found > 1) & (found < 1 + 2e-7)).sum() > 1000 < ((found < 1) & (found > 1 - 2e-7)).sum()
    onnx.checker.check_model(model)


@pytest.mark.parametrize(("wrong", "samples"), [(1, 16), (8 * 8, 6)])
def test_the_search_for_a_jump_ends_early(wrong: int, samples: int, tmp_path: Path) -> None:
    """The search for a last bit that explains a jump ends after `samples` samples.

    Each sample opens a session. A few elements are hard to meet; many would have been met at once.
    """
    text = HEAD.replace("16, 40, 40", "1, 8, 8").replace("16, 38, 38", "1, 8, 8")
    path = made(tmp_path / "a.onnx", f"{text} {{ {FIRST} y = DequantizeLinear (q, sx, z) }}")
    loaded: list[str] = []
    runner = Runner(Program(Skeleton(path)), tell=lambda state: loaded.append(state) if "loading" in state else None)
    x = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
    original = Stream(runner, [{"x": x}], {"x": "tensor(float)"})
    original.run(original.open([0, 1], ["q", "y"]))
    mine = original.values[0]["y"]
    theirs = mine.copy()
    theirs.reshape(-1)[:wrong] += 5 * constants()["sx"]
    loaded.clear()
    found = noise_of(original, ["y"], {"x"}, 0, unexplained={"y": [Jumps(mine, theirs, 1e-6)]})
    assert [d.unseen for d in found["y"]] == [True]
    assert len(loaded) == 2 + samples - 4, "the first four need two"


@pytest.mark.parametrize(("factor", "verdicts"), [(3e9, AGREES), (3.001e9, (DIFFERENT,))])
def test_integers_above_the_exact_range_of_floats(factor: float, verdicts: tuple[str, ...], tmp_path: Path) -> None:
    """A Cast of a float beyond its exact integers may differ by rounding.

    A few samples need not contain the same integer.
    """
    head = "g (float[n, 64] x) => (int64[n, 64] y)"
    one = f"{head} {{ t = Mul (x, p) u = Mul (t, q) v = Exp (u) w = Mul (v, f) y = Cast <to = 7> (w) }}"
    other = f"{head} {{ u = Mul (x, r) v = Exp (u) w = Mul (v, g) y = Cast <to = 7> (w) }}"
    constants = {"p": 0.7, "q": 0.3, "r": 0.7 * 0.3, "f": 3e9, "g": factor}
    for k, text in enumerate((one, other)):
        read = {name: np.float32(c) for name, c in constants.items() if f", {name})" in text}
        onnx.save(with_constants(text, read), tmp_path / f"{k}.onnx")
    found = verify(tmp_path / "0.onnx", tmp_path / "1.onnx")
    assert found.status in verdicts, found.message
