"""Run every hostile input: `python -m tests.hostile [--part 0/2] [--only WORDS] [--keep FOLDER]`.

The exit code is 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.hostile.inputs import inputs
from tests.hostile.promise import SECONDS
from tests.hostile.runner import Runner


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="other damage")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th, from the I-th on, so that N may run at once")
    parser.add_argument("--after", type=int, default=0, help="begin at this number")
    parser.add_argument("--only", default="", help="those that have this in their name or call")
    parser.add_argument("--keep", type=Path, help="where the folders of what broke a promise go")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    first, step = map(int, given.part.split("/"))
    codes: Counter[int] = Counter()
    bad = 0
    longest, largest = (0.0, ""), (0, "")
    with tempfile.TemporaryDirectory(prefix="hostile") as folder, Runner(Path(folder), given.seconds) as runner:
        for i, each in enumerate(inputs(given.seed)):
            words = f"{i} {each.name}: {' '.join(each.call.args)[:200]}"
            if i < given.after or i % step != first or given.only not in words:
                continue
            ran = runner.run(each)
            codes[ran.code] += 1
            longest = max(longest, (ran.seconds, words))
            largest = max(largest, (ran.memory, words))
            if ran.broken:
                bad += 1
                print(ascii(words)[1:-1])
                for promise in ran.broken:
                    print(f"    {ascii(promise)[1:-1]}")
                for row in (ran.stdout + ran.stderr).decode(errors="replace").splitlines()[-6:]:
                    print(f"    | {ascii(row)[1:-1][:300]}", flush=True)
                if given.keep is not None:
                    shutil.copytree(Path(folder) / "case", given.keep / str(i), symlinks=True, ignore=_no_pipes)
    print(f"{codes.total()} inputs, {bad} broke a promise; exit codes:", dict(sorted(codes.items())))
    print(f"longest {longest[0]:.1f} s: {ascii(longest[1])[1:-1]}")
    print(f"largest {largest[0] / 2**20:.0f} MiB: {ascii(largest[1])[1:-1]}")
    return int(bad > 0)


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]


if __name__ == "__main__":
    sys.exit(main())
