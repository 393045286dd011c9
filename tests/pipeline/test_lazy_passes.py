"""A pass is imported when somebody asks for it, and those of a level when a model has one of their operators.

`python -m tests.pipeline.test_lazy_passes` writes `NEEDS` of `onnxopt/passes/__init__.py`: the facts known before.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import onnx.parser
import pytest

import onnxopt.passes
from onnxopt.graph import read_model
from onnxopt.passes import MODULES, NEEDS
from onnxopt.passes.levels import LEVELS, pipeline_for
from onnxopt.pipeline import (
    Pass,
    PassContext,
    PassInfo,
    PipelineReport,
    RewritePass,
    all_passes,
    execute,
    get_pass,
    parse_pipeline,
)
from onnxopt.pipeline.execute import run_pass
from onnxopt.pipeline.sequence import text
from onnxopt.rewriting.pattern import Call, Either, Pattern
from tests.cases.test_cases import CASES
from tests.samples import sample

HERE = Path(onnxopt.passes.__file__).parent
OURS = {name: cls for name, cls in all_passes().items() if cls.__module__.startswith("onnxopt.passes.")}
RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'


def infos() -> dict[str, PassInfo]:
    return {name: cls.info for name, cls in sorted(OURS.items()) if cls.info.ops}


def needs() -> str:
    """The text of `onnxopt/passes/__init__.py`."""
    lines = "".join(f'    "{name}": ({info.opt_level}, {info.ops!r}),\n' for name, info in infos().items())
    given = (HERE / "__init__.py").read_text()
    return given[: given.index("{\n", given.index("\nNEEDS")) + 2] + lines.replace("'", '"') + "}\n"


def test_the_registry_names_the_module_of_each_pass() -> None:
    listed = {name: f"onnxopt.passes.{module}" for module, names in MODULES.items() for name in names}
    assert {name: cls.__module__ for name, cls in OURS.items()} == listed
    files = {".".join(f.relative_to(HERE).with_suffix("").parts) for f in HERE.rglob("*.py") if f.stem != "__init__"}
    assert files == {*MODULES, "levels"}


def test_no_two_rules_have_one_name() -> None:
    counts = Counter(r.name for cls in OURS.values() if issubclass(cls, RewritePass) for r in cls.rules)
    assert [name for name, count in counts.items() if count > 1] == []


def imported(code: str) -> set[str]:
    """The modules of passes that are imported when this was run."""
    shown = "print(*sorted(m for m in sys.modules if m.startswith('onnxopt.passes.')))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{shown}"], capture_output=True, text=True, check=True)
    return {m.removeprefix("onnxopt.passes.") for m in done.stdout.split()}


def test_a_level_imports_no_other_s_passes() -> None:
    level = "import sys; from onnxopt.optimizer import OptimizeOptions as O; o = O(level={}); o.passes(); o.context()"
    none, exact, all_ = (imported(level.format(i)) for i in (0, 1, 3))
    assert none == {"levels"}
    later = {"fusion.fuse_normalization", "movement.broadcasts"}
    assert {"basics.canonicalize", "basics.dead_code"} < exact and not exact & later
    assert later < all_ and "conversions" not in all_


@pytest.mark.parametrize("level", [1, 2, 3])
def test_what_a_model_has_nothing_for_is_not_imported(level: int) -> None:
    run = "import sys, onnx.parser, onnxopt; onnxopt.optimize(onnx.parser.parse_model({!r}), level={}, verify=False)"
    asked = {module for module, names in MODULES.items() if set(names) <= set(NEEDS)}
    assert not imported(run.format(RELU, level)) & asked
    clip = RELU.replace("y = Relu(x)", "h = Relu(x) y = Clip(h)")
    assert imported(run.format(clip, level)) & asked == {"arithmetic.neutral_operands"}


def test_what_is_known_before_is_what_passes_say() -> None:
    assert {name: (info.opt_level, info.ops) for name, info in infos().items()} == NEEDS, __doc__


def plain(pattern: Pattern) -> Iterator[list[Call]]:
    """The calls of a pattern, for each choice among its alternatives."""
    if isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from plain(choice)
    elif isinstance(pattern, Call):
        for inner in product(*(list(plain(p)) for p in pattern.inputs)):
            yield [pattern, *chain(*inner)]
    else:
        yield []


@pytest.mark.parametrize("name", [name for name, cls in OURS.items() if issubclass(cls, RewritePass) and cls.info.ops])
def test_no_pattern_matches_without_one_of_these_operators(name: str) -> None:
    cls = OURS[name]
    assert issubclass(cls, RewritePass)
    for rule in cls.rules:
        for calls in plain(rule.source):
            needed = [ops for call in calls for ops in (call.ops, call.reads) if ops]
            assert any(set(ops) <= set(cls.info.ops) for ops in needed), rule.name


def only_matches(cls: type[Pass]) -> bool:
    """Whether a pass is its rules and no more: the patterns say what it needs."""
    return issubclass(cls, RewritePass) and cls.run is RewritePass.run


def test_a_pass_that_is_more_than_rules_changes_no_model_without_its_operators() -> None:
    asked = {name: info for name, info in infos().items() if not only_matches(OURS[name])}
    looked = Counter[str]()
    for case in CASES:
        model = read_model(case.build())
        ctx = PassContext()
        ctx.report = PipelineReport()  # one run of all
        for name, info in asked.items():
            if info.obstacle(model, "any"):
                run_pass(get_pass(name)(), model, ctx, direct=True)
                assert model.version == 0, f"{name}: {case.name}"
                looked[name] += 1
    assert set(looked) == set(asked) and min(looked.values()) > 100


def test_why_it_did_not_run_is_told() -> None:
    model = read_model(onnx.parser.parse_model(RELU))
    with PassContext(disabled_pass=["simplify-loops"]):
        report = execute(pipeline_for(2), model)
    assert report.skipped["scan-axes"] == "the model has no Scan"
    assert report.skipped["simplify-loops"] == "disabled"


def test_what_ran_before_is_not_called_left_out() -> None:
    model = read_model(sample("residual_block"))
    report = execute(pipeline_for(2), model)
    assert report.of("conv-bn-folding").runs == 1, "then there is no BatchNormalization any more"
    assert "conv-bn-folding" not in report.skipped and report.skipped["simplify-einsum"] == "the model has no Einsum"


@pytest.mark.parametrize("level", range(4))
def test_a_level_reads_as_it_is_written(level: int) -> None:
    shown = ",".join(map(text, pipeline_for(level).passes))
    assert shown == LEVELS[level].replace("\n", "")
    assert text(parse_pipeline(shown)) == text(pipeline_for(level))


if __name__ == "__main__":
    (HERE / "__init__.py").write_text(needs())
