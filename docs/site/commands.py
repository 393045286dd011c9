"""The page on commands: what `--help` says of each command, as Markdown. MkDocs runs this file as a hook."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import click

from onnxopt.cli.main import cli

_PLACE: Final = "<!-- commands -->"
_VERBATIM: Final = "\b"  # click's mark of a paragraph whose lines stay
_PLAIN: Final = re.compile(r"(`[^`]*`)|([\\*_<>|\[\]])")  # code, and what means something outside of code


def on_page_markdown(markdown: str, **given: Any) -> str:
    """`markdown` with all commands in place of the mark."""
    return markdown.replace(_PLACE, "\n".join(commands())) if _PLACE in markdown else markdown


def commands() -> Iterator[str]:
    """The lines of all commands, in the order of `onnxopt --help`."""
    top = click.Context(cli, info_name="onnxopt", **cli.context_settings)
    yield from _command(top)
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        assert command is not None
        if not command.hidden:
            yield from _command(click.Context(command, info_name=name, parent=top, **command.context_settings))


def _command(ctx: click.Context) -> Iterator[str]:
    command = ctx.command
    yield from (f"## {ctx.command_path}", "", "```", command.get_usage(ctx).removeprefix("Usage: "), "```", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        yield from ("```", rest, "```", "") if first == _VERBATIM else (_text(paragraph), "")
    headed: dict[str, list[str]] = {}
    for param in command.get_params(ctx):
        told = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if told is not None:
            names = told[0].replace("|", "\\|")
            headed.setdefault(getattr(param, "heading", ""), []).append(f"| `{names}` | {_text(told[1])} |")
    for heading, rows in headed.items():
        yield from (f"**{heading or 'Options'}**", "", "| option | meaning |", "|---|---|", *rows, "")
    yield from (_text(command.epilog or ""), "")


def _text(text: str) -> str:
    """`text` in one line, as Markdown that shows each character."""
    return _PLAIN.sub(lambda m: m[1].replace("|", "\\|") if m[1] else f"\\{m[2]}", " ".join(text.split()))
