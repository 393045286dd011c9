"""Models with random operators are judged by the distribution of the draws, and by their consumers."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxopt.verification import Verification, VerifyOptions, verify
from onnxopt.verification.model import skeleton
from onnxopt.verification.model.dataflow import is_random_model
from onnxopt.verification.model.nodes import inside
from onnxopt.verification.model.views import leave_out_false_modes
from onnxopt.verification.pieces.pairs import Pairs
from onnxopt.verification.programs.program import Program, bodies
from tests.verification.pairs import verdict

HEAD = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[2, 7] x, bool b) => (float[2, 7] y) '
FUNCTION = '<domain: "my", opset_import: ["" : 17]> f (a) => (r) '
OUTER = '<domain: "my", opset_import: ["" : 17, "my" : 1]> g (a) => (r) '
OUTEST = OUTER.replace("g (", "h (") + "{ r = my.g (a) }"
ZEROS = "k = Constant <value = float[2, 7] {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> () "
NORMAL = "q = RandomNormal <shape = [2, 7]> () "
LOOP = "n = Constant <value_int = 3> () y = Loop (n, , x) <body = l (int64 k, bool c, float[2, 7] s) => (c, t) {BODY}>"
IF = "y = If (b) <then_branch = l () => (t) {BODY}, else_branch = e () => (w) { w = Relu (x) }>"


def judge(tmp_path: Path, a: str, b: str) -> Verification:
    return verdict(tmp_path, HEAD + a, HEAD + b, VerifyOptions())


PARTS = "p = Constant <value = float {0.5}> () t = Constant <value = bool {1}> () "


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("i = Identity (x) r = RandomNormalLike (i)", "r = RandomNormalLike (x)"),
        ("i = Relu (x) j = Relu (i) r = RandomUniformLike (j)", "i = Relu (x) r = RandomUniformLike (i)"),
        ("i = Sigmoid (x) j = Identity (i) r = Bernoulli (j)", "i = Sigmoid (x) r = Bernoulli (i)"),
        ("i = Identity (x) m = Multinomial (i) r = Cast <to = 1> (m)", "m = Multinomial (x) r = Cast <to = 1> (m)"),
        ("s = Shape (x) i = ConstantOfShape (s) r = RandomNormalLike (i)", ZEROS + "r = RandomNormalLike (k)"),
        (PARTS + "i = Identity (x) r = Dropout (i, p, t)", PARTS + "r = Dropout (x, p, t)"),
        (PARTS + "r, m = Dropout (x, p, t)", PARTS + "r = Dropout (x, p, t)"),  # an unread mask
        (PARTS + "r = Dropout (x, p, t)", PARTS + "r, m = Dropout (x, p, t)"),
        ("q = RandomNormal <shape = [2, 7]> () r = Identity (q)", "r = RandomNormal <shape = [2, 7]> ()"),
        (NORMAL + "i = Identity (q) r = Relu (i)", NORMAL + "r = Relu (q)"),
    ],
)
def test_random_nodes_are_paired_despite_other_names(a: str, b: str, tmp_path: Path) -> None:
    x, y = (f"{{ e = Exp (x) {text} y = Add (r, e) }}" for text in (a, b))
    for one, other in ((x, y), (y, x)):
        verdict = judge(tmp_path, one, other)
        assert verdict.status == "verified in pieces"
        assert verdict.pieces is not None and verdict.pieces.worst_rel == 0.0


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("RandomNormalLike (x)", "RandomNormalLike (f)", "shape [2, 7] became [1, 14]"),
        ("RandomNormalLike (x)", "RandomUniformLike (x)", "of its range"),
        ("RandomNormalLike (x)", "RandomNormalLike <scale = 1.1> (x)", "of its range"),
        ("Bernoulli (p)", "Bernoulli (q)", "of its range"),
    ],
)
def test_a_draw_from_another_distribution_is_the_place(a: str, b: str, says: str, tmp_path: Path) -> None:
    before = "p = Sigmoid (x) q = Sigmoid (p) f = Flatten <axis = 0> (q) k = Shape (x)"
    text = f"{{ {before} r = DRAW s = Reshape (r, k) y = Add (s, x) }}"
    verdict = judge(tmp_path, text.replace("DRAW", a), text.replace("DRAW", b))
    assert verdict.status == "different"
    (place,) = verdict.places
    assert place.value == "r"
    assert says in place.record.note
    assert "Identity" not in [side.op for side in (*place.a, *place.b)]
    drawn = [sides[-1] for sides in (place.a, place.b)]
    assert [f"{side.op} ({', '.join(side.inputs)})" for side in drawn] == [
        a.replace("<scale = 1.1> ", ""),
        b.replace("<scale = 1.1> ", ""),
    ]


MASK = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 2] x) => (float[2, 2] y, bool[2, 2] m) '


@pytest.mark.parametrize(
    ("ratio", "b", "agrees"),
    [
        ("0.1", "y, m = Dropout (x, p, t)", True),
        ("0.5", "y, m = Dropout (x, p, t)", False),
        ("0.1", "y, n = Dropout (x, p, t) m = Not (n)", False),
    ],
)
def test_a_dropout_mask_is_compared_by_its_ratio(ratio: str, b: str, agrees: bool, tmp_path: Path) -> None:
    """Dropouts of different ratios are "different".

    Four elements, of which few are dropped, are often drawn alike; the model is random all the same.
    """
    a = MASK + "{ " + PARTS.replace("0.5", "0.1") + "y, n = Dropout (x, p, t) m = Identity (n) }"
    found = verdict(tmp_path, a, MASK + "{ " + PARTS.replace("0.5", ratio) + b + " }", VerifyOptions())
    assert (found.status == "verified in pieces") == agrees, found.message
    assert agrees or found.status == "different"


def test_two_draws_of_a_model_are_not_confused(tmp_path: Path) -> None:
    text = "{ i = Identity (x) r = RandomNormalLike (i) s = RandomNormalLike (i) y = Sub (r, s) }"
    assert judge(tmp_path, text, text.replace("(i)", "(x)")).status == "verified in pieces"
    assert judge(tmp_path, text, text.replace("Sub (r, s)", "Sub (s, r)")).status == "different"


@pytest.mark.parametrize("draw", ["RandomNormalLike (READ)", "Dropout (READ, , b)"])
@pytest.mark.parametrize(("around", "of"), [(LOOP, "s"), (IF, "x")])
def test_random_nodes_in_a_body_are_compared(around: str, of: str, draw: str, tmp_path: Path) -> None:
    body = f"{{ d = Relu ({of}) MORE r = {draw} u = Add ({of}, r) t = Neg (u) }}"
    text = f"{{ {around.replace('{BODY}', body)} }}"
    a, b = (text.replace("MORE", more).replace("READ", read) for more, read in (("i = Identity (d)", "i"), ("", "d")))
    verdict = judge(tmp_path, a, b)
    assert verdict.status == "verified in pieces"
    assert verdict.pieces is not None and verdict.pieces.worst_rel == 0.0
    assert judge(tmp_path, a, b.replace("Neg", "Abs")).status == "different", "other draws are no excuse"


@pytest.mark.parametrize("call", ["my.f (x)", "my.g (x)"])
def test_a_function_with_random_nodes_may_be_inlined(call: str, tmp_path: Path) -> None:
    functions = FUNCTION + "{ q = RandomNormalLike (a) r = Relu (q) }" + OUTER + "{ r = my.f (a) }"
    a = f"{{ r = {call} y = Add (x, r) }}" + functions
    assert judge(tmp_path, a, "{ q = RandomNormalLike (x) r = Relu (q) y = Add (x, r) }").status == "verified in pieces"
    assert judge(tmp_path, a, "{ q = RandomNormalLike (x) r = Abs (q) y = Add (x, r) }").status == "different"


FALSE = "t = Constant <value = bool {0}> () "
DROPPED = f"{{ {FALSE} q = Dropout (a, , t) r = Exp (q) }}"


@pytest.mark.parametrize("text", [FALSE + "q = Dropout (x, , t) r = Exp (q)", "r = my.f (x)"])
def test_dropout_with_training_mode_false_is_not_random(text: str, tmp_path: Path) -> None:
    """A Dropout with a false training mode may be removed, also in functions.

    The removal counted as one random node less.
    """
    a, b = (f"{{ {made} z = Cos (r) y = Round (z) }}{FUNCTION}{DROPPED}" for made in (text, "r = Exp (x)"))
    assert judge(tmp_path, a, b).status == judge(tmp_path, b, a).status == "equal"


@pytest.mark.parametrize(
    ("head", "text", "expected"),
    [
        ("<bool t = {0}>", "y = Dropout (x, , t)", ["x", ""]),
        ("<bool t = {1}>", "y = Dropout (x, , t)", ["x", "", "t"]),
        ("<bool[0] t = {}>", "y = Dropout (x, , t)", ["x", "", "t"]),
        ("", "y = Dropout (x, , b)", ["x", "", "b"]),
        ("<bool b = {0}>", "y = Dropout (x, , b)", ["x", "", "b"]),  # callers may override b
        ("<bool f = {0}>", "t = Identity (f) y = Dropout (x, , t)", ["x", ""]),
        ("<bool t = {0}>", "y = my.Dropout (x, b, t)", ["x", "b", "t"]),
        ("<bool f = {0}>", IF.replace("{BODY}", "{ t = Dropout (x, , f) }"), ["x", ""]),
        ("<bool c = {0}>", LOOP.replace("{BODY}", "{ t = Dropout (s, , c) }"), ["s", "", "c"]),  # c is the loop's own
        ("<bool f = {0}>", IF.replace("{BODY}", "{ f = Not (b) t = Dropout (x, , f) }"), ["x", "", "f"]),
    ],
)
def test_false_training_modes_are_removed(head: str, text: str, expected: list[str]) -> None:
    model = parser.parse_model(f"{HEAD}{head} {{ {text} }}")
    leave_out_false_modes(model)
    assert [list(n.input) for n in inside(model.graph.node) if n.op_type == "Dropout"] == [expected]


def test_a_false_training_mode_listed_as_input_in_ir_3() -> None:
    """In IR 3 an initializer listed as input is constant: its false mode is removed.

    Every initializer is listed, and none can be overridden.
    """
    model = parser.parse_model(HEAD.replace("version: 8", "version: 3") + "<bool b = {0}> { y = Dropout (x, , b) }")
    leave_out_false_modes(model)
    assert list(model.graph.node[0].input) == ["x", ""]


def test_a_seed_attribute_must_stay(tmp_path: Path) -> None:
    a = "{ r = my.f (x) y = Add (x, r) }" + FUNCTION + "{ r = RandomNormalLike <seed = 3.0> (a) }"
    for seed, status in ((3, "verified in pieces"), (4, "different")):
        b = f"{{ r = RandomNormalLike <seed = {seed}.0> (x) y = Add (x, r) }}"
        assert judge(tmp_path, a, b).status == status


def test_reserved_names_in_the_model_keep_their_values(tmp_path: Path) -> None:
    taken = "r\N{RIGHTWARDS ARROW}read0"
    for name, op in (("a", "Exp"), ("b", "Exp"), ("c", "Cos")):
        model = parser.parse_model(f"{HEAD}{{ t = {op} (x) r = RandomNormalLike (x) y = Add (r, t) }}")
        model.graph.node[0].output[0] = model.graph.node[2].input[1] = taken
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    assert verify(tmp_path / "a.onnx", tmp_path / "b.onnx").status == "verified in pieces"
    assert verify(tmp_path / "a.onnx", tmp_path / "c.onnx").status == "different"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{ y = Dropout (x) }", False),
        ("{ t = Constant <value = bool {1}> () y = Dropout (x, , t) }", True),
        ("{ y = my.f (x) }" + FUNCTION + "{ r = RandomNormalLike (a) }", True),
        ("{ y = my.h (x) }" + FUNCTION + "{ r = Bernoulli (a) }" + OUTER + "{ r = my.f (a) }" + OUTEST, True),
        ("{ y = my.Bernoulli (x) }" + FUNCTION.replace("f (", "Bernoulli (") + "{ r = Relu (a) }", False),
        ("{ y = Relu (x) }" + FUNCTION + "{ r = RandomNormalLike (a) }", False),
        ("{ " + IF.replace("{BODY}", "{ t = Bernoulli (x) }") + " }", True),
    ],
)
def test_random_models(text: str, expected: bool) -> None:
    assert is_random_model(parser.parse_model(HEAD + text)) is expected


def test_nodes_with_a_draw_in_a_body_are_random(tmp_path: Path) -> None:
    text = f"{{ {IF.replace('{BODY}', '{ t = Bernoulli (x) }')} }}"
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    whole = Program(skeleton.Skeleton(tmp_path / "m.onnx"))
    inner = [Program(whole.skeleton, graph, whole) for graph in bodies(whole.nodes[0]).values()]
    assert [program.random for program in (whole, *inner)] == [{0}, {0}, set()]


@pytest.mark.parametrize("opset", [15, 19, 21])
@pytest.mark.parametrize("drawn", ["Bernoulli (s)", "Dropout (s, half, train)", "RandomNormalLike (s)"])
def test_random_nodes_of_a_newer_opset_are_paired(drawn: str, opset: int, tmp_path: Path) -> None:
    """Random nodes of two opsets are paired if the operator is unchanged, or gained only types."""
    constants = "<float half = {0.5}, bool train = {1}>"
    text = f"g (float[2, 7] x) => (float[2, 7] y) {constants} {{ s = Sigmoid (x) r = {drawn} y = Mul (x, r) }}"
    a, b = (f'<ir_version: 8, opset_import: ["" : {n}]> {text}' for n in (17, opset))
    assert verdict(tmp_path, a, b).status == "verified in pieces"
    wrong = verdict(tmp_path, a, b.replace("s = Sigmoid (x)", "s = HardSigmoid (x)"))
    assert wrong.status == ("verified in pieces" if "Like" in drawn else "different"), wrong.message  # of its shape


@pytest.mark.parametrize(
    ("op", "opsets", "same"),
    [("Relu", (14, 21), True), ("Relu", (13, 14), False), ("Softmax", (12, 13), False), ("Softmax", (13, 20), True)],
)
def test_operators_unchanged_between_opsets(op: str, opsets: tuple[int, int], same: bool, tmp_path: Path) -> None:
    texts = (
        f'<ir_version: 8, opset_import: ["" : {n}]> g (float[2] x) => (float[2] y) {{ y = {op} (x) }}' for n in opsets
    )
    programs = []
    for n, text in zip(opsets, texts):
        onnx.save(parser.parse_model(text), tmp_path / f"{n}.onnx")
        programs.append(Program(skeleton.Skeleton(tmp_path / f"{n}.onnx")))
    assert Pairs(*programs).is_same("y") is same
