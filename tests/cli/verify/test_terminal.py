"""`onnxopt verify` on a terminal: a table, places, harmless names, and help."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import onnx

from tests.cli.conftest import SCRIPT, Run
from tests.cli.fork_server import shown_on
from tests.cli.verify.conftest import BATCH, CHAIN


def on_a_terminal(folder: Path, *args: str) -> tuple[int, str]:
    """Return the exit code of the command, and its output on a terminal of 120 columns."""
    import pty

    main, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    command = [SCRIPT, *args]
    with subprocess.Popen(command, cwd=folder, stdout=terminal, stderr=subprocess.PIPE, env=environment) as process:
        os.close(terminal)
        text = shown_on(main).decode()
    return process.returncode, text


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


def test_names_have_no_control_characters_and_are_shortened(run: Run, write: Any, tmp_path: Path) -> None:
    """Control characters of names do not reach a terminal."""
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


def test_help_has_examples(run: Run) -> None:
    text = run("verify", "--help").stdout
    assert "onnxopt verify model.onnx model.opt.onnx --cases" in text
    assert "piece by piece" in text
