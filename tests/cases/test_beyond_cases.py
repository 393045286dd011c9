"""Cases that the text form cannot express: another level, a marked scope, long models."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxopt
from onnxopt.graph import read_model
from onnxopt.graph.node import Node
from onnxopt.pipeline import execute, get_pass
from onnxopt.rollback import optimize_or_roll_back
from tests.samples import parsed

POOL = """g (float[N, 2, H, W] x) => (float[N, 2, H, W] y, bool[N, 2, H, W] z) <float low = {-inf}>
{
  none = Less (x, x)
  a = Where (none, x, low)
  y, i = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
  b = Relu (x)
  c, kept = Dropout (b)
  d, e = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c)
  z = IsInf (d)
}"""


def test_indices_nobody_reads(tmp_path: Path) -> None:
    """The kernel without them makes the lowest float of windows of -inf: not at -O1, and where it shows, only there."""
    onnx.save(parsed(POOL.replace("{-inf}", "{-3}")), tmp_path / "in.onnx")
    model = onnx.load(tmp_path / "in.onnx")
    model.graph.initializer[0].float_data[:] = [float("-inf")]
    onnx.save(model, tmp_path / "in.onnx")
    exact = onnxopt.optimize_file(tmp_path / "in.onnx", tmp_path / "1.onnx", level=1)
    assert not exact.rolled_back and _outputs(tmp_path / "1.onnx") == [2, 2]
    report = optimize_or_roll_back(
        tmp_path / "in.onnx", tmp_path / "2.onnx", onnxopt.OptimizeOptions(), verify_options=onnxopt.VerifyOptions()
    )
    assert [str(left.site) for left in report.rolled_back] == ["dead-code@y"], report.rolled_back
    assert _outputs(tmp_path / "2.onnx") == [2, 1]


def _outputs(path: Path) -> list[int]:
    return [len(node.output) for node in onnx.load(path).graph.node if node.op_type == "MaxPool"]


MARKED = """<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
{
  a = Neg (x)
  b = my.own (a, x)
  y = my.caller (a, b)
  z = my.f (a, b)
}
<domain: "my", opset_import: ["" : 17]> own (p, v) => (u) { u = Abs (v) }
<domain: "my", opset_import: ["" : 17, "my" : 1]> caller (p, v) => (u) { u = my.f (p, v) }
<domain: "my", opset_import: ["" : 17]> f (p, v) => (u) { u = Exp (v) }
"""


def test_inputs_of_what_is_marked_and_of_what_that_calls() -> None:
    for marked, left in (((), [1, 1, 1]), (("own", "caller"), [2, 2, 2]), (("own",), [2, 1, 1])):
        model = parsed(MARKED)
        for function in model.functions:
            if function.name in marked:
                function.metadata_props.add(key="onnxopt.skip", value="true")
        result = onnxopt.optimize(model, pipeline="dead-code", verify=False).model
        assert [len(function.input) for function in result.functions] == left
        assert len(result.graph.node) == 4 - (marked == ())


SCALED = """g (float[2, 3, 4, 5] x) => (float[2, 4, 3, 5] y)
<float[5] scale = {1, 2, 3, 4, 5}, float[1, 5] sum = {5, 4, 3, 2, 1}, float[4, 1, 1] each = {4, 3, 2, 1}>
{
  a = Transpose <perm = [0, 2, 1, 3]> (x)
  b = Mul (a, scale)
  c = Add (b, sum)
  d = Div (c, each)
  e = Transpose <perm = [0, 2, 1, 3]> (d)
  f = Relu (e)
  y = Transpose <perm = [0, 2, 1, 3]> (f)
}"""


def test_constants_of_a_turned_region_have_no_axes_in_front() -> None:
    """onnxruntime knows a normalization by a scale of one axis."""
    model = read_model(parsed(SCALED))
    execute(get_pass("transpose-propagation")(), model)
    operands = {n.op: n.inputs[1] for n in model.graph if len(n.inputs) == 2}
    shapes = {op: v.constant_type()[1] for op, v in operands.items() if v is not None}
    assert shapes == {"Mul": (5,), "Add": (5,), "Div": (4, 1)}
    assert operands["Mul"] is model.graph.initializers["scale"]


def numbers(count: int, depth: int) -> str:
    """So many elements of `x`, each through so many operators, joined."""
    body, constants = "", []
    for n in range(count):
        constants.append(f"int64 i{n} = {{{n}}}")
        body += f"v{n}_0 = Gather (x, i{n})\n"
        body += "".join(f"v{n}_{d + 1} = Neg (v{n}_{d})\n" for d in range(depth))
        body += f"p{n} = Unsqueeze (v{n}_{depth}, front)\n"
    joined = ", ".join(f"p{n}" for n in range(count))
    return f"""g (int64[64] x) => (int64[{count}] y)
        <int64[1] front = {{0}}, {", ".join(constants)}> {{ {body} y = Concat <axis = 0> ({joined}) }}"""


@pytest.mark.parametrize(
    ("count", "depth", "left"), [(16, 1, 1), (17, 1, 2), (18, 1, 2), (33, 1, 3), (2, 63, 1), (2, 64, 2)]
)
def test_sixteen_numbers_are_packed_through_sixty_three_operators(count: int, depth: int, left: int) -> None:
    result = onnxopt.optimize(parsed(numbers(count, depth)), pipeline="pack-scalars,dead-code", verify=False).model
    assert [node.op_type for node in result.graph.node].count("Gather") == left


def test_concats_in_a_row_are_written_a_few_times() -> None:
    """Each that is written again is one of at most 64 parts, or a full one: not all parts at each step."""
    steps = "".join(f"v{i + 1} = Concat <axis = 0> (v{i}, w)\n" for i in range(3000))
    text = f"g (float[N] v0, float[M] w) => (float[K] v3000) {{ {steps} }}"
    model = read_model(parsed(text))
    written = 0
    place = type(model.graph).place

    def counting(self: object, node: Node, before: Node | None) -> None:
        nonlocal written
        written += len(node.inputs)
        place(self, node, before)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.graph), "place", counting)
        execute(get_pass("merge-chains")(), model)
    assert len(list(model.graph)) == 3
    assert written < 64 * 3000
    assert all(len(n.inputs) <= 1024 for n in model.graph)
