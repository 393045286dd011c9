"""The last look at a message before it is written: each way it can be wrong, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper

from onnxopt.errors import InvariantError
from onnxopt.graph import read_model, write_model
from onnxopt.graph.structure import check_interface, check_structure, interface_of

TEXT = """
<ir_version: 8, opset_import: ["" : 17, "l" : 1]>
g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
  a = Add (x, w)
  b = If (c) <
    then_branch = t () => (float[2] t1) <float[2] s = {2, 2}> { t0 = Mul (a, s) t1 = l.f (t0) },
    else_branch = e () => (float[2] e1) { e1 = Clip (a, , w) }
  >
  y = Neg (b)
}
<domain: "l", opset_import: ["" : 17]> f (p) => (r) { q = Neg (p) r = Abs (q) }
"""


def parsed() -> ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_a_model_that_is_right() -> None:
    assert check_structure(parsed()) == {"w"}


def _reads(m: ModelProto) -> None:
    m.graph.node[2].input[0] = "v"


def _reads_in_a_body(m: ModelProto) -> None:
    m.graph.node[1].attribute[0].g.node[1].input[0] = "v"


def _reads_what_a_branch_beside_defines(m: ModelProto) -> None:
    m.graph.node[1].attribute[1].g.node[0].input[0] = "t0"


def _reads_too_early(m: ModelProto) -> None:
    m.graph.node[1].attribute[1].g.node[0].input[0] = "y"


def _no_operator(proto: ModelProto) -> None:
    proto.graph.node[0].op_type = ""


def _order(m: ModelProto) -> None:
    nodes = list(m.functions[0].node)[::-1]
    del m.functions[0].node[:]
    m.functions[0].node.extend(nodes)


def _twice(m: ModelProto) -> None:
    m.graph.node[2].output[0] = "a"


def _twice_by_one_node(m: ModelProto) -> None:
    m.graph.node[0].output.append("a")


def _initializer_twice(m: ModelProto) -> None:
    m.graph.initializer.append(m.graph.initializer[0])


def _input_twice(m: ModelProto) -> None:
    m.graph.input.append(m.graph.input[0])


def _output(m: ModelProto) -> None:
    m.graph.output[0].name = "v"


def _output_of_a_body(m: ModelProto) -> None:
    m.graph.node[1].attribute[0].g.output[0].name = "v"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_reads, "main: Neg -> y reads `v`, which nothing before it defines"),
        (_reads_in_a_body, "main / If / then_branch: l::f -> t1 reads `v`, which nothing before it defines"),
        (_reads_what_a_branch_beside_defines, "main / If / else_branch: Clip -> e1 reads `t0`"),
        (_reads_too_early, "main / If / else_branch: Clip -> e1 reads `y`"),
        (_no_operator, "main: the node that makes `a` has no operator"),
        (_order, "function l::f: Abs -> r reads `q`"),
        (_twice, "main: `a` is defined twice, the second time by Neg -> a"),
        (_twice_by_one_node, "main: `a` is defined twice, the second time by Add -> a, a"),
        (_initializer_twice, "main: an initializer is there twice"),
        (_input_twice, "main: an input is there twice"),
        (_output, "main: the output `v` is not defined"),
        (_output_of_a_body, "main / If / then_branch: the output `v` is not defined"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change: Callable[[ModelProto], None], message: str) -> None:
    proto = parsed()
    change(proto)
    with pytest.raises(InvariantError, match=r"^model\.onnx: ") as e:
        check_structure(proto, "model.onnx")
    assert message in e.value.message and e.value.exit_code == 4


def _type(m: ModelProto) -> None:
    m.graph.output[0].type.tensor_type.elem_type = 11


def _fewer_inputs(m: ModelProto) -> None:
    del m.graph.input[1]


def _input_order(m: ModelProto) -> None:
    m.graph.input.reverse()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_type, "main: the output `y` is not what it was"),
        (_fewer_inputs, "main: the input `c` is not what it was"),
        (_input_order, "main: the inputs are in another order"),
    ],
)
def test_the_interface(change: Callable[[ModelProto], None], message: str) -> None:
    proto, promised = parsed(), interface_of(parsed())
    check_interface(proto, promised)
    change(proto)
    with pytest.raises(InvariantError, match=message):
        check_interface(proto, promised)


def test_nothing_is_handed_out_that_reads_what_is_not_there() -> None:
    model = read_model(parsed())
    node = model.graph.last
    assert node is not None
    node.set_input(0, type(node.output)("gone", model.graph))
    with pytest.raises(InvariantError, match="reads `gone`"):
        write_model(model)


def test_a_function_may_be_called_as_an_operator_that_gives_more() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]> g (float[2] x, int64[1] k) => (float[1] v) {
      y = l.TopK (x)
      v, i = TopK (y, k)
    } <domain: "l", opset_import: ["" : 17]> TopK (p) => (r) { r = Neg (p) }"""
    proto = onnx.parser.parse_model(text)
    check_structure(proto)
    del proto.graph.node[1].output[1:]
    with pytest.raises(InvariantError, match="gives 1 results, and has to give 2"):
        check_structure(proto)


def test_it_takes_about_a_millisecond_for_a_thousand_nodes() -> None:
    nodes = [helper.make_node("Add", [f"v{i}", "x"], [f"v{i + 1}"], name=f"n{i}") for i in range(20_000)]
    info = [helper.make_tensor_value_info(n, 1, [2]) for n in ("v0", "x", "v20000")]
    proto = helper.make_model(helper.make_graph(nodes, "g", info[:2], info[2:]))
    seconds = []
    for _ in range(3):
        start = time.process_time()
        check_structure(proto)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.4  # 0.02 to 0.05; machines that run tests are busy
