"""A pass that changes numbers on purpose must stay within its declared tolerance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.cli.conftest import Run

PLUGIN = '''
import numpy as np
from onnxopt import graph_pass, option, register

@register
@graph_pass(tolerance={tolerance})
def coarse_weights(graph, ctx):
    """Weights keep three bits of their mantissa."""
    for node in list(graph.by_op.get("MatMul", ())):
        w = node.inputs[1].array
        coarse = (w.view(np.int32) & ~((1 << 20) - 1)).view(np.float32)
        if (coarse != w).any() and ctx.spend("weight", at=node):
            node.set_input(1, graph.constant(coarse))
'''


def test_a_declared_tolerance_counts(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, 1, ["N", k]) for n, k in (("x", 16), ("y", 8)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "mm")], "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    for name, tolerance in (("loose", 0.2), ("tight", 0.001), ("silent", 0.0)):
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(tolerance=tolerance))
    done = run("optimize", "m.onnx", "out.onnx", "--plugin", "loose.py", "--with", "coarse-weights")
    assert done.returncode == 0, done.stderr
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("✓ verified: largest difference ")
    assert verdict.endswith("; coarse-weights declares 0.2")
    for name in ("tight", "silent"):  # beyond the tolerance, or without one: wrong
        done = run("optimize", "m.onnx", "out.onnx", "--plugin", f"{name}.py", "--with", "coarse-weights")
        assert done.returncode == 3, done.stdout
        assert "pass coarse-weights" in done.stdout + done.stderr
    page = run("explain", "coarse-weights", "--plugin", "loose.py").stdout
    assert "changes numbers: an output by up to 0.2 of its range\n" in page
