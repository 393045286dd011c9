"""A pass is imported when somebody asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnxopt.passes
from onnxopt.pipeline import all_passes

HERE = Path(onnxopt.passes.__file__).parent


def test_a_file_is_called_as_its_pass() -> None:
    homes = {name: cls.__module__ for name, cls in all_passes().items() if cls.__module__.startswith("onnxopt.passes.")}
    for name, home in homes.items():
        assert home.split(".")[3:] == [name.replace("-", "_")]
    assert {f.stem.replace("_", "-") for f in HERE.rglob("*.py")} - {"--init--", "levels"} == set(homes)


def test_a_room_has_what_it_is_said_to_have() -> None:
    for room, names in onnxopt.passes.ROOMS.items():
        files = {f.stem for f in (HERE / room).glob("*.py")} - {"__init__"}
        assert files == {name.replace("-", "_") for name in names}


def test_a_level_imports_no_other_s_passes() -> None:
    code = (
        "import sys; from onnxopt.api import OptimizeOptions; o = OptimizeOptions(level={}); o.passes(); o.context()\n"
        "print(*sorted(m for m in sys.modules if m.startswith('onnxopt.passes.')))"
    )
    imported = []
    for level in (0, 1, 3):
        done = subprocess.run([sys.executable, "-c", code.format(level)], capture_output=True, text=True, check=True)
        imported.append({m.rpartition(".")[2] for m in done.stdout.split()})
    assert imported[0] == {"levels"}
    assert {"canonicalize", "dead_code"} < imported[1] and not imported[1] & {"conv_bn_folding", "fuse_attention"}
    assert {"conv_bn_folding", "fuse_attention"} < imported[2] and "convert_dtype" not in imported[2]
