"""Options for inputs of models: values and sizes of dims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from onnxopt.cli.values import once, parse_dims
from onnxopt.errors import UsageError, nearest_file

F = TypeVar("F", bound=Callable[..., Any])


def _feeds(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    feeds: dict[str, str] = {}
    for text in value:
        name, found, file = text.partition("=")
        if not found or not name:
            raise click.BadParameter(f"{text!r} is not NAME=FILE.npy")
        once(feeds, name, file, param)
    for name, file in feeds.items():
        if not Path(file).is_file():
            raise UsageError(f"--input {name}={file}: no such file", nearest_file(file))
    return feeds


def input_option(purpose: str) -> Callable[[F], F]:
    """`--input NAME=FILE.npy`, given as `inputs`: files by name."""
    return click.option("--input", "inputs", callback=_feeds, multiple=True, metavar="NAME=FILE.npy", help=purpose)


verify_dim_option = click.option(
    "--verify-dim",
    "verify_dims",
    callback=parse_dims,
    multiple=True,
    metavar="NAME=SIZE",
    help="Verify with this size of a dynamic dim; the dim stays dynamic. [default: found by trying]",
)
