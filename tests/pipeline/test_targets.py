"""Targets: one or several, known or refused, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxopt import (
    OptimizeOptions,
    PassContext,
    Sequential,
    all_targets,
    graph_pass,
    model_pass,
    optimize,
    optimize_model,
    register,
)
from onnxopt.errors import UsageError
from onnxopt.pipeline.reproducer import reproduce, write_reproducer


def bound(name: str, *targets: str) -> Any:
    @register
    @model_pass(opt_level=0, name=name, targets=targets)
    def run(model: Any, ctx: PassContext) -> None:
        """Says for what it runs."""
        ctx.count("/".join(t for t in ctx.targets if t in targets or targets == ("any",)))

    return run


@pytest.mark.parametrize(
    ("given", "targets"),
    [
        ("any", ("any",)),
        ("arm,npu", ("arm", "npu")),
        ("npu, arm", ("npu", "arm")),
        (["npu", "arm", "npu"], ("npu", "arm")),
        (("cuda",), ("cuda",)),
    ],
)
def test_a_context_names_one_or_several_in_order(given: Any, targets: tuple[str, ...]) -> None:
    ctx = PassContext(target=given)
    assert ctx.targets == ctx.fork().targets == targets
    assert ctx.target == ",".join(targets)


@pytest.mark.parametrize("given", ["", "arm,", [], ["arm", ""], ["arm", 3], 3, None, {"arm"}])
def test_what_names_no_target(given: Any) -> None:
    with pytest.raises(UsageError) as e:
        PassContext(target=given)
    assert e.value.message.startswith(f"target is {given!r}, ")


def test_an_unknown_target_gets_candidates(model: Any) -> None:
    bound("for-dsp", "hexagon")
    assert all_targets() == sorted(all_targets(), key=lambda t: (t != "any", t))
    assert {"any", "cpu", "cuda", "hexagon"} <= {*all_targets()}
    for give in (
        lambda target: PassContext(target=target),
        lambda target: optimize(model().proto, target=target),
        lambda target: OptimizeOptions(target=["cpu", target]).context(),
    ):
        with pytest.raises(UsageError, match="no target is called 'hexagom'") as e:
            give("hexagom")
        assert e.value.hint == "did you mean hexagon?"
    with pytest.raises(UsageError) as e:
        PassContext(target="zzz")
    assert e.value.hint.startswith("there are any, ")


def test_a_pass_that_is_not_registered_makes_its_target_known(model: Any) -> None:
    @graph_pass(targets=("fpga",))
    def for_fpga(graph: Any, ctx: Any) -> None:
        """Does nothing."""

    with PassContext(target="fpga"):
        assert [p.name for p in Sequential([for_fpga])(model()).passes] == ["for-fpga"]


def test_a_pass_runs_for_one_of_several(model: Any) -> None:
    both, arm, npu, gpu, anything = (
        bound("for-both", "arm", "npu"),
        bound("for-arm", "arm"),
        bound("for-npu", "npu"),
        bound("for-gpu", "gpu"),
        bound("for-anything", "any"),
    )
    with PassContext(target="npu,arm"):
        report = Sequential([both, arm, npu, gpu, anything])(model())
    ran = {p.name: [*p.rules] for p in report.passes}
    assert ran == {
        "for-both": ["npu/arm"],
        "for-arm": ["arm"],
        "for-npu": ["npu"],
        "for-anything": ["npu/arm"],
    }
    assert report.skipped == {"for-gpu": "is for gpu, the targets are npu and arm"}


def test_extra_passes_run_in_the_order_of_the_targets(model: Any) -> None:
    for name, target in (("for-arm", "arm"), ("for-npu", "npu"), ("for-anything", "any")):
        bound(name, target)

    def ran(target: Any) -> list[str]:
        options = OptimizeOptions(level=0, extra=("for-arm", "for-npu", "for-anything"), target=target)
        return [p.name for p in optimize_model(model(), options).passes]

    assert ran(["arm", "npu"]) == ["for-arm", "for-anything", "for-npu"]
    assert ran("npu,arm") == ["for-npu", "for-anything", "for-arm"]


def test_a_reproducer_keeps_them(model: Any, tmp_path: Path) -> None:
    bound("for-npu", "npu")
    ctx = PassContext(target="arm,npu")
    write_reproducer(tmp_path / "kept", model(), "for-npu", ctx, UsageError("as if"))
    assert reproduce(tmp_path / "kept") is None
    assert '"target": "arm,npu"' in (tmp_path / "kept" / "settings.json").read_text()
