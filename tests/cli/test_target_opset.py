"""`--target-opset`: the model is converted first, without losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

from tests.cli.conftest import Run
from tests.samples import sample
from tests.test_lossless import everything

TEXT = """
<ir_version: 8, opset_import: ["" : 11, "org.example" : 2]>
g (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 1, 4] z, float[N, 1] u)
<int64[1] n = {1}, float root = {1.4142135}, float one = {1}, float half = {0.5}, float[4] b = {1, 2, 3, 4}>
{
  [gelu_1] h = Mul (x, b)
  [gelu_2] i = Div (h, root)
  [gelu_3] j = Erf (i)
  [gelu_4] k = Add (j, one)
  [gelu_5] l = Mul (h, k)
  [gelu_6] a = Mul (l, half)
  [branch] y = If (c) <
    then_branch = t () => (float[N, 4] r) {
      [soft] s = Softmax <axis = 1> (a)
      [sum] q = ReduceSum <axes = [1]> (s)
      r = Mul (s, q)
    },
    else_branch = e () => (float[N, 4] v) { v = Neg (a) }
  >
  [wide] z = Unsqueeze <axes = [1]> (a)
  [top] u, places = TopK (x, n)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    for node in proto.graph.node:
        node.metadata_props.add(key="from", value=node.name)
        node.doc_string = f"about {node.name}"
    onnx.save(proto, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_operators_of_the_new_opset_are_used(model: Path, run: Run) -> None:
    done = run("optimize", model, "out.onnx", "-O3", "--target-opset", "20")
    assert done.returncode == 0, done.stderr
    result = onnx.load(model.parent / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    assert {o.domain: o.version for o in result.opset_import} == {"": 20, "org.example": 2}
    assert result.ir_version == 9
    assert {n.op_type for n in result.graph.node} == {"Mul", "Gelu", "If", "Unsqueeze", "TopK"}


def test_nodes_keep_names_and_notes(model: Path, run: Run) -> None:
    done = run("optimize", model, "out.onnx", "--pipeline", "lift-constants", "--target-opset", "21")
    assert done.returncode == 0, done.stderr
    nodes = {n.name: n for n in onnx.load(model.parent / "out.onnx").graph.node}
    for name in ("gelu_1", "branch", "wide", "top"):
        assert nodes[name].doc_string == f"about {name}"
        assert [(p.key, p.value) for p in nodes[name].metadata_props] == [("from", name)]
    body = next(a.g for a in nodes["branch"].attribute if a.name == "then_branch")
    assert {"soft", "sum"} <= {n.name for n in body.node}
    reduced = next(n for n in body.node if n.name == "sum")
    assert len(reduced.input) == 2, "the axes are an input from opset 13 on"


def test_every_other_field_survives(tmp_path: Path, run: Run) -> None:
    before = everything()
    del before.functions[:]
    call = next(n for n in before.graph.node if n.op_type == "Twice")
    call.op_type, call.domain = "Neg", ""
    onnx.save(before, tmp_path / "in.onnx")
    done = run("optimize", "in.onnx", "out.onnx", "--pipeline", "dead-code", "--target-opset", "18")
    assert done.returncode == 0, done.stderr
    after = onnx.load(tmp_path / "out.onnx")
    for field in ("producer_name", "domain", "model_version", "doc_string", "metadata_props", "training_info"):
        assert getattr(after, field) == getattr(before, field), field
    for field in ("name", "doc_string", "metadata_props", "input", "output", "value_info", "sparse_initializer"):
        assert getattr(after.graph, field) == getattr(before.graph, field), field
    assert list(after.graph.quantization_annotation) == list(before.graph.quantization_annotation)
    assert list(after.graph.node) == list(before.graph.node)


NEWER = """
<ir_version: 11, opset_import: ["" : 23]>
g (float[N, 4, 8] x, bool c, float[2, 1, 1, 2] p) => (float[N, 4, 8] y)
<float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  [norm] n = RMSNormalization (x, s)
  [heads] a = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (n, n, n)
  [branch] y = If (c) <
    then_branch = t () => (float[N, 4, 8] r) { [act] r = Gelu (a) },
    else_branch = e () => (float[N, 4, 8] v) {
      l, m = Split <axis = 2, num_outputs = 2> (a)
      v = Concat <axis = 2> (m, l)
    }
  >
}
"""


def test_a_newer_model_is_written_in_older_operators(tmp_path: Path, run: Run) -> None:
    proto = onnx.parser.parse_model(NEWER)
    proto.graph.node[2].metadata_props.add(key="from", value="here")
    onnx.save(proto, tmp_path / "in.onnx")
    done = run("optimize", "in.onnx", "out.onnx", "--target-opset", "11")
    assert done.returncode == 0, done.stderr
    assert "✓ " in done.stdout
    result = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(result, full_check=True)
    assert ({o.domain: o.version for o in result.opset_import}, result.ir_version) == ({"": 11}, 6)
    assert not {"RMSNormalization", "Attention", "Gelu"} & {n.op_type for n in result.graph.node}
    branch = next(n for n in result.graph.node if n.name == "branch")
    assert [(p.key, p.value) for p in branch.metadata_props] == [("from", "here")]


def test_operators_without_an_older_form_are_one_error_line(tmp_path: Path, run: Run) -> None:
    onnx.save(
        onnx.parser.parse_model(NEWER.replace("Gelu (a)", "BitCast <to = 1> (a)").replace(": 23", ": 26")),
        tmp_path / "in.onnx",
    )
    done = run("optimize", "in.onnx", "out.onnx", "--target-opset", "13")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        'error: in.onnx cannot be converted to opset 13: main / If "branch" / then_branch: BitCast "act": there is no '
        "BitCast before opset 26",
        "hint: --target-opset 26 is the lowest that has all of them",
    ]
    assert not (tmp_path / "out.onnx").exists()


def test_external_data_is_not_lost(model: Path, run: Run) -> None:
    proto = onnx.load(model)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((400, 4), np.float32), "w"))
    proto.graph.node.add(op_type="MatMul", input=["w", "b"], output=["p"], name="product")
    proto.graph.output.add(name="p").type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(proto, model, save_as_external_data=True, location="in.data", size_threshold=0)
    done = run("optimize", model, "out.onnx", "--target-opset", "17")
    assert done.returncode == 0, done.stderr
    assert "✓ verified in pieces" in done.stdout
    assert {t.name for t in onnx.load(model.parent / "out.onnx").graph.initializer} >= {"b", "n"}


def test_initializers_listed_as_inputs_stay_constant(tmp_path: Path, run: Run) -> None:
    """Initializers listed as inputs before IR 4 stay constant.

    Every initializer is listed there, and none overridden; listed in IR 10, each could be.
    """
    proto = onnx.parser.parse_model("""
        <ir_version: 3, opset_import: ["" : 9]>
        g (float[N, 1, 2, 2] x, float[4] scales, float[1] w) => (float[N, 1, 4, 4] y)
        <float[4] scales = {1, 1, 2, 2}, float[1] w = {3}>
        { u = Upsample <mode = "nearest"> (x, scales)  v = Mul (u, w)  y = Mul (v, w) }
    """)
    onnx.save(proto, tmp_path / "in.onnx")
    done = run("optimize", "in.onnx", "out.onnx", "--target-opset", "21")
    assert done.returncode == 0, done.stderr
    assert "→ 2 nodes" in done.stdout
    assert "✓" in done.stdout
    result = onnx.load(tmp_path / "out.onnx")
    assert (result.ir_version, [i.name for i in result.graph.input]) == (10, ["x"])
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize(
    ("version", "code", "message"),
    [
        ("9", 2, "uses opset 11, which is not converted down to 9"),
        ("99", 2, "the installed onnx knows opsets up to"),
        ("3", 2, "invalid value"),
    ],
)
def test_invalid_opset_versions_are_refused(model: Path, run: Run, version: str, code: int, message: str) -> None:
    done = run("optimize", model, "out.onnx", "--target-opset", version)
    assert done.returncode == code
    assert message in done.stderr
    assert not (model.parent / "out.onnx").exists()


def test_functions_have_opsets_of_their_own(tmp_path: Path, run: Run) -> None:
    onnx.save(everything(), tmp_path / "in.onnx")
    refused = run("optimize", "in.onnx", "out.onnx", "--target-opset", "18")
    assert refused.returncode == 2
    assert "--inline-functions" in refused.stderr
    done = run("optimize", "in.onnx", "out.onnx", "--target-opset", "18", "--inline-functions")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "level"), [("transformer_block", "-O3"), ("sequences", "-O0")])
def test_a_result_of_a_new_opset_goes_down_again(name: str, level: str, tmp_path: Path, run: Run) -> None:
    onnx.save(sample(name), tmp_path / "in.onnx")
    newer = run("optimize", "in.onnx", "newer.onnx", level, "--target-opset", "23")
    older = run("optimize", "newer.onnx", "older.onnx", "-O0", "--target-opset", "13")
    assert "✓" in newer.stdout, newer.stderr
    assert "✓" in older.stdout, older.stderr
    result = onnx.load(tmp_path / "older.onnx")
    onnx.checker.check_model(result, full_check=True)
    assert ({o.version for o in result.opset_import}, result.ir_version) == ({13}, 7)


def test_a_failed_conversion_is_one_error_line(tmp_path: Path, run: Run) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 4, opset_import: ["" : 8]> g (float[4] x, float[4] s) => (float[A] y) { y = Upsample (x, s) }'
    )
    onnx.save(proto, tmp_path / "in.onnx")
    done = run("optimize", "in.onnx", "out.onnx", "--target-opset", "17")
    assert done.returncode == 2, done.stdout
    assert "cannot be converted to opset 17" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("narrow", [(), ("--dtype", "float16"), ("--dtype", "bfloat16")])
def test_a_kernel_missing_in_the_new_opset_is_no_fault(narrow: tuple[str, ...], tmp_path: Path, run: Run) -> None:
    """A kernel missing in the requested opset gives "not verified", without a search for a responsible rewrite.

    The search took minutes for large models.
    """
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 2, 4, 4] x) => (float[N, 2, 1, 1] y) <float[2, 2, 1, 1] w = {1, 2, 3, 4}>
        { c = Conv (x, w)  i = Identity (c)  y = GlobalLpPool (i) }
    """)
    onnx.save(proto, tmp_path / "in.onnx")
    done = run("optimize", "in.onnx", "out.onnx", "--target-opset", "22", *narrow)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not verified: onnxruntime does not implement GlobalLpPool of opset 22 for its types" in done.stdout
    assert run("optimize", "in.onnx", "strict.onnx", "--target-opset", "22", *narrow, "--strict").returncode == 1
    assert not (tmp_path / "strict.onnx").exists()
    assert "✓" in run("optimize", "in.onnx", "out.onnx", "--target-opset", "21").stdout
