"""Models made to crash, hang or exhaust a process are optimized, declined or refused, within seconds.

All runs have limits, so that a fault does not take the machine down.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import psutil
import pytest
from onnx import parser

from tests.cli.conftest import SCRIPT, Run, is_gone
from tests.cli.fork_server import ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits of a test")

HEAD = '<ir_version: 8, opset_import: ["" : 17, "d" : 1]>'
SECONDS = 60  # for runs of three seconds, on a busy machine
MEMORY = 2 << 30
FOLD = "d = Cast <to = 1> (c) y = Add (x, d)"
SMALLEST = "int64[1] low = {-9223372036854775808}, int64[1] minus = {-1}, int64 zero = {0}, int64[1] none = {0}"

CRASHING = {
    "kernel": "{ c = Mod (low, minus) " + FOLD + " }",
    "kernel_div": "{ c = Div (low, minus) " + FOLD + " }",
    "behind_a_runtime": "{ a = CumSum (low, zero) c = Div (a, minus) " + FOLD + " }",
}
GROWING = {
    "range": "<int64 a = {0}, int64 b = {35184372088832}, int64 s = {1}> "
    "{ r = Range (a, b, s) f = Cast <to = 1> (r) k = ReduceSum (f) y = Add (x, k) }",
    "concat": "<float[4] c0 = {1, 1, 1, 1}> { "
    + " ".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(45))
    + " k = ReduceSum (c45) y = Add (x, k) }",
    "reshape": "<int64[3] s = {65536, 65536, 4096}, int64[1] flat = {-1}> "
    "{ c = ConstantOfShape (s) r = Reshape (c, flat) d = Add (r, r) k = ReduceSum (d) y = Add (x, k) }",
    "one": "<int64[1] s = {4294967296}, int64 i = {3}> { c = ConstantOfShape (s) k = Gather (c, i) y = Add (x, k) }",
    "fills": "<int64[2] s = {16000, 4000}> { "
    + " ".join(f"c{i} = ConstantOfShape (s) e{i} = Exp (c{i}) k{i} = ReduceMax (e{i})" for i in range(40))
    + " k = Sum ("
    + ", ".join(f"k{i}" for i in range(40))
    + ") y = Add (x, k) }",
}
WORKING = {
    "matmul": ("<int64[2] s = {4500, 4500}> { c = ConstantOfShape (s) d = MatMul (c, c)", "operations"),
    "conv": (
        "<int64[4] s = {1, 8, 256, 256}, int64[4] f = {32, 8, 129, 129}> "
        "{ c = ConstantOfShape (s) w = ConstantOfShape (f) d = Conv <pads = [64, 64, 64, 64]> (c, w)",
        "operations",
    ),
    "memory": ("<int64[2] s = {9000, 9000}> { c = ConstantOfShape (s) d = MatMul (c, c)", "memory"),
}


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    def call(text: str) -> Path:
        onnx.save(parser.parse_model(f"{HEAD} g (float[n, 4] x) => (float[] y) {text}"), tmp_path / "m.onnx")
        return tmp_path / "m.onnx"

    return call


@pytest.fixture
def run(tmp_path: Path, fork_server: ForkServer | None) -> Run:
    """Return a function that runs the command in the test's folder, with limits of memory and time."""

    def call(*args: str | Path) -> subprocess.CompletedProcess[str]:
        assert fork_server is not None
        words, limits = [*map(str, args)], {resource.RLIMIT_DATA: MEMORY}
        found = fork_server.run(words, tmp_path, os.environ, limits=limits, seconds=SECONDS)
        assert "Traceback" not in found.stderr
        return found

    return call


Save = Callable[[str], Path]


@pytest.mark.parametrize("name", CRASHING)
def test_a_crash_is_declined_with_the_name_of_the_node(name: str, run: Run, save: Save) -> None:
    model = save(f"<{SMALLEST}> {CRASHING[name]}")
    found = run("optimize", model, "out.onnx", "--no-verify", "-v")
    assert found.returncode == 0, found.stderr
    declined = next(line for line in found.stdout.splitlines() if "fold declined" in line)
    assert "-> c" in declined, found.stdout
    assert run("stats", model).returncode == 0
    assert run("optimize", model, "again.onnx", "--quiet").returncode == 0


def test_a_constant_division_by_zero_crashes_no_command(run: Run, save: Save) -> None:
    """A constant division by zero crashes no command. Runtimes crash on the division, or return a number."""
    model = save(f"<{SMALLEST}> {{ a = CumSum (none, zero) c = Div (minus, a) {FOLD} }}")
    found = run("optimize", model, "out.onnx")
    assert found.returncode == 0, found.stderr
    assert any(word in found.stdout for word in ("equal", "unchanged", "not verified")), found.stdout


@pytest.mark.parametrize("name", GROWING)
def test_inference_and_folding_keep_within_memory(name: str, run: Run, save: Save) -> None:
    model = save(GROWING[name])
    found = run("optimize", model, "out.onnx", "--no-verify")
    assert found.returncode == 0, found.stderr
    assert run("stats", model).returncode == 0


def test_a_slice_with_the_largest_step(run: Run, save: Save) -> None:
    """A Slice with the largest step is optimized. onnx's own data propagation crashes on the step."""
    model = save(f"""<{SMALLEST},
    int64[1] start = {{0}}, int64[1] end = {{3}}, int64[1] step = {{9223372036854775807}}, int64[1] axis = {{0}}>
    {{ a = Shape (x) c = Slice (a, start, end, axis, step) {FOLD} }}""")
    found = run("optimize", model, "out.onnx")
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("squared", [True, False])
def test_powers_of_sums_of_sizes_stay_unknown(squared: bool, run: Run, tmp_path: Path) -> None:
    """High powers of a sum of dims stay unknown sizes: their terms would not fit into memory."""
    powers = " ".join(f"m{i + 1} = Mul (m{i}, {f'm{i}' if squared else 'm0'})" for i in range(60))
    text = f"""{HEAD} g (float[a, b, c, d] x) => (float[] y) <int64 i = {{0}}, int64 j = {{1}}, int64 k = {{2}}>
    {{ s = Shape (x) si = Gather (s, i) sj = Gather (s, j) sk = Gather (s, k) t = Add (si, sj) m0 = Add (t, sk)
    {powers} f = Cast <to = 1> (m60) y = Add (x, f) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    found = run("optimize", "m.onnx", "out.onnx", "--no-verify")
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", WORKING)
def test_a_fold_is_bounded_by_its_work(name: str, run: Run, save: Save) -> None:
    text, what = WORKING[name]
    found = run("optimize", save(f"{text} k = ReduceSum (d) y = Add (x, k) }}"), "out.onnx", "--no-verify", "-v")
    assert found.returncode == 0, found.stderr
    assert f"takes too m{'uch' if what == 'memory' else 'any'} {what} to compute" in found.stdout
    assert "-> d" in found.stdout


def test_a_composition_of_weights_is_bounded_by_its_work(run: Run, tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[n, 4000] x) => (float[n, 4000] y) <int64[2] s = {{4000, 4000}}>
    {{ v = ConstantOfShape (s) a = MatMul (x, v) y = MatMul (a, v) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    found = run("optimize", "m.onnx", "out.onnx", "--no-verify", "-O3", "-v")
    assert found.returncode == 0, found.stderr
    assert "composing the weights takes too many multiplications" in found.stdout


def test_a_fold_that_takes_too_long_in_the_runtime_is_left_out(run: Run, save: Save) -> None:
    model = save("<int64[2] s = {2500, 2500}> { c = ConstantOfShape (s) d = MatMul (c, c) k = ReduceSum (d) "
                 "y = Add (x, k) }")  # fmt: skip
    found = run("optimize", model, "out.onnx", "--no-verify", "-v", "--work", "0.01")
    assert found.returncode == 0, found.stderr
    assert "the runtime took more than 0.01 s (--work)" in found.stdout


FUNCTION = '<domain: "d", opset_import: ["" : 17, "d" : 1]> f%d (a) => (b) { %s }'


def laugh(count: int, body: str) -> str:
    functions = [FUNCTION % (0, "b = Relu (a)"), *(FUNCTION % (i, body % (i - 1, i - 1)) for i in range(1, count))]
    return f"{HEAD} g (float[n, 4] x) => (float[] y) {{ y = d.f{count - 1} (x) }} " + " ".join(functions)


@pytest.mark.parametrize(
    "command",
    [
        ("optimize", "m.onnx", "out.onnx"),
        ("optimize", "m.onnx", "out.onnx", "--no-verify", "--inline-functions"),
        ("stats", "m.onnx"),
        ("verify", "m.onnx", "m.onnx"),
        ("bench", "m.onnx"),
        ("bisect", "m.onnx"),
    ],
    ids=" ".join,
)
def test_functions_that_expand_exponentially_are_refused(command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(laugh(31, "t = d.f%d (a) b = d.f%d (t)")), tmp_path / "m.onnx")
    found = run(*command)
    assert found.returncode == 2
    assert "function d::f19 stands for 1,572,862 nodes, more than 1,000,000" in found.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_recursive_and_too_deep_functions_are_refused(run: Run, tmp_path: Path) -> None:
    model = parser.parse_model(laugh(200, "t = d.f%d (a) b = Add (t, a) c%d = Neg (t)"))
    onnx.save(model, tmp_path / "m.onnx")
    found = run("optimize", "m.onnx", "out.onnx")
    assert (found.returncode, "calls others 101 deep" in found.stderr) == (2, True), found.stderr
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "f199", "d"
    onnx.save(model, tmp_path / "m.onnx")
    found = run("optimize", "m.onnx", "out.onnx")
    assert (found.returncode, "calls itself" in found.stderr) == (2, True), found.stderr


def test_too_large_inputs_are_not_made(run: Run, tmp_path: Path) -> None:
    text = f"{HEAD} g (float[50000, 50000] x) => (float[] y) {{ r = Relu (x) y = Relu (r) }}"
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    found = run("optimize", "m.onnx", "out.onnx")
    assert found.returncode == 0, found.stderr
    assert "not verified: the original asks for inputs of 9.3 GiB" in found.stdout


def test_verification_keeps_within_its_memory(run: Run, tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[1] x) => (float[] y) <int64[2] n = {{10000, 10000}}>
    {{ e = Expand (x, n) r = Relu (e) s = Relu (r) y = ReduceMax <keepdims = 0> (s) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    found = run("optimize", "m.onnx", "out.onnx", "--memory", "700M")
    assert found.returncode == 0, found.stderr
    assert "not verified" in found.stdout
    assert "it takes more memory than it may (--memory)" in found.stdout
    assert "at least 0.7 GiB" in found.stdout, "shapes say so"
    assert "equal" in run("optimize", "m.onnx", "out.onnx", "--memory", "3G").stdout


def test_a_weight_larger_than_the_verification_memory(run: Run, tmp_path: Path) -> None:
    """A weight larger than --verify-memory makes the result unverified.

    Segments keep within this limit, and --memory does not change it.
    """
    text = f"{HEAD} g (int64[3] i) => (float[3, 100] y) {{ j = Identity (i) a = Gather (w, j) y = Neg (a) }}"
    model = parser.parse_model(text)
    rows = 1_000_000
    weight = model.graph.initializer.add(name="w", data_type=1, dims=[rows, 100], data_location=1)
    weight.external_data.add(key="location", value="w.bin")
    onnx.save(model, tmp_path / "m.onnx")
    with open(tmp_path / "w.bin", "wb") as f:
        f.truncate(400 * rows)
    found = run("optimize", "m.onnx", "out.onnx", "--external", "reuse", "--verify-memory", "200M")
    assert found.returncode == 0, found.stderr
    assert "not verified" in found.stdout
    assert "it takes more memory than it is planned with (--verify-memory)" in found.stdout
    found = run("verify", "m.onnx", "out.onnx", "--verify-memory", "200M", "--cases", "random")
    assert found.stdout.splitlines()[-1].strip() == "raise --verify-memory"
    assert "✓" in run("verify", "m.onnx", "out.onnx", "--verify-memory", "2G", "--memory", "8G", "-q").stdout


# -- end of a command -------------------------------------------------------------------------------------

BUSY = (
    "<int64[2] s = {6000, 6000}> { c0 = ConstantOfShape (s) "
    + " ".join(f"c{i + 1} = MatMul (c{i}, c{i})" for i in range(4))
    + " k = ReduceSum (c4) y = Add (x, k) }"
)
LONG = (
    f"{HEAD} g (float[2, 4] x) => (float[] y) <int64[2] s = {{4000, 4000}}> "
    "{ z = ReduceSum <keepdims = 0> (x) e = Expand (z, s) c0 = Identity (e) "
    + " ".join(f"c{i + 1} = MatMul (c{i}, c{i})" for i in range(30))
    + " y = ReduceSum (c30) }"
)


class Started:
    """A running command, and its computing child."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [SCRIPT, *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until_busy(self) -> psutil.Process:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children():
                if child.cpu_times().user > 1 or (child.num_threads() > 1 and child.cpu_percent(0.2) > 50):
                    return child
            time.sleep(0.02)
        raise AssertionError("no child computes")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    running: list[Started] = []

    def call(*args: str) -> Started:
        running.append(Started(tmp_path, *args))
        return running[-1]

    yield call
    for started in running:
        started.process.kill()
        started.process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_folding_is_ended_at_once(stop: signal.Signals, start: Callable[..., Started], save: Save) -> None:
    save(BUSY)
    more = [("constant-folding.max-work", 4 << 30), ("constant-folding.max-operations", 1 << 50)]
    given = [word for key, value in more for word in ("--config", f"{key}={value}")]
    started = start("optimize", "m.onnx", "out.onnx", "--no-verify", "--work", "300", *given)
    child = started.until_busy()
    began = time.monotonic()
    os.kill(started.process.pid, stop)
    _, said = started.process.communicate(timeout=SECONDS)
    assert started.process.returncode == 130
    error, hint = said.splitlines()[-2:]
    assert error.startswith("error: interrupted in pass constant-folding on m.onnx: main"), error
    assert hint == "hint: no file is half-written"
    assert time.monotonic() - began < 5
    assert is_gone(child)


@pytest.mark.parametrize(
    "command", [("optimize", "m.onnx", "out.onnx"), ("verify", "m.onnx", "m.onnx"), ("bench", "m.onnx")], ids=" ".join
)
def test_a_command_that_runs_a_model_ends_at_once(
    command: tuple[str, ...], start: Callable[..., Started], tmp_path: Path
) -> None:
    onnx.save(parser.parse_model(LONG), tmp_path / "m.onnx")
    started = start(*command)
    child = started.until_busy()
    began = time.monotonic()
    os.kill(started.process.pid, signal.SIGTERM)
    assert started.process.wait(SECONDS) == 130
    assert time.monotonic() - began < 5
    assert is_gone(child)
    assert [p.name for p in tmp_path.iterdir() if p.name != ".ses"] == ["m.onnx"]


def test_a_busy_worker_does_not_outlive_its_parent(start: Callable[..., Started], tmp_path: Path) -> None:
    """A busy worker ends with its killed parent, although it computes and reads no message."""
    onnx.save(parser.parse_model(LONG), tmp_path / "m.onnx")
    started = start("optimize", "m.onnx", "out.onnx")
    child = started.until_busy()
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    assert is_gone(child)


THREAD = """
import os, threading, time
from onnxopt.worker.process import Worker
started = []
thread = threading.Thread(target=lambda: started.append(Worker("import time; time.sleep(600)")))
thread.start()
thread.join()
time.sleep(1)  # the worker does not end with the thread that started it
print(started[0]._process.poll(), started[0]._process.pid, flush=True)
time.sleep(600)
"""


def test_a_worker_of_another_thread_ends_with_the_process() -> None:
    parent = subprocess.Popen([sys.executable, "-c", THREAD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    code, worker = parent.stdout.readline().split()
    assert code == "None"
    process = psutil.Process(int(worker))
    parent.kill()
    parent.communicate()
    assert is_gone(process)
