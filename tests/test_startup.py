"""The command imports the used parts of packages; a plugin finds all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxopt.worker.process import child
from tests.samples import ROOT, sample

LAZILY = "from onnxopt.startup import postpone_imports; postpone_imports(); "
HEAVY = {
    "onnx.onnx_cpp2py_export",  # schemas
    "onnx.shape_inference",
    "onnx.helper",
    "onnx.numpy_helper",
    "onnx.serialization",
    "onnx.compose",
    "google.protobuf.json_format",
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", LAZILY + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_imports_messages_alone(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    code = (
        "import os, sys\nleave = os._exit\n"
        "os._exit = lambda code: (sys.stderr.write(' '.join(sys.modules)), sys.stderr.flush(), leave(code))\n"
        "from onnxopt.__main__ import run\nrun()"
    )
    command = [sys.executable, "-c", code, "optimize", "--no-verify", "-q", "in.onnx", "out.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert {"onnx", "onnx.onnx_ml_pb2"} <= imported
    assert not imported & HEAVY


@pytest.mark.parametrize(
    "asked",
    [
        "from onnx import *; assert checker and helper and load_model and ModelProto",
        "import onnx; assert onnx.__version__ and onnx.load and onnx.IR_VERSION",
        "import onnx; assert onnx.onnx_ml_pb2.ModelProto is onnx.ModelProto; assert onnx.onnx_cpp2py_export",
        "import onnx.helper; assert onnx.helper.make_node('Relu', ['x'], ['y']).op_type == 'Relu'",
        "from onnx import numpy_helper, SequenceProto, checker; checker.check_model",
        "import onnx.reference; assert onnx.reference.ReferenceEvaluator",
        "import onnx, copy, pickle; assert pickle.loads(pickle.dumps(onnx.NodeProto(name='n'))).name == 'n'",
        "import onnx, importlib; before = onnx.ModelProto; importlib.reload(onnx); assert onnx.ModelProto is before",
        "import numpy; assert numpy.roots([1, 0, -4]).size == 2 and numpy.linalg.inv([[2]]) == 0.5",
        "import numpy.typing; assert 'ndarray' in str(numpy.typing.NDArray[float]).lower()",
        "from datetime import datetime, MINYEAR; assert datetime(MINYEAR, 1, 2).isoformat() == '0001-01-02T00:00:00'",
        "from urllib.parse import quote_from_bytes, unquote; assert quote_from_bytes(b'a b') == 'a%20b'",
        "import uuid, platform; assert platform.system() and platform.machine() and uuid.UUID",
        "import shutil; assert shutil.which and 'rmtree' in vars(shutil)",
    ],
)
def test_whoever_asks_has_the_package(asked: str) -> None:
    run(asked)


def test_a_second_import_does_not_run_a_postponed_module() -> None:
    code = "import pickle, pickle as p, sys; from importlib import import_module; import_module('pickle')\n"
    assert run(code + "print('_compat_pickle' in sys.modules); p.dumps; print('_compat_pickle' in sys.modules)") == (
        "False\nTrue\n"
    )


def test_what_is_not_there_is_not_there() -> None:
    code = (
        "import onnx\ntry: onnx.nothing\nexcept AttributeError as e: print(e)\nassert not hasattr(onnx, '__nothing__')"
    )
    assert run(code) == "module 'onnx' has no attribute 'nothing'\n"
    assert run(code.replace("import onnx\n", "import onnx; onnx.load\n", 1)) == run(code)


def test_a_plugin_sees_the_package_as_it_is_everywhere_else(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    (tmp_path / "plugin.py").write_text(
        "import onnx, types\n"
        "assert type(onnx) is types.ModuleType and {'load', 'helper'} <= set(dir(onnx)) & set(vars(onnx))\n"
        "assert repr(onnx.ModelProto()).startswith('ModelProto(')\n"
        "onnx.load = lambda path: 'mine'\nonnx.save\nassert onnx.load('x') == 'mine'\n"
        "print(sorted(n for n in vars(onnx) if not n.startswith('_') and n != 'reference'))"
    )
    command = [sys.executable, "-m", "onnxopt", "optimize", "--no-verify", "-q", "--plugin", "plugin.py"]
    done = subprocess.run([*command, "in.onnx", "out.onnx"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plain = [sys.executable, "-c", (tmp_path / "plugin.py").read_text()]
    assert done.stdout == subprocess.run(plain, capture_output=True, text=True, check=True).stdout


def test_an_onnx_that_fails_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "__init__.py").write_text("raise ImportError('no libonnx.so')")
    (tmp_path / "onnx" / "onnx_ml_pb2.py").touch()
    (tmp_path / "onnx" / "onnx_data_pb2.py").touch()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {LAZILY}import onnx\n"
        "for name in ('load', 'load', 'save'):\n"
        "    try: getattr(onnx, name)\n"
        "    except ImportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "no libonnx.so\n" * 3, done.stderr
    command = [sys.executable, "-m", "onnxopt", "optimize", "in.onnx", "out.onnx"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.split(":")[1]) == (2, " a package cannot be imported"), done.stderr


def test_many_threads_may_ask_at_once() -> None:
    code = (
        "import onnx, sys, threading\nfound = []\nsys.setswitchinterval(1e-5)\n"
        "names = ['ModelProto', 'defs', 'checker', 'shape_inference', 'inliner', 'SequenceProto', 'parser'] * 4\n"
        "threads = [threading.Thread(target=lambda n=n: found.append(getattr(onnx, n))) for n in names]\n"
        "for t in threads: t.start()\nfor t in threads: t.join(20)\nprint(len(found))"
    )
    assert run(code) == "28\n"


def test_a_part_may_be_imported_by_its_name_while_another_thread_asks_for_it() -> None:
    code = (
        "import sys, threading, onnx\nsys.setswitchinterval(1e-5)\n"
        "def by_name(): import onnx.helper\n"
        "asks = (by_name, lambda: onnx.helper) * 3\n"
        "threads = [threading.Thread(target=f, daemon=True) for f in asks]\n"
        "for t in threads: t.start()\nfor t in threads: t.join(30)\n"
        "print(sum(t.is_alive() for t in threads))"
    )
    assert run(code) == "0\n", "they wait for each other"


def test_an_onnx_that_is_there_already_stays_as_it_is() -> None:
    assert run("pass") == ""
    code = (
        "import onnx, sys\nbefore = vars(onnx).copy()\n"
        + LAZILY
        + "assert vars(onnx) == before and type(onnx) is type(sys)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_workers_begin_like_this() -> None:
    code = "import onnx; print('onnx.helper' in sys.modules, onnx.ModelProto.__name__)"
    done = subprocess.run(child(code), capture_output=True, text=True, check=True)
    assert done.stdout == "False ModelProto\n"


def test_a_plugin_sees_docstrings(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    (tmp_path / "plugin.py").write_text("import numpy as np; print(np.ndarray.__doc__[:7])")
    command = [sys.executable, "-m", "onnxopt", "optimize", "--no-verify", "-q", "--plugin", "plugin.py"]
    done = subprocess.run([*command, "in.onnx", "out.onnx"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ndarray\n"), done.stderr
