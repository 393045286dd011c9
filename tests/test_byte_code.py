"""What is imported straight from its byte code is what Python would have imported."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import py_compile
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from onnxopt.byte_code import _Finder
from onnxopt.worker.process import child

_COMPARED = """
import sys
from importlib.machinery import PathFinder
found = 0
for name, module in sorted(sys.modules.items()):
    spec = getattr(module, "__spec__", None)
    if type(getattr(spec, "loader", None)).__module__ != "onnxopt.byte_code":
        continue
    found += 1
    parent = name.rpartition(".")[0]
    true = PathFinder.find_spec(name, sys.modules[parent].__path__ if parent else None)
    for field in ("name", "origin", "cached", "has_location", "submodule_search_locations", "parent"):
        assert getattr(spec, field) == getattr(true, field), (name, field)
    assert isinstance(spec.loader, type(true.loader)) and spec.loader.path == true.loader.path, name
    assert spec.loader.get_code(name).co_filename == module.__file__ == true.origin, name
print(found)
"""


def run(code: str, *options: str, folder: Path | None = None) -> str:
    """In a process whose Python also finds what is in `folder`."""
    environment = dict(os.environ)
    if folder is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH"))))
    command = [sys.executable, "-P", *options, "-c", code]
    return subprocess.check_output(command, text=True, env=environment).strip()


def test_modules_are_those_that_python_finds() -> None:
    command = child(f"import numpy, click, onnx, rich.table, onnxopt.verification.look{_COMPARED}")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, env=environment)  # from now on all have byte code
    assert int(subprocess.check_output(command)) > 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A module and a package, compiled."""
    (tmp_path / "package").mkdir()
    for file in (tmp_path / "module.py", tmp_path / "package" / "__init__.py", tmp_path / "package" / "part.py"):
        file.write_text("value = 1\n")
        py_compile.compile(str(file))
    return tmp_path


def test_what_has_byte_code_is_found(folder: Path) -> None:
    finder = _Finder()
    module = finder.find_spec("module", [str(folder)])
    assert module is not None and module.origin == str(folder / "module.py")
    package = finder.find_spec("package", [str(folder)])
    assert package is not None and package.submodule_search_locations == [str(folder / "package")]
    part = finder.find_spec("package.part", package.submodule_search_locations)
    assert part is not None and part.loader is not None
    made = importlib.util.module_from_spec(part)
    part.loader.exec_module(made)
    assert made.value == 1 and made.__file__ == str(folder / "package" / "part.py")


def _newer(folder: Path) -> None:
    (folder / "module.py").write_text("value = 22\n")


def _other_time(folder: Path) -> None:
    os.utime(folder / "module.py", (1, 1))


def _without_source(folder: Path) -> None:
    (folder / "module.py").unlink()


def _without_byte_code(folder: Path) -> None:
    Path(importlib.util.cache_from_source(str(folder / "module.py"))).unlink()


def _by_hash(folder: Path) -> None:
    py_compile.compile(str(folder / "module.py"), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def _of_another_python(folder: Path) -> None:
    compiled = Path(importlib.util.cache_from_source(str(folder / "module.py")))
    compiled.write_bytes(b"\0" + compiled.read_bytes()[1:])


def _in_c(folder: Path) -> None:
    (folder / f"module{importlib.machinery.EXTENSION_SUFFIXES[0]}").touch()


def _a_folder(folder: Path) -> None:
    (folder / "module").mkdir()


@pytest.mark.parametrize(
    "change",
    [_newer, _other_time, _without_source, _without_byte_code, _by_hash, _of_another_python, _in_c, _a_folder],
)
def test_all_else_is_left_to_python(change: object, folder: Path) -> None:
    change(folder)  # type: ignore[operator]
    assert _Finder().find_spec("module", [str(folder)]) is None


def test_the_first_folder_that_has_the_name_decides(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    places = [str(other), str(other / "none"), str(folder)]
    assert _Finder().find_spec("module", places) is not None
    (other / "module.py").write_text("value = 2\n")
    assert _Finder().find_spec("module", places) is None, "it has no byte code yet"
    with zipfile.ZipFile(other / "all.zip", "w") as archive:
        archive.writestr("module.py", "value = 3\n")
    assert _Finder().find_spec("module", [str(other / "all.zip"), str(folder)]) is None
    for odd in ("", "relative", f"{folder}{os.sep}"):
        assert _Finder().find_spec("module", [odd, str(folder)]) is None


def test_python_decides_what_is_built_in_and_frozen() -> None:
    assert _Finder().find_spec("sys") is _Finder().find_spec("os") is None


START = "from onnxopt.byte_code import import_from_byte_code as start, _Finder; start(); start(); import sys; "
COUNT = "print(sum(isinstance(f, _Finder) for f in sys.meta_path))"


def test_it_comes_in_once_before_what_python_does() -> None:
    assert run(START + "print([type(f).__name__ for f in sys.meta_path][-4])") == "_Finder"
    assert run(START + COUNT) == "1"


@pytest.mark.parametrize(
    ("options", "before"),
    [
        (("-O",), ""),
        (("-X", "pycache_prefix=/nowhere"), ""),
        ((), "import sys\ndef hook(path):\n    raise ImportError\nsys.path_hooks.insert(0, hook)"),
        ((), "import sys; sys.meta_path.append(object())"),
    ],
    ids=["optimized", "kept elsewhere", "hooks", "another finder"],
)
def test_where_modules_are_found_otherwise_it_stays_out(options: tuple[str, ...], before: str) -> None:
    assert run(f"{before}\n{START}{COUNT}", *options) == "0"


def test_a_module_can_be_loaded_anew(folder: Path) -> None:
    code = textwrap.dedent(
        """
        import importlib, os, module
        print(module.value, type(module.__loader__).__module__, module.value)
        with open(module.__file__, "w") as f:
            f.write("value = 333")
        importlib.reload(module)
        print(module.value)
        """
    )
    assert run(START + code, folder=folder).splitlines() == ["1 onnxopt.byte_code 1", "333"]


def test_an_error_names_the_source(folder: Path) -> None:
    """Also where it was compiled elsewhere."""
    (folder / "module.py").write_text("def f():\n    raise KeyError\n")
    py_compile.compile(str(folder / "module.py"), dfile="elsewhere/module.py")
    code = "import module, traceback\ntry:\n    module.f()\nexcept KeyError:\n    print(traceback.format_exc())"
    assert f'File "{folder / "module.py"}", line 2, in f' in run(START + code, folder=folder)
