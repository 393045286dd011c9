"""`-`: models on stdin and stdout; terminals; shell completion."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from onnxopt.verification.inputs.cases import RECIPES
from tests.cli.conftest import SCRIPT, Run
from tests.cli.fork_server import ForkServer

SLEEPER = '''
import pathlib, time
from onnxopt import model_pass, register
@register
@model_pass(opt_level=1)
def sleeper(model, ctx):
    """Sleeps."""
    pathlib.Path("asleep." + model.path.stem).touch()
    time.sleep(60)
'''


def test_from_stdin_to_stdout(samples: Path, run: Run, tmp_path: Path) -> None:
    model = samples / "residual_block.onnx"
    assert run("optimize", model, "file.onnx").returncode == 0
    piped = subprocess.run(
        [SCRIPT, "optimize", "-", "-"], input=model.read_bytes(), capture_output=True, cwd=tmp_path, check=True
    )
    assert piped.stdout == (tmp_path / "file.onnx").read_bytes()
    assert b"verified" in piped.stderr
    words = [SCRIPT, "optimize", "/dev/stdin", "/dev/stdout"]
    named = subprocess.run(words, input=model.read_bytes(), capture_output=True, cwd=tmp_path, check=True)
    assert named.stdout == piped.stdout
    half = subprocess.run([SCRIPT, "optimize", model, "-", "-q"], capture_output=True, cwd=tmp_path, check=True)
    assert half.stdout == piped.stdout
    assert half.stderr == b""
    assert [p.name for p in tmp_path.iterdir()] == ["file.onnx"]


@pytest.mark.parametrize("command", ["optimize {} out.onnx", "stats {}", "verify {0} {0}", "bench {}"])
def test_pipes_and_devices_are_refused_as_models(
    samples: Path, tmp_path: Path, command: str, fork_server: ForkServer
) -> None:
    """Pipes and devices are refused as models. A pipe is empty at the second read, and the worker has another stdin."""
    os.mkfifo(tmp_path / "pipe")
    for place in ("pipe", "/dev/zero", *(["/dev/stdin"] if "optimize" not in command else [])):
        with open(samples / "residual_block.onnx", "rb") as model:
            words = command.format(place).split()
            done = fork_server.run(words, tmp_path, os.environ, stdin=model.fileno(), seconds=60)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {place} is a pipe or a device, not a file\n")


def test_invalid_input_and_output_of_pipes(samples: Path, run: Run, tmp_path: Path) -> None:
    for file in ("external_weights.onnx", "external_weights.data"):
        shutil.copy(samples / file, tmp_path)
    done = run("optimize", "external_weights.onnx", "-", "-O0", "--no-verify")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "external data" in done.stderr
    for given, said in ((b"", "stdin is empty"), (b"nonsense", "stdin is not an ONNX model")):
        wrong = subprocess.run([SCRIPT, "optimize", "-", "out.onnx"], input=given, capture_output=True, cwd=tmp_path)
        assert wrong.returncode == 2
        assert wrong.stderr.decode().startswith(f"error: {said}")
    data = (tmp_path / "external_weights.onnx").read_bytes()
    torn = subprocess.run([SCRIPT, "optimize", "-", "out.onnx"], input=data, capture_output=True, cwd=tmp_path)
    assert torn.returncode == 2
    assert b"the model on stdin has external data" in torn.stderr
    both = run("optimize", samples / "residual_block.onnx", "-", "--format", "json")
    assert both.returncode == 2
    assert "--report FILE" in both.stderr


@pytest.mark.parametrize(
    "command", [("passes",), ("--help",), ("stats", "m.onnx"), ("optimize", "m.onnx", "out.onnx", "-v")]
)
def test_a_closed_stdout_ends_with_exit_code_141(command: tuple[str, ...], samples: Path, tmp_path: Path) -> None:
    shutil.copy(samples / "residual_block.onnx", tmp_path / "m.onnx")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([SCRIPT, *command], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def on_a_terminal(server: ForkServer, command: str, cwd: Path) -> str:
    """Return the output of a command at a terminal, without escape sequences."""
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    code, shown = server.run_at_terminal(shlex.split(command), cwd, environment)
    assert code == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_long_runs_show_progress(samples: Path, tmp_path: Path, fork_server: ForkServer) -> None:
    shutil.copy(samples / "residual_block.onnx", tmp_path / "a.onnx")
    (tmp_path / "sleeper.py").write_text(SLEEPER.replace("sleep(60)", "sleep(1.5)"))
    shown = on_a_terminal(fork_server, "optimize a.onnx b.onnx --plugin sleeper.py --with sleeper", tmp_path)
    assert re.search(r"load › passes: sleeper › write › verify 0:00:0\d", shown), shown
    assert "next: onnxopt report a.onnx b.onnx -o report.html" in shown
    many = on_a_terminal(
        fork_server, "optimize a.onnx b.onnx --out-dir build --plugin sleeper.py --with sleeper", tmp_path
    )
    assert "2/2 0:00:00 left" in many
    assert re.search(r"[ab]\.onnx +load › ", many), many
    assert "2 models: " in many


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert "_ONNXOPT_COMPLETE" in done.stdout


def test_completion_knows_commands_and_options(run: Run) -> None:
    words = {"_ONNXOPT_COMPLETE": "bash_complete", "COMP_CWORD": "1", "COMP_WORDS": "onnxopt opt"}
    assert run(**words).stdout.split() == ["plain,optimize"]
    words |= {"COMP_CWORD": "2", "COMP_WORDS": "onnxopt optimize --in-p"}
    assert run(**words).stdout.split() == ["plain,--in-place"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("optimize mod", "file"),
        ("optimize a.onnx mod", "file"),
        ("optimize --plugin p", "file"),
        ("optimize --cache-dir c", "dir"),
        ("stats mod", "file"),
        ("verify mod", "file"),
        ("report a.onnx mod", "file"),
        ("bisect mod", "file"),
        ("explain dead-", "plain,dead-code"),
        ("optimize --with canonicalize,dead-", "plain,canonicalize,dead-code"),
        ("optimize --disable fold_conv_b", "plain,fold_conv_bn"),
        ("why model.onnx fold_conv_b", "plain,fold_conv_bn"),
        ("optimize --print-ir-after all,dead-", "plain,all,dead-code"),
        ("verify --cases ones,mask-o", "plain,ones,mask-ones plain,ones,mask-one"),
    ],
)
def test_completion_knows_the_kind_of_an_argument(run: Run, words: str, said: str) -> None:
    last = len(words.split())
    done = run(_ONNXOPT_COMPLETE="bash_complete", COMP_CWORD=str(last), COMP_WORDS=f"onnxopt {words}")
    assert [line if "plain" in said else line.split(",")[0] for line in done.stdout.split()] == said.split()


def test_the_help_of_verify_names_every_case(run: Run) -> None:
    text = " ".join(run("verify", "--help").stdout.split()).replace("flags-2 to -6", "-4 -5 -6")
    assert [name for name in RECIPES if name not in text and f" -{name.partition('-')[2]}" not in text] == []


def test_every_command_has_help_with_an_example(run: Run) -> None:
    listed = run("--help").stdout.split("Commands:\n")[1].split("\n\n")[0]
    commands = [line.split()[0] for line in listed.splitlines()]
    assert {"optimize", "stats", "report", "completion"} <= set(commands)
    for command in commands:
        page = run(command, "--help")
        assert page.returncode == 0
        assert f"onnxopt {command}" in page.stdout.split("Options:")[0].split("\n", 2)[2], command
        assert "Exit codes: 0" in page.stdout or command == "completion", command
        assert not re.search(r" --\S+ (DIRECTORY|PATH)\b", page.stdout), (
            f"{command}: DIR and FILE are what they are called"
        )


def test_the_help_of_optimize_begins_with_its_main_options_and_names_each(run: Run) -> None:
    from onnxopt.cli.optimize import optimize

    short, whole = (run("optimize", word, COLUMNS="60") for word in ("--help", "--help-all"))
    assert (short.returncode, whole.returncode, short.stderr + whole.stderr) == (0, 0, "")
    main = short.stdout.split("\nOptions:\n")[1].split("\n\n")[0]
    assert main.lstrip().startswith("-O, --level") and "--help-all" in main and "--journal" not in main
    assert len(short.stdout.splitlines()) < 0.7 * len(whole.stdout.splitlines())
    listed = whole.stdout.split("\nOptions:\n")[1].partition("Exit codes")[0]
    for option in (p for p in optimize.params if isinstance(p, click.Option)):
        name = max(option.opts, key=len)
        assert re.search(rf"{name}\b(?!-)", short.stdout), f"{name}: in one piece, or described"
        assert len(re.findall(rf"^  (?:-\w, )?{name}\b(?!-)", listed, re.MULTILINE)) == 1, name


def closed(tmp_path: Path, which: str, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run the command with these standard streams closed."""
    shell = ["sh", "-c", f'exec "$@" {which}', "sh", SCRIPT, *words]
    return subprocess.run(shell, capture_output=True, cwd=tmp_path, check=False)


@pytest.mark.parametrize("which", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing(which: str, samples: Path, run: Run, tmp_path: Path) -> None:
    """Closed standard streams change neither result nor exit code. Services and some build systems close them."""
    model = samples / "residual_block.onnx"
    assert run("optimize", model, "open.onnx").returncode == 0
    done = closed(tmp_path, which, "optimize", model, "closed.onnx")
    assert done.returncode == 0
    assert b"error" not in done.stderr
    assert (tmp_path / "closed.onnx").read_bytes() == (tmp_path / "open.onnx").read_bytes()
    assert closed(tmp_path, which, "optimize", model, "--out-dir", "many", "--jobs", "2").returncode == 0
    assert closed(tmp_path, which, "stats", model).returncode == 0
    assert closed(tmp_path, which, "stats", "nothing.onnx").returncode == 2


def test_a_model_for_a_closed_stdout_is_an_error(samples: Path, tmp_path: Path) -> None:
    done = closed(tmp_path, ">&-", "optimize", samples / "residual_block.onnx", "-")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: a model would be written to stdout, which is closed\n")
    assert closed(tmp_path, "<&-", "optimize", "-", "out.onnx").stderr.startswith(b"error: stdin is empty\n")
