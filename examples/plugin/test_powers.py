"""The plugin's own test: run it with pytest where onnxopt and the plugin are installed."""

import onnx.parser
import pytest

import onnxopt


@pytest.mark.parametrize(("exponent", "operators"), [(2, ["Mul"]), (3, ["Mul", "Mul"]), (4, ["Pow"]), (0.5, ["Pow"])])
def test_small_whole_powers_become_products(exponent: float, operators: list[str]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
        f"<float n = {{{exponent}}}> {{ y = Pow (x, n) }}"
    )
    result = onnxopt.optimize(model, pipeline="powers-as-products")
    assert [n.op_type for n in result.model.graph.node] == operators
