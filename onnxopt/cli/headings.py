"""A command with many options: `--help` describes the main options, `--help-all` all options under headings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from onnxopt.cli.project import ProjectCommand
from onnxopt.cli.say import say_all

F = TypeVar("F", bound=Callable[..., Any])
_ALL: Final = "onnxopt.help_all"  # in the context's meta: are all options asked for?


def heading(title: str) -> Callable[[F], F]:
    """Decorator: puts the heading `title` above the following options, up to the next heading."""

    def put(function: F) -> F:
        for param in getattr(function, "__click_params__", ()):
            if isinstance(param, click.Option) and not _heading(param):
                param.heading = title  # type: ignore[attr-defined]
        return function

    return put


def _heading(param: click.Parameter) -> str:
    return getattr(param, "heading", "")


class HeadedCommand(ProjectCommand):
    """A command with two levels of help.

    `main`: the parameters described by `--help`, in order; the rest is named.
    """

    def __init__(self, *args: Any, main: Iterable[str], **given: Any) -> None:
        super().__init__(*args, **given)
        self._main = tuple(main)
        self._help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options, and exit.",
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), self._help_all]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = {p.name: p for p in self.params if isinstance(p, click.Option)}
        first = [params.pop(name) for name in self._main]
        first += [p for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in self.params]  # of help
        headed: dict[str, list[click.Option]] = {}
        for param in params.values():
            headed.setdefault(_heading(param) or "Others", []).append(param)
        with formatter.section("Options"):
            _describe(first, ctx, formatter)
        if ctx.meta.get(_ALL):
            for title, options in headed.items():
                with formatter.section(title):
                    _describe(options, ctx, formatter)
            return
        from textwrap import wrap

        with formatter.section("More options, which --help-all describes"):
            for title, options in headed.items():
                names = ", ".join(max(option.opts, key=len) for option in options)
                indent = " " * formatter.current_indent
                lines = wrap(
                    f"{title}: {names}",
                    formatter.width,
                    initial_indent=indent,
                    subsequent_indent=indent + "    ",
                    break_on_hyphens=False,
                )
                formatter.write("\n".join(lines) + "\n")


def _describe(options: Iterable[click.Option], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    formatter.write_dl([line for option in options if (line := option.get_help_record(ctx)) is not None])


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        say_all(ctx.get_help() + "\n")
        ctx.exit()
