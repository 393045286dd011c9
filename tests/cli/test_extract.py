"""`onnxopt extract`: results, messages, refusals, completion."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from tests.cli.conftest import Run, snapshot
from tests.runtime import outputs
from tests.test_extraction import assert_equal, values

HINT = "hint: "
X = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)


@pytest.fixture
def source(samples: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(samples / "residual_block.onnx", tmp_path / "model.onnx"))


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """Return the path of y = relu(x w0) w1 w2, with weights beside the model, in its own folder."""
    folder = tmp_path / "heavy"
    folder.mkdir()
    nodes, value = [], "x"
    for i in range(3):
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [value := f"m{i}"]))
    nodes[1].input[0] = "r"
    nodes.insert(1, helper.make_node("Relu", ["m0"], ["r"]))
    weights = [
        numpy_helper.from_array(np.random.default_rng(i).random((20, 20), np.float32), f"w{i}") for i in range(3)
    ]
    infos = [helper.make_tensor_value_info(n, 1, ["N", 20]) for n in ("x", "m2")]
    graph = helper.make_graph(nodes, "heavy", infos[:1], infos[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return folder / "model.onnx"


def test_a_block_of_a_network(run: Run, source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    done = run("extract", source, "block.onnx", "--inputs", "r1", "--outputs", "c2,n2")
    assert (done.returncode, done.stderr) == (0, "")
    size = (tmp_path / "block.onnx").stat().st_size / 1024
    assert done.stdout.splitlines() == [
        f"block.onnx: 2 of 9 nodes, 1 input, 2 outputs, {size:.1f} KiB",
        "  input   r1: float[batch, 8, 16, 16]",
        "  output  c2: float[batch, 8, 16, 16]",
        "  output  n2: float[batch, 8, 16, 16]",
    ]
    truth = values(onnx.load(source), {"x": X})
    found = outputs(tmp_path / "block.onnx", {"r1": truth["r1"]})
    assert list(found) == ["c2", "n2"]
    for name, value in found.items():
        assert_equal(value, truth[name])
    onnx.checker.check_model(tmp_path / "block.onnx", full_check=True)
    assert source.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["block.onnx", "model.onnx"]


def test_names_are_repeated_and_quiet_is_quiet(run: Run, source: Path, tmp_path: Path) -> None:
    done = run("extract", source, "tail.onnx", "--inputs", "n2", "--inputs", "n3", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [n.op_type for n in onnx.load(tmp_path / "tail.onnx").graph.node] == ["Add", "Relu"]


def test_inputs_left_out_are_reported(run: Run, samples: Path, tmp_path: Path) -> None:
    done = run("extract", samples / "loop_body.onnx", "a.onnx", "--inputs", "x,steps,go_on", "--outputs", "y", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    done = run("extract", samples / "sequences.onnx", "b.onnx", "--inputs", "r,x", "--outputs", "pieces")
    assert done.returncode == 0
    assert done.stderr == "warning: no output needs `x`: left out of the inputs\n"
    assert "  output  pieces: sequence(float" in done.stdout
    done = run("extract", samples / "sequences.onnx", "c.onnx", "--inputs", "both,joined,r,x")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: no output needs `both`, `joined`: left out of the inputs",
        "warning: the inputs do not give `joined`, `both`: left out of the outputs",
    ]


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        ([], "neither inputs nor outputs are named", "name the values to cut at: one of both is enough"),
        (
            ["--inputs", "n3"],
            "model.onnx: `y` also needs the graph input `x`",
            "add them to the inputs, or values computed from them",
        ),
        (["--outputs", "n11"], "model.onnx: no value of the main graph is called 'n11'", "did you mean n1"),
        (
            ["--outputs", "bn1"],
            "model.onnx: no value of the main graph is called 'bn1'",
            "it is a node, which computes `n1`",
        ),
        (["--outputs", "x"], "model.onnx: `x` is an input, which nothing computes", "name a value behind it"),
        (["--inputs", "n1", "--outputs", "n1"], "model.onnx: `n1` is an input, which nothing computes", "name a value"),
    ],
)
def test_impossible_parts_are_one_error_line(
    run: Run, source: Path, tmp_path: Path, args: list[str], message: str, hint: str
) -> None:
    done = run("extract", "model.onnx", "out.onnx", *args)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first == f"error: {message}"
    assert second.startswith(HINT + hint)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.fixture
def commas(tmp_path: Path) -> str:
    """Return the name of a model whose names contain commas, the separator on the command line."""
    body = "a = Relu (x) y = Neg (a) z = Abs (a)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y, float[4] z) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.input[:] = [name.replace("a", "a,b") for name in node.input]
        node.output[:] = [name.replace("a", "a,b").replace("y", "y, 1") for name in node.output]
    model.graph.output[0].name = "y, 1"
    onnx.save(model, tmp_path / "commas.onnx")
    return "commas.onnx"


@pytest.mark.parametrize("command", ["extract", "optimize"])
def test_a_comma_in_a_name_is_written_with_a_backslash(run: Run, tmp_path: Path, commas: str, command: str) -> None:
    done = run(command, commas, "out.onnx", "--inputs", "a\\,b", "--outputs", "y\\, 1,z")
    assert done.returncode == 0, done.stderr
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert [i.name for i in graph.input] == ["a,b"]
    assert [o.name for o in graph.output] == ["y, 1", "z"]
    for name in ("y, 1", "a,b"):
        done = run(command, commas, "other.onnx", "--outputs", name)
        assert done.returncode == 2
        assert (
            done.stderr.splitlines()[1]
            == f"hint: it has `{name}`: on a command line a comma in a name is written `\\,`"
        )


def test_unreadable_and_unwritable_files_are_errors(run: Run, source: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    for out, message in (
        ("model.onnx", "model.onnx is the input itself"),
        (".", ". is a directory"),
        ("no/where.onnx", "cannot write no/where.onnx: No such file or directory"),
    ):
        done = run("extract", "model.onnx", out, "--outputs", "n1")
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {message}")
    done = run("extract", "missing.onnx", "out.onnx", "--outputs", "n1")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: missing.onnx: no such file")
    assert run("extract", "model.onnx").returncode == 2
    assert run("extract", "model.onnx", "out.onnx", "--outputs", "n1", "--data", "x").returncode == 2
    assert snapshot(tmp_path) == before


def test_only_needed_data_is_copied(run: Run, heavy: Path, tmp_path: Path) -> None:
    before = snapshot(heavy.parent)
    done = run("extract", heavy, "out.onnx", "--inputs", "r", "--outputs", "m1")
    assert done.returncode == 0, done.stderr
    (data,) = tmp_path.glob("out.onnx.*.data")
    assert done.stdout.splitlines()[0].endswith(f"KiB, data in {data.name}")
    assert data.stat().st_size == 1600
    x = np.ones((2, 20), np.float32)
    truth = values(onnx.load(heavy), {"x": x})
    assert_equal(outputs(tmp_path / "out.onnx", {"r": truth["r"]})["m1"], truth["m1"])
    assert snapshot(heavy.parent) == before
    assert run("extract", heavy, "relu.onnx", "--inputs", "m0", "--outputs", "r").returncode == 0
    assert not list(tmp_path.glob("relu.onnx.*")), "no weights, no data"


def test_referenced_data_is_found_from_the_result(run: Run, heavy: Path, tmp_path: Path) -> None:
    before = snapshot(heavy.parent)
    x = np.ones((2, 20), np.float32)
    truth = values(onnx.load(heavy), {"x": x})
    for out, data in ((heavy.parent / "part.onnx", "weights.bin"), (tmp_path / "part.onnx", "heavy/weights.bin")):
        done = run("extract", heavy, out, "--inputs", "r", "--external", "reuse")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0].endswith(f", data in {data}")
        assert_equal(outputs(out, {"r": truth["r"]})["m2"], truth["m2"])
        out.unlink()
    (heavy.parent / "below").mkdir()
    done = run("extract", heavy, heavy.parent / "below" / "part.onnx", "--inputs", "r", "--data", "reference")  # old
    assert done.returncode == 2
    assert "weights.bin cannot be referred to from" in done.stderr
    assert "--external copy" in done.stderr
    assert snapshot(heavy.parent) == before, "nothing half written either"


def test_data_of_the_input_is_never_replaced(run: Run, heavy: Path) -> None:
    folder = heavy.parent
    shutil.copy(heavy, folder / "other.onnx")
    before = snapshot(folder)
    done = run("extract", heavy, folder / "weights.bin", "--outputs", "r")
    assert (done.returncode, "weights.bin is a data file of the input" in done.stderr) == (2, True)
    moved = onnx.load(heavy, load_external_data=False)
    for tensor in moved.graph.initializer:
        next(e for e in tensor.external_data if e.key == "location").value = "out.onnx.data"
    (folder / "other.onnx").write_bytes(moved.SerializeToString())
    shutil.copy(folder / "weights.bin", folder / "out.onnx.data")
    before = snapshot(folder)
    done = run("extract", folder / "other.onnx", folder / "out.onnx", "--outputs", "r")
    assert (done.returncode, "out.onnx.data is a data file of the input" in done.stderr) == (2, True)
    (folder / "weights.bin").write_bytes(b"short")
    done = run("extract", heavy, folder / "new.onnx", "--outputs", "r")
    assert (done.returncode, "truncated" in done.stderr) == (2, True)
    (folder / "weights.bin").write_bytes(before["weights.bin"])
    assert snapshot(folder) == before


def test_completion_knows_the_values(run: Run, source: Path, tmp_path: Path) -> None:
    def completed(words: str) -> list[str]:
        done = run(_ONNXOPT_COMPLETE="bash_complete", COMP_CWORD=str(len(words.split(" ")) - 1), COMP_WORDS=words)
        assert (done.returncode, done.stderr) == (0, "")
        return [line.removeprefix("plain,") for line in done.stdout.split()]

    assert completed("onnxopt extract model.onnx out.onnx --outputs n") == ["n1", "n2", "n3"]
    assert completed("onnxopt extract model.onnx out.onnx --outputs n1 --inputs x,r") == ["x,r1"]
    assert completed("onnxopt extract --data reference model.onnx --inputs x") == ["x"]
    (tmp_path / "text.onnx").write_text("no model")
    for place in ("text.onnx", "missing.onnx", "."):
        assert completed(f"onnxopt extract {place} out.onnx --outputs n") == []
    assert completed("onnxopt extract --outputs n") == []


BODIES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 4] x, bool c, int64 trips) => (float[n, 4] y, float[n, 4] z)
<float[4] w = {1, 2, 3, 4}, bool true = {1}>
{
  a = Mul (x, w)
  b = Relu (a)
  [pick] y = If (c) <
    then_branch = t () => (float[n, 4] r) <float[4] k = {2, 2, 2, 2}> { q = Add (b, k) r = Neg (q) },
    else_branch = e () => (float[n, 4] s) { q = Sub (b, w) s = Abs (q) }
  >
  [turns] z = Loop (trips, true, b) <
    body = turn (int64 i, bool go, float[n, 4] carried) => (bool on, float[n, 4] next) {
      on = Identity (go)
      f = Cast <to = 1> (i)
      m = Mul (carried, a)
      o = If (go) <then_branch = t2 () => (float[n, 4] u) { v = Add (m, f) u = Sub (v, b) },
                   else_branch = e2 () => (float[n, 4] u2) { u2 = Neg (m) }>
      next = Add (o, f)
    }
  >
}
"""


def test_parts_of_bodies(run: Run, tmp_path: Path) -> None:
    """A part of a body computes captured values, and keeps unambiguous names. Values of an iteration become inputs."""
    onnx.save(onnx.parser.parse_model(BODIES), tmp_path / "bodies.onnx")
    x, carried = X[0, 0, :2, :4], X[0, 0, 2:4, :4]
    a, b, i = x * np.array([1, 2, 3, 4], np.float32), np.maximum(x * [1, 2, 3, 4], 0), np.array(3, np.int64)
    given = {"x": x, "i": i, "carried": carried, "a": a, "b": b.astype(np.float32), "m": carried * a}
    branch = 'If "pick" / else_branch / q'
    for args, inputs, expected in (
        (["--outputs", "r"], ["x"], {"r": -(b + 2)}),
        (["--outputs", f"main / {branch}"], ["x"], {"q": b - [1, 2, 3, 4]}),
        (["--inputs", "b", "--outputs", branch], ["b"], {"q": b - [1, 2, 3, 4]}),
        (["--inputs", "carried,a,i", "--outputs", "m,f"], ["carried", "a", "i"], {"m": carried * a, "f": i}),
        (["--outputs", "u"], ["x", "i", "carried"], {"u": carried * a + 3 - b}),
        (["--inputs", "m,b,i", "--outputs", "u"], ["m", "b", "i"], {"u": carried * a + 3 - b}),
    ):
        done = run("extract", "bodies.onnx", "part.onnx", *args)
        assert (done.returncode, done.stderr) == (0, "")
        part = onnx.load(tmp_path / "part.onnx")
        onnx.checker.check_model(part, full_check=True)
        assert [v.name for v in part.graph.input] == inputs
        found = outputs(tmp_path / "part.onnx", {name: given[name] for name in inputs})
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], np.asarray(value, np.float32), rtol=1e-5, atol=1e-6)
    done = run("optimize", "bodies.onnx", "out.onnx", "--outputs", "u", "-O2")
    assert done.returncode == 0, done.stderr
    for args, message in (
        (
            ["--outputs", "q"],
            "2 bodies have a value called 'q'\nhint: name one by its place: `main / If \"pick\" / then_b",
        ),
        (["--outputs", "nxt"], "no value of the main graph or a body is called 'nxt'\nhint: did you mean next?"),
        (["--outputs", "r,next"], '`next` is in main / Loop "turns" / body, `r` in main / If "pick" / then_branch: no'),
        (["--inputs", "carried,x,trips,c", "--outputs", "z"], '`z` needs all of Loop "turns" -> z, not a part of its'),
        (["--inputs", "carried", "--outputs", "next"], "`next` also needs the inputs `x`, `i`, `go`\nhint: add them"),
    ):
        done = run("extract", "bodies.onnx", "wrong.onnx", *args)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 2)
        assert message in done.stderr
    assert not (tmp_path / "wrong.onnx").exists()
