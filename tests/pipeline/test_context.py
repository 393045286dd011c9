"""Which passes run: levels, required and disabled passes, targets, operators, config, marks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onnxopt.errors import PassError, UsageError
from onnxopt.graph import Model
from onnxopt.pipeline import (
    Fixpoint,
    Pass,
    PassContext,
    Sequential,
    config_keys,
    declare_config,
    execute,
    get_pass,
    graph_pass,
    model_pass,
    register,
)

RAN: list[str] = []


def make(name: str, opt_level: int = 1, **info: Any) -> Pass:
    def run(model: Model, ctx: PassContext) -> None:
        """Remember that it ran."""
        RAN.append(name)

    return register(model_pass(opt_level, name=name, **info)(run))()


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def ran(p: Pass, model: Model, **settings: Any) -> list[str]:
    RAN.clear()
    with PassContext(**settings):
        p(model)
    return list(RAN)


def test_level_required_and_disabled(model: Any) -> None:
    a, b, c = make("a", 1), make("b", 2), make("c", 3)
    p = Sequential((a, b, c))
    assert ran(p, model()) == ["a", "b"], "the default level is 2"
    assert ran(p, model(), opt_level=1) == ["a"]
    assert ran(p, model(), opt_level=0, required_pass=["c"]) == ["c"]
    assert ran(p, model(), opt_level=3, disabled_pass=["b"]) == ["a", "c"]
    assert ran(p, model(), opt_level=3, required_pass=["b"], disabled_pass=["b"]) == ["a", "c"], "disabled wins"
    assert ran(Sequential((p, Sequential((c,)))), model(), opt_level=3) == ["a", "b", "c", "c"]
    assert ran(c, model(), opt_level=0, disabled_pass=["c"]) == ["c"], "a pass called directly runs regardless"


def test_what_did_not_run_says_why(model: Any) -> None:
    passes = (make("a", 3), make("b"), make("c", targets=("cuda",)), make("d", ops=("Conv", "Gemm")), make("e"))
    report = execute(Sequential(passes), model(), PassContext(disabled_pass=["b"]))
    assert report.skipped == {
        "a": "runs from -O3 on",
        "b": "disabled",
        "c": "is for cuda, the target is any",
        "d": "the model has no Conv or Gemm",
    }
    assert [p.name for p in report.passes] == ["e"]


def test_targets_and_operators(model: Any) -> None:
    p = Sequential((make("a", targets=("cpu", "cuda")), make("b", ops=("Relu",)), make("c")))
    assert ran(p, model()) == ["b", "c"]
    assert ran(p, model(), target="cuda") == ["a", "b", "c"]
    assert ran(p, model(), target="npu") == ["b", "c"]
    assert ran(p, model("y = Neg (x)"), target="cpu") == ["a", "c"]


def test_operators_in_bodies_count(model: Any) -> None:
    branch = "then_branch = t () => (float[N, 4] r) {{ r = {} (x) }}"
    other = "else_branch = e () => (float[N, 4] s) { s = Neg (x) }"
    body = f"c = Constant <value = bool {{1}}> () y = If <{branch.format('Relu')}, {other}> (c)"
    assert ran(Sequential((make("a", ops=("Relu",)),)), model(body)) == ["a"]


def test_should_run_can_be_overridden(model: Any) -> None:
    class Never(type(make("never"))):  # type: ignore[misc]
        def should_run(self, model: Model, ctx: PassContext) -> bool:
            return False

    report = execute(Sequential((Never(),)), model())
    assert report.skipped == {"never": "finds nothing for it in the model"}
    assert ran(Never(), model()) == ["never"]


def test_required_passes_run_first_unless_current(model: Any) -> None:
    make("first", 3)
    second = make("second", required=("first",))

    @register
    @graph_pass(name="change")
    def change(graph: Any, ctx: PassContext) -> None:
        """Add a node."""
        RAN.append("change")
        graph.first.proto.doc_string = str(len(RAN))
        graph.touch(graph.first)

    assert ran(second, model()) == ["first", "second"]
    assert ran(Sequential((get_pass("first")(), second)), model(), opt_level=3) == ["first", "second"]
    assert ran(Sequential((second, second)), model()) == ["first", "second", "second"]
    assert ran(Sequential((second, change(), second)), model()) == ["first", "second", "change", "first", "second"]
    m = model()
    assert ran(get_pass("first")(), m) == ["first"]
    assert ran(second, m) == ["second"], "its effect is still current"
    report = execute(Sequential((second,)), model(), PassContext(disabled_pass=["first"]))
    assert report.skipped == {"second": "requires first, which is disabled"}


def test_passes_that_require_each_other_are_named(model: Any) -> None:
    a = make("a", required=("b",))
    make("b", required=("a",))
    with pytest.raises(PassError, match="require each other: a → b → a"):
        a(model())


def test_blocks_nest_and_the_innermost_counts() -> None:
    assert PassContext.current().opt_level == 2
    with PassContext(opt_level=1) as outer:
        with PassContext(opt_level=3) as inner:
            assert PassContext.current() is inner
        assert PassContext.current() is outer
        with pytest.raises(ValueError), PassContext(opt_level=0):
            raise ValueError
        assert PassContext.current() is outer
        with outer:
            assert PassContext.current() is outer
        assert PassContext.current() is outer
    assert PassContext.current() is not outer


def test_threads_and_tasks_have_their_own() -> None:
    seen: dict[str, int] = {}

    def look() -> None:
        seen["thread"] = PassContext.current().opt_level
        with PassContext(opt_level=1):
            seen["inside"] = PassContext.current().opt_level

    async def task(level: int) -> None:
        with PassContext(opt_level=level):
            await asyncio.sleep(0.01 * (3 - level))
            seen[f"task {level}"] = PassContext.current().opt_level
        seen[f"after {level}"] = PassContext.current().opt_level

    async def both() -> None:
        await asyncio.gather(task(1), task(3), task(0))

    with PassContext(opt_level=3):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert PassContext.current().opt_level == 3
        asyncio.run(both())
    tasks = {f"task {n}": n for n in (0, 1, 3)} | {f"after {n}": 3 for n in (0, 1, 3)}
    assert seen == {"thread": 2, "inside": 1} | tasks


def test_one_context_may_serve_two_threads(model: Any) -> None:
    shared = PassContext(max_rewrites=1)
    models = [model() for _ in range(8)]
    threads = [threading.Thread(target=lambda m=m: execute(get_pass("elim-identity")(), m, shared)) for m in models]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [m.node_count() for m in models] == [2] * 8, "each run has fuel of its own"


def test_config_keys_are_declared_once(model: Any) -> None:
    key = declare_config("test.tile", int, 64, "largest tile")
    assert config_keys()["test.tile"] == key
    assert config_keys()["constant-folding.max-bytes"].default == 1 << 20
    with pytest.raises(ValueError, match="exists already"):
        declare_config("test.tile", int, 1, "again")
    assert (PassContext()[key], PassContext(config={"test.tile": 8})[key]) == (64, 8)
    with pytest.raises(UsageError, match=r"no config key is called 'test\.tiel'") as e:
        PassContext(config={"test.tiel": 8})
    assert "test.tile" in e.value.hint
    with pytest.raises(UsageError, match=r"test\.tile is 'big', not of type int"):
        PassContext(config={"test.tile": "big"})
    with pytest.raises(UsageError, match="not of type int"):
        PassContext(config={"test.tile": True})


def test_options_of_passes_are_config_keys(model: Any) -> None:
    @register
    @model_pass(name="sized")
    def sized(model: Model, ctx: PassContext, *, size: int = 1) -> None:
        """Remember the size."""
        RAN.append(str(size))

    assert ran(sized(), model(), config={"sized.size": 5}) == ["5"]
    assert ran(sized(size=3), model(), config={"sized.size": 5}) == ["3"], "what the pass itself says goes first"


def test_marked_scopes_are_left_alone(model: Any) -> None:
    inner = '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { a = Identity (x) y = Relu (a) }'
    passes = Fixpoint((get_pass("elim-identity")(), get_pass("dead-code")(), get_pass("common-subexpressions")()))

    def left(mark: str) -> list[int]:
        from onnxopt.graph import read_model, write_model

        proto = write_model(model("a = Identity (x) d = Neg (x) y = l.f (a)", inner))
        target = proto.functions[0] if mark == "function" else proto.graph
        if mark:
            target.metadata_props.add(key="onnxopt.skip", value="no" if mark == "off" else "true")
        if mark == "off":
            target.metadata_props[0].value = "false"
        m = read_model(proto)
        passes(m)
        return [len(m.graph), len(next(iter(m.functions.values())))]

    assert left("") == left("off") == [1, 1]
    assert left("function") == [1, 2]
    assert left("main") == [3, 1]


def test_bodies_of_a_marked_graph_are_marked(model: Any) -> None:
    from onnxopt.graph import read_model, write_model

    branch = "then_branch = t () => (float[N, 4] r) { i = Identity (x) r = Relu (i) }"
    other = "else_branch = e () => (float[N, 4] s) { s = Neg (x) }"
    proto = write_model(model(f"c = Constant <value = bool {{1}}> () y = If <{branch}, {other}> (c)"))
    unmarked = read_model(proto)
    get_pass("elim-identity")()(unmarked)
    assert unmarked.version
    proto.graph.metadata_props.add(key="onnxopt.skip", value="1")
    marked = read_model(proto)
    get_pass("elim-identity")()(marked)
    assert not marked.version


def test_a_marked_body_is_not_merged_with_its_equal(model: Any) -> None:
    from onnxopt.graph import read_model, write_model

    def branch(n: int) -> str:
        return f"then_branch = t{n} () => (float[N, 4] r{n}) {{ i{n} = Neg (x) r{n} = Relu (i{n}) }}"

    def other(n: int) -> str:
        return f"else_branch = e{n} () => (float[N, 4] s{n}) {{ s{n} = Neg (x) }}"

    two = [f"v{n} = If <{branch(n)}, {other(n)}> (c)" for n in (1, 2)]
    proto = write_model(model(" ".join(["c = Constant <value = bool {1}> ()", *two, "y = Add (v1, v2)"])))
    for marked, left in ((False, 1), (True, 2)):
        if marked:
            proto.graph.node[1].attribute[0].g.metadata_props.add(key="onnxopt.skip", value="1")
        m = read_model(proto)
        get_pass("common-subexpressions")()(m)
        assert len(m.graph.by_op["If"]) == left


def test_fuel_stops_passes_with_and_without_rules(model: Any) -> None:
    from onnxopt.passes.levels import pipeline_for

    body = "i = Identity (x) a = Relu (i) b = Relu (i) k = Add (c, c) d = Add (a, b) y = Add (d, k)"
    whole = model(body, weights="<float c = {1}>")
    report = execute(pipeline_for(2), whole)
    spent = {p.name: p.hits for p in report.passes if p.hits}
    assert spent["elim-identity"] == spent["common-subexpressions"] == spent["constant-folding"] == 1
    sizes = []
    for fuel in range(5):
        m = model(body, weights="<float c = {1}>")
        execute(pipeline_for(2), m, PassContext(max_rewrites=fuel))
        sizes.append(m.node_count())
    assert sizes == [6, 5, 4, 3, 3]
