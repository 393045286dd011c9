"""`python -m onnxopt`; and where the `onnxopt` command begins, before it imports what it needs."""

import gc
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Entry point of the console script."""
    import signal  # not before: a file of that name in the current folder would be run

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main` hears it: nothing has begun that needs an end
    from onnxopt.startup import postpone_imports

    postpone_imports()  # first: modules imported before are read
    gc.disable()  # modules stay, and a graph is one big cycle, alive until the process ends: collecting only costs
    if sys.argv[1:2] == ["optimize"] and {"--no-verify", "--help", "-h"}.isdisjoint(sys.argv):
        # The verifier's process imports as long as the command does, and at the same time.
        from onnxopt.worker.process import VERIFYING, start_ahead

        start_ahead(VERIFYING, ("numpy", "onnxopt.verification.verifier"))
    from onnxopt.cli.main import main

    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the current folder first, and what lies there would be run instead of what we import. We are found
        # already. What Python itself imports on its way here is not: the installed command never looks there.
        del sys.path[0]
    run()
