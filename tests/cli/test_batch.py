"""Many models: folders, in place, checks, the cache, budgets, and what build systems read."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from onnx import parser

from onnxopt.io.placing import is_data_of
from tests.cli.conftest import SCRIPT, Run

Rough = Callable[..., tuple[str, ...]]

NAMES = ("repvgg_blocks", "residual_block", "qdq_conv")


@pytest.fixture
def models(samples: Path, tmp_path: Path) -> list[str]:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(samples / f"{name}.onnx", folder)
    return [f"models/{name}.onnx" for name in NAMES]


def statuses(text: str) -> list[str]:
    return [o["status"] for o in json.loads(text)["models"]]


def test_many_models_into_a_folder(run: Run, models: list[str], tmp_path: Path) -> None:
    done = run("optimize", *models, "--out-dir", "build", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("3 models: ")
    for name in NAMES:
        alone = run("optimize", f"models/{name}.onnx", f"{name}.onnx")
        assert alone.returncode == 0
        assert (tmp_path / "build" / f"{name}.onnx").read_bytes() == (tmp_path / f"{name}.onnx").read_bytes()
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == sorted(f"{n}.onnx" for n in NAMES)
    again = run("optimize", *models, "--out-dir", "build", "--format", "json")
    assert statuses(again.stdout) == ["current", "current", "unchanged"]


def test_one_that_fails_stops_no_other(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "models" / "broken.onnx").write_bytes(b"not a model")
    named = ["models/broken.onnx", *models, "models/missing.onnx"]
    done = run("optimize", *named, "--out-dir", "build", "--format", "json")
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == 2
    assert statuses(done.stdout) == ["failed", "optimized", "optimized", "unchanged", "failed"]
    assert "not an ONNX model" in answer["models"][0]["message"]
    assert "no such file" in answer["models"][-1]["message"]
    assert len(list((tmp_path / "build").iterdir())) == 3


def test_a_crash_is_the_outcome_of_its_model(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import os, signal\n"
        "from onnxopt import model_pass, register\n"
        "@register\n"
        "@model_pass(opt_level=1)\n"
        "def crash(model, ctx):\n"
        '    """Ends the process for one of the models."""\n'
        "    if 'residual' in model.name: os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    done = run("optimize", *models, "--out-dir", "build", "--plugin", "crash.py", "--with", "crash", "--format", "json")
    assert done.returncode == 4
    answer = json.loads(done.stdout)["models"]
    assert [o["status"] for o in answer] == ["optimized", "failed", "unchanged"]
    assert "SIGSEGV" in answer[1]["message"]
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == ["qdq_conv.onnx", "repvgg_blocks.onnx"]


def test_in_place_keeps_a_backup_of_the_first_original(run: Run, models: list[str], tmp_path: Path) -> None:
    original = (tmp_path / models[0]).read_bytes()
    first = run("optimize", models[0], "--in-place", "--backup", ".orig", "--format", "json")
    assert statuses(first.stdout) == ["optimized"]
    assert (tmp_path / f"{models[0]}.orig").read_bytes() == original
    assert (tmp_path / models[0]).read_bytes() != original
    second = run("optimize", models[0], "--in-place", "--backup", ".orig", "-O3", "--format", "json")
    assert statuses(second.stdout) == ["optimized"]
    assert (tmp_path / f"{models[0]}.orig").read_bytes() == original
    third = run("optimize", models[0], "--in-place", "-O3", "--format", "json")
    assert statuses(third.stdout) == ["unchanged"]
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == sorted(
        [*(f"{n}.onnx" for n in NAMES), "repvgg_blocks.onnx.orig"]
    )


def test_external_data_is_not_replaced_in_place(run: Run, samples: Path, tmp_path: Path) -> None:
    for file in ("external_weights.onnx", "external_weights.data"):
        shutil.copy(samples / file, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    done = run("optimize", "external_weights.onnx", "--in-place")
    assert done.returncode == 2
    assert "external data" in done.stderr
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert run("optimize", "external_weights.onnx", "--out-dir", "build").returncode == 0
    onnx.checker.check_model(str(tmp_path / "build" / "external_weights.onnx"))


def test_check_writes_nothing(run: Run, models: list[str], tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")}
    done = run("optimize", *models, "--check", "--format", "json")
    assert done.returncode == 1
    assert statuses(done.stdout) == ["would change", "would change", "unchanged"]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.onnx")} == before
    assert run("optimize", models[2], "--check").returncode == 0


def test_the_cache_goes_by_content(run: Run, models: list[str], tmp_path: Path) -> None:
    first, second = models[1:]

    def go(*more: str) -> list[str]:
        shutil.rmtree(tmp_path / "build", ignore_errors=True)
        done = run("optimize", first, second, "--out-dir", "build", "--cache-dir", "cache", "--format", "json", *more)
        assert done.returncode == 0, done.stderr
        return statuses(done.stdout)

    assert go() == ["optimized", "unchanged"]
    made = (tmp_path / "build" / "residual_block.onnx").read_bytes()
    assert go() == ["cached", "unchanged"]
    assert (tmp_path / "build" / "residual_block.onnx").read_bytes() == made
    assert go("-O3") == ["optimized", "unchanged"], "other options, another result"
    shutil.copy(tmp_path / first, tmp_path / second)
    assert go() == ["cached", "cached"], "the name does not matter"
    for entry in (tmp_path / "cache").rglob("files/*.onnx"):
        entry.write_bytes(b"damaged")
    assert go() == ["optimized", "cached"], "the second finds what the first has made"


def test_a_cache_that_somebody_changed(run: Run, models: list[str], tmp_path: Path) -> None:
    go = ("optimize", *models, "--cache-dir", "cache", "--out-dir")
    assert run(*go, "one").stderr == ""
    for record in (tmp_path / "cache").glob("*/*/record"):
        record.write_text(record.read_text().replace('"code": 0', '"code": 00'))
    done = run(*go, "two", "--format", "json")
    assert statuses(done.stdout) == ["optimized", "optimized", "unchanged"]
    said = "warning: the cache cache: what is damaged, or was not made with your key, is made anew\n"
    assert (done.returncode, done.stderr) == (0, said), "once"
    done = run(*go, "three", "--format", "json", ONNXOPT_CACHE_KEY="of another build")
    assert (statuses(done.stdout)[0], done.stderr) == ("optimized", said)
    for name in ("repvgg_blocks.onnx", "residual_block.onnx"):
        assert (tmp_path / "three" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_the_cache_knows_data_and_plugins(run: Run, samples: Path, tmp_path: Path) -> None:
    for file in ("external_weights.onnx", "external_weights.data"):
        shutil.copy(samples / file, tmp_path)
    plugin = tmp_path / "plug.py"
    plugin.write_text(
        "from onnxopt import model_pass, register\n"
        "@register\n"
        "@model_pass(opt_level=1)\n"
        "def plug(model, ctx):\n"
        '    """Does nothing."""\n'
    )
    more = ("--plugin", "plug.py", "--with", "plug", "--cache-dir", "cache", "--format", "json")

    def go(*where: str) -> list[str]:
        done = run("optimize", "external_weights.onnx", *where, *more)
        assert done.returncode == 0, done.stderr
        return statuses(done.stdout)

    assert go("--out-dir", "build") == ["optimized"]
    made = {p.name: p.read_bytes() for p in (tmp_path / "build").iterdir()}
    assert [is_data_of("external_weights.onnx", name) for name in sorted(made)] == [False, True]
    assert go("--out-dir", "build") == ["current"]
    shutil.rmtree(tmp_path / "build")
    assert go("--out-dir", f"file://{tmp_path}/build") == ["cached"]
    assert {p.name: p.read_bytes() for p in (tmp_path / "build").iterdir()} == made, "nothing of the cache beside it"
    assert go("other.onnx") == ["optimized"], "the data file is called after the model"
    onnx.checker.check_model(str(tmp_path / "other.onnx"))
    plugin.write_text(plugin.read_text() + "    model.graph\n")
    assert go("--out-dir", "new") == ["optimized"], "another plugin"
    (tmp_path / "external_weights.data").write_bytes(bytes(len((samples / "external_weights.data").read_bytes())))
    assert go("--out-dir", "new") == ["optimized"], "other data"


def test_two_builds_share_a_cache(run: Run, models: list[str], tmp_path: Path) -> None:
    command = [str(SCRIPT), "optimize", *models, "--jobs", "2", "--cache-dir", "cache", "--out-dir"]
    builds = [subprocess.Popen([*command, f"build{i}"], cwd=tmp_path, stdout=subprocess.DEVNULL) for i in range(2)]
    assert [b.wait(timeout=60) for b in builds] == [0, 0]
    assert {p.name: p.read_bytes() for p in (tmp_path / "build0").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "build1").iterdir()
    }
    entries = list((tmp_path / "cache").glob("*/*"))
    assert len(entries) == 3
    assert not [p for p in entries if p.name.startswith(".")]
    third = run("optimize", *models, "--cache-dir", "cache", "--out-dir", "build2", "--format", "json")
    assert statuses(third.stdout) == ["cached", "cached", "unchanged"]


def test_budgets_of_the_command_line_and_of_the_project(run: Run, models: list[str], tmp_path: Path) -> None:
    done = run("optimize", models[0], "out.onnx", "--fail-if", "nodes_after > 5", "--fail-if", "rolled_back")
    assert done.returncode == 1
    assert "over budget: nodes_after > 5 (nodes_after = 16)" in done.stderr
    assert (tmp_path / "out.onnx").exists()
    (tmp_path / "onnxopt.toml").write_text('fail-if = ["nodes_after > 20", "bytes_after > 1 * MiB"]\n')
    assert run("optimize", models[0], "out.onnx").returncode == 0
    (tmp_path / "onnxopt.toml").write_text('fail-if = "nodes_after > 4"\n')
    many = run("optimize", *models, "--out-dir", "build")
    assert many.returncode == 1
    assert many.stderr.count("over budget") == 3
    same = run("optimize", models[2], "out.onnx", "--fail-if", "not verified or max_rel", "--fail-if", "rewrites")
    assert same.returncode == 0, "the same bytes compute the same"
    blind = run("optimize", models[0], "out.onnx", "--no-verify", "--fail-if", "max_rel > 1e-3")
    assert blind.returncode == 1
    assert "max_rel = inf" in blind.stderr
    wrong = run("optimize", models[0], "out.onnx", "--fail-if", "nodes_after > x")
    assert wrong.returncode == 2
    assert "column 15" in wrong.stderr


def test_what_build_systems_read(run: Run, models: list[str], tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    done = run(
        *("optimize", *models, "models/missing.onnx", "--out-dir", "build", "--junit", "junit.xml"),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 2
    assert "::error file=models/missing.onnx,title=onnxopt::models/missing.onnx: no such file%0A" in done.stdout
    table = summary.read_text()
    assert table.startswith("before\n### onnxopt\n")
    assert "| ✓ | `build/repvgg_blocks.onnx` | 22 → 16 nodes (-27%) |" in table
    assert "| ✗ | `build/missing.onnx` |" in table
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "0", "1")


ROUGH = """
from onnxopt import PassInfo, RewritePass, const, op, register, rewrite, var

@rewrite(op.Mul(var("s"), const("k")))
def off(m, s, k):
    \"\"\"s * k, off by FACTOR.\"\"\"
    m.require(s.producer is not None and s.producer.op == "Sin", "not behind a Sin")
    return m.op.Div(s, m.const(FACTOR / k, like=k))

@register
class Off(RewritePass):
    \"\"\"Off.\"\"\"
    info = PassInfo("off", opt_level=1)
    rules = (off,)
"""


@pytest.fixture
def rough(tmp_path: Path) -> Rough:
    """A model, and options with which its result is off by a factor. What is off by a last bit or ten is neither
    right nor to be told from rounding: x * 300 makes that much of the last bits of x."""

    def make(factor: float, k: float = 3) -> tuple[str, ...]:
        (tmp_path / "off.py").write_text(ROUGH.replace("FACTOR", repr(factor)))
        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)'
        text += f"<float g = {{300}}, float k = {{{k}}}> {{ z = Round (x) a = Mul (x, g) s = Sin (a) y = Mul (s, k) }}"
        onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
        return ("optimize", "m.onnx", "--out-dir", "o", "--plugin", "off.py", "--with", "off")

    return make


NOISE = "within rounding noise: it differs by 1.2e-06 of the range of `y`, 2 cases (N=2; N=3)"
PLACE = "at `y`: differs by 1.2e-06 of its range, rounding alone by "


def test_rounding_noise_is_said_to_be_that(run: Run, rough: Rough, tmp_path: Path) -> None:
    summary = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "s.md")}
    done = run(*rough(1 + 1.2e-6), "--junit", "j.xml", **summary)
    assert done.returncode == 0, done.stderr
    line, place, *more = done.stdout.splitlines()
    assert (line.partition(":")[0], line.endswith(f", optimized, {NOISE}")) == ("? o/m.onnx", True)
    assert place.startswith(f"  {PLACE}")
    assert place.endswith("; original: Mul(s, k); result: Div(s, k_1)")
    assert more == [], "no annotation: it was not asked to be strict"
    (case,) = ElementTree.parse(tmp_path / "j.xml").getroot().iter("testcase")
    said = str(case.findtext("system-out")).splitlines()
    assert said[:2] == ["optimized", NOISE]
    assert said[2].startswith(PLACE)
    assert said[3].startswith("pieces: 3 of 4 shared values agree")
    assert f"| optimized | {NOISE}<br>{PLACE}" in (tmp_path / "s.md").read_text()


def test_strict_refuses_rounding_noise(run: Run, rough: Rough, tmp_path: Path) -> None:
    command = rough(1 + 1.2e-6)
    done = run(*command, "--strict", "--junit", "j.xml", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="")
    assert done.returncode == 1
    message = "m.onnx: the result is within rounding noise only, which --strict refuses: "
    assert f"error: {message}it differs by 1.2e-06" in done.stderr
    assert "hint: nothing was written; --rtol says how much" in done.stderr
    assert not list(tmp_path.glob("o/*"))
    annotation = next(line for line in done.stdout.splitlines() if line.startswith("::"))
    assert annotation.startswith(f"::error file=m.onnx,title=onnxopt::{message}it differs by 1.2e-06")
    assert f"%0A{PLACE}" in annotation
    assert "; made by 1 off/off: main: replaced Mul -> y by Div -> y%0Anothing was written; " in annotation
    (failure,) = ElementTree.parse(tmp_path / "j.xml").getroot().iter("failure")
    assert str(failure.get("message")).startswith(message)
    assert str(failure.text).startswith(PLACE)
    alone = run("optimize", "m.onnx", "out.onnx", *command[4:], "--strict", "--report", "r.json")
    assert (alone.returncode, (tmp_path / "out.onnx").exists()) == (1, False)
    assert f"error: {message}" in alone.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verification"]["status"] == "within rounding noise"
    allowed = run("optimize", "m.onnx", "out.onnx", *command[4:], "--strict", "--rtol", "1e-4")
    assert (allowed.returncode, "✓ verified" in allowed.stdout) == (0, True)


@pytest.mark.parametrize(
    ("body", "says", "hint"),
    [
        (
            "<float z = {0}> { i = Identity (x) y = Mul (i, z) }",
            "verification is inconclusive, which --strict refuses: ",
            "give real data with --input NAME=FILE.npy",
        ),
        (
            "{ i = Relu (x) y = far.away.Op (x) }",
            "the result is not verified, which --strict and builds refuse: ",
            "the result was not compared with the original",
        ),
    ],
)
def test_strict_takes_only_what_is_verified(run: Run, tmp_path: Path, body: str, says: str, hint: str) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "far.away" : 1]> g (float[N, 4] x) => (float[N, 4] y)' + body
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    assert run("optimize", "m.onnx", "out.onnx", "-O1").returncode == 0
    (tmp_path / "out.onnx").unlink()
    done = run("optimize", "m.onnx", "out.onnx", "-O1", "--strict")
    assert (done.returncode, (tmp_path / "out.onnx").exists()) == (1, False)
    assert f"error: m.onnx: {says}" in done.stderr
    assert "hint: nothing was written; " in done.stderr
    assert hint in done.stderr
    many = run("optimize", "m.onnx", "--check", "-O1", "--strict")
    assert (many.returncode, f"failed, m.onnx: {says}" in many.stdout) == (1, True)


def test_a_difference_names_its_place(run: Run, rough: Rough, tmp_path: Path) -> None:
    summary = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "s.md")}
    done = run(*rough(1.5), "--strict", "--junit", "j.xml", **summary)
    assert done.returncode == 1
    line = "at `y`: differs by 3.3e-01 of its range, rounding alone by "
    assert any(text.startswith(f"  {line}") for text in done.stdout.splitlines())
    assert f"it goes wrong at `y`%0A{line}" in done.stdout
    (failure,) = ElementTree.parse(tmp_path / "j.xml").getroot().iter("failure")
    assert str(failure.get("message")).startswith(
        "m.onnx: the result differs from the original: output `y` differs by "
    )
    assert "\nnoise: rounding alone changes `y` by " in str(failure.text)
    assert f"it goes wrong at `y`<br>{line}" in (tmp_path / "s.md").read_text()


def test_annotations_are_where_the_repository_has_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "repo" / "nets").mkdir(parents=True)
    (tmp_path / "repo" / "nets" / "m.onnx").write_bytes(b"no model")
    done = run(
        *("optimize", tmp_path / "repo/nets/m.onnx", "--check"),
        GITHUB_ACTIONS="true",
        GITHUB_WORKSPACE=str(tmp_path / "repo"),
        GITHUB_STEP_SUMMARY=str(tmp_path / "nowhere" / "summary"),
    )
    assert done.returncode == 2
    assert "\n::error file=nets/m.onnx,title=onnxopt::" in done.stdout
    assert "warning: GITHUB_STEP_SUMMARY: cannot write" in done.stderr


def test_the_report_of_many_is_one_document(run: Run, models: list[str], tmp_path: Path) -> None:
    done = run("optimize", *models, "--check", "--report", "report.json", "-v")
    assert done.returncode == 1
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["exit_code"] == 1
    assert statuses(json.dumps(document)) == ["would change", "would change", "unchanged"]
    assert "    fold_conv_bn: 3 (-3 nodes)\n" in done.stdout


def test_json_has_no_infinities(run: Run, models: list[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from onnxopt import PassInfo, RewritePass, op, register, rewrite, var\n"
        "@rewrite(op.Relu(var('x')))\n"
        "def roots(m, x):\n"
        '    """Not a number where x is negative."""\n'
        "    return m.op.Sqrt(x)\n"
        "@register\n"
        "class Wrong(RewritePass):\n"
        '    """Wrong."""\n'
        "    info = PassInfo('wrong', opt_level=1)\n"
        "    rules = (roots,)\n"
    )

    def refuse(name: str) -> None:
        raise AssertionError(name)

    args = ("--plugin", "wrong.py", "--with", "wrong", "--strict", "--format", "json")
    done = run("optimize", models[1], "out.onnx", *args)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout, parse_constant=refuse)
    verdict = answer["models"][0]["report"]["verification"]
    assert (verdict["status"], verdict["worst_rel"]) == ("different", None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.onnx"], "where should the result of m.onnx go?"),
        (["a.onnx", "b.onnx", "c.onnx"], "the results of several models need a folder"),
        (["a.onnx", "--in-place", "--check"], "exclude each other"),
        (["a.onnx", "b.onnx", "--backup", ".orig"], "--backup is for --in-place"),
        (["a.onnx", "-", "--out-dir", "d"], "stdin and stdout are for one model"),
        (["a.onnx", "c.onnx", "--out-dir", "d", "--time-passes"], "--time-passes is for one model"),
        (["a.onnx", "--out-dir", "d", "--executor", "cloud"], "there is no executor 'cloud'"),
        (["a.onnx", "a.onnx", "--out-dir", "d"], "written twice"),
        (["a.onnx", "b.onnx", "--jobs", "2"], "is b.onnx the result of a.onnx, or a second model?"),
        (["a.onnx", "--in-place", "--backup", "old/"], "'old/' is not a suffix"),
    ],
)
def test_what_contradicts_itself(run: Run, args: list[str], message: str) -> None:
    done = run("optimize", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 2, "one line, and a hint"


def test_a_model_without_a_place_is_told_three(run: Run) -> None:
    hint = run("optimize", "nets/m.onnx").stderr.splitlines()[1]
    assert "onnxopt optimize nets/m.onnx nets/m.opt.onnx" in hint
    assert "--in-place" in hint
    assert "--out-dir" in hint


def test_provenance(run: Run, models: list[str], tmp_path: Path) -> None:
    import hashlib

    original = tmp_path / models[0]
    for out in ("a.onnx", "b.onnx"):
        assert run("optimize", models[0], out, "--provenance").returncode == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    said = {p.key: p.value for p in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert said["onnxopt.source_sha256"] == hashlib.sha256(original.read_bytes()).hexdigest()
    assert said["onnxopt.pipeline"].startswith("fixpoint(lift-constants,")
    assert said["onnxopt.version"]
    assert run("optimize", "a.onnx", "again.onnx", "--provenance").returncode == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes(), "nothing was changed"
    assert run("optimize", models[0], "plain.onnx").returncode == 0
    assert not onnx.load(tmp_path / "plain.onnx").metadata_props
    assert run("optimize", models[2], "noted.onnx", "--provenance").returncode == 0
    assert len(onnx.load(tmp_path / "noted.onnx").metadata_props) == 3, "also where no rewrite fires"
