"""Plugins that are files: what they are called, and what happens when they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt import UsageError, get_pass, load_module

PASS = """
from onnxopt import model_pass, register


@register
@model_pass(opt_level=2)
def {name}(model, ctx):
    \"\"\"Does nothing.\"\"\"
    {body}


{last}
"""


def plugin(file: Path, name: str = "of_a_file", body: str = "pass", last: str = "") -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text(PASS.format(name=name, body=body, last=last))
    return str(file)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        load_module(plugin(tmp_path / folder / "passes.py", f"of_{folder}"))
        load_module(str(tmp_path / folder / "passes.py"))  # again, which is none
    assert get_pass("of-a") is not get_pass("of-b")


def test_a_file_that_failed_is_loaded_again_when_it_is_corrected(tmp_path: Path) -> None:
    file = tmp_path / "passes.py"
    with pytest.raises(UsageError, match=r"passes\.py cannot be imported: NameError"):
        load_module(plugin(file, last="nonsense"))
    with pytest.raises(UsageError, match="no pass is called 'of-a-file'"):
        get_pass("of-a-file")
    load_module(plugin(file))
    assert get_pass("of-a-file").info.opt_level == 2


def test_a_script_that_ends_does_not_end_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"script\.py cannot be imported: SystemExit: 0"):
        load_module(plugin(tmp_path / "script.py", last="raise SystemExit(0)"))
