"""Load, optimize, save and load models changed by a fuzzer: `python -m tests.hostile.load_fuzzer`.

Guided by coverage with atheris; otherwise hypothesis draws inputs without guidance, and shrinks failing ones. Each
input runs in this process, so crashes are found too.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from tests.hostile.altered import altered
from tests.hostile.bases import NAMES, base
from tests.hostile.damaged import changed, odd_fields

MEMORY = 2 << 30
LONGEST = 30  # seconds for one input
Check = Callable[[bytes], None]


def check_in(folder: Path) -> Check:
    """Return the check of the promise for any bytes: a model no worse than before, or an error of onnxopt."""
    from onnxopt import optimize_file
    from onnxopt.errors import OnnxOptError
    from onnxopt.io import load

    def check(data: bytes) -> None:
        (folder / "m.onnx").write_bytes(data)
        (folder / "w.bin").write_bytes(bytes(64))
        try:
            optimize_file(folder / "m.onnx", folder / "out.onnx", level=3, verify=False)
        except OnnxOptError as e:
            if e.exit_code == 4:
                raise
            return
        load(folder / "out.onnx")
        for made in folder.glob("out.onnx*"):
            made.unlink()

    return check


def mutated(data: bytes, size: int, seed: int) -> bytes:
    """Return a changed input: changed in messages if `data` is a model, otherwise in bytes."""
    rng = random.Random(seed)
    way = rng.randrange(8)
    with suppress(DecodeError, ValueError):
        if way:
            made = altered(ModelProto.FromString(data), rng).SerializeToString()
        else:
            made = odd_fields(data, rng)
        if len(made) <= size:
            return bytes(made)
    return changed(data or b"\0", rng)[:size]


def guided(folder: Path, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["onnxopt"]):
        check = check_in(folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for name in NAMES:
        (corpus / name).write_bytes(base(name).SerializeToString())
    limits = [f"-max_total_time={seconds}", f"-timeout={LONGEST}", f"-rss_limit_mb={MEMORY >> 20}", "-max_len=20000"]
    where = f"-artifact_prefix={Path.cwd()}/"  # libFuzzer writes the failing input there, and prints its name
    arguments = [sys.argv[0], str(corpus), *limits, where, "-verbosity=1"]
    atheris.Setup(arguments, check, custom_mutator=mutated)
    atheris.Fuzz()


def drawn(folder: Path, seconds: int) -> None:
    """Check drawn inputs for `seconds`, in steps that hypothesis can shrink."""
    import time

    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    check = check_in(folder)

    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(NAMES), st.lists(st.integers(0, 2**32), max_size=6))
    def step(name: str, seeds: list[int]) -> None:
        data = bytes(base(name).SerializeToString())
        for seed in seeds:
            data = mutated(data, 20_000, seed)
        check(data)

    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        step()
        done += 500
    print(f"{done} inputs, drawn by hypothesis: atheris is not installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    given = parser.parse_args()
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (2 * MEMORY, 2 * MEMORY))
    try:
        import atheris  # noqa: F401
    except ImportError:
        way = drawn
    else:
        way = guided
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        way(Path(folder), given.seconds)


if __name__ == "__main__":
    main()
