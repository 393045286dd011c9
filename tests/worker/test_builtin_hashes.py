"""A worker has random numbers and digests without loading OpenSSL."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

USE = "from onnxopt.worker.builtin_hashes import use_builtin_hashes; use_builtin_hashes(); "


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_random_numbers_come_without_openssl() -> None:
    shown = "import sys, numpy as np; print(np.random.default_rng([1, 2]).integers(1 << 60), sys.modules['_hashlib'])"
    number, openssl = run(USE + shown).split()
    assert (int(number), openssl) == (int(run(shown).split()[0]), "None")


@pytest.mark.parametrize("name", sorted(hashlib.algorithms_guaranteed))
def test_no_hash_is_missing(name: str) -> None:
    length = "8" if name.startswith("shake") else ""
    shown = f"import hashlib, hmac; print(hashlib.new({name!r}, b'x').hexdigest({length}))"
    assert run(USE + shown) == run(shown)


def test_what_is_there_already_stays() -> None:
    assert run(f"import hashlib, _hashlib, sys; {USE}print(sys.modules['_hashlib'] is _hashlib)") == "True"


def test_a_python_without_hashes_of_its_own_keeps_openssl() -> None:
    without = "import importlib.util as u; u.find_spec = lambda name: None; "
    assert run(f"{without}{USE}import sys; print('_hashlib' in sys.modules)") == "False"
