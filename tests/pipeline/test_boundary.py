"""Wrong arguments of passes: one line with the expected kind and the function to call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from onnxopt import (
    DebugPass,
    Fixpoint,
    ModelPass,
    PassContext,
    PassInfo,
    Sequential,
    Timing,
    get_pass,
    graph_pass,
    model_pass,
    parse_pipeline,
    register,
)
from onnxopt.errors import OnnxOptError, PassError, PreconditionError, UsageError
from onnxopt.pipeline.manager import PassManager
from onnxopt.pipeline.sequence import pipeline_text
from onnxopt.reporting import plain


@model_pass(opt_level=2)
def count_nodes(model: Any, ctx: Any, *, by: int = 1) -> None:
    """Counts."""
    ctx.count("nodes", by * model.node_count())


def dead_code() -> Any:
    return get_pass("dead-code")()


def refused(error: type[OnnxOptError] = UsageError) -> Any:
    return pytest.raises(error)


def test_a_decorated_function_is_a_pass_as_it_stands(model: Any) -> None:
    assert isinstance(count_nodes, ModelPass)
    assert (count_nodes.info.opt_level, count_nodes.__name__) == (2, "count_nodes")
    assert count_nodes(model()).of("count-nodes").hits == 3
    assert count_nodes(by=2)(model()).of("count-nodes").hits == count_nodes(model(), by=2).of("count-nodes").hits == 6
    assert Sequential([count_nodes, count_nodes()])(model()).of("count-nodes").runs == 2
    assert register(count_nodes) is count_nodes
    assert parse_pipeline("count-nodes{by=3}").passes == (count_nodes(by=3),)


def test_a_decorator_needs_no_brackets(model: Any) -> None:
    @graph_pass
    def plain_one(graph: Any, ctx: Any) -> None:
        """Does nothing."""

    assert plain_one(model()).of("plain-one").runs == 1
    with pytest.raises(TypeError, match="Own is a class: derive it from ModelPass instead"):

        @model_pass(opt_level=1)
        class Own:
            """As TVM's function_pass takes it."""


def test_a_new_model_that_is_returned_is_not_read(model: Any) -> None:
    @model_pass
    def returns(model: Any, ctx: Any) -> Any:
        """Returns something."""
        return ctx

    with pytest.raises(PassError, match="pass returns: returns returned a PassContext, which nobody reads"):
        returns(model())


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (lambda: Sequential([None]), "Sequential: None is not a pass", "a pass is what get_pass(NAME)()"),
        (lambda: Sequential(["dead-code"]), "'dead-code' is text", "get_pass('dead-code')()"),
        (lambda: Fixpoint([get_pass("dead-code")]), "Fixpoint: DeadCode is a class", "DeadCode() makes"),
        (lambda: Sequential(dead_code()), "a list of passes, not the one pass dead-code", "Sequential([…])"),
        (lambda: PassManager("dead-code"), "PassManager takes a list of passes", "in brackets"),
        (lambda: PassManager([3]), "PassManager: an int is not a pass", "a pass is"),
        (lambda: dead_code()("m.onnx"), "dead-code takes a model, not 'm.onnx'", "onnxopt.load('m.onnx')"),
        (lambda: dead_code()(None), "dead-code takes a model, not None", "onnxopt.load(PATH)"),
    ],
)
def test_what_is_no_pass_and_what_is_no_model(given: Any, message: str, hint: str) -> None:
    with refused() as e:
        given()
    assert message in e.value.message
    assert hint in e.value.hint


def test_a_proto_and_a_report_are_no_models(model: Any) -> None:
    with refused() as e:
        dead_code()(model().proto)
    assert "onnxopt.read_model(PROTO)" in e.value.hint
    with refused() as e:
        dead_code()(dead_code()(model()))
    assert e.value.message == "the pass dead-code takes a model, not a PipelineReport"
    assert "go on with the model itself" in e.value.hint

    class NoInfo(ModelPass):
        """None."""

    with refused() as e:
        NoInfo()(model())
    assert e.value.message == "the pass NoInfo has no `info`"


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"disabled_pass": "dead-code"}, "disabled_pass is 'dead-code', not a list", "disabled_pass=['dead-code']"),
        ({"disabled_pass": ["ded-code"]}, "disabled_pass: no pass is called 'ded-code'", "did you mean dead-code"),
        ({"required_pass": [dead_code()]}, "required_pass: DeadCode is not a name", "'dead-code'"),
        ({"disabled_rule": ["fold_conv_b"]}, "disabled_rule: no rule is called", "did you mean fold_conv_bn"),
        ({"opt_level": "3"}, "there is no level '3'", "levels are 0 to 3"),
        ({"target": ("npu", 3)}, "target is ('npu', 3), not a name or several", ""),
        ({"instruments": Timing()}, "instruments is one instrument", "instruments=[Timing(…)]"),
        ({"instruments": [Timing]}, "instruments: Timing is a class", "Timing(…)"),
        ({"config": ["a"]}, "config is list, not a dict", ""),
        ({"trace": 3}, "trace is int, not a function", ""),
        ({"max_rewrites": "2"}, "max_rewrites is '2', not a whole number", "None is without end"),
    ],
)
def test_a_context_checks_names_and_types(settings: dict[str, Any], message: str, hint: str) -> None:
    with refused() as e:
        PassContext(**settings)
    assert message in e.value.message
    assert hint in e.value.hint


def test_a_context_knows_what_is_not_registered() -> None:
    assert PassContext(disabled_pass=["count_nodes"], required_pass=None).disabled_pass == {"count-nodes"}
    Sequential([count_nodes], name="named-only")
    PassContext(disabled_pass=["named-only"])


def test_names_of_an_info_are_tuples() -> None:
    assert PassInfo("a", targets=["npu"]).targets == ("npu",)
    with pytest.raises(UsageError, match="pass a: targets is 'npu', not a tuple: write \\('npu',\\)"):
        PassInfo("a", targets="npu")
    with pytest.raises(UsageError, match="pass a: tolerance is '1 %', not a share of an output's range"):
        PassInfo("a", tolerance="1 %")


def test_a_composite_has_a_name_a_level_and_requirements(model: Any) -> None:
    cleanup = Sequential([dead_code(), count_nodes], name="cleanup", opt_level=2, required=["canonicalize"])
    assert (cleanup.name, cleanup.info) == ("cleanup", PassInfo("cleanup", 2, ("canonicalize",)))
    text = str(cleanup)
    assert text == "sequential{name=cleanup,opt-level=2,required=[canonicalize]}(dead-code,count-nodes)"
    register(count_nodes)
    assert parse_pipeline(text).passes == (cleanup,)
    register(cleanup)
    assert str(Sequential([cleanup, dead_code()])) == "sequential(cleanup,dead-code)"
    assert parse_pipeline("cleanup").passes == (get_pass("cleanup")(),) == (cleanup,)
    with PassContext(opt_level=2):
        assert [p.name for p in Sequential([cleanup])(model()).passes] == ["canonicalize", "dead-code", "count-nodes"]
    with PassContext(opt_level=1):
        assert Sequential([cleanup])(model()).skipped == {"cleanup": "runs from -O2 on"}
    with PassContext(disabled_pass=["cleanup"]):
        assert Sequential([cleanup])(model()).skipped == {"cleanup": "disabled"}
    with pytest.raises(ValueError, match="give it name="):
        register(Sequential([dead_code()]))
    again = Fixpoint([dead_code()], max_rounds=7, name="again")
    assert str(again) == "fixpoint{max-rounds=7,name=again}(dead-code)"
    assert PassContext(config={"fixpoint.max-rounds": 3}).configured(Fixpoint([dead_code()], name="x")).name == "x"


def test_a_manager_takes_plain_functions(model: Any) -> None:
    seen: list[str] = []

    def look(model: Any) -> None:
        seen.append(model.name)

    manager = PassManager([look, dead_code()])
    manager.add_pass(lambda model, ctx: seen.append(ctx.running))
    with PassContext(opt_level=0):
        manager(model())
    assert seen == ["g", "lambda"]
    with refused() as e:
        PassManager([lambda a, b, c: None])
    assert "takes 3 arguments" in e.value.message


def test_a_precondition_is_about_the_model(model: Any) -> None:
    @dataclass(frozen=True)
    class Picky(ModelPass):
        """Wants an Add."""

        info = PassInfo("picky")

        def requires(self, model: Any) -> None:
            raise ValueError("no Add")

    with refused(PreconditionError) as e:
        Picky()(model())
    assert (e.value.message, e.value.exit_code) == ("pass picky cannot work on g: no Add", 2)
    assert "bug" not in e.value.hint
    assert e.value.failed is None, "nothing to reproduce"


def test_a_pass_without_its_requirement_is_skipped(model: Any) -> None:
    @register
    @model_pass(required=("canonicalize",))
    def second(model: Any, ctx: Any) -> None:
        """Requires one."""

    @model_pass(required=("second",))
    def third(model: Any, ctx: Any) -> None:
        """Requires one that requires one."""

    with PassContext(disabled_pass=["canonicalize"]):
        report = Sequential([second, third])(model())
    why = "requires canonicalize, which is disabled"
    assert report.skipped == {"second": why, "third": why}
    shown = [*plain.details({"pipeline": report.to_dict()})]
    assert shown == [f"  did not run ({why}): second, third"]


def test_what_a_debug_pass_counts_are_no_rewrites(model: Any) -> None:
    @dataclass(frozen=True)
    class Look(DebugPass):
        """Looks."""

        info = PassInfo("look")

        def inspect(self, model: Any, ctx: Any) -> None:
            ctx.count("nodes", model.node_count())

    report = Fixpoint([Look(), get_pass("elim-identity")()])(model())
    assert report.of("look").runs == 2
    assert report.of("look").rules["nodes"].hits == 2, "what was counted before the Identity went is not added"
    report = Look()(model())
    assert report.of("look").rules["nodes"].hits == 3
    (line,) = plain.details({"pipeline": report.to_dict()})
    assert line == f"  {'look':24} counted 3 nodes"
    assert pipeline_text([Look()]) == "look"
