"""Random graphs: exact passes change no bit, the others stay within tolerance, a second run changes nothing.

`ONNXOPT_FUZZ=20000 pytest tests/test_fuzz.py` (or `make fuzz`) runs more of them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import onnx.printer
import onnxruntime as rt
import pytest
from hypothesis import HealthCheck, given, note, reject, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxopt import OptimizeOptions, optimize_model
from onnxopt.graph import write_model
from onnxopt.io import from_proto
from onnxopt.pipeline.instruments import CheckEach
from tests.exported import Exported
from tests.opsets import at_opset
from tests.runtime import plain_session

pytestmark = pytest.mark.usefixtures("kept_worker")
EXAMPLES = int(os.environ.get("ONNXOPT_FUZZ", "120"))
SHAPES = [(2, 3, 4, 4), (2, 3), (4,), (1, 3, 1, 1), (2, 1, 4, 4), (2, 1, 8)]
OPSETS = [17, 17, 17, *range(7, 17), *range(18, 25)]


@st.composite
def models(draw: Any) -> onnx.ModelProto:
    kind = draw(st.sampled_from([np.float32, np.float32, np.float64]))
    drawn = draw(st.randoms(use_true_random=False))
    g = Exported(drawn, np.random.default_rng(draw(st.integers(0, 2**32 - 1))), kind)
    inputs = [helper.make_tensor_value_info("condition", TensorProto.BOOL, [])]
    dynamic = draw(st.sets(st.sampled_from([1, 2, 3, 4])))  # sizes that the model calls by a symbol
    for i in range(draw(st.integers(1, 2))):
        shape = draw(st.sampled_from(SHAPES))
        g.shapes[f"x{i}"], g.types[f"x{i}"] = shape, kind
        dims = [f"n{d}" if d in dynamic else d for d in shape]
        inputs.append(helper.make_tensor_value_info(f"x{i}", g.element(kind), dims))
    for _ in range(draw(st.integers(1, 14))):
        g.step()
    made = [n for n in g.shapes if n.startswith("v")]
    chosen = dict.fromkeys([*made[-1:], *(draw(st.lists(st.sampled_from(made), max_size=2)) if made else [])])
    if not chosen:
        g.add("Neg", ["x0"], g.shapes["x0"])
        chosen = {next(n for n in g.shapes if n.startswith("v")): None}
    outputs = [helper.make_tensor_value_info(n, g.element(g.types[n]), [None] * len(g.shapes[n])) for n in chosen]
    graph = helper.make_graph(g.nodes, "fuzz", inputs, outputs, g.weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, 1 if d else 17) for d in g.domains], ir_version=8
    )
    return at_opset(model, draw(st.sampled_from(OPSETS))) or model


def results(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Returns the results for each of the inputs."""
    session = plain_session(model, enable_mem_reuse=False)
    return [list(session.run(None, given)) for given in feeds]


def feeds_for(model: onnx.ModelProto, seed: int, condition: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {"condition": np.array(condition)}
    for i in model.graph.input[1:]:
        shape = [d.dim_value or int(d.dim_param[1:]) for d in i.type.tensor_type.shape.dim]
        x = rng.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
        x.reshape(-1)[0] = -0.0
        feeds[i.name] = x
    return feeds


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck))
@given(models())
def test_random_graphs(proto: onnx.ModelProto) -> None:
    note(onnx.printer.to_text(proto))
    feeds = [feeds_for(proto, 0, condition) for condition in (True, False)]
    try:
        onnx.checker.check_model(proto, full_check=True)
    except onnx.shape_inference.InferenceError:
        reject()  # the opset has the operator for other types only
    try:
        expected = results(proto, feeds)
    except (rt.capi.onnxruntime_pybind11_state.Fail, rt.capi.onnxruntime_pybind11_state.NotImplemented):
        reject()  # the original itself: without optimizations some outer values never reach a branch
    for level in (1, 2, 3):
        model = from_proto(proto)
        optimize_model(model, OptimizeOptions(level=level), [CheckEach()])
        result = onnx.ModelProto()
        result.CopyFrom(write_model(model))
        onnx.checker.check_model(result, full_check=True)
        for wanted, found in zip(expected, results(result, feeds), strict=True):
            for a, b in zip(wanted, found, strict=True):
                assert a.shape == b.shape
                if level == 1 or a.dtype.kind != "f":
                    same = (a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))
                    assert same.all()
                else:
                    finite = np.isfinite(a)
                    assert np.array_equal(a[~finite], b[~finite], equal_nan=True)
                    scale = max(1.0, float(np.abs(a[finite]).max(initial=0)))
                    assert np.abs(a[finite] - b[finite]).max(initial=0) <= 1e-4 * scale
        again = from_proto(result)
        optimize_model(again, OptimizeOptions(level=level))
        assert again.version == 0, "a second run changes something"
