"""Kinds of passes, by subclass and by decorator; hooks around a pass; error messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from onnxopt.errors import InvariantError, NoFixpointError, PassError, PreconditionError, UsageError, noted
from onnxopt.graph import Graph, Model
from onnxopt.pipeline import (
    DebugPass,
    Fixpoint,
    GraphPass,
    ModelPass,
    Pass,
    PassContext,
    PassInfo,
    Sequential,
    get_pass,
    graph_pass,
    model_pass,
    option,
    register,
)
from onnxopt.pipeline.manager import PassManager, in_order
from onnxopt.proto.messages import make_node


def note(graph: Graph, n: int) -> None:
    assert graph.first is not None
    graph.first.proto.doc_string = str(n)
    graph.touch(graph.first)


@graph_pass(name="touch")
def touch(graph: Graph, ctx: PassContext, *, times: int = option(1, "how often")) -> None:
    """Change something in every scope."""
    for n in range(times):
        note(graph, n)
        ctx.count("touched")


def test_by_subclass(model: Any) -> None:
    @dataclass(frozen=True)
    class Count(ModelPass):
        """Count nodes."""

        info = PassInfo("count")
        wanted: str = option("Relu", "operator to count")

        def run(self, model: Model, ctx: PassContext) -> None:
            ctx.count("nodes", sum(n.op == self.wanted for n in model.nodes()))

    assert Count()(model()).of("count").rules["nodes"].hits == 1
    assert Count("Conv")(model()).of("count").rules["nodes"].hits == 0
    assert Count.summary() == "Count nodes"


def test_by_decorator(model: Any) -> None:
    assert touch.__name__ == "touch"
    assert touch.info == PassInfo("touch", 1)
    assert touch.__doc__ == "Change something in every scope."
    assert touch(times=3) == touch(times=3) != touch()
    m = model()
    report = touch(times=3)(m)
    assert (m.version, report.of("touch").hits, report.of("touch").runs) == (3, 3, 1)

    @model_pass(opt_level=3, required=("canonicalize",), targets=("cpu",))
    def whole_model(model: Model, ctx: PassContext) -> None:
        """Do nothing."""

    assert whole_model.info == PassInfo("whole-model", 3, required=("canonicalize",), targets=("cpu",))
    assert (whole_model.kind, touch.kind) == ("model", "graph")


def test_decorators_check_the_function() -> None:
    with pytest.raises(TypeError, match="options after a"):

        @model_pass()
        def positional(model: Model, ctx: PassContext, size: int) -> None:
            """No."""

    with pytest.raises(TypeError, match="docstring"):

        @graph_pass()
        def silent(graph: Graph, ctx: PassContext) -> None:
            pass


def test_graph_passes_see_bodies_first(model: Any) -> None:
    branch = "then_branch = t () => (float[N, 4] r) { r = Relu (x) }, "
    branch += "else_branch = e () => (float[N, 4] s) { s = Neg (x) }"
    f = '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { y = Relu (x) }'
    m = model(f"c = Constant <value = bool {{1}}> () b = If <{branch}> (c) y = l.f (b)", f)
    seen: list[str] = []

    @graph_pass(name="look")
    def look(graph: Graph, ctx: PassContext) -> None:
        """Remember the scopes."""
        seen.append(graph.label)

    look()(m)
    assert seen == ["function l::f", "then_branch", "else_branch", "main"]


def test_a_debug_pass_must_not_change_the_model(model: Any) -> None:
    @dataclass(frozen=True)
    class Look(DebugPass):
        """Look, or more."""

        info = PassInfo("look")
        change: bool = False

        def inspect(self, model: Model, ctx: PassContext) -> None:
            if self.change:
                note(model.graph, 1)

    assert Look()(model()).of("look").runs == 1
    with pytest.raises(PassError, match="the debug pass look changed the model"):
        Look(change=True)(model())


def test_requires_and_ensures(model: Any) -> None:
    @dataclass(frozen=True)
    class Strict(GraphPass):
        """Replace Relu."""

        info = PassInfo("strict")
        done: bool = True

        def requires(self, model: Model) -> None:
            assert model.graph.by_op.get("Relu"), "there is no Relu"

        def run_graph(self, graph: Graph, ctx: PassContext) -> None:
            for node in list(graph.by_op.get("Relu", ())) if self.done else ():
                new = graph.insert(type(node)(make_node("Abs", "", "", {}), list(node.inputs), [None]), node)
                graph.take_over(node.output, new)
                graph.remove(node)

        def ensures(self, model: Model) -> None:
            assert not model.graph.by_op.get("Relu"), "a Relu is left"

    m = model()
    Strict()(m)
    assert [n.op for n in m.graph] == ["Identity", "Abs", "Neg"]
    with pytest.raises(PreconditionError, match=r"pass strict cannot work on g: there is no Relu"):
        Strict()(m)
    with pytest.raises(PassError, match="a Relu is left"):
        Strict(done=False)(model())


def test_fixpoint_runs_until_nothing_changes(model: Any) -> None:
    m = model("a = Identity (x) b = Identity (a) c = Relu (b) d = Neg (c) y = Abs (d)")
    report = Fixpoint((get_pass("elim-identity")(), get_pass("canonicalize")()))(m)
    assert [n.op for n in m.graph] == ["Relu", "Neg", "Abs"]
    assert report.rounds == 2
    assert report.of("elim-identity").runs == 1, "nothing changed after it ran"


def test_fixpoint_looks_again_at_bodies_inside_of_what_changed(model: Any) -> None:
    """A pass over each scope has been in the body when the scope around becomes one that the body can use."""
    m = model(
        """b = Constant <value = bool {1}> ()
        c = Neg (w)
        y = If (b) <then_branch = t () => (float[4] t) { t = Mul (c, w) },
                    else_branch = e () => (float[4] e) { e = Neg (x) }>""",
        weights="<float[4] w = {1, 2, 3, 4}>",
    )
    fixpoint = Fixpoint((get_pass("constant-folding")(),))
    assert fixpoint(m).of("constant-folding").hits == 2
    assert not fixpoint(m).of("constant-folding").changed


def test_fixpoint_without_end_is_an_error(model: Any) -> None:
    with pytest.raises(NoFixpointError) as e:
        Fixpoint((touch(), get_pass("dead-code")(), touch(times=2)), max_rounds=7)(model())
    assert e.value.message == "g: still changing after 7 rounds; in the last ones, pass touch: touched 2 times"
    assert e.value.hint == "a pass that runs again has to leave the model as it is; go on without it by --disable touch"
    assert Fixpoint((touch(),))(model()).of("touch").runs == 1, "a pass leaves nothing for itself to do"


def test_passes_called_by_a_pass_are_part_of_its_run(model: Any) -> None:
    @model_pass(name="outer")
    def outer(model: Model, ctx: PassContext) -> None:
        """Call another."""
        touch(times=2)(model)
        ctx.count("called")

    report = outer()(model())
    assert [(p.name, p.hits) for p in report.passes] == [("outer", 1), ("touch", 2)]


def test_trace_is_called_around_every_pass(model: Any) -> None:
    calls: list[tuple[str, bool]] = []

    def trace(model: Model, info: PassInfo, is_before: bool) -> None:
        calls.append((info.name, is_before))

    with PassContext(trace=trace):
        Sequential((touch(),))(model())
    assert calls == [("sequential", True), ("touch", True), ("touch", False), ("sequential", False)]


def test_a_system_without_memory_is_no_bug_of_the_pass(model: Any) -> None:
    @graph_pass(name="hungry")
    def hungry(graph: Graph, ctx: PassContext) -> None:
        """Take more than there is."""
        raise MemoryError

    with pytest.raises(MemoryError):
        hungry(model())


def test_an_interruption_is_told_where_it_came(model: Any) -> None:
    """In the innermost of passes that call each other, at the node that it looked at."""

    @graph_pass(name="slow")
    def slow(graph: Graph, ctx: PassContext) -> None:
        """Is interrupted at a Neg."""
        for node in graph:
            if node.op == "Neg":
                raise KeyboardInterrupt

    @model_pass(name="outer")
    def outer(model: Model, ctx: PassContext) -> None:
        """Calls it."""
        slow(model)

    with pytest.raises(KeyboardInterrupt) as e:
        outer(model())
    told, _, line = noted(e.value).partition(" (test_passes.py:")
    assert told == "in pass slow on g: main: Neg -> y"
    assert line.endswith(")")
    assert noted(KeyboardInterrupt()) == "", "nobody noted where"


def test_an_error_names_pass_scope_node_and_the_passes_before(model: Any) -> None:
    @graph_pass(name="broken")
    def broken(graph: Graph, ctx: PassContext) -> None:
        """Fail at a Neg."""
        for node in graph:
            if node.op == "Neg":
                raise KeyError("missing")

    with pytest.raises(PassError) as e:
        Sequential((touch(), get_pass("canonicalize")(), broken()))(model())
    what, _, after = str(e.value).partition(" (test_passes.py:")
    assert what == "pass broken failed on g: main: Neg -> y: KeyError: 'missing'"
    assert after.endswith(") (after touch, canonicalize)")
    assert "--disable broken" in e.value.hint
    assert e.value.exit_code == 4


def test_order_by_constraints() -> None:
    def named(name: str, **info: Any) -> Pass:
        def run(model: Model, ctx: PassContext) -> None:
            """Do nothing."""

        return model_pass(name=name, **info)(run)()

    def order(*passes: Pass) -> str:
        return "".join(p.name for p in in_order(passes))

    assert order(named("a"), named("b"), named("c")) == "abc", "as given"
    assert order(named("a", after=("c",)), named("b"), named("c")) == "bca"
    assert order(named("a"), named("b"), named("c", before=("a",))) == "bca"
    assert order(named("a", after=("absent",)), named("b")) == "ab"
    assert order(named("a"), named("b", before=("a",)), named("b", before=("a",))) == "bba"
    taken_in = named("a", after=("batch-products",))
    assert [p.name for p in in_order([taken_in, get_pass("unmerge-batches")()])] == ["unmerge-batches", "a"]
    with pytest.raises(UsageError, match=r"put in order: (a before b before c before a|b before c before a before b)"):
        order(named("a", before=("b",)), named("b", before=("c",)), named("c", before=("a",)))


def test_a_manager_checks_after_each_pass(model: Any) -> None:
    checked: list[int] = []

    def few(model: Model) -> None:
        checked.append(model.version)
        if model.version >= 2:
            raise ValueError("too many changes")

    manager = PassManager([touch(), get_pass("canonicalize")()])
    manager.add_pass(touch(times=2))
    manager.add_checks(few)
    with pytest.raises(InvariantError, match="pass touch: g: the check few fails: ValueError: too many changes"):
        manager(model())
    assert checked == [1, 1, 3]
    manager = PassManager([touch(times=3), touch(times=4)], suppress_check_failures=True)
    manager.add_checks(few)
    assert manager(model()).warnings == ["after touch: too many changes"] * 2


def test_a_manager_checks_the_graph_itself(model: Any) -> None:
    @graph_pass(name="wreck")
    def wreck(graph: Graph, ctx: PassContext) -> None:
        """Break a link."""
        assert graph.last is not None
        graph.last.output.index = 5

    assert PassManager([wreck()])(model())
    with pytest.raises(InvariantError, match=r"pass wreck: .*does not know its producer"):
        PassManager([wreck()], run_checks_after_each_pass=True)(model())


def test_names_are_unique() -> None:
    register(touch)
    assert register(touch) is touch
    with pytest.raises(ValueError, match="exists already"):

        @register
        @model_pass(name="touch")
        def other(model: Model, ctx: PassContext) -> None:
            """Take the name."""

    with pytest.raises(UsageError) as e:
        get_pass("tuoch")
    assert e.value.hint == "did you mean touch?"


def test_an_option_needs_a_dataclass() -> None:
    class Loose(ModelPass):
        """Has an option that nobody can set."""

        info = PassInfo("loose")
        much: int = option(1, "how much")

    with pytest.raises(TypeError, match="much is an option, but the class no @dataclass"):
        register(Loose)


def test_a_pass_says_what_it_is() -> None:
    class Nameless(ModelPass):
        """Has no info."""

    with pytest.raises(TypeError, match=r"pass Nameless does not say what it is: info = PassInfo\('nameless'\)"):
        register(Nameless)
