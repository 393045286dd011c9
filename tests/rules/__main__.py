"""`make fuzz-rules`: draws instances of each rule and graph pass, until each fired often enough, or the time is over.

    python -m tests.rules [RULE…] [--fired 200] [--seconds 1800] [--jobs 2] [--first 0] [--log FILE]

The exit code is 1 if a fault was found.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import local
from typing import Final

from tests.rules.apart import Apart
from tests.rules.campaign import HEAD, SHOWN, Row, campaign
from tests.rules.instances import rules
from tests.rules.regions import REGIONS

SHARE: Final = 3  # as much of the time that is left as an equal part


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rules", description=__doc__.partition("\n")[0])
    parser.add_argument("rules", nargs="*", help="names of rules or of passes, or parts of these (all)")
    parser.add_argument("--fired", type=int, default=200, help="instances of each rule (200)")
    parser.add_argument("--seconds", type=float, default=1800, help="for all of them, on all processes (1800)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first draw (0)")
    parser.add_argument("--log", type=Path, help="a file for all that was found, a line of JSON for each rule")
    args = parser.parse_args()
    known = {**{r: f"{p}.{r}" for r, p in rules().items()}, **{p: p for p in REGIONS}}
    chosen = [name for name, said in known.items() if not args.rules or any(re.search(w, said) for w in args.rules)]
    waiting, end = len(chosen), time.monotonic() + args.seconds
    print(HEAD, flush=True)
    rows: list[Row] = []
    with ThreadPoolExecutor(args.jobs) as pool, ExitStack() as stack:
        own = local()

        def run(rule: str) -> Row:
            """Of the time that is left some more than its part: most need less."""
            nonlocal waiting
            if not hasattr(own, "apart"):
                own.apart = stack.enter_context(Apart())
            left = end - time.monotonic()
            share = min(left, SHARE * left * args.jobs / waiting)
            waiting -= 1
            return campaign(own.apart, rule, args.fired, share, args.first)

        for row in pool.map(run, chosen):
            print(row, flush=True)
            for number, _, text in row.faults[:SHOWN]:
                print(f"    {row.rule} {number}: {text[:600]}", flush=True)
            rows.append(row)
            if args.log:
                with args.log.open("a") as log:
                    log.write(json.dumps(vars(row)) + "\n")
    faults = sum(len(r.faults) for r in rows)
    few = [f"{r.rule} ({r.fired})" for r in rows if r.fired < args.fired]
    print(f"{len(rows)} rules and passes, {sum(r.fired for r in rows)} instances on which they fired, {faults} faults")
    if few:
        print(f"fewer than {args.fired}: {', '.join(few)}")
    if by_cases := [f"    {r.rule:32} {r.by_cases}" for r in rows if r.by_cases]:
        print(f"{len(by_cases)} rules of which all instances begin with a case, and why no draw of the pattern is one:")
        print("\n".join(by_cases))
    if faults:
        print("`python -m tests.rules.shrinking RULE NUMBER` prints the smallest model of one")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
