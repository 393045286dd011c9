"""`optimize --dtype`, `--outputs`, `--inputs`, `--stats`, and their messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from tests.cli.conftest import Run
from tests.cli.test_extract import heavy  # noqa: F401 - a fixture
from tests.verification.test_narrow_results import products


def test_float16_with_statistics(run: Run, samples: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    env = {"GITHUB_STEP_SUMMARY": str(summary)}
    done = run("optimize", samples / "residual_block.onnx", "out.onnx", "--dtype", "float16", "--stats", **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "convert-dtype" in done.stdout
    assert "verified in pieces" in done.stdout
    assert "BatchNormalization" in done.stdout
    assert "float16" in done.stdout
    assert "<details><summary>what changed in out.onnx</summary>" in summary.read_text()
    assert "| BatchNormalization |" in summary.read_text()


def test_overflowing_values_stay_float32_and_are_named(run: Run, tmp_path: Path) -> None:
    onnx.save(products([4.0, 1e4, 1e-4]), tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "out.onnx", "--dtype", "float16")
    assert done.returncode == 3
    assert "warning: value `p1` stays float32: it overflows the narrower type\nhint: --disable " in done.stderr
    assert "report it" not in done.stderr
    again = run("optimize", "model.onnx", "again.onnx", "--dtype", "float16", "--disable", "convert-dtype@p1")
    assert again.returncode in (0, 3)


def test_too_small_values_stay_float32_all_at_once(run: Run, tmp_path: Path) -> None:
    """Values too small for float16 stay float32, found all at once.

    One at a time, each would need a result of its own.
    """
    onnx.save(products([*[1e-2] * 5, *[1e2] * 3]), tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "out.onnx", "--dtype", "float16", "--report", "report.json")
    assert done.returncode == 3
    assert "4 values stay float32: each of `p2`, `p3`, `p4` and 1 more " in done.stderr
    assert "and 1 more is too small for the narrower type\n" in done.stderr
    assert "✓" in done.stdout
    left_out = {r["value"] for r in json.loads((tmp_path / "report.json").read_text())["rolled_back"]}
    assert left_out <= {"p2", "p3", "p4", "p5"}
    assert run("optimize", "model.onnx", "out.onnx", "--dtype", "bfloat16").returncode == 0, (
        "it holds what float32 does"
    )


def test_outputs_are_dropped_and_inputs_cut(run: Run, samples: Path, tmp_path: Path) -> None:
    model = samples / "residual_block.onnx"
    done = run("optimize", model, "out.onnx", "--inputs", "r1", "--outputs", "n2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "9 → 1 node (" in done.stdout
    assert "verified" in done.stdout
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert ([i.name for i in graph.input], [o.name for o in graph.output]) == (["r1"], ["n2"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.onnx"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["OUT", "--outputs", "n22"], "hint: did you mean n2"),
        (["OUT", "--inputs", "r1"], "also needs the graph input"),
        (["--out-dir", "DIR", "--outputs", "n2"], "--inputs and --outputs are for IN OUT"),
        (["OUT", "--outputs", "n2", "--external", "reuse"], "--external reuse contradicts"),
        (["OUT", "--dtype", "float8"], "'float8' is not one of"),
    ],
)
def test_wrong_usage(run: Run, samples: Path, args: list[str], message: str) -> None:
    done = run("optimize", samples / "residual_block.onnx", *args)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_shell_completes_values_of_the_first_model(run: Run, samples: Path) -> None:
    words = f"onnxopt optimize {samples / 'residual_block.onnx'} out.onnx --outputs n"
    done = run(_ONNXOPT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="5")
    assert "n2" in done.stdout


def test_sizes_count_the_weights_beside_the_model(run: Run, heavy: Path, tmp_path: Path) -> None:  # noqa: F811
    done = run("optimize", heavy, "out.onnx", "-O1", "--fail-if", "bytes_before < 4800")
    total = sum(f.stat().st_size for f in heavy.parent.iterdir())
    assert total > 4800  # size of the weights
    assert done.returncode == 0, done.stderr
    assert f"{total / 1024:.1f} KiB" in done.stdout


def test_a_dim_of_minus_one_counts_as_dynamic(run: Run, tmp_path: Path) -> None:
    model = products([0.3, 0.3])
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "out.onnx", "--shape", "x:3,16")
    assert (done.returncode, done.stderr) == (0, "")
    assert "x[0] = 3" in done.stdout
    done = run("verify", "model.onnx", "model.onnx", "--cases", "random", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "x[0]=" in done.stdout
    done = run("optimize", "model.onnx", "out.onnx", "--dim", "batch=3")
    assert "hint: its dims have no names: --shape INPUT:1,3 fixes them" in done.stderr


def test_the_reason_for_unfolded_normalizations_is_reported(run: Run, tmp_path: Path) -> None:
    """The reason why eight BatchNormalizations are not folded is reported: callers may override them."""
    rng, nodes, inits, value = np.random.default_rng(0), [], [], "x"
    infos = [helper.make_tensor_value_info("x", 1, [1, 2, 4, 4])]
    for i in range(8):
        inits.append(numpy_helper.from_array(rng.random((2, 2, 1, 1), np.float32), f"w{i}"))
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"]))
        names = [f"{what}{i}" for what in "sbmv"]
        inits += [numpy_helper.from_array(rng.random(2, np.float32), n) for n in names]
        infos += [helper.make_tensor_value_info(n, 1, [2]) for n in names]
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *names], [value := f"n{i}"]))
    out = helper.make_tensor_value_info(value, 1, [1, 2, 4, 4])
    graph = helper.make_graph(nodes, "g", infos, [out], inits)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx")
    assert "kept: fold_conv_bn declined 8 times: " in done.stdout
    assert "--freeze-initializers, if nobody overrides it" in done.stdout
    assert "kept:" not in run("optimize", "m.onnx", "out.onnx", "--freeze-initializers").stdout


def decoder() -> onnx.ModelProto:
    """Return a block with 4-bit weights, as written by onnxruntime's model builder."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1, s, 32] x, float[1, 1, p, 16] k, float[1, 1, p, 16] v, int32[1] last, int32 total)
          => (float[1, s, 32] y, float[1, 1, t, 16] keys, float[1, 1, t, 16] values) {
          n = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, g)
          qkv = com.microsoft.MatMulNBits <K = 32, N = 64, bits = 4, block_size = 32> (n, q, s)
          a, keys, values = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, do_rotary = 1>
            (qkv, , , k, v, last, total, cos, sin)
          m = com.microsoft.MatMulNBits <K = 32, N = 32, bits = 4, block_size = 32> (a, o, so)
          b, , , r = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (m, x, g)
          f = com.microsoft.QuickGelu (b)
          y = Add (f, r)
        }""")
    rng = np.random.default_rng(0)
    angles = np.arange(64)[:, None] * np.linspace(1, 0.01, 8)
    weights = {"g": rng.uniform(0.5, 2, 32), "s": rng.uniform(0.01, 0.04, 64), "so": rng.uniform(0.01, 0.04, 32)}
    weights |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    model.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items())
    packed = {name: rng.integers(0, 256, (rows, 1, 16)).astype(np.uint8) for name, rows in (("q", 64), ("o", 32))}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in packed.items())
    return model


def test_operators_of_onnxruntime_are_narrowed_and_others_named(run: Run, tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "out.onnx", "--dtype", "float16", "--strict")
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ verified in pieces: all 10 pieces agree" in done.stdout
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert [n.op_type for n in graph.node].count("Cast") == 6, "inputs and outputs"
    assert {t.data_type for t in graph.initializer} == {onnx.TensorProto.FLOAT16, onnx.TensorProto.UINT8}
    assert run("optimize", "out.onnx", "again.onnx", "--dtype", "float16").returncode == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()
    text = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[4] x) => (float[4] y) { y = my.Norm (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "other.onnx")
    done = run("optimize", "other.onnx", "out.onnx", "--dtype", "float16")
    assert done.returncode == 0
    reason = "which types this operator takes is not known, for example my::Norm -> y; Casts stand around it, unless"
    assert f"kept: 1 node stays float32: {reason} a plugin replaces it" in done.stdout + done.stderr
    assert "--target-opset" not in done.stdout + done.stderr


def test_functions_are_narrowed_except_for_float32_callers(run: Run, tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["" : 21, "my" : 1, "your" : 1]> g (float[n, 6] x) => (float[n, 6] y, z)'
    text = (
        head
        + """ <float[6, 6] w = {WEIGHTS}> { a = my.layer (x, w) b = my.scaled (a) y = my.layer (b, w) z = my.OTHER (x) }
        <domain: "my", opset_import: ["" : 21]> layer (x, w) => (y) { p = MatMul (x, w) y = Relu (p) }
        <domain: "my", opset_import: ["" : 21]> scaled (x) => (y)
        { k = Constant <value = float {3e4}> () s = Mul (x, k) t = Mul (s, k) u = Div (t, k) y = Div (u, k) }
        <domain: "my", opset_import: ["your" : 1]> odd (x) => (y) { y = your.Thing (x) }"""
    )
    text = text.replace("WEIGHTS", ", ".join(["0.25", "-0.5", "1", "0.75"] * 9))
    onnx.save(onnx.parser.parse_model(text.replace("OTHER", "scaled")), tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "out.onnx", "--dtype", "float16", "-O0")
    assert done.returncode == 3
    assert "value `b` stays float32: it overflows the narrower type" in done.stderr, "inside of the function"
    result = onnx.load(tmp_path / "out.onnx")
    called = [n.op_type for n in result.graph.node if n.op_type != "Cast"]
    assert called == ["layer_float16", "scaled", "layer", "scaled"], "what reads it stays, too"
    assert {f.name for f in result.functions} == {"layer_float16", "scaled", "layer"}
    onnx.save(onnx.parser.parse_model(text.replace("OTHER", "odd")), tmp_path / "odd.onnx")
    done = run("optimize", "odd.onnx", "out.onnx", "--dtype", "float16", "--disable", "convert-dtype@a,convert-dtype@y")
    hint = "types inside its function are unknown, for example my::odd -> z; --inline-functions puts the body in place"
    assert f"kept: 1 node stays float32: {hint}" in done.stdout + done.stderr, done
