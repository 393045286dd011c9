"""Operators whose meaning changed with an opset, and that onnx's converter leaves unchanged or gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto

from onnxopt.conversion import opset
from onnxopt.conversion.opset import convert_opset
from onnxopt.errors import ModelError
from onnxopt.optimizer.attempt import attempt
from onnxopt.optimizer.options import OptimizeOptions
from onnxopt.verification import UNVERIFIED, VerifyOptions
from tests.runtime import plain_session
from tests.samples import parsed

X, V = "float[2, 4, 6, 6] x", "float[2, 3, 4] x"


def model(opset: int, given: str, text: str, constants: str = "") -> ModelProto:
    held = f"<{constants}>" if constants else ""
    kind = "float[A, B, C]" if given.startswith(V) else "float[A, B, C, D]"
    return parsed(f'<ir_version: 8, opset_import: ["" : {opset}]> g ({given}) => ({kind} y) {held} {{ {text} }}')


def agree(before: ModelProto, opset: int) -> ModelProto:
    """The model at that opset, which onnx's checker takes, and which gives the same."""
    after = ModelProto()
    after.CopyFrom(before)
    assert convert_opset(after, opset, Path("m.onnx"))
    onnx.checker.check_model(after, full_check=True)
    rng = np.random.default_rng(0)
    shape = [d.dim_value for d in before.graph.input[0].type.tensor_type.shape.dim]
    feeds: dict[str, Any] = {"x": rng.standard_normal(shape).astype(np.float32)}
    feeds |= {i.name: np.array(True) for i in before.graph.input if i.name == "c"}
    one, other = (plain_session(m).run(None, feeds)[0] for m in (before, after))
    np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    return after


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(
    ("version", "axis"), [(7, ""), (11, ""), (7, "<axis = 0>"), (11, "<axis = -1>"), (9, "<axis = 2>")]
)
def test_hardmax_of_all_behind_an_axis(version: int, axis: str, opset: int) -> None:
    agree(model(version, V, f"y = Hardmax {axis} (x)"), opset)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_scales_of_a_group_become_those_of_a_channel(groups: int) -> None:
    s, b = (f"{{{', '.join(map(str, numbers[:groups]))}}}" for numbers in ((0.3, -0.7, 2, 1), (0.2, -0.5, 1, 3)))
    text = f"y = GroupNormalization <num_groups = {groups}, epsilon = 0.1> (x, s, b)"
    after = agree(model(18, X, text, f"float[{groups}] s = {s}, float[{groups}] b = {b}"), 21)
    assert "GroupNormalization" in {n.op_type for n in after.graph.node}


@pytest.mark.parametrize("opset", [11, 19])
@pytest.mark.parametrize("scales", ["1, 1, 1.5, 2.5", "1, 1, 0.7, 0.4"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_takes_numbers_from_where_it_did(mode: str, scales: str, opset: int) -> None:
    agree(model(10, X, f'y = Resize <mode = "{mode}"> (x, s)', f"float[4] s = {{{scales}}}"), opset)


@pytest.mark.parametrize(("version", "opset"), [(7, 10), (7, 11), (9, 13)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str, version: int, opset: int) -> None:
    scales = "1.0, 1.0, 1.5, 2.0"
    text, held = (f", scales = [{scales}]> (x)", "") if version == 7 else ("> (x, s)", f"float[4] s = {{{scales}}}")
    agree(model(version, X, f'y = Upsample <mode = "{mode}"{text}', held), opset)


@pytest.mark.parametrize("opset", [10, 11, 13])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_upsample_in_between_keeps_its_name(mode: str, opset: int) -> None:
    """The converter gives another name to the result of a node that it replaces."""
    upsample = f'Upsample <mode = "{mode}"> (x, s)'
    branches = f"then_branch = t () => (float[A, B, C, D] r) {{ o = {upsample} r = Neg (o) }},"
    branches += f"else_branch = e () => (float[A, B, C, D] q) {{ q = {upsample} }}"
    text = f"[up] u = {upsample} b = If (c) <{branches}> y = Add (u, b)"
    after = agree(model(9, f"{X}, bool c", text, "float[4] s = {1, 1, 2, 3}"), opset)
    (made,) = (n for n in after.graph.node if n.name == "up")
    assert (made.op_type, list(made.output)) == ("Resize", ["u"])
    assert len(after.graph.output) == 1


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_the_value_of_a_pad(mode: str) -> None:
    pad = f'Pad <mode = "{mode}", value = 2.0, pads = [0, 1, 0, 0, 0, 2]>'
    agree(model(10, V, f"y = {pad} (x)"), 13)
    agree(model(10, V, f"d = Cast <to = 11> (x) p = {pad} (d) y = Cast <to = 1> (p)"), 13)


def test_a_function_without_a_call_goes() -> None:
    """The checker refuses a function of another opset with an operator that changed."""
    before = model(11, V, "y = Neg (x)")
    given = onnx.parser.parse_function('<domain: "d", opset_import: ["" : 11]> f (a) => (b) { b = Softmax (a) }')
    before.functions.append(given)
    before.opset_import.add(domain="d", version=1)
    assert not agree(before, 17).functions


def test_a_body_reads_names_that_are_free() -> None:
    one = "y_flatten = Neg (x) y = If (c) <then_branch = t () => (float[A, B, C] r) { r = Hardmax (y_flatten) },"
    before = model(11, f"{V}, bool c", f"{one} else_branch = e () => (float[A, B, C] s) {{ s = Hardmax (x) }}>")
    after = agree(before, 17)
    names = [o for n in after.graph.node for o in n.output]
    names += [o for n in after.graph.node for a in n.attribute if a.HasField("g") for m in a.g.node for o in m.output]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("version", "text", "opset", "why"),
    [
        (10, "d, m = Dropout (x) n = Cast <to = 1> (m) y = Add (d, n)", 13, "the mask of Dropout, `m`"),
        (7, "d, m = Dropout (x) y = Add (d, m)", 10, "the mask of Dropout, `m`"),
        (10, "s = Constant <value = float[4] {1, 1, 2, 0.5}> () y = Resize (x, s)", 11, "above and below 1"),
        (10, "z = Shape (x) s = Cast <to = 1> (z) y = Resize (x, s)", 11, "scales that are not known"),
        (11, 'y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, r, s)', 13, "has no mode"),
    ],
)
def test_what_has_no_form_there_is_refused_by_name(version: int, text: str, opset: int, why: str) -> None:
    constants = "float[0] r = {}, float[4] s = {1, 1, 2, 2}" if "r, s" in text else ""
    before = model(version, X, text, constants)
    data = before.SerializeToString()
    with pytest.raises(ModelError, match="cannot be converted to opset") as raised:
        convert_opset(before, opset, Path("m.onnx"))
    assert why in str(raised.value)
    assert before.SerializeToString() == data


def test_a_mask_that_nobody_reads_is_no_reason() -> None:
    agree(model(10, X, "d, m = Dropout (x) y = Neg (d)"), 13)


def optimized(folder: Path, before: ModelProto, opset: int) -> Any:
    onnx.save(before, folder / "in.onnx")
    options = OptimizeOptions(target_opset=opset)
    return attempt(folder / "in.onnx", folder / "out.onnx", options, verify_options=VerifyOptions(timeout=60))


def test_another_fault_of_the_converter_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a rewrite's, which nobody finds by leaving out rewrites."""
    monkeypatch.setattr(opset, "HIDDEN", {})
    monkeypatch.setattr(opset, "_ADAPTERS", {})
    with pytest.raises(ModelError, match="cannot be converted to opset 17: output `y` differs") as raised:
        optimized(tmp_path, model(11, V, "h = Neg (x) i = Identity (h) y = Hardmax (i)"), 17)
    assert "onnx's version converter" in raised.value.hint
    assert not (tmp_path / "out.onnx").exists()


def test_what_this_runtime_does_not_load_the_reference_evaluator_judges(tmp_path: Path) -> None:
    before = parsed(
        '<ir_version: 11, opset_import: ["" : 24]> g (float[3] x) => (float[3] y) { t = Identity (x) y = Swish (t) }'
    )
    found = optimized(tmp_path, before, 25).verification
    assert (found.status, found.engine) == ("equal", "reference"), found.message
    assert "does not implement Swish of opset 24" in found.message


def test_what_none_of_both_runs_is_not_verified(tmp_path: Path) -> None:
    found = optimized(tmp_path, model(18, V, "t = Identity (x) y = GlobalLpPool (t)"), 22).verification
    assert found.status == UNVERIFIED
    assert "GlobalLpPool of opset 22 for its types, which --target-opset asks for" in found.message
