"""Further commands as functions of files and ModelProtos."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxopt
from onnxopt.cli.main import cli

Call = Callable[..., str]


@pytest.fixture
def command(sines: onnx.ModelProto, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command, and returns what it prints."""

    def run(*words: str) -> str:
        capsys.readouterr()
        cli([*words], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_stats(sines: onnx.ModelProto, command: Call) -> None:
    of_file, of_proto = onnxopt.stats("m.onnx", work=True), onnxopt.stats(sines, work=True)
    assert of_file.to_dict() == json.loads(command("stats", "m.onnx", "--format", "json"))
    assert of_proto.path == "ModelProto"
    assert of_proto.to_dict() | {"path": "m.onnx"} == of_file.to_dict()


def test_verify(sines: onnx.ModelProto) -> None:
    other = onnx.ModelProto.FromString(sines.SerializeToString())
    other.graph.node[1].op_type = "Cos"
    assert onnxopt.verify(sines, "m.onnx").ok
    found = onnxopt.verify("m.onnx", other, cases=["random"])
    assert not found.ok and str(found).startswith("different: case random: output `y` differs by ")
    assert onnxopt.verify(sines, other, inputs={"x": np.full((2, 4), np.pi / 4, np.float32)}, atol=1e-6).ok
    with pytest.raises(TypeError, match=r"verify\(\) has no keyword tol: "):
        onnxopt.verify(sines, other, tol=1)


def test_bisect(sines: onnx.ModelProto, command: Call) -> None:
    steps: list[str] = []
    found = onnxopt.bisect(sines, plugins=["wrong.py"], extra=["wrong"], progress=steps.append)
    assert (found.rule, str(found.site)) == ("sine_is_cosine", "sine_is_cosine@b")
    assert found.submodel is not None and steps
    printed = command("bisect", "m.onnx", "--plugin", "wrong.py", "--with", "wrong", "-q")
    assert printed.startswith(f"{found}\n")
    with pytest.raises(onnxopt.UsageError, match="ModelProto: the result does not differ from the original"):
        onnxopt.bisect(sines)
    with pytest.raises(TypeError, match=r"bisect\(\) has no keyword with: extra="):
        onnxopt.bisect(sines, **{"with": ["wrong"]})  # type: ignore[arg-type]


def test_find(sines: onnx.ModelProto, command: Call) -> None:
    (found,) = onnxopt.find(sines, "Neg(Sin(x))")
    assert (found.scope, found.results, found.values) == ("main", ["y"], {"x": "a"})
    assert [node.op for node in found.nodes.values()] == ["Neg", "Sin"]
    assert str(found) == "main: y\n  b: float[2,4] = Sin(a)\n  y: float[2,4] = Neg(b)"
    assert json.loads(command("find", "m.onnx", "Neg(Sin(x))", "--format", "json")) == [found.to_dict()]
    assert onnxopt.find("m.onnx", "Neg(Cos(x))") == []


def test_report(sines: onnx.ModelProto, command: Call) -> None:
    result = onnxopt.optimize(sines, "out.onnx").model
    page = onnxopt.report(sines, result, times=False)
    assert page.verification is not None and page.verification["status"] == "equal" and not page.doubts
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!')
    command("report", "m.onnx", "out.onnx", "-o", "command.html", "--no-times")
    made = onnxopt.report("m.onnx", "out.onnx", "api.html", times=False)
    assert Path("api.html").read_text() == Path("command.html").read_text() == made.html
    with pytest.raises(onnxopt.WriteError, match="is one of the files to read"):
        onnxopt.report("m.onnx", "out.onnx", "out.onnx")


def test_extract(sines: onnx.ModelProto) -> None:
    for model in (sines, "m.onnx"):
        assert [n.op_type for n in onnxopt.extract(model, ["a"], ["b"]).graph.node] == ["Sin"]


def test_a_hint_is_below_an_error_that_nobody_catches(sines: onnx.ModelProto) -> None:
    with pytest.raises(onnxopt.UsageError) as e:
        onnxopt.optimize(sines, disable=["dead-cod"])
    assert "".join(traceback.format_exception_only(e.value)).endswith("\nhint: did you mean dead-code?\n")


def test_what_a_rule_declined_is_a_record(sines: onnx.ModelProto) -> None:
    nodes: Any = "c = Conv (x, w) r = Relu (c) s = BatchNormalization (c, k, k, k, k) y = Add (r, s)"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y)'
        f"<float[1, 1, 1, 1] w = {{2}}, float[1] k = {{1}}> {{ {nodes} }}"
    )
    rule = onnxopt.optimize(model, verify=False).report.pipeline.of("conv-bn-folding").rules["fold_conv_bn"]
    (declined,) = rule.declined.values()
    assert (declined.count, declined.example[:18]) == (1, "BatchNormalization")
