"""A worker that dies or hangs gives a verdict; another worker judges the next result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import parser

from onnxopt.verification import LOADS_PLAIN, Verifier, VerifyOptions

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) '
RELU, ABS = HEAD + "{ y = Relu (x) }", HEAD + "{ y = Abs (x) }"
WORKER = "from onnxopt.verification import judge\n"
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("when", "status", "says"),
    [
        ("original", "not verified", "crashed (SIGSEGV) loading the original"),
        ("compare", "different", "crashed (SIGSEGV) loading the result"),
    ],
)
def test_a_crash_gives_a_verdict(when: str, status: str, says: str, tmp_path: Path) -> None:
    """A crash of the worker gives a verdict.

    A real child process dies, in the method in which a runtime would crash.
    """
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    start = WORKER + f"def die(*a):\n    {CRASH}\njudge.Judge.{when} = die\njudge.main()"
    with Verifier(path, start=start) as verifier:
        verifier.submit(path)
        v = verifier.finish()
    assert v.status == status
    assert says in v.message


def test_a_crash_ahead_of_the_result_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    start = WORKER + f"def die(*a):\n    {CRASH}\njudge.Judge.read_ahead = die\njudge.main()"
    with Verifier(path, start=start) as verifier:
        verifier.submit(path)
        assert verifier.finish().status == "equal"


@pytest.mark.parametrize("when", ["original", "result", "compare"])
def test_an_internal_error_of_the_judge_is_not_verified(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error of the judge gives "not verified", with a hint to report the error.

    With ONNXOPT_DEBUG, the error is raised.
    """
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    start = WORKER + f"def fail(*a):\n    return opened\njudge.Judge.{when} = fail\njudge.main()"
    with Verifier(path, start=start) as verifier:
        for _ in range(2):
            verifier.submit(path)
            v = verifier.finish()
            assert v.status == "not verified"
            assert "internal error: NameError: name 'opened' is not defined" in v.message
            assert "report it" in v.hint or when == "original", "which is not asked again"
    monkeypatch.setenv("ONNXOPT_DEBUG", "1")
    with Verifier(path, start=start) as verifier:
        verifier.submit(path)
        with pytest.raises(NameError) as raised:
            verifier.finish()
    assert "in fail" in raised.value.__notes__[0], "where it was in the worker"


def test_a_worker_that_cannot_start_is_started_three_times(tmp_path: Path) -> None:
    path, log = tmp_path / "a.onnx", tmp_path / "log"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    with Verifier(path, start=f"open({str(log)!r}, 'a').write('.'); raise SystemExit(3)") as verifier:
        verifier.submit(path)
        v = verifier.finish()
    assert (v.status, v.message) == ("not verified", "onnxruntime ended with exit code 3 at its start")
    assert log.read_text() == "..."


def test_files_without_readable_structure_are_compared_by_outputs(tmp_path: Path) -> None:
    """Files without readable structure are compared by outputs.

    Numbers of one model only, and paths of roundings, need the structure of both files.
    """
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    a.write_bytes(parser.parse_model(HEAD + "{ h = Relu (x) y = Identity (h) }").SerializeToString())
    b.write_bytes(parser.parse_model(RELU).SerializeToString())
    for error in ("Refused('2.5 GiB')", "MemoryError()"):
        start = WORKER + f"def look(self):\n    raise judge.{error}\njudge.MemoryError = MemoryError\n"
        with Verifier(a, start=start + "judge.Judge.looked = look\njudge.main()") as verifier:
            verifier.submit(b)
            v = verifier.finish()
        assert v.status == "equal", v.message


def test_a_hang_gives_a_verdict(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    start = WORKER + "import time\njudge.Judge.original = lambda *a: time.sleep(60)\njudge.main()"
    with Verifier(path, VerifyOptions(timeout=1.0), start=start) as verifier:
        verifier.submit(path)
        v = verifier.finish()
    assert v.status == "not verified"
    assert "did not finish within 1 s" in v.message


@pytest.mark.parametrize(
    ("slow", "status", "says"), [(0.45, "not verified", "--timeout"), (0.0, "different", "report it")]
)
@pytest.mark.parametrize("derived", [False, True])
def test_a_slow_original_does_not_make_the_result_hang(
    slow: float, status: str, says: str, derived: bool, tmp_path: Path
) -> None:
    """Time used by the original is not counted against the result's timeout. The worker may derive the plan itself."""
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(RELU.replace("Relu", "Tanh")).SerializeToString())
    start = WORKER + (
        "import time\nrun = judge.Judge.original\n"
        f"def original(*a):\n    time.sleep({slow})\n    return run(*a)\n"
        "def compare(self, *a):\n    self.tell('running the result'); time.sleep(60)\n"
        "judge.Judge.original, judge.Judge.compare = original, compare\njudge.main()"
    )
    with Verifier(path, VerifyOptions(timeout=2.0), start=start) as verifier:
        if derived:
            verifier.prepare()
        verifier.submit(path)
        v = verifier.finish()
    assert (v.status, says in v.hint) == (status, True), v
    assert "did not finish within 2 s" in v.message


@pytest.mark.parametrize("when", ["original", "result", "compare", "pieces", "release"])
def test_after_a_crash_the_next_result_is_judged(when: str, tmp_path: Path) -> None:
    """The worker of `a` and `b` crashes once; the next result is judged by another worker."""
    for name, text in {"a": RELU, "b": ABS}.items():
        (tmp_path / name).write_bytes(parser.parse_model(text).SerializeToString())
    start = WORKER + (
        f"from pathlib import Path\ndied, method = Path({str(tmp_path / 'died')!r}), judge.Judge.{when}\n"
        f"def die(*a):\n    if died.exists(): return method(*a)\n    died.touch(); {CRASH}\n"
        f"judge.Judge.{when} = die\njudge.main()"
    )
    with Verifier(tmp_path / "a", start=start) as verifier:
        verifier.submit(tmp_path / "b")
        assert not verifier.finish().agrees
        assert (tmp_path / "died").exists()
        for name, status in (("b", "different"), ("a", "equal")):
            verifier.submit(tmp_path / name)
            assert verifier.finish().status == status


@pytest.mark.parametrize("how", [CRASH, "__import__('time').sleep(60)"], ids=["crash", "hang"])
@pytest.mark.parametrize(("state", "status"), [("the result", "different"), ("the original", "not verified")])
def test_a_crash_in_a_later_case_is_no_agreement(how: str, state: str, status: str, tmp_path: Path) -> None:
    """A worker that dies in a comparison decides, although earlier cases agree: the next worker knows these."""
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    die = f"def die(self, name, *a):\n    if name == 'case 2': self.tell('running {state}'); {how}\n"
    start = WORKER + f"compare = judge.Judge.compare\n{die}    return compare(self, name, *a)\n"
    options = VerifyOptions(timeout=60.0 if how == CRASH else 2.0)
    with Verifier(path, options, start=start + "judge.Judge.compare = die\njudge.main()") as verifier:
        verifier.submit(path)
        v = verifier.finish()
    assert v.status == status and v.message.endswith(f"running {state}"), v


@pytest.mark.parametrize("stepwise", [False, True])
def test_a_crash_at_another_size_of_a_freed_dim_is_not_repeated(stepwise: bool, tmp_path: Path) -> None:
    path, log = tmp_path / "a.onnx", tmp_path / "log"
    path.write_bytes(parser.parse_model(RELU).SerializeToString())
    die = f"def die(self):\n    open({str(log)!r}, 'a').write('.'); self.tell('running the result'); {CRASH}\n"
    start = WORKER + die + "judge.Judge.batches = die\njudge.main()"
    with Verifier(path, VerifyOptions(freed=("N",)), start=start, stepwise=stepwise) as verifier:
        verifier.submit(path)
        v = verifier.finish()
    assert (v.status, log.read_text()) == ("different", "."), v


SHORT = """
run = judge.OnnxRuntime.run
def run_long(self, feeds):
    if feeds["x"].shape[1] < {least}:
        import os, signal
        os.kill(os.getpid(), signal.{how})
    return run(self, feeds)
judge.OnnxRuntime.run = run_long
judge.main()
"""
SAMPLES = '<ir_version: 8, opset_import: ["" : 17]> g (float[batch, N] x) => (float[batch, N] y) '


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize(
    ("least", "how", "sizes"),
    [(400, "SIGFPE", 512), (40, "SIGSEGV", 64), (400, "SIGKILL", 0), (1 << 20, "SIGFPE", 0)],
    ids=["a window", "a short one", "memory", "always"],
)
def test_an_original_that_crashes_on_short_inputs_gets_longer_ones(
    least: int, how: str, sizes: int, stepwise: bool, tmp_path: Path
) -> None:
    """An original that crashes on short inputs gets longer ones, unless memory ran out.

    onnxruntime divides by zero for a sound without a frame.
    """
    for name, text in {"a": "{ y = Relu (x) }", "b": "{ y = Abs (x) }"}.items():
        (tmp_path / name).write_bytes(parser.parse_model(SAMPLES + text).SerializeToString())
    start = WORKER + SHORT.format(least=least, how=how)
    with Verifier(tmp_path / "a", start=start, stepwise=stepwise) as verifier:
        for name, status in (("a", "equal"), ("b", "different")):
            verifier.submit(tmp_path / name)
            v = verifier.finish()
            assert v.status == (status if sizes else "not verified"), v.message
            assert {c.dims["N"] for c in v.cases if c.name == "case 1" and c.dims} == ({sizes} if sizes else set())
            assert sizes or f"crashed ({how})" in v.message, v.message


def test_an_original_that_rejects_the_longer_inputs_is_not_verified_again(tmp_path: Path) -> None:
    """The next result finds the inputs lengthened, and no death of its own."""
    (tmp_path / "a").write_bytes(parser.parse_model(SAMPLES + "{ y = Relu (x) }").SerializeToString())
    start = SHORT.format(least=40, how="SIGSEGV").replace("return run(self, feeds)", "raise ValueError('too long')")
    with Verifier(tmp_path / "a", start=WORKER + start) as verifier:
        for says in ("crashed (SIGSEGV)", "the original fails on every input tried: too long"):
            verifier.submit(tmp_path / "a")
            v = verifier.finish()
            assert v.status == "not verified" and says in v.message, v


def test_an_original_of_fixed_sizes_that_crashes_gets_no_other_sizes(tmp_path: Path) -> None:
    text = SAMPLES.replace("[batch, N]", "[2, 5]") + "{ y = Relu (x) }"
    (tmp_path / "a").write_bytes(parser.parse_model(text).SerializeToString())
    with Verifier(tmp_path / "a", start=WORKER + SHORT.format(least=400, how="SIGFPE")) as verifier:
        verifier.submit(tmp_path / "a")
        v = verifier.finish()
    assert v.status == "not verified" and "crashed (SIGFPE) running the original" in v.message


SLOW = """
run = judge.OnnxRuntime.run
def slowly(self, feeds):
    import time
    time.sleep({seconds})
    return run(self, feeds)
judge.OnnxRuntime.run = slowly
judge.main()
"""


@pytest.mark.parametrize("more", ["", "case 2"])
def test_no_case_starts_after_the_timeout_is_used_up(more: str, tmp_path: Path) -> None:
    """No case starts after earlier cases have used the timeout.

    Each run has the timeout for itself, so many cases would multiply it.
    """
    (tmp_path / "a.onnx").write_bytes(parser.parse_model(RELU.replace("Relu", "Tanh")).SerializeToString())
    start = WORKER + SLOW.format(seconds=0.8 if more else 0.0)
    with Verifier(tmp_path / "a.onnx", VerifyOptions(timeout=1.5), start=start, stepwise=True) as verifier:
        verifier.submit(tmp_path / "a.onnx")
        v = verifier.finish()
    assert [c.name for c in v.cases if "took all of --timeout" in c.note] == [more] * bool(more)
    assert v.status == ("inconclusive" if more else "equal"), v.message
    assert v.reasons == ["1 more did not run, as these took all of --timeout"] * bool(more)


def test_the_timeout_covers_all_pieces_together(tmp_path: Path) -> None:
    """All pieces share one timeout. Each run of a piece is reported, which does not restart the time."""
    (tmp_path / "a.onnx").write_bytes(parser.parse_model(RELU).SerializeToString())
    die = "def pieces(self, *a):\n    import time\n    for k in range(40):\n        self.tell('running a piece of A')"
    start = WORKER + f"{die}\n        time.sleep(0.1)\njudge.Judge.pieces = pieces\njudge.main()"
    options = VerifyOptions(timeout=1.0, pieces=True)
    with Verifier(tmp_path / "a.onnx", options, start=start, stepwise=True) as verifier:
        verifier.submit(tmp_path / "a.onnx")
        v = verifier.finish()
    assert v.status == "inconclusive" and "looking into pieces onnxruntime did not finish within 1 s" in v.message


OPTIMIZED = """
load = judge.OnnxRuntime.__init__
def loads(self, model, optimize=False, **others):
    for name, ending in (__import__("json").loads({endings!r}) if optimize else {{}}).items():
        if str(model).endswith(name):
            exec(ending)
    load(self, model, optimize, **others)
judge.OnnxRuntime.__init__ = loads
judge.main()
"""
NEITHER = "onnxruntime with its default optimizations loads neither the original nor the result"
ONE = "onnxruntime with its default optimizations loads the original and not the result"
FAIL, HANG = "raise RuntimeError('it fails')", "__import__('time').sleep(60)"


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize(
    ("endings", "status", "says"),
    [
        ({}, "equal", ""),
        ({"a": CRASH}, "equal", ""),
        ({"a": CRASH, "b": CRASH}, "equal", f"{NEITHER}: onnxruntime crashed (SIGSEGV)"),
        ({"a": FAIL, "b": CRASH}, "equal", f"{NEITHER}: onnxruntime crashed (SIGSEGV)"),
        ({"a": CRASH, "b": FAIL}, "equal", f"{NEITHER}: "),
        ({"a": FAIL, "b": FAIL}, "equal", f"{NEITHER}: it fails"),
        ({"a": HANG, "b": HANG}, "equal", f"{NEITHER}: onnxruntime did not finish"),
        ({"b": CRASH}, LOADS_PLAIN, f"{ONE}: onnxruntime crashed (SIGSEGV) loading the result with optimizations"),
        ({"b": HANG}, LOADS_PLAIN, f"{ONE}: onnxruntime did not finish"),
        ({"b": FAIL}, LOADS_PLAIN, f"{ONE}: it fails; without them it is equal: bit for bit the same, "),
    ],
)
def test_a_crash_of_runtime_optimizations_on_both_is_no_difference(
    endings: dict[str, str], status: str, says: str, stepwise: bool, tmp_path: Path
) -> None:
    """A crash of the runtime's optimizations on both models is mentioned, and is no difference.

    A crash on the result alone is a refusal: the result is useless where the original is in use. The optimizer
    crashes on some float16 models. The next result is judged.
    """
    for name, text in {"a": RELU, "b": RELU, "c": ABS, "d": RELU}.items():
        (tmp_path / name).write_bytes(parser.parse_model(text).SerializeToString())
    to_hang = 0.6 if stepwise else 2.0  # without steps, the time includes the worker's start
    options = VerifyOptions(timeout=to_hang if HANG in endings.values() else 60.0)
    start = WORKER + OPTIMIZED.format(endings=json.dumps(endings))
    with Verifier(tmp_path / "a", options, start=start, stepwise=stepwise) as verifier:
        verifier.submit(tmp_path / "b")
        found = verifier.finish()
        assert (found.status, found.agrees, found.is_refused) == (status, status == "equal", status == LOADS_PLAIN)
        assert says in (found.hint if status == "equal" else found.message)
        assert bool(found.hint) == (status == "equal" and bool(says))
        for name, next_status in (("c", "different"), ("d", "equal")):
            verifier.submit(tmp_path / name)
            assert verifier.finish().status == next_status
