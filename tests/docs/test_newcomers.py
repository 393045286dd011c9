"""A newcomer's three passes, in few lines, written from docs/writing-a-pass.md alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.commands import Run
from tests.runtime import outputs
from tests.samples import ROOT

PAGE = (ROOT / "docs" / "writing-a-pass.md").read_text()
HEADER = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y)'

RULE = '''
from onnxopt import PassInfo, RewritePass, const, op, register, rewrite, var


@rewrite(op.Div(var("x"), const("c")))
def division_as_product(m, x, c):
    """x / c = x (1 / c)."""
    m.require(c.dtype == "float32" and (c != 0).all(), "not floats, or zero is among them")
    return m.op.Mul(x, m.const(1 / c.astype("float64"), like=c))


@register
class DivisionsAsProducts(RewritePass):
    """A division by a constant becomes a product, which is faster."""

    info = PassInfo("divisions-as-products", opt_level=2)
    rules = (division_as_product,)
'''

GRAPH = '''
import numpy as np
from onnx import TensorProto

from onnxopt import dtype, graph_pass, register


@register
@graph_pass(opt_level=2)
def hard_swish_as_products(graph, ctx):
    """HardSwish is written out, for accelerators that do not have it."""
    for node in list(graph.by_op.get("HardSwish", ())):
        x = node.inputs[0]
        if dtype(x) == TensorProto.FLOAT and ctx.spend("hard_swish", at=node):
            three, sixth, zero, one = (graph.constant(np.float32(c)) for c in (3, 1 / 6, 0, 1))
            shifted = graph.make("Mul", [graph.make("Add", [x, three], before=node), sixth], before=node)
            clipped = graph.make("Clip", [shifted, zero, one], before=node)
            node.output.replace_all_uses_with(graph.make("Mul", [x, clipped], before=node))
            graph.remove(node)
'''

FUSION = '''
from onnx import TensorProto

from onnxopt import PassInfo, RewritePass, const, op, register, rewrite, var


@rewrite(op.Relu(op.Add(op.MatMul(var("x"), const("w"), name="product"), const("b"))))
def dense(m, x, w, b):
    """Relu(x W + b) = FusedGemm(x, W, b)."""
    m.require(m.dtype(x) == TensorProto.FLOAT and m.rank(x) == 2 and w.ndim == 2, "no product of float matrices")
    m.require(b.shape == w.shape[1:], "the bias is not one for each column")
    return m.op["com.microsoft::FusedGemm"](x, m.value("w"), m.value("b"), activation="Relu")


@register
class Dense(RewritePass):
    """A dense layer becomes one kernel."""

    info = PassInfo("dense", targets=("cpu",), ops=("MatMul",))
    rules = (dense,)
'''

WEIGHTS = "<float[4, 4] w = {1,2,3,4,5,6,7,8,-1,-2,-3,-4,-5,-6,-7,-8}, float[4] b = {1,-2,3,-4}>"
PASSES = [
    ("divisions-as-products", RULE, 12, HEADER + "<float[4] c = {2, 3, 4, 5}> { y = Div (x, c) }", "Mul", ()),
    (
        "hard-swish-as-products",
        GRAPH,
        16,
        HEADER + "{ a = HardSwish (x) y = Add (a, x) }",
        "Add Mul Clip Mul Add",
        (),
    ),
    (
        "dense",
        FUSION,
        20,
        HEADER + WEIGHTS + "{ p = MatMul (x, w) a = Add (p, b) y = Relu (a) }",
        "FusedGemm",
        ("--target", "cpu", "--allow-domain", "com.microsoft"),
    ),
]
NAMES = [name for name, *_ in PASSES]


@pytest.mark.parametrize(("text", "lines"), [(text, lines) for _, text, lines, *_ in PASSES], ids=NAMES)
def test_it_takes_few_lines(text: str, lines: int) -> None:
    assert sum(bool(line.strip()) for line in text.splitlines()) <= lines


@pytest.mark.parametrize("text", [text for _, text, *_ in PASSES], ids=NAMES)
def test_the_page_shows_all_that_it_uses(text: str) -> None:
    tree = ast.parse(text)
    used = {alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
    used |= {
        f"{n.value.id}.{n.attr}"
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute)
        and isinstance(n.value, ast.Name)
        and n.value.id in ("m", "graph", "ctx", "node")
    }
    used |= {k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg}
    missing = {name for name in used if not re.search(rf"\b{re.escape(name)}\b", PAGE)}
    assert not missing - {"activation"}, "an operator's attribute is its own"


@pytest.mark.parametrize(
    ("name", "text", "source", "operators", "options"),
    [(name, text, source, made, options) for name, text, _, source, made, options in PASSES],
    ids=NAMES,
)
def test_it_does_what_it_says(
    run: Run, tmp_path: Path, name: str, text: str, source: str, operators: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "mine.py").write_text(text)
    before = parser.parse_model(source)
    onnx.save(before, tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--plugin", "mine.py", "--pipeline", name, *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "verified" in done.stdout or "equal" in done.stdout
    after = onnx.load(tmp_path / "out.onnx")
    assert " ".join(n.op_type for n in after.graph.node) == operators
    x = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    np.testing.assert_allclose(outputs(after, x)["y"], outputs(before, x)["y"], rtol=1e-5, atol=1e-6)


def test_the_guard_says_why_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RULE)
    onnx.save(parser.parse_model(HEADER + "<float[4] c = {2, 0, 4, 5}> { y = Div (x, c) }"), tmp_path / "m.onnx")
    done = run("optimize", "m.onnx", "out.onnx", "--plugin", "mine.py", "--pipeline", NAMES[0], "-v")
    assert "division_as_product declined 1 time: not floats, or zero is among them" in done.stdout
