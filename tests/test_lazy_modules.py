"""Modules that the command imports and does not use have not run, and run on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxopt.startup.lazy_imports import _POSTPONED
from onnxopt.worker.process import child
from tests.samples import sample

LATER = "import sys; from onnxopt.startup.lazy_imports import LazyModule, postpone_modules; postpone_modules(); "
WAITING = "print(' '.join(sorted(n for n, m in sys.modules.items() if type(m).__name__ == 'LazyModule')))"


def run(code: str, start: str = LATER) -> str:
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_runs_none_of_them(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    code = (
        "import os, sys\nleave = os._exit\n"
        f"os._exit = lambda code: ({WAITING}, sys.stdout.flush(), leave(code))\n"
        "from onnxopt.__main__ import run\nrun()"
    )
    command = [sys.executable, "-c", code, "optimize", "--no-verify", "-q", "in.onnx", "out.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    waiting = set(done.stdout.split())
    assert {"google.protobuf.internal.python_message", "numpy._core._add_newdocs", "numpy._core._internal"} <= waiting
    assert waiting <= _POSTPONED


@pytest.mark.parametrize(
    "asked",
    [
        "import ipaddress; assert ipaddress.ip_address('::1').is_loopback",
        "from ipaddress import *; assert ip_address('::1').is_loopback",
        "import calendar, datetime; assert calendar.monthrange(2024, 2)[1] == 29",
        "import bz2, lzma; assert bz2.decompress(bz2.compress(b'a')) == lzma.decompress(lzma.compress(b'a'))",
        "import linecache; assert linecache.getline(linecache.__file__, 1)",
        "import numpy as np; assert np.dtype('i4,f4').names == ('f0', 'f1')",
        "import numpy as np; assert np.zeros(2).ctypes.shape[0] == 2",
        "import google.protobuf.internal.python_message as m; assert m.GeneratedProtocolMessageType",
        "import numpy as np, io; f = io.BytesIO(); np.save(f, np.ones(2)); f.seek(0); assert np.load(f).sum() == 2",
        "import numpy as np; assert np.emath.sqrt(-1) == 1j and np.lib.npyio.NpzFile",
        "import numpy as np; assert np.lib.stride_tricks.sliding_window_view(np.ones(3), 2).shape == (2, 2)",
        "import numpy as np\nclass A(np.lib.mixins.NDArrayOperatorsMixin): pass",
        "import numpy as np, pickle; assert pickle.loads(pickle.dumps(np.ones(2))).sum() == 2",
        "import copyreg, copy; assert copy.deepcopy([{}]) == [{}]",
        "import numpy as np, textwrap; assert textwrap.dedent(' a') == 'a'",
        "import pathlib, fnmatch; assert fnmatch.fnmatch('a', '?') and any(pathlib.Path('/').glob('*'))",
        "import inspect, tokenize; assert tokenize.NAME and inspect.getsource(inspect.getsource)",
        "import numpy as np; assert np.linalg.norm(np.ones(4)) == 2 and isinstance(np.linalg.LinAlgError, type)",
        "import numpy as np; assert (np.asmatrix(np.eye(2)) ** 3).trace()[0, 0] == 2",
        "import numpy as np; assert sorted(np.roots([1, -3, 2]).round(9)) == [1, 2]",
        "import numpy as np; assert np.polyfit([0, 1], [0, 2], 1).round(9).tolist() == [2, 0]",
        "from numpy.linalg import inv; import numpy as np; assert (inv(np.eye(2)) == np.eye(2)).all()",
        "from pathlib import PurePosixPath; assert PurePosixPath('/a b').as_uri() == 'file:///a%20b'",
        "from urllib.parse import quote_from_bytes, quote; assert quote_from_bytes(b' ') == quote(' ') == '%20'",
        "import platform; assert platform.system()",
        "import shutil; assert shutil.which('onnx-is-no-command') is None",
        "import uuid; assert uuid.UUID(int=1).int == 1 and isinstance(uuid.uuid4(), uuid.UUID)",
        "import click; kind = click.UUID; assert kind.convert(kind.convert('0' * 32, None, None), None, None).int == 0",
        "from uuid import UUID\nassert not isinstance(1, UUID) and isinstance(UUID(int=1), UUID)",
        "import ipaddress, importlib; assert importlib.reload(ipaddress).ip_address('::1')",
        "import ipaddress, pickle; a = ipaddress.ip_address('::1'); assert pickle.loads(pickle.dumps(a)) == a",
        "import ipaddress, inspect; assert 'def ip_address' in inspect.getsource(ipaddress)",
    ],
)
def test_whoever_asks_has_the_module(asked: str) -> None:
    run(asked)


def test_what_is_not_there_is_not_there() -> None:
    asked = "import ipaddress\ntry: ipaddress.nothing\nexcept AttributeError as e: print(e)"
    assert run(asked) == "module 'ipaddress' has no attribute 'nothing'\n"


def test_a_module_that_has_run_is_like_any_other() -> None:
    asked = "import ipaddress; before = type(ipaddress); ipaddress.ip_address; print(before.__name__, type(ipaddress))"
    assert run(asked) == "LazyModule <class 'module'>\n"


def test_one_that_was_imported_before_stays_as_it_is() -> None:
    code = "import ipaddress; before = vars(ipaddress).copy(); " + LATER
    run("import ipaddress; assert vars(ipaddress) == before", code)


def test_a_module_that_fails_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "calendar.py").write_text("raise ValueError('no days')")
    asked = (
        f"sys.path.insert(0, {str(tmp_path)!r}); import calendar\n"
        "for _ in range(2):\n"
        "    try: calendar.monthrange\n"
        "    except ValueError as e: print(e)"
    )
    assert run(asked) == "no days\n" * 2


def test_many_threads_may_ask_at_once() -> None:
    asked = (
        "import ipaddress, threading\nfound = []\nsys.setswitchinterval(1e-6)\n"
        "names = ['ip_address', 'ip_network', 'IPv4Address', 'collapse_addresses'] * 8\n"
        "threads = [threading.Thread(target=lambda n=n: found.append(getattr(ipaddress, n))) for n in names]\n"
        "for t in threads: t.start()\nfor t in threads: t.join(20)\nprint(len(found))"
    )
    assert run(asked) == "32\n"


def test_a_plugin_sees_docstrings(tmp_path: Path) -> None:
    onnx.save(sample("residual_block"), tmp_path / "in.onnx")
    (tmp_path / "plugin.py").write_text("import sys, numpy as np; print(np.ndarray.__doc__[:7]); " + WAITING)
    command = [sys.executable, "-m", "onnxopt", "optimize", "--no-verify", "-q", "--plugin", "plugin.py"]
    done = subprocess.run([*command, "in.onnx", "out.onnx"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ndarray\n\n"), done.stderr


def test_workers_begin_like_this() -> None:
    done = subprocess.run(child("import sys, numpy; " + WAITING), capture_output=True, text=True, check=True)
    assert {"numpy._core._add_newdocs", "numpy._core._internal"} <= set(done.stdout.split())
