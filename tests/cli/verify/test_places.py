"""The first differences of two models: `onnxopt verify` names the places, and compares pieces on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.cli.conftest import Run
from tests.cli.verify.conftest import BATCH, CHAIN, VECTOR, compare


def test_a_difference_names_its_place(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "<float k = {2}>" + CHAIN)
    write("b.onnx", BATCH, "<float k = {2.5}>" + CHAIN)
    code, found = compare(run, "--cases", "random")
    assert code == 1
    (place,) = found["places"]
    assert (place["value"], place["entries"], place["case"]) == ("r", ["q"], "random")
    assert [n["op"] for n in place["a"]] == [n["op"] for n in place["b"]] == ["Mul"]
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random")
    assert "it goes wrong at `r`\n  at `r`: differs by 2.5e-01 of its range, rounding alone by " in r.stdout
    assert "    original  Mul(q, k)\n    result    Mul(q, k)\n    from      q, which agrees\n" in r.stdout


def test_two_places_are_two(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "<float k = {2}>" + CHAIN)
    write(
        "b.onnx",
        BATCH,
        "<float k = {2}>"
        + CHAIN.replace("Neg (x) q = Sin (p)", "Abs (x) i = Identity (p) q = Sin (i)").replace("Add", "Sub"),
    )
    _, found = compare(run, "--cases", "random")
    assert [(p["value"], p["entries"]) for p in found["places"]] == [("p", ["x"]), ("s", ["r", "x"])]


def test_pieces_are_compared_on_request(run: Run, write: Any) -> None:
    """With --pieces, a difference without effect on the outputs is no place: it was moved on purpose."""
    nodes = " ".join(f"v{i + 1} = {'Sin' if i % 2 else 'Cos'} (v{i})" for i in range(150))
    for name, k in (("a.onnx", 1), ("b.onnx", 2)):
        body = f"<float k = {{{k}}}, float z = {{0}}> {{ v0 = Abs (x) {nodes} w = Mul (v150, k) u = Mul (w, z)"
        write(name, BATCH, body + " y = Add (u, x) }")
    code, found = compare(run, "--pieces", "--cases", "random")
    assert (code, found["status"], found["places"]) == (0, "verified in pieces", [])
    assert (found["pieces"]["cuts"], found["pieces"]["shared"]) == (153, 154)
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random", "--pieces")
    assert "pieces: 153 of 154 shared values agree (151 made by the same nodes" in r.stdout
    assert compare(run, "--cases", "random")[1]["status"] == "equal"


def test_external_data_beside_the_model_are_read(run: Run, write: Any, tmp_path: Path) -> None:
    for name, k in (("a", 1.0), ("b", 2.0)):
        write(f"{name}.onnx", BATCH, "{ p = Mul (x, k) y = Sin (p) }")
        model = onnx.load(tmp_path / f"{name}.onnx")
        model.graph.initializer.append(numpy_helper.from_array(np.full(4, k, np.float32), "k"))
        onnx.save(
            model, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.bin", size_threshold=0
        )
    code, found = compare(run)
    assert (code, [p["value"] for p in found["places"]]) == (1, ["p"])
    (tmp_path / "b.bin").unlink()
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 2
    assert "the data file b.bin of `k` is missing" in r.stderr


def test_random_models_are_compared_in_pieces(run: Run, write: Any) -> None:
    """Random models are compared in pieces. Both get the same draws of a shared random node."""
    write("a.onnx", VECTOR, "{ r = RandomNormalLike (x) y = Add (x, r) }")
    write("b.onnx", VECTOR, "{ r = RandomNormalLike (x) i = Identity (r) y = Add (i, x) }")
    assert compare(run)[1]["status"] == "verified in pieces"
    write("b.onnx", VECTOR, "{ r = RandomUniformLike (x) y = Add (x, r) }")
    code, found = compare(run)
    assert (code, [p["value"] for p in found["places"]]) == (1, ["r"])


def test_rounding_noise_is_reported_and_fails_when_strict(run: Run, write: Any) -> None:
    """A difference within noise is reported, and fails with --strict.

    The difference exceeds the roundings of one node, and is below the effect of the last bits of x.
    """
    body = "<float g = {{300}}, float k = {{{}}}>{{ a = Mul (x, g) s = Sin (a) y = Mul (s, k) }}"
    write("a.onnx", BATCH, body.format(3))
    write("b.onnx", BATCH, body.format(3 * (1 + 1.2e-6)))
    r = run("verify", "a.onnx", "b.onnx", "--pieces", "--cases", "random")
    assert r.returncode == 0
    assert "? within rounding noise: it differs by 1.2e-06 of the range of `y`" in r.stdout
    assert "\n  at `y`: differs by 1.2e-06 of its range, rounding alone by " in r.stdout
    assert run("verify", "a.onnx", "b.onnx", "--pieces", "--cases", "random", "--strict").returncode == 1


def test_another_shape_is_no_matter_of_rounding(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "{ n = Neg (x) y = Identity (n) }")
    write("b.onnx", BATCH, "{ n = Neg (x) y = Transpose (n) }")
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random")
    assert r.returncode == 1
    place = next(line for line in r.stdout.splitlines() if line.startswith("  at `y`"))
    assert " became " in place
    assert "rounding" not in place
