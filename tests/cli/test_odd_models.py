"""Unusual models through the installed command are optimized right, left alone, or refused with exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import AttributeProto, ModelProto, helper

from tests.cli.conftest import Run

NESTED = """
<ir_version: 8, opset_import: ["" : 17, "m" : 1]>
g (float[N] x, bool c) => (float[N] y) {
  k0 = Constant <value_float = 2.0> ()
  k1 = Constant <value_float = 2.0> ()
  yes = Constant <value = bool {1}> ()
  a = Mul (x, k0)
  y = If (c) <
    then_branch = t () => (float[N] t1) {
      t0 = If (yes) <
        then_branch = u () => (float[N] u1) {
          v = Add (a, k1)
          u1 = If (c) <
            then_branch = v () => (float[N] v1) { w = Mul (v, k1) v1 = OPERATOR (w) },
            else_branch = w () => (float[N] w1) { w1 = Sub (v, k1) }
          >
        },
        else_branch = z () => (float[N] z1) { z1 = Neg (a) }
      >
      t1 = Identity (t0)
    },
    else_branch = e () => (float[N] e1) { e1 = Abs (a) }
  >
}
"""


def write(folder: Path, model: str | ModelProto) -> Path:
    onnx.save(onnx.parser.parse_model(model) if isinstance(model, str) else model, folder / "m.onnx")
    return folder / "m.onnx"


def test_names_of_bodies_further_inside(run: Run, tmp_path: Path) -> None:
    done = run("optimize", write(tmp_path, NESTED.replace("OPERATOR", "Exp")), "out.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "✓" in done.stdout
    assert run("optimize", "out.onnx", "again.onnx").stdout.count("unchanged") == 1


def test_names_are_valid_in_an_unverified_result(run: Run, tmp_path: Path) -> None:
    done = run("optimize", write(tmp_path, NESTED.replace("OPERATOR", "m.Own")), "out.onnx")
    assert done.returncode == 0 and "not verified" in done.stdout
    assert run("stats", "out.onnx").returncode == 0, "every name is defined"
    assert "k1" not in {name for n in onnx.load(tmp_path / "out.onnx").graph.node for name in n.output}


@pytest.mark.parametrize(
    "text",
    [
        """<ir_version: 8, opset_import: ["" : 17]> g (float[3, 1, 5, 1] x) => (y)
        <int64[0] s = {}> { y = Squeeze (x, s) }""",
        '<ir_version: 8, opset_import: ["" : 10]> g (float[2] x) => (float[2] y, bool[2] m) { y, m = Dropout (x) }',
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (y)
        <int64[1] zero = {0}, int64[1] axis = {1}, int64 end = {4}> { y = Slice (x, zero, end, axis) }""",
    ],
    ids=["Squeeze of no axes", "an old Dropout", "Slice whose end is no vector"],
)
def test_models_that_runtimes_treat_differently_are_unchanged(run: Run, tmp_path: Path, text: str) -> None:
    done = run("optimize", write(tmp_path, text), "out.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_maps_are_compared_by_their_floats(run: Run, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "k"], ["q"]),
        helper.make_node("Softmax", ["q"], ["s"], axis=1),
        helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, [])))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 64])],
        [helper.make_value_info("y", kind)],
        [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(np.float32([0.3, 0.7, 1.1]), "k")],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    done = run("optimize", write(tmp_path, helper.make_model(graph, opset_imports=opsets, ir_version=8)), "out.onnx")
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout and "scale" in done.stdout


PLAIN = """
<ir_version: 8, opset_import: ["" : 17, "l" : 1]> graph_name (float[2] x, bool c) => (float[2] y)
<float[2] weight = {1, 2}>
{
  k = Constant <value_float = 2.0> ()
  a = Add (x, weight)
  b = l.function_name (a)
  d = If (c) <
    then_branch = body_name () => (float[2] inner_name) { inner_name = Relu (b) },
    else_branch = e () => (float[2] f) { f = Neg (b) }
  >
  y = Mul (d, k)
}
<domain: "l", opset_import: ["" : 17]> function_name (p) => (r) { q = Neg (p) r = Abs (q) }
"""
COMMANDS = [
    "optimize m.onnx out.onnx",
    "stats m.onnx",
    "find m.onnx Relu(x)",
    "report m.onnx m.onnx -o page.html",
    "partition m.onnx --ops Neg",
    "why m.onnx identity",
    "extract m.onnx out.onnx --outputs a",
    "bisect m.onnx",
    "verify m.onnx m.onnx",
    "bench m.onnx --runs 2",
]


def _opset(m: ModelProto) -> None:
    m.opset_import[0].version = 1 << 62


def _opset_below_zero(m: ModelProto) -> None:
    m.opset_import[0].version = -1


def _opset_of_a_function(m: ModelProto) -> None:
    m.functions[0].opset_import[0].version = 1 << 40


def _no_value(m: ModelProto) -> None:
    del m.graph.node[0].attribute[:]


def _value_of_another_kind(m: ModelProto) -> None:
    m.graph.node[0].attribute[0].type = AttributeProto.TENSOR


ONE = COMMANDS[:1]
BROKEN = [(c, change) for change in (_opset, _no_value) for c in COMMANDS[:8]]
BROKEN += [(c, change) for change in (_opset_below_zero, _opset_of_a_function, _value_of_another_kind) for c in ONE]
NAMES = ["weight", "function_name", "body_name", "inner_name"]


@pytest.mark.parametrize(("command", "change"), BROKEN)
def test_invalid_models_are_one_error_line(
    run: Run, tmp_path: Path, command: str, change: Callable[[ModelProto], None]
) -> None:
    proto = onnx.parser.parse_model(PLAIN)
    change(proto)
    write(tmp_path, proto)
    done = run(*command.split())
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: m.onnx: ") and done.stderr.count("\n") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def garble(folder: Path, name: str) -> None:
    data = onnx.parser.parse_model(PLAIN).SerializeToString()
    (folder / "m.onnx").write_bytes(data.replace(name.encode(), name.encode()[:-2] + b"\xff" + name.encode()[-1:]))


@pytest.mark.parametrize(
    ("command", "name"), [*((c, "graph_name") for c in COMMANDS[:8]), *((ONE[0], n) for n in NAMES)]
)
def test_names_that_are_not_utf8_are_refused(run: Run, tmp_path: Path, command: str, name: str) -> None:
    garble(tmp_path, name)
    done = run(*command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "not UTF-8" in done.stderr and done.stderr.count("\n") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("command", "name"),
    [*((c, n) for c in COMMANDS[8:] for n in ("graph_name", "function_name")), *((c, "then_branch") for c in COMMANDS)],
)
def test_unused_names_that_are_not_utf8_are_no_internal_error(
    run: Run, tmp_path: Path, command: str, name: str
) -> None:
    garble(tmp_path, name)
    done = run(*command.split())
    assert done.returncode in (0, 1, 2), done.stderr
    assert "internal error" not in done.stderr


TWICE = """
<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { r = Relu (x) y = Identity (r) z = OPERATOR (r) }
"""


@pytest.mark.parametrize("operator", ["Neg", "my.Own"])
@pytest.mark.parametrize(
    "command",
    [
        ["optimize", "m.onnx", "out.onnx"],
        ["optimize", "m.onnx", "out.onnx", "--dtype", "float16"],
        ["verify", "m.onnx", "m.onnx"],
        ["verify", "m.onnx", "m.onnx", "--pieces"],
        ["report", "m.onnx", "m.onnx", "-o", "r.html"],
        ["partition", "m.onnx", "--ops", "Relu", "--out-dir", "parts"],
        ["partition", "m.onnx", "--ops", "Relu", "--fuse", "out.onnx"],
    ],
)
def test_an_output_listed_twice_stays(run: Run, tmp_path: Path, command: list[str], operator: str) -> None:
    model = onnx.parser.parse_model(TWICE.replace("OPERATOR", operator))
    model.graph.output.append(model.graph.output[0])
    write(tmp_path, model)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    if (tmp_path / "out.onnx").exists():
        assert [o.name for o in onnx.load(tmp_path / "out.onnx").graph.output] == ["y", "z", "y"]
