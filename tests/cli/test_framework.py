"""The pass framework from the command line: pipelines, plugins, instruments, reproducers, project files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import parser

from onnxopt.cli.main import cli
from tests.cli.conftest import Run, operators
from tests.samples import ROOT

BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")


def test_a_pipeline_replaces_the_level(run: Run, small: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--pipeline", "canonicalize,fixpoint(elim-identity)", "-v")
    assert r.returncode == 0, r.stderr
    assert "elim-identity" in r.stdout
    assert "dead-code" not in r.stdout
    assert operators(small / "out.onnx") == ["Neg", "Sigmoid", "Tanh", "Cos"]
    (small / "p.txt").write_bytes(b"\xef\xbb\xbfcanonicalize, # as Windows' editors\r\nfixpoint(elim-identity)\r\n")
    r = run("optimize", "m.onnx", "windows.onnx", "--pipeline", "@p.txt")
    assert operators(small / "windows.onnx") == ["Neg", "Sigmoid", "Tanh", "Cos"], r.stderr
    (small / "p.txt").write_text("canonicalize, # nothing else\n")
    r = run("optimize", "m.onnx", "out.onnx", "--pipeline", "@p.txt")
    assert "error: pipeline, line 2, column 1: expected the name of a pass, found the end" in r.stderr
    for file, why in (("none.txt", "No such file or directory"), ("m.onnx", "it is not text")):
        for command in (("optimize", "m.onnx", "out.onnx", "--pipeline", f"@{file}"), ("find", "m.onnx", f"@{file}")):
            r = run(*command)
            assert (r.returncode, r.stderr.splitlines()[0]) == (2, f"error: {file}: {why}")


def test_passes_in_a_pipeline_run_whatever_their_level(run: Run, small: Path) -> None:
    (small / "onnxopt.toml").write_bytes(b"\xef\xbb\xbflevel = 0\r\n")
    r = run("optimize", "m.onnx", "out.onnx", "--pipeline", "elim-identity")
    assert r.returncode == 0, r.stderr
    assert operators(small / "out.onnx") == ["Neg", "Sigmoid", "Tanh", "Cos"]


def test_a_plugin_file_adds_a_pass(run: Run, small: Path) -> None:
    r = run("passes", "--plugin", BROKEN)
    assert "wrong-pass" in r.stdout
    r = run("optimize", "m.onnx", "out.onnx", "--plugin", BROKEN, "--with", "wrong-pass", "--no-verify")
    assert r.returncode == 0, r.stderr
    assert operators(small / "out.onnx") == ["Neg", "Sigmoid", "Cos"]
    r = run("optimize", "m.onnx", "o.onnx", "--plugin", BROKEN, "--with", "wrong-pass", "--config", "wrong-pass.keep=1")
    assert r.returncode == 0, r.stderr
    r = run("optimize", "m.onnx", "o.onnx", "--config", "dead-cod.x=1")
    assert "no config key is called 'dead-cod.x'" in r.stderr
    r = run("optimize", "m.onnx", "o.onnx", "--plugin", "nothing.py")
    assert (r.returncode, "nothing.py: no such file" in r.stderr) == (2, True)


def test_a_plugin_without_a_running_pass_gives_a_warning(run: Run, small: Path) -> None:
    (small / "forgot.py").write_text("from onnxopt import graph_pass\n")
    r = run("optimize", "m.onnx", "out.onnx", "--plugin", "forgot.py", "-q")
    assert (r.returncode, r.stderr.startswith("warning: --plugin forgot.py: no pass is registered there; ")) == (
        0,
        True,
    )
    plugin = str(ROOT / "examples" / "plugin" / "onnxopt_powers.py")
    r = run("optimize", "m.onnx", "out.onnx", "--plugin", plugin, "-q")
    assert r.returncode == 0
    assert r.stderr.endswith("powers-as-products did not run; --with powers-as-products adds it\n")
    for asked in (["--with", "powers_as_products", "--disable", "cube"], ["--pipeline", "powers-as-products"]):
        assert run("optimize", "m.onnx", "out.onnx", "--plugin", plugin, "-q", *asked).stderr == ""


def test_instruments(run: Run, small: Path) -> None:
    r = run(
        "optimize", "m.onnx", "out.onnx", "--time-passes", "--check-each", "--verify-each", "--journal", "j.json",
        "--dump-dir", "dump", "--print-ir-after=changed", "--print-ir-before=elim-identity",
    )  # fmt: skip
    assert r.returncode == 0, r.stderr
    assert "total ms" in r.stderr
    assert "-- before elim-identity --\nmain(x) -> (y):\n  a = Identity(x)" in r.stderr.replace(": float[N,4]", "")
    assert r.stderr.count("-- after ") == 1
    (dumped,) = (small / "dump").iterdir()
    assert dumped.name.endswith("-elim-identity.onnx")
    (entry,) = json.loads((small / "j.json").read_text())
    assert (entry["rule"], entry["removed"]) == ("identity", ["Identity -> a"])
    r = run("optimize", "m.onnx", "out.onnx", "--print-ir-after=elim-identiti")
    assert "did you mean elim-identity" in r.stderr


def test_verify_each_names_the_pass(run: Run, small: Path) -> None:
    args = ("optimize", "m.onnx", "out.onnx", "--plugin", BROKEN, "--with", "wrong-pass")
    r = run(*args, "--verify-each")
    assert r.returncode == 1
    assert "pass wrong-pass: m.onnx: the result differs" in r.stderr
    assert not (small / "out.onnx").exists()


def test_a_failing_pass_leaves_a_reproducer(run: Run, small: Path) -> None:
    args = ("optimize", "m.onnx", "out.onnx", "--plugin", BROKEN, "--with", "crashing-rule")
    r = run(*args)
    assert r.returncode == 4
    assert "go on without it by --disable crashes_at_sigmoid, and ONNXOPT_DEBUG=1 shows the traceback" in r.stderr
    r = run(*args, "--reproducer", "crash")
    assert r.returncode == 4
    assert "rule crashes_at_sigmoid failed at Sigmoid -> s: ZeroDivisionError: by design (broken.py:" in r.stderr
    assert "Traceback" not in r.stderr
    assert not (small / "out.onnx").exists()
    assert run(*args, "--reproducer", "crash", "--zero-weights").returncode == 4
    again = run("reproduce", "crash")
    assert again.returncode == 4
    assert "rule crashes_at_sigmoid failed at Sigmoid -> s: ZeroDivisionError: by design" in again.stderr
    (small / "crash" / "pipeline.txt").write_text("elim-identity\n")
    assert run("reproduce", "crash").stdout == "crash: does not fail here\n"
    assert run("reproduce", "nothing").returncode == 2


def test_passes_are_listed_with_their_option_and_a_sentence(run: Run) -> None:
    lines = run("passes", "--plugin", BROKEN).stdout.splitlines()
    listed = {line.split()[0]: line.split()[1] for line in lines[1:]}
    assert listed["gemm-fusion"] == "-O2"
    assert listed["convert-dtype"] == "--dtype"
    assert listed["wrong-pass"] == "--with"
    assert listed["fixpoint"] == "-"
    assert any(line.endswith("consecutive dims taken from a Shape are a Shape of these") for line in lines)


def test_a_pass_with_its_own_option_is_not_run_by_with(run: Run, small: Path) -> None:
    r = run("optimize", "m.onnx", "out.onnx", "--with", "convert-dtype")
    assert r.returncode == 2
    assert r.stderr.endswith("hint: say --dtype float16\n")
    assert "--dtype float16" in run("why", "m.onnx", "convert-dtype").stdout
    assert run("explain", "convert-dtype").stdout.startswith(
        "convert-dtype: model pass, by --dtype float16, of onnxopt"
    )


def test_explain_is_a_manual_page(run: Run) -> None:
    page = run("explain", "conv-bn-folding").stdout
    assert page.startswith("conv-bn-folding: rewrite pass, from -O2 on, of onnxopt\n")
    assert "fold_conv_bn\n      BatchNormalization(Conv(x; W, b))" in page
    assert "BatchNormalization(Conv|ConvTranspose|Gemm(x, const w, const b?)" in page
    assert "swish=false" in run("explain", "fuse-activation").stdout
    r = run("explain", "conv-bn")
    assert r.returncode == 2
    assert "did you mean" in r.stderr
    assert "crashes_at_sigmoid" in run("explain", "crashing-rule", "--plugin", BROKEN).stdout
    page = run("explain", "wrong-pass", "--plugin", BROKEN).stdout
    assert " pass, by --with wrong-pass, of " in page, "no level runs it"


def test_explain_shows_a_rule(run: Run) -> None:
    page = run("explain", "fold-conv-bn").stdout
    assert page.startswith("fold_conv_bn: rule of the pass conv-bn-folding, from -O2 on\n")
    assert "  BatchNormalization(Conv|ConvTranspose|Gemm(x, const w, const b?), const scale" in page
    r = run("explain", "fold-conv-bm")
    assert (r.returncode, r.stderr.splitlines()[1].startswith("hint: did you mean fold_conv_bn")) == (2, True)


def test_a_mistyped_command_gets_a_suggestion(run: Run) -> None:
    r = run("optimise", "a.onnx", "b.onnx")
    assert (r.returncode, r.stderr) == (2, "error: no command is called 'optimise'\nhint: did you mean optimize?\n")
    assert run("a.onnx", "b.onnx").stderr.splitlines()[1] == "hint: onnxopt optimize a.onnx OUT"


def test_a_command_in_a_hint_can_be_pasted(run: Run) -> None:
    assert run("my model.onnx").stderr.splitlines()[1] == "hint: onnxopt optimize 'my model.onnx' OUT"
    hint = run("optimize", "my model.onnx").stderr.splitlines()[1]
    assert hint.startswith("hint: onnxopt optimize 'my model.onnx' 'my model.opt.onnx'; --in-place replaces my model")


def test_a_model_as_second_argument_has_a_hint(run: Run, small: Path) -> None:
    for command, what, quoted in (("why", "fold_conv_bn", "fold_conv_bn"), ("find", "Relu(x)", "'Relu(x)'")):
        done = run(command, what, "m.onnx")
        assert done.returncode == 2
        assert done.stderr.splitlines()[1] == f"hint: the model comes first: onnxopt {command} m.onnx {quoted}"


def test_the_bare_command_shows_its_help(run: Run) -> None:
    r = run()
    assert (r.returncode, r.stdout, r.stderr) == (2, "", run("--help").stdout)


def test_a_missing_choice_is_one_error_line(run: Run) -> None:
    said = run("completion").stderr.splitlines()[0]
    assert said.startswith("error: missing argument") and said.endswith("Choose from: bash, zsh, fish")


@pytest.mark.parametrize(
    ("call", "error", "hint"),
    [
        ("verify a.onnx", "missing argument 'B'", "onnxopt verify [OPTIONS] A B; --help lists what there is"),
        ("optimize a b -O9", "invalid value for '-O' / '--level': 9 is not in the range 0<=x<=3", None),
        ("optimize a b -O O2", "invalid value for '-O' / '--level': 'O2' is not a whole number", None),
        ("verify a b --rtol few", "invalid value for '--rtol': 'few' is not a number", None),
        ("optimize a b --lvel 3", "onnxopt optimize has no option --lvel", "did you mean --level?"),
        (
            "verify a b -Z",
            "onnxopt verify has no option -Z",
            "onnxopt verify [OPTIONS] A B; --help lists what there is",
        ),
        ("-O3 optimize a b", "onnxopt has no option -O", "a command's options follow it"),
        ("--versoin", "onnxopt has no option --versoin", "did you mean --version?"),
        ("optimize a b --fp16", "onnxopt optimize has no option --fp16", "--dtype float16"),
        (
            "optimize a b --input-shape x:1",
            "onnxopt optimize has no option --input-shape",
            "--shape x:1,3,224,224 fixes an input's sizes, --dim batch=1 a dim's",
        ),
        ("simplify a b", "no command is called 'simplify'", "onnxopt optimize IN OUT"),
        ("profile a", "no command is called 'profile'", "onnxopt bench MODEL"),
        ("stats a --fp16", "onnxopt stats has no option --fp16", "onnxopt optimize has --dtype float16"),
        ("optimize a b --dim", "option '--dim' requires an argument", "--help lists what there is"),
    ],
)
def test_wrong_usage_is_a_line_of_error_and_one_of_hint(run: Run, call: str, error: str, hint: str | None) -> None:
    done = run(*call.split())
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout, first) == (2, "", f"error: {error}")
    assert second.startswith("hint: ") and hint in (None, second.removeprefix("hint: "))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--float16 --half --convert_fp16", "--dtype float16"),
        ("--quantize --int8", "not quantized here"),
        ("--input-shape --input_shape --overwrite-input-shape --override-input-shapes", "--shape x:1,3,224,224"),
        (
            "--skip-fuse-bn --skip-optimization --skip-fusion-patterns --skip-optimizer --skip-anything",
            "--disable PASS",
        ),
        ("--skip-constant-folding", "--disable constant-folding"),
        ("--skip-shape-inference --skip_symbolic_shape", "leave it out"),
        ("--no-large-tensor --size-threshold --fold-size-threshold", "--max-constant-bytes"),
        ("--model_type --num_heads", "-O3 reads it off"),
        ("simplify slim", "onnxopt optimize IN OUT"),
        ("info inspect summary", "onnxopt stats MODEL"),
        ("compare", "onnxopt verify A B"),
        ("profile benchmark", "onnxopt bench MODEL"),
        ("quantize", "not quantized here"),
    ],
)
def test_words_of_other_tools_get_the_hint(words: str, hint: str) -> None:
    from onnxopt.cli import equivalents

    for word in words.split():
        found = equivalents.option(word) if word.startswith("-") else equivalents.command(word)
        assert hint in found and "\n" not in found, word


def test_hints_for_words_of_other_tools_name_existing_options() -> None:
    """Hints for words of other tools name existing options and commands, and no word is also one of onnxopt's."""
    from onnxopt.cli import equivalents
    from onnxopt.cli.main import _COMMANDS as commands
    from onnxopt.cli.optimize import optimize

    known = {name for p in optimize.params for name in (*p.opts, *p.secondary_opts)}
    named = re.findall(r"--[a-z0-9-]+", " ".join((*equivalents._OPTIONS.values(), *equivalents._COMMANDS.values())))
    assert set(named) <= known and len(named) > 10
    assert known.isdisjoint(equivalents._OPTIONS) and not {*commands} & {*equivalents._COMMANDS}
    asked = re.findall(r"onnxopt ([a-z]+)", " ".join((*equivalents._OPTIONS.values(), *equivalents._COMMANDS.values())))
    assert {*asked} <= {*commands}


@pytest.mark.parametrize("command", ["optimize", "stats", "report", "verify", "extract"])
def test_a_file_named_like_an_option_has_a_hint(run: Run, small: Path, command: str) -> None:
    (small / "m.onnx").rename(small / "-dash.onnx")
    done = run(command, "-dash.onnx", "out.onnx")
    assert (done.returncode, done.stderr.splitlines()[1]) == (
        2,
        "hint: a file that is called as an option is: ./-dash.onnx",
    )
    assert run("stats", "./-dash.onnx").returncode == 0


def test_every_pass_has_a_page(run: Run) -> None:
    listed = [line.split()[0] for line in run("passes").stdout.splitlines()[1:]]
    assert "fixpoint" in listed
    assert len(run("explain", "fixpoint").stdout.splitlines()) >= 3
    for name in listed:
        page = CliRunner().invoke(cli, ["explain", name])
        assert page.exit_code == 0, page.output
        assert len(page.stdout.splitlines()) >= 3


def test_a_project_has_defaults(run: Run, small: Path) -> None:
    (small / "pyproject.toml").write_text('[tool.onnxopt]\npipeline = "canonicalize"\n')
    r = run("optimize", "m.onnx", "out.onnx", "-v")
    assert "elim-identity" not in r.stdout
    r = run("optimize", "m.onnx", "out.onnx", "--pipeline", "elim-identity", "-v")
    assert "elim-identity" in r.stdout, "the command line goes first"
    (small / "onnxopt.toml").write_text(
        'disable = ["elim-identity"]\nwith = ["wrong-pass"]\nconfig = { "wrong-pass.keep" = 1 }\n'
    )
    r = run("optimize", "m.onnx", "out.onnx", "-v", "--plugin", BROKEN)
    assert r.returncode == 0, r.stderr
    assert "nothing to do" in r.stdout, "onnxopt.toml goes before pyproject.toml"
    (small / "onnxopt.toml").write_text("leve = 1\n")
    r = run("optimize", "m.onnx", "out.onnx")
    assert r.returncode == 2
    assert "no setting is called 'leve'" in r.stderr
    assert "did you mean level" in r.stderr
    (small / "onnxopt.toml").write_text("level = = 1\n")
    r = run("optimize", "m.onnx", "out.onnx")
    assert "onnxopt.toml cannot be read" in r.stderr
    (small / "onnxopt.toml").write_text("level = 9\n")
    assert run("optimize", "m.onnx", "out.onnx").returncode == 2


def test_bisect_finds_the_rewrite_and_writes_a_reproducer(run: Run, small: Path) -> None:
    source = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
        "<float[2] a = {1, 2}, float[2] b = {-1, 2}> { c = Mul (x, a) d = Sin (c) e = Mul (d, b) y = Exp (e) }"
    )
    onnx.save(parser.parse_model(source), small / "wrong.onnx")
    args = ("wrong.onnx", "--plugin", BROKEN, "--with", "wrong-rule")
    assert run("optimize", args[0], "out.onnx", *args[1:]).returncode == 3
    r = run("bisect", *args)
    assert r.returncode == 0, r.stderr
    assert "pass wrong-rule, rule wrong_for_negative_factors: run" in r.stdout
    assert "e: float[N,2] = Mul(d, b: float[2] = {-1,2})" in r.stdout
    assert "wrong.bisect.onnx: 1 node shows it" in r.stdout
    assert operators(small / "wrong.bisect.onnx") == ["Mul"]
    r = run("optimize", "wrong.bisect.onnx", "out.onnx", *args[1:])
    assert r.returncode == 3, "the part alone shows it"
    r = run("bisect", "m.onnx")
    assert (r.returncode, "does not differ from the original" in r.stderr) == (2, True)


def test_bisect_writes_the_part_for_a_pass_without_rules_and_fuel(run: Run, small: Path) -> None:
    source = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)'
        "{ a = Sin (x) b = Tanh (a) c = Sigmoid (b) d = Cos (c) y = Exp (d) }"
    )
    onnx.save(parser.parse_model(source), small / "wrong.onnx")
    (small / "mine.py").write_text(
        "from onnxopt import graph_pass, register\n@register\n@graph_pass(opt_level=2)\n"
        'def without_tanh(graph, ctx):\n    """Drops each Tanh, which is wrong."""\n'
        '    for node in list(graph.by_op.get("Tanh", ())):\n'
        "        node.output.replace_all_uses_with(node.inputs[0])\n        graph.remove(node)\n"
    )
    r = run("bisect", "wrong.onnx", "--plugin", "mine.py", "--with", "without-tanh", "-q")
    assert (r.returncode, r.stderr) == (0, "")
    assert r.stdout.startswith("pass without-tanh: run ")
    assert r.stdout.splitlines()[-1] == "wrong.bisect.onnx: 3 nodes show it"
    assert operators(small / "wrong.bisect.onnx") == ["Tanh", "Sigmoid", "Cos"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("onnxopt.toml", "# " + "x" * (1 << 20), "larger than 1 MiB"),
        ("pyproject.toml", "[tool.onnxopt]\n# " + "x" * (1 << 20), "larger than 1 MiB"),
        ("onnxopt.toml", ".".join("a" * 300) + " = 1", "more than 256 dots"),
    ],
    ids=["large", "large project", "deep"],
)
def test_a_hostile_project_file_takes_neither_memory_nor_time(
    name: str, text: str, why: str, run: Run, small: Path
) -> None:
    (small / name).write_text(text)
    r = run("optimize", "m.onnx", "out.onnx")
    assert r.returncode == 2
    assert f"{name} cannot be read" in r.stderr
    assert why in r.stderr


def test_a_large_project_file_of_other_tools_is_not_read(run: Run, small: Path) -> None:
    (small / "pyproject.toml").write_text("[tool.other]\n# " + "x" * (1 << 20))
    assert run("optimize", "m.onnx", "out.onnx", "--no-verify").returncode == 0
