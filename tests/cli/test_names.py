"""Names are text: terminals, logs and builds get harmless characters only."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import SCRIPT
from tests.cli.fork_server import ForkServer, shown_on
from tests.samples import ROOT

PACKAGE = ROOT / "onnxopt"
BROKEN = str(ROOT / "tests" / "plugins" / "broken.py")
PRINTERS = {"cli/say.py", "reporting/terminal.py", "pipeline/instruments.py"}

TERMINAL = "\x1b[31;47;5m\x1b]0;title\x07\x1bc\x9b31m\x90q\x9c\x7f\b"
DIRECTION = "\u202e\u202a\u2066\u2069\u200e\u200f\u061c"
UNSEEN = "\u200b\u2028\u2029\ufeff\u00ad\U000e0041"
BUILD = "\n::stop-commands::x\r::error::y\n##[error]z ##vso[task.x]v\n\n%0A::warning::w"
MARKUP = "[bold]m[/][/nothing]:smile:</script><img src=x onerror=a()>`](http://evil)|--$(touch evil);'\""
EVIL = TERMINAL + DIRECTION + UNSEEN + BUILD + MARKUP
FORBIDDEN = [c for c in TERMINAL + DIRECTION + UNSEEN if not c.isprintable() and c != "\x1b"]
LONG = "L" * 5000


def name(i: int) -> str:
    return f"{i}{EVIL}"


START = "::stop-commands::x"  # at the beginning of a line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models with evil names.

    `runs.onnx` runs in onnxruntime, `foreign.onnx` has an unknown operator, and a copy has an evil file name.
    """
    where = tmp_path_factory.mktemp("names")
    shape: list[Any] = [f"n{EVIL}", 2]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (name(0), START))
    w = helper.make_tensor(name(1), TensorProto.FLOAT, [2], [2.0, 3.0])
    runs = [
        helper.make_node("Identity", [name(0)], [name(2)], name(3), doc_string=EVIL),
        helper.make_node("Mul", [name(2), name(1)], [name(4)], LONG),
        helper.make_node("Neg", [name(4)], [LONG], f"{START}node"),
        helper.make_node("Relu", [LONG], [START], name(5)),
    ]
    foreign = [
        *runs[:3],
        helper.make_node(f"Op{EVIL}", [LONG], [START], name(5), domain=f"d{EVIL}", **{f"a{EVIL}": EVIL}),
    ]
    for file, nodes, opsets in (("runs", runs, {"": 17}), ("foreign", foreign, {"": 17, f"d{EVIL}": 1})):
        graph = helper.make_graph(nodes, f"g{EVIL}", [x], [y], [w], doc_string=EVIL)
        imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
        made = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name=EVIL)
        helper.set_model_props(made, {name(6): EVIL})
        onnx.save(made, where / f"{file}.onnx")
    onnx.save(onnx.load(where / "runs.onnx"), where / EVIL_FILE)
    sin = helper.make_graph([helper.make_node("Sin", [name(0)], [START])], "g", [x], [y])
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(sin, opset_imports=imports, ir_version=8), where / "other.onnx")
    (where / f"evil{EVIL_FILE}.py").write_text("")
    (where / "project.toml").write_text(f'"k\\u001b]0;x\\u0007\\n::error::\\u202e{LONG}" = 1\n')
    (where / "budget.toml").write_text('level = "\\u001b]0;x\\u0007\\n::error::\\u202e"\n')
    return where


EVIL_FILE = EVIL.replace("/", "") + ".onnx"
COMMANDS: dict[str, list[str]] = {
    "optimize": ["optimize", "runs.onnx", "o1.onnx", "-v"],
    "optimize foreign": ["optimize", "foreign.onnx", "o2.onnx", "-vv"],
    "optimize watched": [
        *("optimize", "runs.onnx", "o4.onnx", "--print-ir-after", "all", "--time-passes", "--journal", "j.json"),
        *("--report", "r.json", "--check-each", "--dump-dir", "dumped"),
    ],
    "optimize many": ["optimize", EVIL_FILE, "foreign.onnx", "--out-dir", f"d{EVIL_FILE}", "-v", "--strict"],
    "optimize check": ["optimize", EVIL_FILE, "--check", "--junit", "j1.xml", "--fail-if", "nodes_after > 0"],
    "optimize json": ["optimize", EVIL_FILE, f"out{EVIL_FILE}", "--format", "json"],
    "optimize rolls back": [
        *("optimize", "runs.onnx", "o5.onnx", "--plugin", BROKEN, "--with", "wrong-pass", "--no-verify"),
    ],
    "optimize wrong": ["optimize", EVIL_FILE, "o6.onnx", "--plugin", BROKEN, "--with", "wrong-pass", "-v"],
    "optimize crash": [
        *("optimize", EVIL_FILE, "o7.onnx", "--plugin", BROKEN, "--with", "crashing-rule", "--reproducer", "crash"),
    ],
    "verify": ["verify", "runs.onnx", EVIL_FILE, "-v"],
    "verify different": ["verify", "runs.onnx", "other.onnx", "-v"],
    "verify json": ["verify", EVIL_FILE, "other.onnx", "--format", "json"],
    "bench": ["bench", EVIL_FILE, "runs.onnx", "--runs", "2"],
    "bench json": ["bench", EVIL_FILE, "--runs", "2", "--format", "json"],
    "stats": ["stats", "foreign.onnx", "--top", "5"],
    "stats evil": ["stats", EVIL_FILE, "foreign.onnx"],
    **{f"stats {f}": ["stats", "foreign.onnx", EVIL_FILE, "--format", f] for f in ("json", "markdown", "csv")},
    "find": ["find", "foreign.onnx", "Neg(x)"],
    "find json": ["find", EVIL_FILE, "Neg(x)", "--format", "json"],
    "find evil": ["find", "runs.onnx", f"Neg{EVIL}(x"],
    "why": ["why", EVIL_FILE, "elim-identity"],
    "why node": ["why", "runs.onnx", "relu_of_relu", "--node", START],
    "why gone": ["why", "runs.onnx", "elim-identity", "--node", name(3)],
    "why nobody": ["why", EVIL_FILE, "elim-identity", "--node", f"nobody{EVIL}"],
    "why evil": ["why", "runs.onnx", EVIL],
    "extract": ["extract", EVIL_FILE, f"part{EVIL_FILE}", "--outputs", LONG],
    "extract nothing": ["extract", "runs.onnx", "part.onnx", "--outputs", EVIL],
    "partition": ["partition", "foreign.onnx", "--ops", "Neg,Mul"],
    "partition write": ["partition", EVIL_FILE, "--ops", "Neg", "--out-dir", f"parts{EVIL_FILE}"],
    "partition evil": ["partition", "foreign.onnx", "--ops", EVIL],
    "bisect": ["bisect", EVIL_FILE, "--plugin", BROKEN, "--with", "wrong-pass"],
    "report": ["report", EVIL_FILE, "other.onnx", "-o", f"page{EVIL_FILE}.html"],
    "report one": ["report", EVIL_FILE],
    "diff": ["diff", EVIL_FILE, "foreign.onnx", "--html", f"diff{EVIL_FILE}.html"],
    "reproduce": ["reproduce", EVIL],
    "passes": ["passes", "--plugin", f"evil{EVIL_FILE}.py"],
    "explain": ["explain", EVIL],
    "no file": ["stats", f"nothing{EVIL}.onnx"],
    "no option": ["stats", f"--{EVIL}"],
    "no command": [EVIL],
    "no argument": ["stats", "runs.onnx", "runs.onnx", EVIL],
    "no choice": ["optimize", "runs.onnx", "o.onnx", "--format", EVIL],
    "no place": ["optimize", EVIL_FILE],
    "no pass": ["optimize", "runs.onnx", "o.onnx", "--disable", EVIL, "--with", f"p{EVIL}"],
    "no pipeline": ["optimize", "runs.onnx", "o.onnx", "--pipeline", f"canonicalize,{EVIL}"],
    "no key": ["optimize", "runs.onnx", "o.onnx", "--config", f"{EVIL}=1"],
    "no budget": ["optimize", "runs.onnx", "o.onnx", "--fail-if", f"nodes_after > {EVIL}"],
    "no plugin": ["optimize", "runs.onnx", "o.onnx", "--plugin", f"{EVIL}.py"],
    "no dim": ["optimize", "runs.onnx", "o.onnx", "--dim", f"{EVIL}=2"],
    "a dim": ["optimize", "runs.onnx", "o8.onnx", "--dim", f"n{EVIL}=2"],
    "project": ["optimize", "runs.onnx", "o.onnx", "--project-file", "project.toml"],
    "project value": ["optimize", "runs.onnx", "o.onnx", "--project-file", "budget.toml"],
}
DATA = (" json", "stats csv")


def run_both(server: ForkServer | None, folder: Path, words: list[str], **env: str) -> list[tuple[int, str]]:
    """Return (exit code, output) through pipes, and through a pseudo-terminal."""
    environment = os.environ | {"COLUMNS": "100", "TERM": "xterm"} | env
    if server is not None:
        piped = server.run(words, folder, environment)
        return [(piped.returncode, piped.stdout + piped.stderr), server.run_at_terminal(words, folder, environment)]
    import pty

    leading, following = pty.openpty()
    settings = {"cwd": folder, "env": environment}
    seen = subprocess.Popen([SCRIPT, *words], stdin=following, stdout=following, stderr=following, **settings)  # type: ignore[call-overload]
    done = subprocess.run([SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **settings)  # type: ignore[call-overload]
    os.close(following)
    data = shown_on(leading)
    return [(done.returncode, done.stdout.decode()), (seen.wait(), data.decode().replace("\r\n", "\n"))]


def refuse(text: str, *, terminal: bool, data: bool, commands: tuple[str, ...] = ()) -> None:
    assert "Traceback" not in text, text
    for c in FORBIDDEN:
        assert c not in text, (c.encode("unicode_escape"), text)
    ours = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]" if terminal else "$^")
    assert "\x1b" not in ours.sub("", text), text
    assert "\x1b[31;47;5m" not in text
    for row in re.split(r"[\n\r]", ours.sub("", text)):
        assert not row.strip().startswith("::") or row.startswith(commands or "\0"), row
        assert not re.search(r"##\w*\[", row), row
    assert data or "L" * 130 not in text


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal, and files that may be called anything")
@pytest.mark.parametrize("command", COMMANDS)
def test_only_harmless_text_is_written(command: str, folder: Path, fork_server: ForkServer | None) -> None:
    for terminal, (code, text) in zip((False, True), run_both(fork_server, folder, COMMANDS[command])):
        assert code in (0, 1, 2, 3) or "crash" in command, text
        assert text
        refuse(text, terminal=terminal, data=command.endswith(DATA) or "watched" in command)


def test_names_are_harmless_in_output_for_builds(folder: Path, fork_server: ForkServer | None) -> None:
    """Names are harmless in output for builds: no commands but annotations, no links in the summary, valid XML."""
    summary = folder / "summary.md"
    command = ["optimize", "foreign.onnx", EVIL_FILE, "--check", "--junit", "j2.xml", "--fail-if", "nodes_after > 0"]
    for terminal, (code, text) in zip(
        (False, True), run_both(fork_server, folder, command, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    ):
        assert code == 1
        refuse(text, terminal=terminal, data=False, commands=("::error file=",))
        told = [row for row in text.splitlines() if row.startswith("::error file=")]
        assert len(told) == 2
        for row in told:
            given = row.removeprefix("::error ").partition("::")[0]
            assert [part.partition("=")[0] for part in given.split(",")] == ["file", "title"]
            assert not re.search("%(?!25|0A|3A|2C)", row), row
    for file in (summary, folder / "j2.xml"):
        refuse(file.read_text().replace("##", ""), terminal=False, data=False)  # not a log
    assert not re.search(r"\]\(|<img", re.sub("`[^`]*`", "", summary.read_text()))
    assert len(ElementTree.parse(folder / "j2.xml").findall(".//testcase")) == 2


def test_names_are_harmless_on_the_page(folder: Path) -> None:
    """The page has no characters that change the text direction, and no foreign scripts."""
    page = folder / "page.html"
    subprocess.run([SCRIPT, "report", EVIL_FILE, "foreign.onnx", "-o", page, "--no-verify"], cwd=folder, check=True)
    text = page.read_text()
    data = [json.loads(found) for found in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)]
    assert data
    for c in FORBIDDEN:
        assert c not in text
        assert c == "\b" or ord(c) > 0xFFFF or c not in json.dumps(data, ensure_ascii=False)
    assert "<img" not in text


def test_completion_offers_no_name_with_shell_characters(folder: Path) -> None:
    """Completion offers no name with characters special to a shell."""
    done = subprocess.run(
        [SCRIPT],
        cwd=folder,
        env=os.environ
        | {"_ONNXOPT_COMPLETE": "bash_complete", "COMP_CWORD": "5"}
        | {"COMP_WORDS": "onnxopt extract runs.onnx out.onnx --outputs "},
        capture_output=True,
        text=True,
        check=False,
    )
    assert {row.partition(",")[2] for row in done.stdout.splitlines()} == {START, LONG}


def test_names_that_are_not_utf8(folder: Path, fork_server: ForkServer | None) -> None:
    """A file with a name that is not UTF-8 is read, and its name printed."""
    odd = os.fsdecode(b"odd\xff\xed\xa0\x80.onnx")
    (folder / odd).write_bytes((folder / "runs.onnx").read_bytes())
    out = os.fsdecode(b"out\xff.onnx")
    for words in (["optimize", odd, out], ["stats", odd], ["optimize", odd, "--check", "--junit", "j3.xml"]):
        for terminal, (code, text) in zip((False, True), run_both(fork_server, folder, words)):
            assert code in (0, 1), text
            assert "\\udcff" in text
            refuse(text, terminal=terminal, data=False)
    assert (folder / out).exists()
    assert "\\udcff" in (folder / "j3.xml").read_text()


def test_a_stream_that_cannot_write_a_character_spells_it(folder: Path) -> None:
    (folder / "läuft→好.onnx").write_bytes((folder / "runs.onnx").read_bytes())
    done = subprocess.run(
        [SCRIPT, "optimize", "läuft→好.onnx", "o9→好.onnx"],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and b"o9->\\u597d.onnx: " in done.stdout and b" -> " in done.stdout, done


@pytest.mark.parametrize(
    "words", ["optimize läuft.onnx out.onnx", "stats läuft.onnx out.onnx", "explain fold_conv_bn", "optimize --help"]
)
def test_an_ascii_stream_gets_ascii_only(folder: Path, words: str, fork_server: ForkServer | None) -> None:
    """A stream in ASCII gets ASCII from click and rich. click wrote UTF-8: it takes an ASCII stream for a mistake."""
    for name in ("läuft.onnx", "out.onnx"):
        (folder / name).write_bytes((folder / "runs.onnx").read_bytes())
    called = [SCRIPT, *words.split()]
    done = subprocess.run(called, cwd=folder, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert done.returncode == 0, done
    assert (done.stdout + done.stderr).isascii()
    if fork_server is not None:  # the streams of the fork server are UTF-8
        wide = fork_server.run(words.split(), folder, os.environ)
        assert not (wide.stdout + wide.stderr).isascii()


WRITES = re.compile(r"(click|rich)\.(s?echo|echo_via_pager|print)|print|(\w+\.)?Console|sys\.std(out|err)\.write")


def writers(file: Path) -> Iterator[str]:
    """Yield the calls of a file that write to the user."""
    text = file.read_text()
    if not WRITES.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if WRITES.fullmatch(called):
            yield called


def test_commands_write_in_one_place() -> None:
    """Only the listed modules write to the user: names are escaped there."""
    for file in PACKAGE.rglob("*.py"):
        if str(file.relative_to(PACKAGE)) not in PRINTERS:
            assert not list(writers(file)), f"{file}: use say of cli/say.py, or show of reporting/terminal.py"


ANYWHERE = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
bytes_are_names = pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="file names are text there")


def called(name: bytes, folder: Path) -> bytes:
    """Save a small model under this name, and return its path."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Neg", ["i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = os.path.join(os.fsencode(folder), name)
    os.makedirs(os.path.dirname(source), exist_ok=True)
    with open(source, "wb") as f:
        f.write(model.SerializeToString())
    return source


@bytes_are_names
@pytest.mark.parametrize("name", [b"m\xe9.onnx", "m\u00e9.onnx".encode(), b"d\xe9/m.onnx", "d\u00e9/m.onnx".encode()])
def test_a_file_with_a_name_that_is_not_utf_8_is_verified(name: bytes, tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is verified by onnxruntime, and a file with a UTF-8 name in any locale."""
    source = called(name, tmp_path)
    run = subprocess.run(
        [os.fsencode(SCRIPT), b"optimize", source, source + b".out"], capture_output=True, env=ANYWHERE
    )
    assert run.returncode == 0, run.stderr
    assert b"2 cases" in run.stdout
    assert b"reference" not in run.stdout, "onnxruntime ran it"


@bytes_are_names
@pytest.mark.parametrize("folder", [b"o\xe9", "o\u00e9".encode()])
def test_a_result_in_a_folder_that_is_not_utf_8_is_verified(folder: bytes, tmp_path: Path) -> None:
    """A result in a folder whose name is not UTF-8 is equal.

    onnxruntime opens the path of the original, and not that of the result.
    """
    source, out = called(b"m.onnx", tmp_path), os.path.join(os.fsencode(tmp_path), folder)
    words = [b"optimize", source, b"--out-dir", out, b"--format", b"json"]
    run = subprocess.run([os.fsencode(SCRIPT), *words], capture_output=True, env=ANYWHERE)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)["models"][0]["report"]
    assert report["verification"]["status"] == "equal"
    assert not report["rolled_back"]


@bytes_are_names
def test_weights_in_a_folder_that_is_not_utf_8_are_not_verified(samples: Path, tmp_path: Path) -> None:
    """External weights in a folder whose name is not UTF-8 are "not verified". A build fails then.

    onnxruntime reads the weights by path only.
    """
    out = os.path.join(os.fsencode(tmp_path), b"o\xe9")
    words = [b"optimize", os.fsencode(samples / "external_weights.onnx"), b"--out-dir", out, b"--format", b"json"]
    run = subprocess.run([os.fsencode(SCRIPT), *words], capture_output=True, env=ANYWHERE)
    found = json.loads(run.stdout)["models"][0]["report"]["verification"]
    assert (run.returncode, found["status"]) == (1, "not verified")
    assert "not in UTF-8" in found["message"]
