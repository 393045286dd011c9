"""`python -m onnxopt`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the current folder first, and what lies there would be run instead of what we import. We are found
        # already. What Python itself imports on its way here is not: the installed command never looks there.
        del sys.path[0]
    from onnxopt.cli.main import main

    main()
