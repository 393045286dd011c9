"""Classes of commands: defaults from a project file, and help in two levels.

A project file is `onnxopt.toml`, or `[tool.onnxopt]` in `pyproject.toml`, in this folder or a parent. A file found
there may come from a stranger, and may choose among verified results. Options that act on the machine, or weaken a
check, must come from the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click

from onnxopt.cli.say import say_all
from onnxopt.errors import UsageError, nearest, nearest_file

Decorator = Callable[[Any], Any]  # of click, for a command

# Every option of every command is in CHOOSES or ACTS; any other option acts. The last three lines are options of
# commands that read no such file.
_CHOOSING: Final = """
level pipeline with disable config target max-constant-bytes max-rewrites dim shape keep-dynamic make-dynamic
freeze-initializers infer-shapes inline-functions target-opset allow-domain rename name-nodes int32 keep-io no-keep-io
check strict fail-if seed jobs format provenance verbose zero-weights no-times stats
time-passes print-ir-after print-ir-before check-each verify-each
runs seconds warmup threads clock provider cases pieces top no-work node ops
external data allow-single-node no-single-node
match-outputs match-placeholder tolerance overlapping ignore-literals exact single-use
"""
CHOOSES: Final = frozenset(_CHOOSING.split())
ACTS: Final = {
    name: why
    for why, names in {
        "runs code": "plugin custom-op-library",
        "names what is written": "out-dir in-place backup cache-dir reproducer dump-dir output fuse report journal "
        "junit html",
        "names a machine to send to": "executor",
        "names what is read, and believed": "input inputs from",
        "drops what the model gives": "outputs",
        "decides how exact a result is": "dtype strip-qdq keep",
        "switches verification off": "no-verify",
        "accepts what is not verified": "allow-unverified",
        "decides how wrong a result may be": "rtol atol",
        "decides what a result is tried with": "verify-dim",
        "decides what a run may take": "timeout verify-memory memory work",
        "hides warnings": "quiet",
        "names another such file": "project-file",
    }.items()
    for name in names.split()
}
VARIABLE: Final = "ONNXOPT_PROJECT_FILE"


class ProjectCommand(click.Command):
    """A command with defaults of options in the project file; the command line overrides the file."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        option = click.Option(
            ["--project-file"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            envvar=VARIABLE,
            show_envvar=True,
            is_eager=True,  # read before the options with its defaults
            expose_value=False,
            callback=_read_defaults,
            help="Take the defaults of options from this TOML file, plugins and places too. [default: onnxopt.toml or "
            "pyproject.toml, here or above, which may not act]",
        )
        self.params.append(option)


def _read_defaults(ctx: click.Context, param: click.Parameter, named: Path | None) -> None:
    file, settings = find_settings(Path.cwd(), named)
    if file is not None:
        ctx.default_map = _defaults(ctx, file, settings, trusted=named is not None)


def _defaults(ctx: click.Context, file: Path, settings: dict[str, Any], trusted: bool) -> dict[str, Any]:
    known, all_known = _by_flag(ctx.command), _settings(ctx)
    defaults = {}
    for name, value in settings.items():
        if name not in known and name not in all_known:
            hint = nearest(name, known, f"there are {', '.join(known)}")
            if name == "tool":
                hint = "[tool.onnxopt] is for pyproject.toml; in this file settings stand without it"
            raise UsageError(f"{file}: no setting is called {name!r}", hint)
        if not trusted and (why := acts(name, value)):
            hint = f"if the file is yours: --project-file {file}, or {VARIABLE}={file}"
            raise UsageError(f"{file}: {name} {why}, which a file that is merely found may not", hint)
        if name not in known:
            continue  # of another command
        param = known[name]
        defaults[param.name or name] = _checked(ctx, param, value, f"{file}: {name}")
    return defaults


def acts(name: str, value: Any = None) -> str:
    """Return the effect of a setting beyond a choice; empty for a choice."""
    if name == "pipeline" and isinstance(value, str) and value.startswith("@"):
        return ACTS["input"]
    return "" if name in CHOOSES else ACTS.get(name, "acts")


def _checked(ctx: click.Context, param: click.Parameter, value: Any, where: str) -> Any:
    """Return the value in the form of the command line. Raises UsageError for a wrong type."""
    assert isinstance(param, click.Option)
    if param.name == "config" and isinstance(value, dict):
        value = [f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in value.items()]
    if param.multiple and not isinstance(value, list):
        value = [value]
    kinds, expected = _kinds(param)
    for item in value if param.multiple else [value]:
        if not isinstance(item, kinds) or (isinstance(item, bool) and bool not in kinds):
            many = f", or a list of such, not {item!r}" if param.multiple else f", not {item!r}"
            raise UsageError(f"{where}: {expected} is expected{many}", f"`onnxopt {ctx.info_name} --help` describes it")
    try:
        param.type_cast_value(ctx, value)
    except click.BadParameter as e:
        raise UsageError(f"{where}: {e.message}", f"`onnxopt {ctx.info_name} --help` describes it") from None
    return value


def _kinds(param: click.Option) -> tuple[tuple[type, ...], str]:
    """Return (TOML types, in words) accepted by an option."""
    if param.is_flag:
        return (bool,), "true or false"
    if isinstance(param.type, click.types.IntParamType):
        return (int,), "an integer"
    if isinstance(param.type, click.types.FloatParamType):
        return (int, float), "a number"
    if param.type.name == "size":
        return (int, str), "a size, such as 65536 or '4M',"
    return (str,), "a string"


def _by_flag(command: click.Command) -> dict[str, click.Parameter]:
    return {flag.removeprefix("--"): p for p in command.params for flag in p.opts if flag.startswith("--") and p.name}


def _settings(ctx: click.Context) -> dict[str, click.Parameter]:
    """Return the settings allowed in a project file: the options of `optimize`."""
    commands = ctx.find_root().command
    command = commands.get_command(ctx, "optimize") if isinstance(commands, click.Group) else None
    return _by_flag(command or ctx.command)


_MAX_FILE_BYTES: Final = 1 << 20  # bytes of a project file, perhaps of a stranger
_MAX_DOTS: Final = 256  # dots of a line: the parser's time grows with their square


def find_settings(folder: Path, named: Path | None) -> tuple[Path | None, dict[str, Any]]:
    """Return (file, settings) of the named file, or of the nearest found. Raises UsageError for invalid TOML."""
    if named is not None:
        return named, _settings_in(named)
    for place in (folder, *folder.parents):
        file = place / "onnxopt.toml"
        if file.is_file():
            return file, _settings_in(file)
        file = place / "pyproject.toml"
        if file.is_file() and b"[tool.onnxopt" in _bytes(file):
            return file, _settings_in(file)
    return None, {}


def _settings_in(file: Path) -> dict[str, Any]:
    """Return the onnxopt table of a `pyproject.toml`, or the whole of an `onnxopt.toml`. Raises UsageError."""
    import tomllib

    data = _bytes(file)
    if len(data) > _MAX_FILE_BYTES:
        raise _unreadable(file, f"it is larger than {_MAX_FILE_BYTES >> 20} MiB")
    if any(line.count(b".") > _MAX_DOTS for line in data.splitlines()):
        raise _unreadable(file, f"a line has more than {_MAX_DOTS} dots")
    try:
        settings: Any = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as e:
        raise _unreadable(file, e) from None
    for table in ("tool", "onnxopt") if file.name == "pyproject.toml" else ():
        settings = settings.get(table, {})
        if not isinstance(settings, dict):
            raise _unreadable(file, f"{table} is not a table")
    return dict(settings)


def _bytes(file: Path) -> bytes:
    """Return the contents, up to a byte above the limit."""
    try:
        with file.open("rb") as f:
            return f.read(_MAX_FILE_BYTES + 1)
    except OSError as e:
        missing = isinstance(e, (FileNotFoundError, IsADirectoryError))
        hint = nearest_file(file) if missing else "make it readable, or work in another folder"
        raise UsageError(f"{file} cannot be read: {e.strerror or e}", hint) from None


def _unreadable(file: Path, why: object) -> UsageError:
    return UsageError(f"{file} cannot be read: {why}", "correct it, or work in another folder")


# -- help in two levels -----------------------------------------------------------------------------------------------

_ALL: Final = "onnxopt.help_all"  # in the context's meta: are all options asked for?


def heading(title: str) -> Decorator:
    """Decorator: puts the heading `title` above the following options, up to the next heading."""

    def put(function: Any) -> Any:
        for param in getattr(function, "__click_params__", ()):
            if isinstance(param, click.Option) and not _heading(param):
                param.heading = title  # type: ignore[attr-defined]
        return function

    return put


def _heading(param: click.Parameter) -> str:
    return getattr(param, "heading", "")


class HeadedCommand(ProjectCommand):
    """A command with two levels of help. `main`: parameters described by `--help`, in order; others are named."""

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
