"""Hashes without OpenSSL, for a process that needs none that only OpenSSL has.

numpy seeds random numbers by `secrets`, which imports `hmac` and `hashlib`, and these load OpenSSL where it is there:
a twentieth of what a worker holds. Both are written to do without it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

_HASHES: Final = ("_md5", "_sha1", "_sha3", "_blake2")
_SHA2: Final = (("_sha2",), ("_sha256", "_sha512"))  # from Python 3.12 on, and before


def use_builtin_hashes() -> None:
    """Called before anything imports hashlib; without effect where Python was built without some of its own hashes."""
    if all(map(find_spec, _HASHES)) and any(all(map(find_spec, names)) for names in _SHA2):
        sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
