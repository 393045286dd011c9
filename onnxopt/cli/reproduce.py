"""`onnxopt reproduce DIR`: repeats the failure of a pass."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.cli.say import say


@click.command(epilog="Exit codes: 0 it does not fail here, 4 (or 1) it fails again, 2 the folder is not a reproducer.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def reproduce(folder: Path) -> None:
    """Repeat the failure of a pass, saved by `optimize --reproducer DIR`.

    \b
    onnxopt optimize model.onnx out.onnx --reproducer crash
    onnxopt reproduce crash
    """
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline.reproducer import reproduce as run

    error = run(folder)
    if error is not None:
        raise error
    say(f"{folder}: does not fail here")
