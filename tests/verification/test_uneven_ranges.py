"""Small numbers beside large ones, for example scores beside boxes, are compared relative to their own range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxopt.verification import Verification, VerifyOptions, verify
from tests.samples import parsed
from tests.verification.pairs import own_check, verdict, with_constants

CONSTANTS = {"k": 640, "near": 1.0003, "j": 0.1, "m": 0.2, "l": 0.3}
JOINED = "y = Concat <axis = 1> (q, r)"


def judge(tmp_path: Path, a: str, b: str, kind: str = "float", *, pieces: bool = False) -> Verification:
    dtype = np.float16 if kind == "float16" else np.float32
    constants = {name: np.array(number, dtype) for name, number in CONSTANTS.items()}
    head = f"g ({kind}[N, 4, 8] b, {kind}[N, 4, 8] s) => (y)"
    texts = (f"{head} {{ p = Sigmoid (b) q = Mul (p, k) {body} }}" for body in (a, b))
    both = (with_constants(text, constants) for text in texts)
    return verdict(tmp_path, *both, options=VerifyOptions(pieces=pieces))


@pytest.mark.parametrize(
    ("kind", "wrong", "end"),
    [
        ("float", "t = Mul (s, near) r = Sigmoid (t)", JOINED),
        ("float16", "t = Neg (s) r = Sigmoid (t)", JOINED),
        ("float", "t = Mul (s, near) r = Sigmoid (t)", "c = Concat <axis = 1> (q, r) y = Transpose (c)"),
        ("float16", "t = Neg (s) r = Sigmoid (t)", "c = Concat <axis = 1> (q, r) y = Cast <to = 1> (c)"),
    ],
    ids=["scaled", "half", "turned", "widened"],
)
def test_scores_beside_boxes_are_compared_by_their_own_range(kind: str, wrong: str, end: str, tmp_path: Path) -> None:
    v = judge(tmp_path, f"r = Sigmoid (s) {end}", f"{wrong} {end}", kind)
    assert v.status == "different", v.message
    assert v.places[0].value == "r"


def test_cancellation_beside_large_numbers_is_rounding(tmp_path: Path) -> None:
    terms = f"u = Mul (s, j) v = Mul (s, m) w = Mul (s, l) %s {JOINED}"
    v = judge(tmp_path, terms % "a = Add (u, v) r = Sub (a, w)", terms % "a = Sub (u, w) r = Add (a, v)")
    assert v.status == "verified in pieces", v.message


@pytest.mark.parametrize(
    ("a", "b", "end"),
    [
        ("t = Sin (s)", "i = Sin (s) t = Mul (i, k)", "h = Cast <to = 9> (t) r = Cast <to = 1> (h)"),
        ("t = Sin (s)", "i = Sin (s) t = Flatten (i)", "h = Flatten (t) o = Shape (s) r = Reshape (h, o)"),
    ],
    ids=["boolean", "shape"],
)
def test_relayed_values_may_be_stored_in_another_form(a: str, b: str, end: str, tmp_path: Path) -> None:
    v = judge(tmp_path, f"{a} {end} {JOINED}", f"{b} {end} {JOINED}", pieces=True)
    assert v.status == "verified in pieces", v.message


SMALL = 5


def product(path: Path, weights: list[np.ndarray], kind: str = "float16", body: str = "p = MatMul (x, w0)") -> Path:
    """Save y = Relu(p + b); p has 24 channels, of which one has 1/50 of the others' range."""
    text = f"({kind}[N, 16, 32] x) => ({kind}[N, 16, 24] y) {{ {body} t = Add (p, b) y = Relu (t) }}"
    model = parsed(f"g {text}")
    bias = np.linspace(-0.1, 0.1, 24)
    bias[SMALL] *= 0.02
    dtype = np.float16 if kind == "float16" else np.float32
    for name, array in [("b", bias), *((f"w{i}", w) for i, w in enumerate(weights))]:
        model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    onnx.save(model, path)
    return path


def weights() -> np.ndarray:
    found = np.random.default_rng(0).standard_normal((32, 24))
    found[:, SMALL] *= 0.02
    return found


def off_by(factor: float) -> np.ndarray:
    found = weights()
    found[:, SMALL] *= factor
    return found


@pytest.mark.parametrize("kind", ["float16", "float"])
@pytest.mark.parametrize(("factor", "status"), [(1.15, "different"), (1.02, "verified in pieces")])
def test_a_small_float16_channel_is_compared_by_its_own_range(
    kind: str, factor: float, status: str, tmp_path: Path
) -> None:
    a = product(tmp_path / "a.onnx", [weights()], kind)
    b = product(tmp_path / "b.onnx", [off_by(factor)])
    v = verify(a, b, VerifyOptions(dtype="" if kind == "float16" else "float16"))
    assert v.status == status, v.message
    assert [p.value for p in v.places] == (["p"] if status == "different" else [])
    assert all("of a row or channel" in p.record.note for p in v.places)


@pytest.mark.parametrize(("factor", "agrees"), [(1.01, False), (0.998, False), (1 + 1e-6, True)])
def test_a_channel_of_float32_beside_one_a_million_times_as_large(factor: float, agrees: bool, tmp_path: Path) -> None:
    large = off_by(50.0)
    large[:, 0] *= 1e6
    other = large.copy()
    other[:, SMALL] *= factor
    a, b = (product(tmp_path / f"{n}.onnx", [w], "float") for n, w in (("a", large), ("b", other)))
    v = verify(a, b)
    assert v.agrees is agrees, v.message
    assert [p.value for p in v.places] == ([] if agrees else ["p"])


@pytest.mark.parametrize(("kind", "times"), [("float16", 50.0), ("float", 1e5)])
def test_a_small_difference_of_two_large_channels_is_rounding(kind: str, times: float, tmp_path: Path) -> None:
    small, large = off_by(0.2), off_by(times)
    body = "u = MatMul (x, w0) v = MatMul (x, w1) p = Sub (u, v)"
    a = product(tmp_path / "a.onnx", [large, large - small], kind, body=body)
    b = product(tmp_path / "b.onnx", [small], kind)
    v = verify(a, b)
    assert v.status == "verified in pieces", v.message
    assert v.pieces is not None and v.pieces.noisy, "the channel differs by much of its own range"


@pytest.mark.parametrize(("factor", "status"), [(1.15, "different"), (1.02, "verified in pieces")])
def test_a_small_channel_in_another_order_of_axes(factor: float, status: str, tmp_path: Path) -> None:
    turned = (
        "q = MatMul (x, w0) p_turned = Transpose <perm = [2, 0, 1]> (q) r = Transpose <perm = [1, 2, 0]> (p_turned)"
    )
    a = product(tmp_path / "a.onnx", [weights()])
    b = product(tmp_path / "b.onnx", [off_by(factor)], body=f"{turned} p = Identity (r)")
    v = verify(a, b)
    assert v.status == status, v.message


def outlier(tmp_path: Path, largest: float, *texts: str) -> Verification:
    """Return the verdict on models with an outlier channel in `p`.

    One channel is `largest` times as large, is scaled back later, and an ArgMax of each row decides.
    """
    rng = np.random.default_rng(0)
    scale = np.ones(16, np.float32)
    scale[3] = largest
    wrong = np.ones(16, np.float32)
    wrong[8] = 1.01
    w, v = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    constants = {
        "scale": scale,
        "back": 1 / scale,
        "wrong": wrong,
        "w": w,
        "v": v,
        "ws": (w * scale).astype(np.float32),
    }
    head = "g (float[n, 6, 16] x) => (float[n, 6, 16] y)"
    end = "q = Mul (p, back) r = MatMul (q, v) a = ArgMax <axis = 2> (r) c = Cast <to = 1> (a) y = Add (r, c)"
    return verdict(tmp_path, *(with_constants(f"{head} {{ {text} {end} }}", constants) for text in texts))


@pytest.mark.parametrize("largest", [1e3, 1e5, 1e6])
def test_a_wrong_inner_channel_beside_an_outlier_is_found(largest: float, tmp_path: Path) -> None:
    """A channel off by 1 % beside an outlier is found.

    The difference is below the rounding of a channel 1e5 times as large, so each piece agreed.
    """
    right = "h = MatMul (x, w) p = Mul (h, scale)"
    v = outlier(tmp_path, largest, right, "i = MatMul (x, w) j = Mul (i, wrong) p = Mul (j, scale)")
    assert v.status == "different", v.message
    assert v.places[0].value == "p"
    v = outlier(tmp_path, largest, right, "p = MatMul (x, ws)")
    assert v.status in ("verified", "verified in pieces"), v.message


@pytest.mark.parametrize("first", ["n", "3"])
def test_a_small_channel_of_few_rows_is_run_on_more_rows(first: str, tmp_path: Path) -> None:
    """A wrong small channel is found on more rows.

    Changed last bits may move three numbers as far, and not those of many rows.
    """
    rng = np.random.default_rng(0)
    scale = np.array([1e4] * 7 + [1e-4], np.float32)
    wrong = np.array([1] * 7 + [1.5], np.float32)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    constants = {"w": w, "scale": scale, "ws": (w * scale).astype(np.float32)}
    constants["off"] = (constants["ws"] * wrong).astype(np.float32)
    head = f"g (float[{first}, 8] x) => (float[{first}, 8] y)"

    def check(b: str) -> Verification:
        texts = ("h = MatMul (x, w) y = Mul (h, scale)", b)
        return own_check(tmp_path, *(with_constants(f"{head} {{ {text} }}", constants) for text in texts))

    right, found = check("y = MatMul (x, ws)"), check("y = MatMul (x, off)")
    assert right.status in ("verified", "verified in pieces"), right.message
    assert (found.status == "different") is (first == "n"), found.message  # fixed sizes have no further rows
