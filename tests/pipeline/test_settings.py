"""Levels, config keys and fields of passes: impossible values are refused where they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest

from onnxopt import (
    GraphPass,
    ModelPass,
    PassContext,
    PassInfo,
    Sequential,
    config_keys,
    declare_config,
    get_pass,
    load_module,
    model_pass,
    optimize,
    option,
    register,
)
from onnxopt.errors import PassError, UsageError


def refused(given: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(UsageError) as e:
        given()
    return e.value.message, e.value.hint


@pytest.mark.parametrize("level", [7, -1, 2.0, True, "2", None, [2]])
def test_a_level_is_refused_alike_wherever_it_is_given(model: Any, level: Any) -> None:
    said = (f"there is no level {level!r}", "levels are 0 to 3")
    assert refused(lambda: optimize(model().proto, level=level)) == said
    assert refused(lambda: PassContext(opt_level=level)) == said
    for where, given in (
        ("pass a: ", lambda: PassInfo("a", level)),
        ("pass sequential: ", lambda: Sequential([], opt_level=level)),
        ("pass count: ", lambda: model_pass(opt_level=level, name="count")(lambda model, ctx: None)),
    ):
        if level or where != "pass sequential: ":
            assert refused(given) == (where + said[0], said[1])


def test_levels_are_taken(model: Any) -> None:
    assert [PassContext(opt_level=n).opt_level for n in range(4)] == [PassInfo("a", n).opt_level for n in range(4)]


def test_the_name_of_a_pass_comes_first() -> None:
    for name in (7, 2, None):
        assert refused(lambda name=name: PassInfo(name, "fold"))[0] == f"the name of a pass is text, not {name!r}"
    assert refused(lambda: PassInfo("a", after=(3,)))[0] == "pass a: after is (3,), not a tuple of names"
    assert refused(lambda: PassInfo("a", targets=())) == ("pass a: targets names none", '("any",) is for everything')
    assert refused(lambda: PassInfo("a", tolerance=float("nan")))[0].startswith("pass a: tolerance is nan")
    assert PassInfo("a", required=None).required == ()  # type: ignore[arg-type]


def test_a_key_may_be_written_with_underscores(model: Any) -> None:
    key = declare_config("set.tile_size", int, 64, "largest tile")
    assert key.name == "set.tile-size"
    for written in ("set.tile_size", "set.tile-size"):
        ctx = PassContext(config={written: 8})
        assert (ctx[key], ctx["set.tile_size"], ctx["set.tile-size"]) == (8, 8, 8)
    assert PassContext()["set.tile_size"] == 64
    assert config_keys()["set.tile-size"] == key
    assert refused(lambda: PassContext()["set.tile"])[1].startswith("did you mean set.tile-size")


@pytest.mark.parametrize(
    ("error", "declared", "says"),
    [
        (TypeError, ("set.a", int, "x", ""), "config key set.a: the default 'x' is not of type int"),
        (TypeError, ("set.a", int, None, ""), "config key set.a: the default None is not of type int"),
        (TypeError, ("set.a", int, True, ""), "config key set.a: the default True is not of type int"),
        (TypeError, ("set.a", "int", 1, ""), "config key set.a: 'int' is no type: a class, or several"),
        (TypeError, ("set.a", (int, str), 1, ""), "is no type: a class, or several: int | None"),
        (ValueError, (3, int, 1, ""), "a config key cannot be named 3"),
        (ValueError, ("", int, 1, ""), "a config key cannot be named ''"),
        (ValueError, ("set.a=b", int, 1, ""), "a config key cannot be named 'set.a=b'"),
        (ValueError, ("constant-folding.max-bytes", int, 1, ""), "'constant-folding.max-bytes' exists already"),
        (ValueError, ("constant_folding.max_bytes", int, 1, ""), "'constant-folding.max-bytes' exists already"),
    ],
)
def test_what_is_declared_is_looked_at(error: type[Exception], declared: Any, says: str) -> None:
    with pytest.raises(error) as e:
        declare_config(*declared)
    assert says in str(e.value)
    assert "set.a" not in config_keys()


def test_a_key_is_declared_once(model: Any) -> None:
    declare_config("set.once_only", int, 1, "")
    with pytest.raises(ValueError, match=r"'set\.once-only' exists already"):
        declare_config("set.once-only", int, 1, "")
    declare_config("tiled.width", int, 1, "")
    with pytest.raises(ValueError, match=r"pass tiled: a config key named 'tiled\.width' is declared already"):

        @register
        @model_pass(name="tiled")
        def tiled(model: Any, ctx: Any, *, width: int = 2) -> None:
            """Has an option that is a key already."""

    with pytest.raises(UsageError, match="no pass is called 'tiled'"):
        get_pass("tiled")


def test_a_key_may_be_of_several_types() -> None:
    key = declare_config("set.maybe", int | None, None, "")
    assert (PassContext()[key], PassContext(config={"set.maybe": 3})[key]) == (None, 3)
    assert refused(lambda: PassContext(config={"set.maybe": True}))[0] == "set.maybe is True, not of type int | None"

    class Unroll:
        """As TVM's keys hold."""

    key = declare_config("tir.UnrollLoop", Unroll, Unroll(), "")
    assert refused(lambda: PassContext(config={"tir.UnrollLoop": 3}))[0] == "tir.UnrollLoop is 3, not of type Unroll"


def test_a_plugin_that_fails_leaves_no_key(tmp_path: Path) -> None:
    plugin = tmp_path / "keyed.py"
    text = 'from onnxopt import PassInfo, declare_config\ndeclare_config("keyed.size", int, 1, "")\n'
    plugin.write_text(text + 'PassInfo("keyed", 9)\n')
    message, hint = refused(lambda: load_module(str(plugin)))
    assert message.endswith("cannot be imported: UsageError: pass keyed: there is no level 9 (keyed.py:3)")
    assert hint == "levels are 0 to 3"
    plugin.write_text(text)
    load_module(str(plugin))
    assert PassContext()["keyed.size"] == 1


def test_a_pass_that_sets_a_field_is_told_how(model: Any) -> None:
    class Replace(GraphPass):
        """As ExecuTorch's documents write it."""

        info = PassInfo("replace")

        def __init__(self, new: str) -> None:
            self.new = new

    with pytest.raises(FrozenInstanceError) as e:
        Replace("Abs")
    assert "`new: … = option(default, help)`, in a class with @dataclass(frozen=True)" in str(e.value)

    class Remember(GraphPass):
        """Keeps what it saw."""

        info = PassInfo("remember")

        def run_graph(self, graph: Any, ctx: Any) -> None:
            self.seen = len(graph)

    with pytest.raises(PassError, match=r"what a run finds out goes to ctx\.count"):
        Remember()(model())

    @dataclass(frozen=True)
    class Told(GraphPass):
        """As it is meant."""

        info = PassInfo("told")
        new: str = option("Relu", "what comes")

    assert Told("Abs") == Told(new="Abs") != Told()


def test_an_option_of_a_class_that_is_no_dataclass_is_no_default(model: Any) -> None:
    class Loose(ModelPass):
        """Not registered."""

        info = PassInfo("loose")
        much: int = option(1, "how much")

    with pytest.raises(TypeError, match="much is an option, but the class no @dataclass"):
        Loose()(model())


def test_a_dataclass_that_is_not_frozen_is_no_pass(model: Any) -> None:
    @dataclass
    class Loose(ModelPass):
        """Not registered."""

        info = PassInfo("loose")
        much: int = option(1, "how much")

    with pytest.raises(TypeError, match="loose: a class with @dataclass needs frozen=True"):
        Loose()(model())


def test_an_option_is_set_once() -> None:
    @dataclass(eq=False, repr=False)
    class Tight(ModelPass):
        """Not registered."""

        info = PassInfo("tight")
        much: int = option(1, "how much")

    p = Tight(2)
    for name in ("much", "other"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to '{name}' of a pass"):
            setattr(p, name, 3)
    assert (p.much, repr(p)) == (2, "test_an_option_is_set_once.<locals>.Tight(much=2)")
