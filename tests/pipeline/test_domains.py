"""Operators of domains that the model does not import: the import is added, or the operator is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import onnxopt
from onnxopt.errors import DomainError, EmissionError, UsageError
from onnxopt.graph import Model, read_model, schema, write_model
from onnxopt.pipeline import PassContext, PassInfo, RewritePass, graph_pass, registry
from onnxopt.rewriting import op, rewrite, var
from tests.commands import Run

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) { a = Neg (x) y = Relu (a) }'


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_DECLARED", {})
    monkeypatch.setattr(registry, "_PASSES", registry._PASSES.copy())


def maker(domain: str, op_type: str = "Gate") -> type[RewritePass]:
    @rewrite(op.Relu(var("x")))
    def gate(m: Any, x: Any) -> Any:
        """Relu(x) = Gate(x)."""
        return m.op[op_type](x, domain=domain)

    class Gates(RewritePass):
        """Relu becomes Gate."""

        info = PassInfo("gates")
        rules = (gate,)

    return Gates


def made(domain: str, op_type: str = "Gate") -> dict[str, int]:
    model = read_model(parser.parse_model(TEXT))
    maker(domain, op_type)()(model)
    return {o.domain: o.version for o in write_model(model).opset_import}


def test_an_operator_brings_the_import_of_its_domain() -> None:
    assert made("lite") == {"": 17, "lite": 1}
    onnxopt.declare_domain("heavy", 3)
    assert made("heavy") == {"": 17, "heavy": 3}
    assert made("ai.onnx.ml", "Binarizer") == {"": 17, "ai.onnx.ml": 1}
    assert (
        made("ai.onnx.ml", "LabelEncoder")["ai.onnx.ml"]
        == onnx.defs.get_schema("LabelEncoder", "ai.onnx.ml").since_version
    )


def test_what_was_imported_stays() -> None:
    model = read_model(parser.parse_model(TEXT.replace('["" : 17]', '["" : 17, "lite" : 5]')))
    maker("lite")()(model)
    assert [(o.domain, o.version) for o in write_model(model).opset_import] == [("", 17), ("lite", 5)]


def test_a_declared_domain_has_the_operators_that_are_listed() -> None:
    onnxopt.declare_domain("lite", 1, ["FC"])
    with pytest.raises(EmissionError, match="the domain lite is declared without an operator Gate"):
        made("lite")
    assert made("lite", "FC") == {"": 17, "lite": 1}
    onnxopt.declare_domain("lite", 1, ["FC"])
    for name, version in (("lite", 2), ("", 1), ("ai.onnx.ml", 1), ("new", 0)):
        with pytest.raises(UsageError, match="declared"):
            onnxopt.declare_domain(name, version)


def test_a_graph_pass_brings_it_too_and_into_functions() -> None:
    source = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2] x) => (float[2] y) { y = own.F (x) }
    <domain: "own", opset_import: ["" : 17]> F (a) => (b) { b = Relu (a) }"""
    model = read_model(parser.parse_model(source))

    @graph_pass(name="gates")
    def gates(graph: Any, ctx: Any) -> None:
        """Relu becomes Gate."""
        for node in graph:
            if node.op == "Relu":
                node.output.replace_all_uses_with(graph.make("lite::Gate", node.inputs, before=node))

    gates()(model)
    proto = write_model(model)
    assert {o.domain for o in proto.opset_import} == {"", "own", "lite"}
    assert {o.domain for o in proto.functions[0].opset_import} == {"", "lite"}


def refused(model: Model | onnx.ModelProto, **options: Any) -> DomainError:
    with pytest.raises(DomainError) as e:
        onnxopt.optimize(model, pipeline="gates", **options, verify=False)
    return e.value


def test_who_optimizes_says_what_may_enter() -> None:
    onnxopt.register(maker("lite"))
    proto = parser.parse_model(TEXT)
    error = refused(proto)
    assert (
        str(error)
        == "pass gates: ModelProto: main: lite::Gate for Relu -> y: the model does not import the domain lite"
    )
    assert error.hint == (
        "if what runs the result knows it, let it in: --allow-domain lite, or allow_domains=('lite',)"
    )
    assert error.exit_code == 2
    refused(proto, allow_domains=["other"])
    with pytest.raises(UsageError, match="allow_domains is 'lite', not a list of names"):
        onnxopt.optimize(proto, pipeline="gates", allow_domains="lite", verify=False)
    result = onnxopt.optimize(proto, pipeline="gates", allow_domains=["lite"], verify=False)
    assert [o.domain for o in result.model.opset_import] == ["", "lite"]
    with PassContext(allow_domains=()), pytest.raises(DomainError):
        maker("lite")()(read_model(parser.parse_model(TEXT)))


PLUGIN = '''
from onnxopt import PassInfo, RewritePass, op, register, rewrite, var

@rewrite(op.Relu(var("x")))
def gate(m, x):
    """Relu(x) = Gate(x)."""
    return m.op.Gate(x, domain="lite")

@register
class Gates(RewritePass):
    """Relu becomes Gate."""

    info = PassInfo("gates")
    rules = (gate,)
'''


def test_refusing_is_no_bug(run: Run, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(TEXT), tmp_path / "m.onnx")
    (tmp_path / "gates.py").write_text(PLUGIN)
    args = ("optimize", "m.onnx", "out.onnx", "--plugin", "gates.py", "--with", "gates", "--reproducer", "kept")
    done = run(*args)
    assert done.returncode == 2, done.stderr
    assert "pass gates: m.onnx: main: lite::Gate for Relu -> y" in done.stderr
    assert "--allow-domain lite" in done.stderr
    assert "reproducer" not in done.stderr
    assert not (tmp_path / "kept").exists()
    assert not (tmp_path / "out.onnx").exists()
    allowed = run(*args, "--allow-domain", "lite")
    assert allowed.returncode == 0, allowed.stderr
    assert "not verified: onnxruntime does not know the operators of lite" in allowed.stdout + allowed.stderr
    assert [o.domain for o in onnx.load(tmp_path / "out.onnx").opset_import] == ["", "lite"]
