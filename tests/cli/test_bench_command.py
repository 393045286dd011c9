"""`onnxopt bench` as users call it: it measures; the times are not asserted."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxopt.comparison.latency import BenchOptions, bench, order, ratio, summed
from tests.cli.conftest import Run

QUICK = ("--runs", "8")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Write models: one square MatMul, twenty, one that never ends, one that fails. Return the folder."""
    bodies = {
        "one": "{ y = MatMul (x, x) }",
        "twenty": "{ " + " ".join(f"v{i + 1} = MatMul (v{i}, x)" for i in range(19)) + " y = MatMul (v19, x) }",
        "endless": "<int64 n = {4611686018427387904}, bool c = {1}> { y = Loop (n, c, x) <body = b (int64 i, bool p,"
        " float[N, N] s) => (bool q, float[N, N] t) { q = Identity (p) t = Neg (s) }> }",
        "fails": "<int64[1] n = {3}> { y = Reshape (x, n) }",
    }
    bodies["twenty"] = bodies["twenty"].replace("(v0", "(x")
    for name, body in bodies.items():
        text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, N] x) => (float[N, N] y) {body}'
        onnx.save(parser.parse_model(text), tmp_path / f"{name}.onnx")
    return tmp_path


def measure(run: Run, *args: str) -> dict[str, Any]:
    r = run("bench", *args, "--format", "json")
    assert r.returncode == 0, r.stdout + r.stderr
    found: dict[str, Any] = json.loads(r.stdout)
    return found


def test_one_model(run: Run, models: Path) -> None:
    found = measure(run, "one.onnx", *QUICK, "--threads", "1", "--level", "basic", "--dim", "N=16")
    (latency,) = found["files"]
    assert 0 < latency["p10"] <= latency["median"] <= latency["p90"]
    settings = [found[key] for key in ("runs", "threads", "level", "provider", "dims", "failure")]
    assert found["openings"] == 8
    assert settings == [8, 1, "basic", "CPUExecutionProvider", {"N": 16}, ""]
    assert found["ratios"] == []


def test_the_model_with_more_to_do_is_slower(run: Run, models: Path) -> None:
    found = measure(run, "one.onnx", "twenty.onnx", "--runs", "60", "--dim", "N=128", "--threads", "1")
    (r,) = found["ratios"]
    assert r["low"] <= r["value"] <= r["high"]
    assert (r["verdict"], r["value"] > 2) == ("slower", True)


def test_plain_lines(run: Run, models: Path) -> None:
    r = run("bench", "one.onnx", "one.onnx", "--seconds", "0.2", "--dim", "N=8")
    assert r.returncode == 0, r.stderr
    first, second, ratio_line, operators, conditions = r.stdout.splitlines()
    assert re.match(r"A one.onnx: median 0\.\d+ \(95 %: 0\.\d+ to 0\.\d+\) ms, p10 0\.\d+, p90 0\.", first)
    assert re.fullmatch(r"  MatMul {20}A +0\.\d+ ms in     1  B +0\.\d+ ms in     1", operators)
    assert second.startswith("B one.onnx: median 0.")
    assert ratio_line.startswith("B / A: ")
    assert conditions.endswith(
        " runs in 10 openings, threads as onnxruntime chooses, optimizations all, CPUExecutionProvider, N=8"
    )


def test_where_the_time_goes(run: Run, models: Path) -> None:
    found = measure(run, "one.onnx", "twenty.onnx", *QUICK, "--dim", "N=64", "--threads", "1", "--clock", "processor")
    assert (found["clock"], found["threads"]) == ("processor", 1)
    (row,) = found["operators"]
    assert (row["operator"], row["nodes"]) == ("MatMul", [1, 20])
    for latency, seconds in zip(found["files"], row["seconds"]):
        assert 0 < seconds <= latency["median"]
        assert latency["low"] <= latency["median"] <= latency["high"]
    assert bench([models / "one.onnx"], BenchOptions(runs=2)).operators == []


def test_operators_of_bodies_count_as_often_as_they_run(tmp_path: Path) -> None:
    """Operators of a body count once for each iteration. The time of a Loop is without theirs."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) <int64 n = {3}, bool c = {1}> '
        "{ z = Neg (x) y = Loop (n, c, z) <body = b (int64 i, bool p, float[N] s) => (bool q, float[N] t) "
        "{ q = Identity (p) t = Abs (s) }> }"
    )
    onnx.save(parser.parse_model(text), tmp_path / "loop.onnx")
    found = bench([tmp_path / "loop.onnx"], BenchOptions(runs=2, operators=True))
    assert {row.operator: row.nodes for row in found.operators} == {
        "Neg": [1],
        "Loop": [1],
        "Abs": [3],
        "Identity": [3],
    }
    assert sum(row.seconds[0] for row in found.operators) <= found.files[0].median


def event(name: str, start: int, length: int, operator: str = "") -> dict[str, Any]:
    args = {"op_name": operator} if operator else {}
    return {"cat": "Node" if operator else "Session", "name": name, "ts": start, "dur": length, "args": args}


def test_the_first_run_of_a_profile_does_not_count() -> None:
    events = [event("session_initialization", 0, 500)]
    for start, length in ((1000, 800), (2000, 100), (3000, 100)):
        events += [
            event("a_kernel_time", start + 10, length // 2, "Loop"),
            event("b_kernel_time", start + 20, length // 5, "Add"),
            event("model_run", start, length),
        ]
    assert summed(events) == {"Loop": (pytest.approx(0.3), 1), "Add": (pytest.approx(0.2), 1)}


def test_a_given_input_decides_the_sizes(run: Run, models: Path) -> None:
    np.save(models / "x.npy", np.ones((5, 5), np.float32))
    assert measure(run, "one.onnx", *QUICK, "--input", "x=x.npy")["dims"] == {"N": 5}


@pytest.mark.parametrize(
    ("body", "size"),
    [
        (
            "float[1, 1, length] x) => (float[1, 1, frames] y) <float[1,1,400] w> { y = Conv <strides=[320]> (x, w) }",
            16_000,
        ),
        ("float[length, 8] x) => (float[7, 4, 2] y) <int64[3] s = {7, 4, 2}> { y = Reshape (x, s) }", 7),
    ],
)
def test_sizes_needed_by_a_model_are_found(tmp_path: Path, body: str, size: int) -> None:
    """Sizes needed by a large window, or by a number in a Reshape, are found."""
    path = tmp_path / "model.onnx"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({body}')
    if "w>" in body:
        model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 400), np.float32), "w"))
    onnx.save(model, path)
    found = bench([path], BenchOptions(runs=2))
    assert (found.failure, found.dims) == ("", {"length": size})


def test_a_failed_measurement_is_reported(run: Run, models: Path) -> None:
    r = run("bench", "one.onnx", "endless.onnx", *QUICK, "--timeout", "1")
    assert r.returncode == 1
    assert r.stdout == "✗ not measured: onnxruntime did not finish within 1 s (--timeout) running B\n"
    r = run("bench", "one.onnx", "fails.onnx", *QUICK)
    assert r.returncode == 1
    assert r.stdout.startswith("✗ not measured: B fails: ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["absent.onnx"], "absent.onnx: no such file"),
        (["one.onnx", "--dim", "M=3"], "no input of the model has a dynamic dim 'M'"),
        (["one.onnx", "--provider", "none"], "no execution provider 'none'"),
        (["one.onnx", "--runs", "3", "--seconds", "1"], "--runs contradicts --seconds"),
        (["one.onnx", "--level", "most"], "'most' is not one of"),
        (["one.onnx", "--clock", "sun"], "'sun' is not one of"),
        (["one.onnx", "--clock", "processor"], "the processor's clock sees one thread\nhint: --threads 1"),
    ],
)
def test_wrong_usage(args: list[str], says: str, run: Run, models: Path) -> None:
    r = run("bench", *args)
    assert r.returncode == 2
    assert says in r.stderr


def test_help_has_examples(run: Run) -> None:
    assert "onnxopt bench model.onnx model.opt.onnx --threads 1" in run("bench", "--help").stdout


RNG = np.random.default_rng(1)


def openings(count: int, factor: float, bias: float = 0.0) -> list[tuple[Any, Any]]:
    """Return times of A and B for each opening, with ratio `factor`, off by up to about `bias` per opening."""
    found = []
    for _ in range(count):
        a, b = RNG.uniform(0.9, 1.1, (2, 200))
        found.append((a, b * factor * np.exp(RNG.normal(0, bias))))
    return found


def test_the_ratio_and_its_verdict() -> None:
    faster = ratio(openings(10, 0.5))
    assert (faster.verdict, faster.value) == ("faster", pytest.approx(0.5, rel=0.02))
    assert ratio(openings(10, 1)).verdict == "same"
    assert ratio(openings(10, 2)).verdict == "slower"
    alone = ratio(openings(1, 2))
    assert (alone.low, alone.high, alone.verdict) == (None, None, "same")


def test_the_interval_has_its_confidence_for_biased_openings() -> None:
    """The interval contains the ratio in 90 to 99 % of experiments although openings are biased.

    Runs of one opening say little about the next: an interval over runs would contain it far less often than in 95 %.
    """
    found = [ratio(openings(10, 1, bias=0.02)) for _ in range(300)]
    held = sum(r.low is not None and r.high is not None and r.low <= 1 <= r.high for r in found)
    assert 270 <= held <= 298


def test_disturbed_openings_do_not_decide() -> None:
    quiet = openings(8, 1, bias=0.005)
    disturbed = ratio([*quiet, *openings(2, 5)])
    assert disturbed.value == pytest.approx(1, rel=0.02)
    assert disturbed.verdict == "same"


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_model_runs_equally_often_in_each_place(count: int) -> None:
    places = Counter((file, place) for i in range(2 * count) for place, file in enumerate(order(count, i)))
    assert set(places.values()) == {2}
    assert len(places) == count * count
