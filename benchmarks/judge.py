"""How good the judge is: the wrong rewrites that it finds, and the right ones that it accuses.

    python benchmarks/judge.py [--models FOLDER ...] [--mutants 60] [--seed 0] [--jobs 2] [--json FILE]

Each model is optimized at -O1, -O2 and -O3, with its own weights and with the gains of its normalizations three times
as large; no result may be accused. Then the results of -O2 and -O3 are broken at one place at a time. A mutant does
not count if it does not run, or if its outputs differ from the unbroken result's by no more than `--factor` times what
rounding alone does to the original's (`judging/noise.py`). Without `--models`: the samples of `models/`; in any case
the models of `judging/traps.py`. Exits with 1 if a right rewrite is accused, or fewer than `--goal` % of the wrong ones
are found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx
from judging.records import ACCUSED, COUNTED, Answer, Mutant, Record, Said, Settings
from judging.tables import accusations, header, misses, row, table
from judging.traps import traps
from judging.trials import try_model

from onnxopt.worker import machine_memory, spare

ROOT = Path(__file__).resolve().parents[1]
SILENCE = 300.0  # seconds without a word, after which a process is given up


def models(folders: Sequence[Path], made: Path) -> dict[str, Path]:
    """Returns the models by listed name, small ones first."""
    if not folders:
        folders = [made / "samples"]
        build = [sys.executable, str(ROOT / "models" / "build.py"), str(folders[0])]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for folder in folders:
        if folder.is_file():
            found[folder.stem] = folder
        else:
            found.update({str(f.relative_to(folder).with_suffix("")): f for f in sorted(folder.rglob("*.onnx"))})
    for model in traps():
        found[model.graph.name] = made / f"{model.graph.name}.onnx"
        onnx.save(model, found[model.graph.name])
    return dict(sorted(found.items(), key=lambda item: item[1].stat().st_size))


def _child(pipe: Connection, name: str, path: Path, settings: Settings) -> None:
    with spare(machine_memory() // 4):  # a broken model may ask for whatever there is
        for record in try_model(name, path, settings):
            pipe.send(record)


def in_process(name: str, path: Path, settings: Settings) -> list[Record]:
    """Run in a process, since a broken model may crash it: earlier outcomes are kept."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, name, path, settings))
    process.start()
    theirs.close()
    records: list[Record] = []
    try:
        while mine.poll(SILENCE):
            records.append(mine.recv())
        process.kill()
    except EOFError:
        pass
    process.join()
    if process.exitcode:
        records.append(Said(name, f"its process ended with {process.exitcode} after {len(records)} records"))
    return records


def run(found: dict[str, Path], settings: Settings, jobs: int) -> list[Record]:
    """Everything, with a line for each model as it is done."""
    records: list[Record] = []
    width = max(map(len, found))
    print(header("model", width), flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        for name, done in zip(found, pool.map(lambda name: in_process(name, found[name], settings), found)):
            records += done
            print(row(name, [r for r in done if isinstance(r, Mutant)], width), flush=True)
    return records


def _plain(record: Record) -> dict[str, Any]:
    """For JSON, which has no infinity: null."""
    return {name: None if value == inf else value for name, value in asdict(record).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    d = Settings()
    parser.add_argument("--models", type=Path, nargs="+", default=[], metavar="FOLDER", help="with models; or files")
    parser.add_argument("--mutants", type=int, default=d.mutants, help="that count, of a model (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=d.seconds, help="for them, a model (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=d.seed)
    parser.add_argument("--factor", type=float, default=d.factor, help="of the noise (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="models at a time (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=99.0, help="%% to be found (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every record there")
    options = parser.parse_args()
    settings = Settings(options.mutants, options.seconds, options.seed, options.factor)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        records = run(models(options.models, Path(folder)), settings, options.jobs)
    mutants = [r for r in records if isinstance(r, Mutant)]
    answers = [r for r in records if isinstance(r, Answer)]
    left_out = [r for r in records if isinstance(r, Said)]
    table("place", mutants, lambda m: m.where)
    table("wrong rewrites", mutants, lambda m: m.kind)
    misses(mutants)
    accusations(answers)
    print("\n" + "".join(f"{said.model}: {said.why}\n" for said in left_out))
    print(f"{time.perf_counter() - start:.0f} s, seed {settings.seed}, noise times {settings.factor:g}")
    if options.json:
        lists: dict[str, Sequence[Record]] = {"mutants": mutants, "answers": answers, "left out": left_out}
        found = {name: [_plain(record) for record in records] for name, records in lists.items()}
        options.json.write_text(json.dumps({"settings": asdict(settings), **found}, indent=1, allow_nan=False))
    counted = [m for m in mutants if m.outcome == COUNTED]
    good = 100 * sum(m.found for m in counted) >= options.goal * len(counted)
    return int(not good or any(a.status in ACCUSED for a in answers))


if __name__ == "__main__":
    sys.exit(main())
