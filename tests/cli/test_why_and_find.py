"""`why` shows where a rule and a model part, `find` the places of a pattern."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import parser

from tests.cli.conftest import Run
from tests.samples import ROOT

BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")


def test_why_examines_the_run_of_its_options(run: Run, small: Path) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    body = "(float[N] x) => (float[N] y) <float n = {3}> { y = Pow (x, n) }"
    onnx.save(parser.parse_model(f"{header} g {body}"), small / "p.onnx")
    plugin = ("--plugin", str(ROOT / "examples" / "plugin" / "onnxopt_powers.py"))
    why = ("why", "p.onnx", "power_as_product", *plugin)
    assert "power_as_product: it does not run at -O2" in run(*why).stdout
    why += ("--with", "powers-as-products", "--disable", "cube")
    assert "power_as_product: fired 1 time; 0 Pow left" in run(*why).stdout
    limited = run(*why, "--config", "powers-as-products.largest=2").stdout
    assert "power_as_product: fired 0 times; 1 Pow left" in limited
    assert "would fire" not in limited


TWIN = '''
from onnxopt import PassInfo, RewritePass, op, register, rewrite, var

@rewrite(op.Mul(op.Mul(var("x"), var("x")), var("x")))
def cube(m, x):
    """x x x = x³, of another pass."""
    m.require(False, "never")

@register
class Twin(RewritePass):
    """A rule that is called as one of onnxopt's own."""
    info = PassInfo("twin")
    rules = (cube,)
'''


def test_two_rules_of_one_name_are_told_apart(run: Run, small: Path) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    text = f"{header} g (float[N] x) => (float[N] y) {{ a = Mul (x, x) b = Mul (a, x) y = Neg (b) }}"
    onnx.save(parser.parse_model(text), small / "c.onnx")
    (small / "twin.py").write_text(TWIN)
    said = run("why", "c.onnx", "cube", "--plugin", "twin.py", "--with", "twin").stdout
    own, other = said.split("\n\n")
    assert own.startswith("of simplify-arithmetic:\ncube: fired 1 time; ")
    assert other.startswith("of twin:\ncube: fired 0 times; ")
    pages = run("explain", "cube", "--plugin", "twin.py").stdout
    assert "cube: rule of the pass simplify-arithmetic, " in pages and "\ncube: rule of the pass twin, " in pages


def test_why_shows_the_pattern_and_the_first_cross(run: Run, samples: Path) -> None:
    source = samples / "must_stay.onnx"
    r = run("why", source, "fold_conv_bn")
    assert r.returncode == 0, r.stderr
    assert "fold_conv_bn: fired 1 time; 4 BatchNormalization left" in r.stdout
    assert "1 time: Conv output used elsewhere" in r.stdout
    assert "✗ Conv|ConvTranspose|Gemm  Conv" in r.stdout
    assert "(also read by " in r.stdout
    assert "✓ const w  " in r.stdout
    first, second, *_ = run("why", source, "implicit-broadcast").stdout.splitlines()
    assert first == "expand_of_operand: fired 0 times; 1 node of its 23 operators left"
    assert second.startswith("  1 time: Add|And|BitShift|BitwiseAnd|…: reads no ")
    operand = "    ✗ c  n1: float[batch,4,8,8]  (not constant: made by BatchNormalization)\n"
    assert operand in run("why", source, "neutral_operand").stdout
    fired = run("why", source, "conv-bn-folding")
    assert "fold_matmul_bn: fired 0 times" in fired.stdout
    assert "it is Conv" in fired.stdout


def test_a_merged_pass_keeps_its_name(run: Run, small: Path) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    sizes = "<int64[2] merged = {6, 4}, int64[3] apart = {2, 3, 4}>"
    body = f"{sizes} {{ a = Reshape (x, merged) b = Exp (a) y = Reshape (b, apart) }}"
    onnx.save(parser.parse_model(f"{header} g (float[2, 3, 4] x) => (float[2, 3, 4] y) {body}"), small / "b.onnx")
    assert "unmerged: 1 time" in run("why", "b.onnx", "batch-products").stdout
    for option, left in ((("--pipeline", "batch-products"), 1), (("--disable", "batch_products"), 3)):
        r = run("optimize", "b.onnx", "out.onnx", *option)
        assert r.returncode == 0, r.stderr
        assert len(onnx.load(small / "out.onnx").graph.node) == left


def test_why_names_the_option_that_runs_a_pass(run: Run, small: Path) -> None:
    source = small / "m.onnx"
    plugin = run("why", source, "wrong-rule", "--plugin", BROKEN).stdout
    assert "it does not run at -O2, but with `onnxopt optimize --with wrong-rule`; 0 Mul left" in plugin
    idle = run("why", source, "elim-identity", "-O0").stdout
    assert "it does not run at -O0, but with `onnxopt optimize -O1`; 1 " in idle
    assert "1 time: would fire" in idle
    assert "it does not run at -O2, but with `onnxopt optimize -O3`" in run("why", source, "merge-parallel").stdout
    assert (
        "fold_conv_bn: it did not run: the model has no BatchNormalization" in run("why", source, "fold_conv_bn").stdout
    )
    unturned = run("why", source, "transpose-propagation").stdout
    assert unturned == "transpose-propagation has no rules; it did not run: the model has no Transpose\n"


def test_why_names_misspelt_operators_of_a_rule(run: Run, small: Path) -> None:
    (small / "misspelt.py").write_text(
        "from onnxopt import PassInfo, RewritePass, op, register, rewrite, var\n"
        "@rewrite(op.Elu(op.Reluu(var('x')), alpha=2.0))\n"
        "def no_operator(m, x):\n    'Elu(Reluu(x)) = x.'\n    return x\n"
        "@rewrite(op.Elu(var('x'), slope=2.0))\n"
        "def no_attribute(m, x):\n    'Elu(x) = x.'\n    return x\n"
        "@register\nclass Misspelt(RewritePass):\n    'Nothing.'\n"
        "    info = PassInfo('misspelt', opt_level=2)\n    rules = (no_operator, no_attribute)\n"
    )
    r = run("why", "m.onnx", "no_operator", "--plugin", "misspelt.py")
    assert (r.returncode, "an operator 'Reluu'" in r.stderr, "did you mean Relu" in r.stderr) == (2, True, True), r
    r = run("why", "m.onnx", "no_attribute", "--plugin", "misspelt.py")
    assert (r.returncode, "Elu has no attribute 'slope'" in r.stderr, "it has alpha" in r.stderr) == (2, True, True), r


def test_why_asks_about_one_node(run: Run, samples: Path) -> None:
    source = samples / "residual_block.onnx"
    first = next(n for n in onnx.load(source).graph.node if n.op_type == "BatchNormalization")
    gone = run("why", source, "fold_conv_bn", "--node", first.output[0], "-O0").stdout
    assert "in main: fires\n" in gone
    assert "✗" not in gone
    conv = next(n for n in onnx.load(source).graph.node if first.input[0] in n.output)
    through = run("why", source, "fold_conv_bn", "--node", conv.output[0], "-O0").stdout
    assert through == gone, "asked by way of the Conv that it covers"
    after = run("why", source, "fold_conv_bn", "--node", first.output[0]).stdout
    assert after.startswith("made by ")
    assert "conv-bn-folding/fold_conv_bn" in after
    was = run("why", source, "fold_conv_bn", "--node", conv.output[0]).stdout
    assert f"{conv.output[0]} is gone:" in was
    r = run("why", source, "fold_conv_bn", "--node", "nothing")
    assert (r.returncode, "no node or value called 'nothing'" in r.stderr) == (2, True)
    r = run("why", source, "fold_conv")
    assert (r.returncode, "did you mean" in r.stderr) == (2, True)
    assert "constant-folding has no rules" in run("why", source, "constant-folding").stdout


def test_find_searches_by_example(run: Run, samples: Path) -> None:
    source = samples / "residual_block.onnx"
    r = run("find", source, "BatchNormalization(Conv(x, w, ...), ...)")
    assert r.returncode == 0, r.stderr
    assert f"{source}: 3 matches\n" in r.stdout
    assert r.stdout.count(" = BatchNormalization") == r.stdout.count(" = Conv") == 3
    records = json.loads(run("find", source, "BatchNormalization(Conv(x, w, ...), ...)", "--format", "json").stdout)
    assert len(records) == 3
    assert set(records[0]["nodes"]) == {"BatchNormalization_1", "Conv_1"}
    assert set(records[0]["values"]) == {"x", "w"}
    r = run("find", source, "(x) => (y) { y = Sinh (x) }")
    assert (r.returncode, r.stdout) == (1, f"{source}: 0 matches\n")
    r = run("find", source, "Relu")
    assert r.returncode == 2 and "hint: Relu(...) is an operator; an example is like" in r.stderr
    r = run("find", source, "Relu(")
    assert (r.returncode, "cannot be read" in r.stderr) == (2, True)


def test_find_names_unknown_operators_and_attributes(run: Run, samples: Path) -> None:
    source = samples / "residual_block.onnx"
    for pattern, error, hint in (
        ("Rellu(x)", "neither the standard nor the model has an operator 'Rellu'", "did you mean Relu, PRelu or"),
        ("Softmax(x, axs=-1)", "Softmax has no attribute 'axs'", "did you mean axis?"),
    ):
        r = run("find", source, pattern)
        assert r.returncode == 2
        assert r.stderr.startswith(f"error: {error}\nhint: {hint}")
    for known in ("com.microsoft.Rellu(x)", "Softmax(x, axis=7)", "Rellu|Conv(x, ...)"):
        assert run("find", source, known).returncode in (0, 1), known
