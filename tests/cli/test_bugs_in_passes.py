"""Errors in a pass are reported to its author with the fault, the place and the next step."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from tests.cli.conftest import Run

HEAD = "from onnxopt import PassInfo, RewritePass, graph_pass, op, register, rewrite, var\n"
RULE = '''
@rewrite(op.Tanh(var("x")))
def bad(m, x):
    """Tanh(x) = y."""
    {body}


@register
class BadPass(RewritePass):
    """A rule that is wrong."""

    info = PassInfo("bad-pass")
    rules = (bad,)
'''
GRAPH = '''
@register
@graph_pass
def bad_pass(graph, ctx):
    """A pass that is wrong."""
    {body}
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    source = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) { t = Tanh (x) y = Cos (t) }'
    )
    onnx.save(parser.parse_model(source), tmp_path / "m.onnx")
    return tmp_path / "mine.py"


OPTIMIZE = ("optimize", "m.onnx", "out.onnx", "--plugin", "mine.py", "--with", "bad-pass")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (
            RULE.format(body="return m.tanh.attr('alpha')"),
            "rule bad failed at Tanh -> t: AttributeError: 'Match' object has no attribute 'tanh' (mine.py:6)",
            "--disable bad, and ONNXOPT_DEBUG=1 shows the traceback",
        ),
        (
            RULE.format(body="return m.anchor.outputs[0]"),
            "Tanh -> t: what replaces `t` is `t` itself (mine.py:3)",
            "returns what the anchor reads; m.skip() leaves it as it is",
        ),
        (
            RULE.format(body="return m.op.Gelu(x)"),
            "opset 17 of ai.onnx has no operator Gelu (mine.py:6) (after ",
            "it is there from opset 20 on: require that, or --target-opset 20 converts the model",
        ),
        (
            RULE.format(body="return m.op.Tan_(x)"),
            "opset 17 of ai.onnx has no operator Tan_",
            "did you mean Tan or Tanh",
        ),
        (
            RULE.format(body="return 1"),
            "what replaces it is an int, not 1 value (mine.py:3)",
            "return a value for each",
        ),
        (
            RULE.format(body="return m.op.Tan(m.op.Abs(m.anchor.output))"),
            "Tanh -> t: what replaces it is made of its result, by Abs (mine.py:3)",
            "let it read what the anchor reads",
        ),
        (RULE.format(body="return m.op.Tanh(x)"), "the last ones were bad", "it needs a guard; go on without it by"),
        (
            RULE.format(body="m.require('no good', False)"),
            "TypeError: require(condition, reason): the reason is text, not False (mine.py:6)",
            "--disable bad",
        ),
        (
            GRAPH.format(body="graph.remove(next(iter(graph)))"),
            "main: Tanh -> t was to be removed, and `t` is read by Cos -> y (mine.py:7)",
            "value.replace_all_uses_with(other) comes first",
        ),
        (
            GRAPH.format(body="graph.remove(list(graph)[-1])"),
            "main: Cos -> y was to be removed, and `y` is read by an output of the graph",
            "",
        ),
        (
            GRAPH.format(body="{}['x']"),
            "pass bad-pass failed on m.onnx: main: KeyError: 'x' (mine.py:7)",
            "--disable bad-pass, and ONNXOPT_DEBUG=1 shows the traceback",
        ),
    ],
)
def test_a_failing_pass_is_reported_with_its_place(run: Run, plugin: Path, text: str, what: str, hint: str) -> None:
    plugin.write_text(HEAD + text)
    r = run(*OPTIMIZE)
    assert r.returncode == 4
    assert what in r.stderr.splitlines()[0]
    assert hint in r.stderr.splitlines()[1]


def test_why_reports_a_failing_rule(run: Run, plugin: Path) -> None:
    plugin.write_text(HEAD + RULE.format(body="return m.tanh.attr('alpha')"))
    r = run("why", "m.onnx", "bad", "--plugin", "mine.py")
    assert r.returncode == 4
    assert "rule bad failed at Tanh -> t: AttributeError" in r.stderr
    assert "(mine.py:6)" in r.stderr
    assert "internal error" not in r.stderr


def test_an_unregistered_pass_has_a_hint(run: Run, plugin: Path) -> None:
    plugin.write_text(HEAD + GRAPH.replace("@register\n", "").format(body="pass"))
    r = run(*OPTIMIZE)
    assert r.returncode == 2
    assert r.stderr == "error: no pass is called 'bad-pass'\nhint: bad_pass is not registered: put @register above it\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('var("x")', '"x"', "op.Tanh: 'x' is no pattern: var('x') is any value, const('w') a constant"),
        ('op.Tanh(var("x"))', "op.Tanh", "bad: a pattern starts with the call of an operator: op.Relu(var('x'))"),
        ("(bad,)", "bad", "rules = bad is no tuple of what @rewrite makes: rules = (my_rule,)"),
        ("(bad,)", "(1,)", "rules = (1,) is no tuple of what @rewrite makes: rules = (my_rule,)"),
        (
            'PassInfo("bad-pass")',
            'PassInfo("bad-pass", 7)',
            "UsageError: pass bad-pass: there is no level 7 (mine.py:",
        ),
        (
            'PassInfo("bad-pass")',
            'PassInfo("bad-pass", "2")',
            "UsageError: pass bad-pass: there is no level '2' (mine.py:",
        ),
        (
            'PassInfo("bad-pass")',
            'PassInfo("bad-pass", after="x")',
            "UsageError: pass bad-pass: after is 'x', not a tuple: write ('x',) (mine.py:",
        ),
    ],
)
def test_invalid_rules_and_passes_are_reported(run: Run, plugin: Path, old: str, new: str, says: str) -> None:
    plugin.write_text(HEAD + RULE.format(body="return x").replace(old, new))
    r = run(*OPTIMIZE)
    assert r.returncode == 2
    assert r.stderr.startswith("error: mine.py cannot be imported: ")
    assert says in r.stderr and "(mine.py:" in r.stderr.splitlines()[0]


def test_a_pass_without_its_method_names_the_method(run: Run, plugin: Path) -> None:
    for kind, method in (("GraphPass", "run_graph"), ("ModelPass", "run"), ("StmtPass", "run_node")):
        text = RULE.partition("@register")[2].replace("RewritePass", kind).replace("rules = (bad,)", "")
        plugin.write_text(f"{HEAD}from onnxopt import {kind}\n@register{text}")
        assert f"NotImplementedError: BadPass has no {method}(self, " in run(*OPTIMIZE).stderr


def test_decorators_in_the_wrong_order(run: Run, plugin: Path) -> None:
    plugin.write_text(HEAD + GRAPH.replace("@register\n@graph_pass", "@graph_pass\n@register").format(body="pass"))
    r = run(*OPTIMIZE)
    assert r.returncode == 2
    said = "TypeError: bad_pass is no pass yet: @register stands above @model_pass and @graph_pass (mine.py:4)"
    assert said in r.stderr.splitlines()[0]


_SILENT = """
class Silent(BaseException):
    def __str__(self):
        raise ValueError("nothing to say")
"""
_SKIP = "import pytest\npytest.skip('not here', allow_module_level=True)\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (HEAD + RULE.format(body="import pytest; pytest.fail('no')"), 4, "Tanh -> t: Failed: no (mine.py:6)"),
        (HEAD + RULE.format(body="raise SystemExit(0)"), 4, "rule bad failed at Tanh -> t: SystemExit: 0 (mine.py:6)"),
        (HEAD + _SILENT + GRAPH.format(body="raise Silent"), 4, "main: Silent: its message cannot be made (mi"),
        (_SKIP, 2, "error: mine.py cannot be imported: Skipped: not here (mine.py:2)"),
        (_SILENT + "raise Silent", 2, "mine.py cannot be imported: Silent: its message cannot be made (mine"),
    ],
)
def test_exceptions_that_are_not_of_class_exception(run: Run, plugin: Path, text: str, code: int, says: str) -> None:
    """Exceptions that are not an `Exception` give one line. pytest's skip is one, in a file of passes and tests."""
    plugin.write_text(text)
    r = run(*OPTIMIZE)
    assert (r.returncode, r.stdout) == (code, "")
    assert says in r.stderr.splitlines()[0]
    assert "Traceback" not in r.stderr


def test_a_folder_as_plugin_has_a_hint(run: Run, plugin: Path) -> None:
    plugin.mkdir()
    r = run(*OPTIMIZE)
    assert r.returncode == 2
    assert r.stderr.startswith("error: mine.py is a directory\nhint: a plugin is a Python file")
