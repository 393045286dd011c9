"""A Dask cluster of two worker processes; prints its address and their process ids, ends with its stdin."""

from __future__ import annotations

import sys

from distributed import LocalCluster


def main() -> None:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        workers = [w.pid for w in cluster.workers.values()]
        print(cluster.scheduler_address, *workers, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
