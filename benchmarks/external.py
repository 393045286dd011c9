"""Weights beside a model: time and peak memory of each `--external`, beside `cp` and onnxruntime's offline optimizer.

    python benchmarks/external.py --gib 1
    python benchmarks/external.py --gib 20 --sparse

Every row is a process of its own, timed in turn `--runs` times; the table has medians, and ratios to `cp` of this run.
Sparse weights are holes but for 256 KiB at the head of each: what is measured then is what a tool reads and keeps.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

_WIDTH = 5120  # a weight has 100 MiB
_ORT = (
    "import sys, onnxruntime as rt; o = rt.SessionOptions(); o.optimized_model_filepath = sys.argv[2];"
    "o.graph_optimization_level = rt.GraphOptimizationLevel.ORT_ENABLE_BASIC;"
    "o.add_session_config_entry('session.optimized_model_external_initializers_file_name', 'out.data');"
    "rt.InferenceSession(sys.argv[1], o, providers=['CPUExecutionProvider'])"
)


def build(folder: Path, gib: float, sparse: bool) -> Path:
    """x through MatMul, Identity and Tanh, again and again; the weights in one file."""
    size = 4 * _WIDTH * _WIDTH
    layers = max(1, round(gib * (1 << 30) / size))
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    with open(folder / "weights.bin", "wb") as f:
        for i in range(layers):
            f.seek(i * size)
            f.write(rng.standard_normal((1 << 16) if sparse else _WIDTH * _WIDTH, np.float32).tobytes())
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[_WIDTH, _WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", "weights.bin"), ("offset", str(i * size)), ("length", str(size))):
                tensor.external_data.add(key=key, value=text)
            weights.append(tensor)
            for op, given, out in (
                ("MatMul", [value, f"w{i}"], "m"),
                ("Identity", [f"m{i}"], "i"),
                ("Tanh", [f"i{i}"], "v"),
            ):
                nodes.append(helper.make_node(op, given, [f"{out}{i}"]))
            value = f"v{i}"
        f.truncate(layers * size)
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", _WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


# Of a process of its own, small: what a child had of its parent's memory before it became another counts as its peak.
_WATCH = """
import os, sys, time
start = time.perf_counter()
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(child, 0)
print(time.perf_counter() - start, used.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def measured(command: list[str]) -> tuple[float, float, str]:
    """(seconds, peak resident MiB, why it failed)."""
    done = subprocess.run([sys.executable, "-S", "-c", _WATCH, *command], capture_output=True, text=True, check=True)
    seconds, peak, code = done.stdout.split()[-3:]
    unit = 1 if sys.platform == "darwin" else 1024
    why = "" if code == "0" else f"exit code {code}: {' '.join(done.stderr.split())[-60:]}"
    return float(seconds), int(peak) * unit / (1 << 20), why


def rows(source: Path, out: Path, verify: bool) -> dict[str, list[str]]:
    """The command of each row; `out` is empty before it, and beside the source for what refers to it."""
    onnxopt = [sys.executable, "-m", "onnxopt", "optimize", str(source)]
    more = [] if verify else ["--no-verify"]
    found = {"cp": ["cp", str(source.with_name("weights.bin")), str(out / "weights.bin")]}
    for external in ("reuse", "copy", "auto", "inline"):
        place = source.with_name("out.onnx") if external == "reuse" else out / "out.onnx"
        found[f"onnxopt --external {external}"] = [*onnxopt, str(place), "--external", external, "-q", *more]
    found["onnxruntime, offline"] = [sys.executable, "-c", _ORT, str(source), str(out / "out.onnx")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0], help="sizes of the weights")
    parser.add_argument("--sparse", action="store_true", help="holes for weights")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--verify", action="store_true", help="verify the results too")
    parser.add_argument(
        "--most-ort", type=float, default=4.0, help="GiB up to which onnxruntime, which loads all, is run"
    )
    parser.add_argument("--folder", type=Path, help="where to write: on the file system to be measured")
    given = parser.parse_args()
    for gib in given.gib:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            source = build(Path(folder), gib, given.sparse)
            out = Path(folder) / "out"
            took: dict[str, list[tuple[float, float, str]]] = {}
            for _ in range(given.runs):
                for name, command in rows(source, out, given.verify).items():
                    if "onnxruntime" in name and gib > given.most_ort:
                        continue
                    shutil.rmtree(out, ignore_errors=True)
                    out.mkdir()
                    took.setdefault(name, []).append(measured(command))
            _print(f"{gib:g} GiB of weights{', sparse' if given.sparse else ''}", took)


def _print(title: str, took: dict[str, list[tuple[float, float, str]]]) -> None:
    base = statistics.median(seconds for seconds, _, _ in took["cp"])
    print(f"{title:36} {'seconds':>9} {'of cp':>7} {'peak MiB':>9}")
    for name, runs in took.items():
        if failed := runs[0][2]:
            print(f"{name:36} {'-':>9} {'-':>7} {'-':>9}  {failed}")
            continue
        seconds, memory = (statistics.median(r[i] for r in runs) for i in (0, 1))
        print(f"{name:36} {seconds:9.2f} {seconds / base:7.2f} {memory:9.0f}")


if __name__ == "__main__":
    main()
