"""`--rename` renames inputs, outputs and dims wherever the model has them; verification knows both names."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import TensorAnnotation

import onnxopt
from onnxopt.verification.model.views import rename
from tests.cli.conftest import Run

TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 4] x, bool c, float[N, 4] old) => (float[N, 4] y, float[S, 4] z)
<float[4] b = {1, -2, 3, -4}, float scale = {0.5}, float[N, 4] h>
{
  h = Mul (x, b)
  i = Identity (h)
  y = If (c) <
    then_branch = t () => (float[N, 4] r) { r = Relu (x) },
    else_branch = e () => (float[N, 4] v) <float[N, 4] a> { a = Abs (x) v = If (c) <
        then_branch = t2 () => (float[N, 4] r2) { r2 = Neg (a) },
        else_branch = e2 () => (float[N, 4] v2) { v2 = Abs (x) }> }
  >
  j = Concat <axis = 0> (i, y)
  z = Add (j, b)
}
"""
NAMES = ("--rename", "x=tokens", "--rename", "y=z", "--rename", "output:1=y", "--rename", "N=batch")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    annotation = TensorAnnotation(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    proto.graph.quantization_annotation.append(annotation)
    then = next(node for node in proto.graph.node if node.op_type == "If").attribute[0].g
    then.quantization_annotation.append(annotation)  # for a value that a body captures
    onnx.save(proto, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_inputs_outputs_and_dims_are_renamed_and_verified(model: Path, run: Run) -> None:
    done = run("optimize", model, "out.onnx", *NAMES)
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ equal" in done.stdout
    result = onnx.load(model.parent / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    graph = result.graph
    assert [i.name for i in graph.input] == ["tokens", "c", "old"]
    assert [o.name for o in graph.output] == ["z", "y"]
    inner = next(node for node in graph.node if node.op_type == "If").attribute[0].g
    assert [g.quantization_annotation[0].tensor_name for g in (graph, inner)] == ["tokens", "tokens"]
    text = onnx.printer.to_text(result)
    assert "Relu (tokens)" in text
    assert "Abs (tokens)" in text
    assert "[N," not in text
    again = run("verify", model, "out.onnx", *NAMES, "-q", "--pieces", "--strict")
    assert again.returncode == 0, again.stdout + again.stderr
    without = run("verify", model, "out.onnx")
    assert without.returncode == 2
    assert "--rename OLD=NEW" in without.stderr
    swapped = run("verify", model, "out.onnx", *NAMES[:2], *NAMES[6:])
    assert swapped.returncode == 1, "y and z are compared as they are called then"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("optimize", "x_=a"), "no input, output or dim is called 'x_'\nhint: did you mean x?"),
        (("optimize", "output:2=a"), "no input, output or dim is called 'output:2'\nhint: there are x, c, old"),
        (("verify", "input:3=a"), "--rename: A has no input, output or dim called 'input:3'"),
        (("optimize", "x=h"), "'x' cannot be called 'h': something else is called so"),
        (("optimize", "x=r2"), "'x' cannot be called 'r2': something else"),
        (("optimize", "N=S"), "'N' cannot be called 'S': something else"),
        (("optimize", "h=a"), "no input, output or dim is called 'h'"),
        (("optimize", "x="), "'x=' is not OLD=NEW"),
        (("verify", "x=y_"), "--rename: B has no input, output or dim called 'y_'"),
    ],
)
def test_wrong_names(model: Path, run: Run, command: tuple[str, str], message: str) -> None:
    other = model if command[0] == "verify" else "out.onnx"
    done = run(command[0], model, other, "--rename", command[1])
    assert done.returncode == 2
    assert message in done.stderr
    assert not (model.parent / "out.onnx").exists()


def test_a_dict_in_python(model: Path) -> None:
    result = onnxopt.optimize(str(model), rename={"x": "tokens"}, dtype="float16")
    assert result.report.ok
    assert [i.name for i in result.model.graph.input] == ["tokens", "c", "old"]  # type: ignore[union-attr]
    with pytest.raises(onnxopt.UsageError, match="rename"):
        onnxopt.optimize(str(model), rename={"x": 1})  # type: ignore[dict-item]


def test_a_default_without_readers_is_no_input_that_is_missing() -> None:
    """Before IR version 4, initializers are inputs too."""
    text = """<ir_version: 3, opset_import: ["" : 9]> g (float[N] x, float[1] unused) => (float[N] y)
              <float[1] unused = {1}> { y = Neg (x) }"""
    result = onnxopt.optimize(onnx.parser.parse_model(text), rename={"x": "tokens"}).model
    assert [i.name for i in result.graph.input] == ["tokens"]


def test_values_with_the_new_name_get_another_name() -> None:
    """Values that already have the new name get another one, in bodies too."""
    graph = onnx.parser.parse_graph(
        """g (float[M] ids) => (float[N] y) {
             x = Neg (ids)
             y = If (x) <then_branch = t () => (float[N] r) { x_ = Abs (ids) r = Relu (x_) },
                         else_branch = e () => (float[N] v) { ids = Abs (x) v = Relu (ids) }>
           }"""
    )
    rename(graph, {"ids": "x", "M": "N"})
    assert (
        onnx.printer.to_text(graph).split()
        == onnx.printer.to_text(
            onnx.parser.parse_graph(
                """g (float[N] x) => (float[N_] y) {
                 x__ = Neg (x)
                 y = If (x__) <then_branch = t () => (float[N_] r) { x_ = Abs (x) r = Relu (x_) },
                               else_branch = e () => (float[N_] v) { x = Abs (x__) v = Relu (x) }>
               }"""
            )
        ).split()
    )


def test_nodes_without_a_name_get_one(model: Path, run: Run) -> None:
    proto = onnx.load(model)
    proto.graph.node[0].name = "If_1"
    onnx.save(proto, model)
    done = run("optimize", model, "out.onnx", "-O0", "--name-nodes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ equal" in done.stdout
    graph = onnx.load(model.parent / "out.onnx").graph
    assert [n.name for n in graph.node] == ["If_1", "Identity_1", "If_2", "Concat_8", "Add_9"]
    bodies = {a.name: a.g.node[0].name for a in graph.node[2].attribute}
    assert bodies == {"then_branch": "Relu_3", "else_branch": "Abs_4"}
    again = run("optimize", "out.onnx", "again.onnx", "-O0", "--name-nodes")
    assert again.returncode == 0, again.stderr
    assert (model.parent / "again.onnx").read_bytes() == (model.parent / "out.onnx").read_bytes()
    given = run("optimize", model, "out.onnx", "--name-nodes=yes")
    assert given.returncode == 2
    assert "--name-nodes" in given.stderr
