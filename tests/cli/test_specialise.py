"""Dynamic inputs with given sizes, and operators that must not appear."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

import onnxopt
import onnxopt.passes  # registers the passes before a test resets its registrations
from onnxopt.errors import DomainError
from onnxopt.pipeline import registry
from tests.cli.conftest import Run


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """Save a Reshape to computed dims: dynamic except for one; constant with given sizes."""
    source = (
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[batch, sequence, 4] x, float[?, 4] z) => (float[?, ?] y, float[?] n)"
        "<int64[1] last = {2}, int64[2] swap = {1, 0}, int64[1] four = {4}>"
        "{ s = Shape (x) d = Gather (s, swap) t = Concat <axis = 0> (d, four) r = Reshape (x, t)"
        " a = ReduceSum <keepdims = 0> (r, last) y = Identity (a) n = ReduceMax <axes = [1], keepdims = 0> (z) }"
    )
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    return tmp_path


def shape(path: Path, name: str) -> list[int | str]:
    graph = onnx.load(path).graph
    info = next(i for i in [*graph.input, *graph.output] if i.name == name)
    return [d.dim_value if d.HasField("dim_value") else d.dim_param for d in info.type.tensor_type.shape.dim]


def test_by_symbol(run: Run, dynamic: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--dim", "batch=2", "--dim", "sequence=5")
    assert r.returncode == 0, r.stderr
    assert "fixed: batch = 2, sequence = 5" in r.stdout
    assert "✓ " in r.stdout
    assert shape(dynamic / "out.onnx", "x") == [2, 5, 4]
    assert "Shape" not in [n.op_type for n in onnx.load(dynamic / "out.onnx").graph.node]


def test_by_shape(run: Run, dynamic: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--shape", "x:3,1,4", "--shape", "z:7,4")
    assert r.returncode == 0, r.stderr
    assert (shape(dynamic / "out.onnx", "x"), shape(dynamic / "out.onnx", "z")) == ([3, 1, 4], [7, 4])


def test_dims_of_outputs_become_known_numbers(run: Run, dynamic: Path) -> None:
    """Symbols and unnamed dims of outputs become numbers if the given sizes determine them."""
    assert run("optimize", "m.onnx", "out.onnx", "--dim", "batch=2", "--dim", "sequence=5").returncode == 0
    assert (shape(dynamic / "out.onnx", "y"), shape(dynamic / "out.onnx", "n")) == ([5, 2], [""])
    onnx.checker.check_model(dynamic / "out.onnx", full_check=True)
    assert run("optimize", "m.onnx", "half.onnx", "--dim", "batch=2").returncode == 0
    assert shape(dynamic / "half.onnx", "y") == ["", 2]
    assert run("optimize", "m.onnx", "free.onnx").returncode == 0
    assert shape(dynamic / "free.onnx", "y") == ["", ""], "an interface stays, where nobody gave a size"


def test_shapes_of_all_values(run: Run, dynamic: Path) -> None:
    assert run("optimize", "m.onnx", "out.onnx", "--infer-shapes", "-O0").returncode == 0
    graph = onnx.load(dynamic / "out.onnx").graph
    said = {i.name: [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim] for i in graph.value_info}
    assert said == {"s": [3], "d": [2], "t": [3], "r": ["sequence", "batch", 4], "a": ["sequence", "batch"]}
    onnx.checker.check_model(dynamic / "out.onnx", full_check=True)
    again = run("optimize", "out.onnx", "again.onnx", "--infer-shapes", "-O0")
    assert (dynamic / "again.onnx").read_bytes() == (dynamic / "out.onnx").read_bytes(), again.stdout
    r = run("optimize", "m.onnx", "out.onnx", "--infer-shapes=yes")
    assert r.returncode == 2 and "--infer-shapes" in r.stderr and len(r.stderr.splitlines()) <= 2


def test_a_dim_name_holds_in_its_scope(run: Run, tmp_path: Path) -> None:
    """A given size does not apply to a dim of this name in a body: the body's N is the width of `rows`."""
    source = (
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[N] x, float[rows, width] m) => (float[N] y, float[a, b] z)"
        "{ y = Neg (x) z = Scan <num_scan_inputs = 1,"
        " body = s (float[N] row) => (float[N] turned) { turned = Neg (row) }> (m) }"
    )
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    r = run("optimize", "m.onnx", "out.onnx", "--dim", "N=3", "--verify-dim", "width=5")
    assert (r.returncode, shape(tmp_path / "out.onnx", "x")) == (0, [3]), r.stderr


def test_dynamic_by_default(run: Run, dynamic: Path) -> None:
    (dynamic / "onnxopt.toml").write_text('dim = ["batch=2"]\n')
    assert run("optimize", "m.onnx", "out.onnx", "--keep-dynamic").returncode == 0
    assert shape(dynamic / "out.onnx", "x") == ["batch", "sequence", 4]
    assert run("optimize", "m.onnx", "out.onnx").returncode == 0
    assert shape(dynamic / "out.onnx", "x") == [2, "sequence", 4]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--dim", "batc=2"], "no input has a dim called 'batc'"),
        (["--shape", "w:1"], "no input is called 'w'"),
        (["--shape", "x:1,2"], "has 3 dims, 2 are given\nhint: give each of them: --shape x:batch,sequence,4"),
        (["--shape", "x:1,2,3"], "dim 2 of input 'x' is 4, not 3"),
        (["--shape", "x:1,2,4", "--dim", "batch=3"], "'batch' is given as 3 and as 1"),
        (["--dim", "batch"], "is not NAME=SIZE"),
        (["--shape", "x:a"], "is not INPUT:1,128"),
    ],
)
def test_contradictions(args: list[str], says: str, run: Run, dynamic: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", *args)
    assert r.returncode == 2
    assert says in r.stderr
    assert not (dynamic / "out.onnx").exists()


def test_an_absent_attribute_passed_on_has_the_inner_default(run: Run, tmp_path: Path) -> None:
    """An absent attribute passed on to an inner function has the inner default, at every depth.

    A given one is passed on.
    """
    source = """<ir_version: 10, opset_import: ["" : 17, "l" : 1]>
    g (float[N] x, bool c) => (float[N] y, float[N] z) { y = l.outer (x, c)  z = l.outer <a = 0.5> (x, c) }
    <domain: "l", opset_import: ["" : 17, "l" : 1]>
    outer <a> (x, c) => (z) {
      u = If (c) <
        then_branch = t () => (float[N] p) { p = l.middle <b: float = @a> (x) },
        else_branch = e () => (float[N] q) { q = LeakyRelu <alpha: float = @a> (x) }>
      z = LeakyRelu <alpha: float = @a> (u) }
    <domain: "l", opset_import: ["" : 17, "l" : 1]>
    middle <b> (x) => (z) { z = l.inner <d: float = @b> (x) }
    <domain: "l", opset_import: ["" : 17]>
    inner <d: float = 0.75> (x) => (z) { z = LeakyRelu <alpha: float = @d> (x) }"""
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    r = run("optimize", "m.onnx", "out.onnx", "--inline-functions")
    assert r.returncode == 0, r.stderr
    assert not onnx.load(tmp_path / "out.onnx").functions


def test_functions_are_inlined_on_request(run: Run, samples: Path, tmp_path: Path) -> None:
    source = samples / "local_functions.onnx"
    assert onnx.load(source).functions
    r = run("optimize", source, "out.onnx", "--inline-functions")
    assert r.returncode == 0, r.stderr
    assert "✓ " in r.stdout
    inlined = onnx.load(tmp_path / "out.onnx")
    assert not inlined.functions
    assert all(not n.domain for n in inlined.graph.node)
    assert run("optimize", source, "kept.onnx").returncode == 0
    assert onnx.load(tmp_path / "kept.onnx").functions


def test_foreign_operators_do_not_enter(dynamic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PASSES", registry._PASSES.copy())

    @onnxopt.rewrite(onnxopt.op.ReduceMax(onnxopt.var("x"), ..., name="node"))
    def foreign(m, x):  # type: ignore[no-untyped-def]
        """ReduceMax(x) = com.example::Max(x)."""
        return m.op.Max(x, domain="com.example")

    @onnxopt.register
    class Foreign(onnxopt.RewritePass):
        """Brings in a domain."""

        info = onnxopt.PassInfo("foreign")
        rules = (foreign,)

    with pytest.raises(
        DomainError, match=r"com\.example::Max for .*: the model does not import the domain com\.example"
    ):
        onnxopt.optimize(dynamic / "m.onnx", pipeline="foreign", verify=False)
    options = onnxopt.OptimizeOptions(pipeline="foreign", allow_domains=("com.example",))
    onnxopt.optimize_model(onnxopt.load(dynamic / "m.onnx"), options)


def test_sizes_for_verification_only(run: Run, dynamic: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--verify-dim", "sequence=7", "--verify-dim", "batch=5")
    assert r.returncode == 0, r.stderr
    assert "batch=5" in r.stdout
    assert "sequence=7" in r.stdout
    assert shape(dynamic / "out.onnx", "x") == ["batch", "sequence", 4], "it stays dynamic"
    r = run("optimize", "m.onnx", "out2.onnx", "--verify-dim", "sequences=7")
    assert r.returncode == 2
    assert "no input of the model has a dynamic dim 'sequences'" in r.stderr
    assert "batch, sequence" in r.stderr
    assert not (dynamic / "out2.onnx").exists()
