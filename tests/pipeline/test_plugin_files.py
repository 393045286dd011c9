"""Plugins in files: names, and failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt import RewritePass, UsageError, get_pass, load_module
from onnxopt.pipeline.registry import all_passes
from onnxopt.rewriting.diagnose import warn_of_unknown

PASS = """
from onnxopt import model_pass, register


@register
@model_pass(opt_level=2)
def {name}(model, ctx):
    \"\"\"Does nothing.\"\"\"
    {body}


{last}
"""


def plugin(file: Path, name: str = "of_a_file", body: str = "pass", last: str = "") -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text(PASS.format(name=name, body=body, last=last))
    return str(file)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        load_module(plugin(tmp_path / folder / "passes.py", f"of_{folder}"))
        load_module(str(tmp_path / folder / "passes.py"))  # again, which is none
    assert get_pass("of-a") is not get_pass("of-b")


def test_a_file_that_failed_is_loaded_again_when_it_is_corrected(tmp_path: Path) -> None:
    file = tmp_path / "passes.py"
    with pytest.raises(UsageError, match=r"passes\.py cannot be imported: NameError"):
        load_module(plugin(file, last="nonsense"))
    with pytest.raises(UsageError, match="no pass is called 'of-a-file'"):
        get_pass("of-a-file")
    load_module(plugin(file))
    assert get_pass("of-a-file").info.opt_level == 2


def test_a_script_that_ends_does_not_end_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"script\.py cannot be imported: SystemExit: 0"):
        load_module(plugin(tmp_path / "script.py", last="raise SystemExit(0)"))


RULE = """
from dataclasses import dataclass

from onnxopt import PassInfo, RewritePass, op, register, rewrite, var


@rewrite({pattern})
def rule_that_declines(m, x):
    \"\"\"x = x.\"\"\"
    m.require(False, "never")


@register
class Declines(RewritePass):
    \"\"\"Declines.

    Applies when: never.
    \"\"\"

    info = PassInfo("{name}", opt_level=2)
    rules = (rule_that_declines,)
"""


def test_a_rule_alone_is_no_pass(tmp_path: Path) -> None:
    file = tmp_path / "alone.py"
    file.write_text(RULE.format(pattern="op.Relu(var('x'))", name="alone").partition("@register")[0])
    with pytest.raises(UsageError, match="registers no pass, so that nothing runs its rule rule_that_declines"):
        load_module(str(file))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("op.Relu(op.Conv2(var('x')))", "the standard does not have an operator 'Conv2'; did you mean Conv?"),
        ("op.Relu(op.Neg(op.Softmax(var('x'), axes=1)))", "Softmax has no attribute 'axes'; did you mean axis?"),
        ("op['ai.onnx.ml::Scalr'](var('x'))", "an operator 'ai.onnx.ml::Scalr'; did you mean ai.onnx.ml::Scaler"),
        ("op.Relu(var('x'), var('x'))", "Relu does not have 2 inputs; it is Relu(X); `...` allows more"),
        ("op.Neg(op.Add(var('x')))", "Add does not have 1 input; it is Add(A, B)"),
        ("op.ATen(var('x'))", "the standard does not have an operator 'ATen'; other domains are written"),
    ],
)
def test_a_rule_that_names_what_the_standard_does_not_have_is_told(tmp_path: Path, pattern: str, said: str) -> None:
    file = tmp_path / "told.py"
    file.write_text(RULE.format(pattern=pattern, name=f"told-{abs(hash(pattern))}"))
    with pytest.warns(UserWarning, match="rule rule_that_declines may never match: ") as found:
        load_module(str(file))
    assert [said in str(w.message) for w in found] == [True]
    assert (found[0].filename, found[0].lineno) == (str(file), 7)


@pytest.mark.parametrize(
    "pattern",
    [
        "op.Relu(op['com.acme::Conv2'](var('x'), gruop=1))",
        "op.Upsample(var('x'), scales=[2.0])",
        "op.Conv(var('x'), ...)",
        "op.Relu(var('x'), var('x').opt())",
        "op.Max(var('x'), var('x'), var('x'))",
        "op.Slice(var('x'))",  # of the first opset
    ],
)
def test_other_domains_and_older_opsets_have_what_they_have(
    tmp_path: Path, pattern: str, recwarn: pytest.WarningsRecorder
) -> None:
    file = tmp_path / "untold.py"
    file.write_text(RULE.format(pattern=pattern, name=f"untold-{abs(hash(pattern))}"))
    load_module(str(file))
    assert not recwarn.list


def test_the_rules_of_onnxopt_name_what_there_is(recwarn: pytest.WarningsRecorder) -> None:
    for cls in all_passes(plugins=False).values():
        for rule in cls.rules if issubclass(cls, RewritePass) else ():
            warn_of_unknown(rule)
    assert not recwarn.list


ORDERED = """
from onnxopt import GraphPass, PassInfo, register
@register
class Ordered(GraphPass):
    \"\"\"Does nothing.\"\"\"
    info = PassInfo({info})
    def run(self, graph, ctx):
        pass
"""


def test_two_rules_of_one_name_in_a_pass_are_told(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("""
from onnxopt import PassInfo, RewritePass, op, register, rewrite, var

def odd(kind):
    @rewrite(op.Neg(op[kind](var("x"))))
    def negated(m, x):
        \"\"\"-f(x) = f(-x).\"\"\"
    return negated

@register
class Odd(RewritePass):
    info = PassInfo("made-odd")
    rules = (odd("Sin"), odd("Tanh"))
""")
    with pytest.warns(UserWarning, match="pass made-odd: two rules are called negated, so --disable, reports") as found:
        load_module(str(tmp_path / "made.py"))
    assert [w.lineno for w in found] == [5]


def test_a_place_among_passes_that_nobody_knows_is_told(tmp_path: Path) -> None:
    file = tmp_path / "ordered.py"
    file.write_text(
        ORDERED.format(info='"placed-among", after=("constant-foldin", "dead-code"), before=("placed-among",)')
    )
    with pytest.warns(UserWarning, match="pass placed-among: after names 'constant-foldin'") as found:
        load_module(str(file))
    assert [str(w.message).endswith("did you mean constant-folding?") for w in found] == [True]


@pytest.mark.parametrize(("name", "better"), [("My Pass!", "my-pass"), ("my_pass", "my-pass"), ("", "my-pass")])
def test_a_name_that_no_pipeline_can_hold(name: str, better: str, tmp_path: Path) -> None:
    file = tmp_path / "named.py"
    file.write_text(ORDERED.format(info=repr(name)))
    with pytest.raises(UsageError, match=f"small letters and dashes: {better}") as refused:
        load_module(str(file))
    assert "ONNXOPT_DEBUG=1" in refused.value.hint
