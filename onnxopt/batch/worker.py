"""The process of one job: a pickled Job on stdin; on stdout pickled names of phases, then the pickled Outcome.

Stdin stays open as long as somebody waits for the outcome. When it ends the job is interrupted, and takes away what it
had staged: so no worker outlives its parent, however that ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading

from onnxopt.batch.job import Job
from onnxopt.batch.run import run


def main() -> None:
    """Serve one job. An interruption leaves nothing behind, and says nothing: the parent does."""
    gc.disable()  # as in the command: the graph lives as long as the process
    job = pickle.load(sys.stdin.buffer)
    assert isinstance(job, Job)
    with os.fdopen(os.dup(1), "wb") as target:
        os.dup2(2, 1)  # whatever a plugin prints must not enter the answer

        def send(message: object) -> None:
            pickle.dump(message, target)
            target.flush()

        try:
            threading.Thread(target=_interrupt_at_end_of_stdin, daemon=True).start()
            send(run(job, send))
        except (KeyboardInterrupt, BrokenPipeError):
            os._exit(130)
    sys.stderr.flush()
    os._exit(0)  # without taking the graph apart object by object


def _interrupt_at_end_of_stdin() -> None:
    os.read(0, 1)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGINT)  # in that thread, to end a system call it waits in
