"""The process of one job: a pickled Job on stdin, a pickled Outcome on stdout."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys

from onnxopt.batch.job import Job, run


def main() -> None:
    """Serve one job. An interruption leaves nothing behind, and says nothing: the parent does."""
    gc.disable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = pickle.load(sys.stdin.buffer)
    assert isinstance(job, Job)
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # whatever a plugin prints must not enter the answer
        try:
            pickle.dump(run(job), target)
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
