"""`onnxopt verify` as users call it: on real files, with real crashes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.cli.conftest import SCRIPT, Run

ONNX_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
HEADER = 'opset_import: ["" : 17]'
VECTOR = "(float[4] x) => (float[4] y)"
BATCH = "(float[N, 4] x) => (float[N, 4] y)"
ENDLESS = (
    "<int64 n = {4611686018427387904}, bool c = {1}> { y = Loop (n, c, x) <body = b (int64 i, bool p, float[4] s)"
    " => (bool q, float[4] t) { q = Identity (p) t = Neg (s) }> }"
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def call(name: str, signature: str, body: str, header: str = HEADER) -> None:
        model = parser.parse_model(f"<ir_version: 8, {header}> g {signature} {body}")
        (tmp_path / name).write_bytes(model.SerializeToString())

    return call


def compare(run: Run, *args: str) -> tuple[int, dict[str, Any]]:
    r = run("verify", "a.onnx", "b.onnx", *args, "--format", "json")
    assert r.stdout, r.stderr
    return r.returncode, json.loads(r.stdout)


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["status"] for c in found["cases"]}


# -- cases -----------------------------------------------------------------------------------------------


def test_a_model_has_all_the_cases_that_make_sense_for_it(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "{ y = Relu (x) }")
    write("b.onnx", BATCH, "<float z = {0}> { y = Max (x, z) }")
    code, found = compare(run)
    assert code == 0
    names = ["random", "ones", "zeros", "extremes", "dynamic-1", "dynamic-2", "dynamic-3"]
    assert statuses(found) == dict.fromkeys(names, "equal")
    assert [c["dims"] for c in found["cases"][4:]] == [{"N": 1}, {"N": 2}, {"N": 3}]
    (output,) = found["cases"][0]["outputs"]
    figures = {key: output[key] for key in ("dtype", "shape", "max_abs", "max_rel", "ulp", "nan", "inf", "ok")}
    assert figures == {
        "dtype": "float32",
        "shape": [2, 4],
        "max_abs": 0,
        "max_rel": 0,
        "ulp": 0,
        "nan": [0, 0],
        "inf": [0, 0],
        "ok": True,
    }
    assert output["cosine"] == pytest.approx(1)


def test_one_line_an_output_in_a_pipe(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "{ y = Relu (x) }")
    write("b.onnx", BATCH, "<float k = {1.25}> { r = Relu (x) y = Mul (r, k) }")
    r = run("verify", "a.onnx", "b.onnx", "--cases", "ones,zeros")
    assert r.returncode == 1
    lines = r.stdout.splitlines()
    assert lines[0].startswith(
        "ones (N=2): y float32[2,4] max abs 0.25, max rel 0.25, cosine 1.000000, 2097152 ulp: DIFF"
    )
    assert lines[1] == "zeros (N=2): y float32[2,4] max abs 0, max rel 0, 0 ulp: ok"
    assert lines[2].startswith(
        "allowed at first of an output's largest magnitude: float32 7e-07 (+ 1e-12); other types"
    )
    assert any(line.startswith("✗ DIFFERENT: case ones: output `y` differs by 2.5e-01 of its range") for line in lines)


@pytest.mark.parametrize(
    ("case", "body"),
    [
        ("ones", "{ s = Sin (x) y = Mul (s, k) }"),
        ("extremes", "{ h = Clip (x, low, high) y = Sin (h) }"),
        ("dynamic-1", "{ s = Sin (x) n = Shape (x) m = Gather <axis = 0> (n, zero) e = Equal (m, one)"
         "f = Cast <to = 1> (e) y = Add (s, f) }"),
    ],
)  # fmt: skip
def test_only_the_case_made_for_it_sees_the_difference(case: str, body: str, run: Run, write: Any) -> None:
    weights = "<float low = {-9}, float high = {9}, int64 zero = {0}, int64 one = {1}, float[4] k = {1, 1, 1, 1.5}>"
    write("a.onnx", BATCH, "{ y = Sin (x) }")
    write("b.onnx", BATCH, weights + body)
    code, found = compare(run)
    assert code == 1
    assert statuses(found)[case] == "different"
    assert statuses(found)["zeros"] == "equal"


def test_masks_are_padded_on_either_side(run: Run, write: Any) -> None:
    signature = "(int64[B, S] attention_mask, float[B, S] x) => (float[B, S] y)"
    write("a.onnx", signature, "{ m = Cast <to = 1> (attention_mask) y = Mul (x, m) }")
    # sees only the first token: right for masks of which the first is as the last
    write(
        "b.onnx",
        signature,
        "<int64[1] z = {0}, int64[1] o = {1}> { f = Slice (attention_mask, z, o, o) n = Shape (x) e = Expand (f, n)"
        "m = Cast <to = 1> (e) y = Mul (x, m) }",
    )
    code, found = compare(run, "--cases", "masks")
    assert code == 1
    assert statuses(found) == {
        "mask-ones": "equal",
        "mask-right": "different",
        "mask-left": "different",
        "mask-one": "different",
    }


def test_integers_stay_within_the_table(run: Run, write: Any) -> None:
    body = "<float[3, 2] table = {1, 2, 3, 4, 5, 6}> { y = Gather (table, ids) }"
    for name in ("a.onnx", "b.onnx"):
        write(name, "(int64[S] ids) => (float[S, 2] y)", body)
    code, found = compare(run, "--cases", "all")
    assert code == 0
    assert set(statuses(found).values()) == {"equal"}


def test_an_unknown_case_lists_those_there_are(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Relu (x) }")
    r = run("verify", "a.onnx", "a.onnx", "--cases", "one")
    assert r.returncode == 2
    assert "there is no case 'one'" in r.stderr
    assert "mask-left" in r.stderr


def test_a_case_that_a_model_does_not_have_is_skipped_where_it_is_named(run: Run, write: Any) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, VECTOR, "{ y = Sin (x) }")
    code, found = compare(run, "--cases", "random,mask-one")
    assert code == 0
    assert statuses(found) == {"mask-one": "skipped", "random": "equal"}
    assert "no input that looks like a mask" in found["cases"][0]["note"]


def test_overridable_initializers_get_other_values(run: Run, write: Any, tmp_path: Path) -> None:
    """B is right for the default of w only; or has no such input, which is no difference in what it computes."""
    signature = "(float[2] x, float[2] w) => (float[2] y)"
    weight = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    write("a.onnx", signature, "{ y = Mul (x, w) }")
    write("b.onnx", signature, "<float[2] k = {2, 3}> { y = Mul (x, k) }")
    for name in ("a.onnx", "b.onnx"):
        model = onnx.load(tmp_path / name)
        model.graph.initializer.append(weight)
        onnx.save(model, tmp_path / name)
    code, found = compare(run)
    assert code == 1
    assert {name for name, status in statuses(found).items() if status != "equal"} == {"overrides"}
    write("b.onnx", "(float[2] x) => (float[2] y)", "<float[2] k = {2, 3}> { y = Mul (x, k) }")
    code, found = compare(run, "--cases", "random,overrides")
    assert (code, statuses(found)) == (0, {"overrides": "skipped", "random": "equal"})


def test_little_evidence_is_said_and_fails_when_strict(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "<float k = {0}> { y = Mul (x, k) }")
    write("b.onnx", VECTOR, "<float k = {0}> { i = Identity (x) y = Mul (i, k) }")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 0
    assert "? verification is inconclusive: " in r.stdout
    assert "output `y` is all zero" in r.stdout
    assert run("verify", "a.onnx", "b.onnx", "--strict").returncode == 1


def test_tolerances_can_be_given(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Sin (x) }")
    write("b.onnx", VECTOR, "<float k = {1.001}> { s = Sin (x) y = Mul (s, k) }")
    assert run("verify", "a.onnx", "b.onnx").returncode == 1
    assert run("verify", "a.onnx", "b.onnx", "--rtol", "0.01").returncode == 0
    assert run("verify", "a.onnx", "b.onnx", "--atol", "0.01").returncode == 0


def test_a_size_can_be_fixed(run: Run, write: Any) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, BATCH, "{ y = Sin (x) }")
    code, found = compare(run, "--cases", "random", "--dim", "N=7")
    assert (code, found["cases"][0]["outputs"][0]["shape"]) == (0, [7, 4])
    r = run("verify", "a.onnx", "b.onnx", "--dim", "M=7")
    assert r.returncode == 2
    assert "no input of the model has a dynamic dim 'M'\nhint: it has N" in r.stderr


def test_infinities_are_counted(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Reciprocal (x) }")
    write("b.onnx", VECTOR, "<float k = {1}> { y = Div (k, x) }")
    code, found = compare(run, "--cases", "zeros,random")
    assert code == 0
    assert found["cases"][0]["outputs"][0]["inf"] == [4, 4]


# -- data ------------------------------------------------------------------------------------------------


def test_given_values_in_every_form(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    write("b.onnx", BATCH, "{ y = Relu (x) }")
    x = np.ones((5, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "set.npz", x=-x)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x.npy", x)
    code, found = compare(run, "--inputs", "x=x.npy")
    assert (code, statuses(found)) == (0, {"given": "equal"})
    assert found["cases"][0]["dims"] == {"N": 5}
    code, found = compare(run, "--inputs", "folder", "--inputs", "set.npz")
    assert (code, statuses(found)) == (1, {"folder": "equal", "set.npz": "different"})
    code, found = compare(run, "--inputs", "x=x.npy", "--cases", "random")
    assert (code, statuses(found)) == (0, {"random": "equal"})


def test_inputs_that_are_not_given_are_made_to_fit(run: Run, write: Any, tmp_path: Path) -> None:
    signature = "(float[N, S] p, float[N, S] q) => (float[N, S] y)"
    for name in ("a.onnx", "b.onnx"):
        write(name, signature, "{ y = Add (p, q) }")
    np.save(tmp_path / "p.npy", np.ones((5, 7), np.float32))
    code, found = compare(run, "--inputs", "p=p.npy")
    assert (code, found["cases"][0]["dims"]) == (0, {"N": 5, "S": 7})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("z", np.ones((2, 4), np.float32), "the model has no input `z`"),
        ("x", np.ones((2, 4)), "input `x` takes float32, not float64"),
        ("x", np.ones((2, 5), np.float32), "input `x` takes shape [N, 4], not [2, 5]"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    name: str, value: Any, says: str, run: Run, write: Any, tmp_path: Path
) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    np.save(tmp_path / f"{name}.npy", value)
    r = run("verify", "a.onnx", "a.onnx", "--inputs", f"{name}={name}.npy")
    assert r.returncode == 2
    assert says in r.stderr
    assert len(r.stderr.splitlines()) == 2


def test_places_without_data_are_refused(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", BATCH, "{ y = Abs (x) }")
    (tmp_path / "empty").mkdir()
    (tmp_path / "not.npz").write_bytes(b"nothing")
    for place, says in (("nowhere", "no such file"), ("empty", "there are no .npy"), ("not.npz", "cannot be read")):
        r = run("verify", "a.onnx", "a.onnx", "--inputs", place)
        assert r.returncode == 2, place
        assert says in r.stderr


@pytest.mark.parametrize(
    "model",
    ["simple/test_expand_shape_model1", "simple/test_sequence_model4", "pytorch-converted/test_Conv2d_padding"],
)
def test_the_data_of_onnx_itself(model: str, run: Run) -> None:
    folder = ONNX_DATA / model
    r = run("verify", folder / "model.onnx", folder / "model.onnx", "--inputs", folder, "--format", "json")
    assert r.returncode == 0, r.stdout + r.stderr
    (case,) = json.loads(r.stdout)["cases"]
    assert case["name"] == "test_data_set_0"
    assert [o["against"] for o in case["outputs"]][:3] == ["", "A and file", "B and file"]


def test_expected_outputs_are_held_against_both(run: Run, write: Any, tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(name, VECTOR, "{ y = Abs (x) }")
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    x = np.array([-1, 2, -3, 4], np.float32)
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
    (folder / "output_0.pb").write_bytes(numpy_helper.from_array(x, "y").SerializeToString())
    r = run("verify", "a.onnx", "b.onnx", "--inputs", folder)
    assert r.returncode == 1
    lines = r.stdout.splitlines()
    assert lines[0].endswith(": ok")
    assert lines[1].startswith("test_data_set_0: y [A and file] float32[4] max abs 6")
    assert lines[2].startswith("test_data_set_0: y [B and file] float32[4] max abs 6")


def test_sequences_and_optionals_are_read_by_the_types_of_the_graph(run: Run, tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [None])
    sequence, optional = helper.make_sequence_type_proto(tensor), helper.make_optional_type_proto(tensor)
    nodes = [
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        helper.make_node("OptionalGetElement", ["o"], ["e"]),
        helper.make_node("Add", ["c", "e"], ["y"]),
    ]
    inputs = [helper.make_value_info("s", sequence), helper.make_value_info("o", optional)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(model, tmp_path / "b.onnx")
    values = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    files = {
        "input_0": numpy_helper.from_list(values, "s"),
        "input_1": numpy_helper.from_optional(np.array([10, 20, 30], np.float32), "o"),
        "output_0": numpy_helper.from_array(np.array([11, 22, 33], np.float32), "y"),
    }
    for name, proto in files.items():
        (tmp_path / f"{name}.pb").write_bytes(proto.SerializeToString())
    code, found = compare(run, "--inputs", ".")
    assert code == 0, found
    assert [o["max_abs"] for o in found["cases"][0]["outputs"]] == [0, 0, 0]


# -- pieces ----------------------------------------------------------------------------------------------


CHAIN = "{ p = Neg (x) q = Sin (p) r = Mul (q, k) s = Add (r, x) y = Exp (s) }"


def test_a_difference_names_its_place(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "<float k = {2}>" + CHAIN)
    write("b.onnx", BATCH, "<float k = {2.5}>" + CHAIN)
    code, found = compare(run, "--cases", "random")
    assert code == 1
    (place,) = found["places"]
    assert (place["value"], place["entries"], place["case"]) == ("r", ["q"], "random")
    assert [n["op"] for n in place["a"]] == [n["op"] for n in place["b"]] == ["Mul"]
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random")
    assert "it goes wrong at `r`\n  at `r`: differs by 2.5e-01 of its range, rounding alone by " in r.stdout
    assert "    original  Mul(q, k)\n    result    Mul(q, k)\n    from      q, which agrees\n" in r.stdout


def test_two_places_are_two(run: Run, write: Any) -> None:
    write("a.onnx", BATCH, "<float k = {2}>" + CHAIN)
    write(
        "b.onnx",
        BATCH,
        "<float k = {2}>"
        + CHAIN.replace("Neg (x) q = Sin (p)", "Abs (x) i = Identity (p) q = Sin (i)").replace("Add", "Sub"),
    )
    _, found = compare(run, "--cases", "random")
    assert [(p["value"], p["entries"]) for p in found["places"]] == [("p", ["x"]), ("s", ["r", "x"])]


def test_pieces_are_looked_at_on_request(run: Run, write: Any) -> None:
    """Where the effect of a difference is lost on the way to the output, it was moved on purpose."""
    nodes = " ".join(f"v{i + 1} = {'Sin' if i % 2 else 'Cos'} (v{i})" for i in range(150))
    for name, k in (("a.onnx", 1), ("b.onnx", 2)):
        body = f"<float k = {{{k}}}, float z = {{0}}> {{ v0 = Abs (x) {nodes} w = Mul (v150, k) u = Mul (w, z)"
        write(name, BATCH, body + " y = Add (u, x) }")
    code, found = compare(run, "--pieces", "--cases", "random")
    assert (code, found["status"], found["places"]) == (0, "verified in pieces", [])
    assert (found["pieces"]["cuts"], found["pieces"]["shared"]) == (153, 154)
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random", "--pieces")
    assert "pieces: 153 of 154 shared values agree (151 made by the same nodes" in r.stdout
    assert compare(run, "--cases", "random")[1]["status"] == "equal"


def test_external_data_beside_the_model_are_read(run: Run, write: Any, tmp_path: Path) -> None:
    for name, k in (("a", 1.0), ("b", 2.0)):
        write(f"{name}.onnx", BATCH, "{ p = Mul (x, k) y = Sin (p) }")
        model = onnx.load(tmp_path / f"{name}.onnx")
        model.graph.initializer.append(numpy_helper.from_array(np.full(4, k, np.float32), "k"))
        onnx.save(
            model, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.bin", size_threshold=0
        )
    code, found = compare(run)
    assert (code, [p["value"] for p in found["places"]]) == (1, ["p"])
    (tmp_path / "b.bin").unlink()
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 2
    assert "the data file b.bin of `k` is missing" in r.stderr


# -- crashes and hangs -----------------------------------------------------------------------------------


INTEGERS = "(int64[4] x) => (int64[4] y)"
LOWEST = f"<int64[4] k = {{{', '.join(['-9223372036854775808'] * 4)}}}, int64[1] two = {{2}}>"
SAFE = LOWEST + "{ z = Sub (x, two) m = Mul (k, z) n = Sub (m, m) y = Add (n, x) }"
CRASHES = SAFE.replace("Mul (k, z)", "Div (k, z)")  # the lowest integer over -1 is a trap of the processor


def test_a_crash_in_b_is_a_difference_and_the_other_cases_run(run: Run, write: Any) -> None:
    write("a.onnx", INTEGERS, SAFE)
    write("b.onnx", INTEGERS, CRASHES)
    code, found = compare(run, "--cases", "ones,zeros")
    assert code == 1
    assert statuses(found) == {"ones": "different", "zeros": "equal"}
    assert found["message"] == "case ones: onnxruntime crashed (SIGFPE) running B"


def test_a_crash_in_a_is_not_verified(run: Run, write: Any) -> None:
    write("a.onnx", INTEGERS, CRASHES)
    write("b.onnx", INTEGERS, SAFE)
    r = run("verify", "a.onnx", "b.onnx", "--cases", "ones,zeros")
    assert r.returncode == 1
    assert "! not verified: case ones: onnxruntime crashed (SIGFPE) running A" in r.stdout


def test_a_hang_is_a_result(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", VECTOR, ENDLESS)
    code, found = compare(run, "--timeout", "1", "--cases", "random,ones")
    assert code == 1
    assert statuses(found) == {"random": "different", "ones": "skipped"}
    assert "did not finish within 1 s (--timeout) running B" in found["message"]


def test_running_out_of_memory_is_a_result(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    huge = "<int64[2] n = {1099511627776, 4}> { e = Expand (x, n) y = ReduceMax <axes = [0], keepdims = 0> (e) }"
    write("b.onnx", VECTOR, huge)
    code, found = compare(run, "--cases", "random")
    assert code == 1
    assert "B fails where A runs" in found["message"]
    assert "it takes more memory than it may (--memory)" in found["message"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in /proc")
def test_a_worker_that_is_killed_is_a_result(write: Any, tmp_path: Path) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", VECTOR, ENDLESS)
    command = [SCRIPT, "verify", "a.onnx", "b.onnx", "--cases", "random", "-q"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        worker = None
        while worker is None or not _busy(worker):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            worker = int(children[0]) if children else None
            time.sleep(0.05)
        os.kill(worker, signal.SIGSEGV)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "onnxruntime crashed (SIGSEGV) running B" in out


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in /proc")
def test_ctrl_c_leaves_no_worker(write: Any, tmp_path: Path) -> None:
    write("a.onnx", VECTOR, ENDLESS)
    command = [SCRIPT, "verify", "a.onnx", "a.onnx"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (worker := children.read_text().split()):
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: interrupted" in error
    assert not Path(f"/proc/{worker[0]}").exists()


def _busy(pid: int) -> bool:
    """Has it worked for so long that it must be in the endless loop?"""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK") > 1.5


# -- what cannot be compared -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "says"),
    [
        ("(float[4] x) => (float[4] z)", "A and B differ in their outputs: only A has `y`, only B has `z`"),
        ("(float[4] x, float[4] w) => (float[4] y)", "A and B differ in their inputs: only B has `w`"),
        ("(double[4] x) => (double[4] y)", "input `x` is float in A and double in B"),
    ],
)
def test_other_interfaces_are_refused(signature: str, says: str, run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", signature, f"{{ {signature[-2]} = Neg (x) }}")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 2
    assert says in r.stderr


def test_files_that_cannot_be_read_are_refused(run: Run, write: Any, tmp_path: Path) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("no model at all")
    for pair in (("a.onnx", "absent.onnx"), ("empty.onnx", "a.onnx"), ("a.onnx", "text.onnx")):
        r = run("verify", *pair)
        assert r.returncode == 2, pair
        assert next(name for name in pair if name != "a.onnx") in r.stderr
        assert len(r.stderr.splitlines()) == 2


def test_b_that_no_runtime_loads_is_different(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Neg (x) }")
    write("b.onnx", VECTOR, "{ y = NoSuchOperator (x) }")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 1
    assert "✗ DIFFERENT: B cannot be loaded" in r.stdout
    r = run("verify", "b.onnx", "a.onnx")
    assert r.returncode == 1
    assert "! not verified: onnxruntime cannot load the original" in r.stdout


def test_random_models_are_compared_in_pieces(run: Run, write: Any) -> None:
    """What the same node draws in both is fed; the rest is arithmetic."""
    write("a.onnx", VECTOR, "{ r = RandomNormalLike (x) y = Add (x, r) }")
    write("b.onnx", VECTOR, "{ r = RandomNormalLike (x) i = Identity (r) y = Add (i, x) }")
    assert compare(run)[1]["status"] == "verified in pieces"
    write("b.onnx", VECTOR, "{ r = RandomUniformLike (x) y = Add (x, r) }")
    r = run("verify", "a.onnx", "b.onnx")
    assert r.returncode == 1
    assert "it goes wrong at `r`" in r.stdout


def test_providers(run: Run, write: Any) -> None:
    write("a.onnx", VECTOR, "{ y = Sin (x) }")
    assert run("verify", "a.onnx", "a.onnx", "--cases", "random", "--provider", "cpu").returncode == 0
    r = run("verify", "a.onnx", "a.onnx", "--provider", "NoSuchProvider")
    assert r.returncode == 2
    assert "no execution provider 'NoSuchProvider' here" in r.stderr
    assert "CPUExecutionProvider" in r.stderr


def on_a_terminal(folder: Path, *args: str) -> tuple[int, str]:
    """What the command shows on a terminal of 120 columns, and its exit code."""
    import pty

    main, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    command = [SCRIPT, *args]
    with subprocess.Popen(command, cwd=folder, stdout=terminal, stderr=subprocess.PIPE, env=environment) as process:
        os.close(terminal)
        text = b""
        while True:
            try:
                chunk = os.read(main, 4096)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            text += chunk
    os.close(main)
    return process.returncode, text.decode()


def test_a_table_on_a_terminal(write: Any, tmp_path: Path) -> None:
    outputs = [f"y{i}" for i in range(12)]
    signature = f"(float[4] x) => ({', '.join(f'float[4] {name}' for name in outputs)})"
    body = "{ " + " ".join(f"{name} = Sin (x)" for name in outputs) + " }"
    write("a.onnx", signature, body)
    code, shown = on_a_terminal(tmp_path, "verify", "a.onnx", "a.onnx", "--cases", "random")
    assert code == 0
    assert "max abs" in shown
    assert "cosine" in shown
    assert "and 4 more, closer than these" in shown
    assert "✓ equal: bit for bit the same, 1 case" in shown


def test_a_place_on_a_terminal(write: Any, tmp_path: Path) -> None:
    for name, k in (("a.onnx", 2), ("b.onnx", 2.5)):
        write(name, BATCH, f"<float k = {{{k}}}>{CHAIN}")
    code, shown = on_a_terminal(tmp_path, "verify", "a.onnx", "b.onnx", "--cases", "random")
    assert code == 1
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert re.search(
        r"^  at `r`: differs by 2.5e-01 of its range, rounding alone by \S+, case random *\r$", plain, re.M
    )
    assert re.search(r"^    original  Mul\(q, k\) *\r\n    result    Mul\(q, k\) *\r\n    from      q, ", plain, re.M)
    assert "\x1b[1m`r`\x1b[0m: \x1b[1;31mdiffers by" in shown
    assert "next: onnxopt report a.onnx b.onnx -o report.html marks it in both graphs" in plain


def test_names_move_no_cursor_and_fill_no_screen(run: Run, write: Any, tmp_path: Path) -> None:
    """Of what is in a file, nothing reaches a terminal that is not to be read."""
    evil, long = "r\x1b[2J\u202e\n", "/encoder/layer.11" + "/attention" * 20 + "/output"
    for file, k in (("a.onnx", 2), ("b.onnx", 2.5)):
        write(file, BATCH, f"<float k = {{{k}}}>{CHAIN}")
        model = onnx.load(tmp_path / file)
        for node in model.graph.node:
            node.name = evil + long
            for names in (node.input, node.output):
                names[:] = [{"r": evil, "q": long}.get(name, name) for name in names]
        onnx.save(model, tmp_path / file)
    code, shown = on_a_terminal(tmp_path, "verify", "a.onnx", "b.onnx", "--cases", "random")
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random")
    assert (code, r.returncode) == (1, 1)
    for text in (re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", ""), r.stdout):
        assert all(line.isprintable() for line in text.split("\n")), ascii(text)
        assert r"r\x1b[2J\u202e\n" in text
    place = r.stdout.partition("\n  at ")[2]
    assert "(/encoder/layer…on/attention/attention/output, k)\n" in place
    assert max(map(len, place.splitlines())) < 140
    r = run("verify", "a.onnx", "b.onnx", "--cases", "random", "-v")
    assert "from      /encoder/layer…" in r.stdout
    assert json.loads(run("verify", "a.onnx", "b.onnx", "--format", "json").stdout)["places"][0]["value"] == evil


def test_rounding_noise_is_said_and_fails_when_strict(run: Run, write: Any) -> None:
    """Off by more than the roundings of one node leave, by less than the last bits of x change the output."""
    body = "<float g = {{300}}, float k = {{{}}}>{{ a = Mul (x, g) s = Sin (a) y = Mul (s, k) }}"
    write("a.onnx", BATCH, body.format(3))
    write("b.onnx", BATCH, body.format(3 * (1 + 1.2e-6)))
    r = run("verify", "a.onnx", "b.onnx", "--pieces", "--cases", "random")
    assert r.returncode == 0
    assert "? within rounding noise: it differs by 1.2e-06 of the range of `y`" in r.stdout
    assert "\n  at `y`: differs by 1.2e-06 of its range, rounding alone by " in r.stdout
    assert run("verify", "a.onnx", "b.onnx", "--pieces", "--cases", "random", "--strict").returncode == 1


def test_help_has_examples(run: Run) -> None:
    text = run("verify", "--help").stdout
    assert "onnxopt verify model.onnx model.opt.onnx --cases" in text
    assert "piece by piece" in text
