"""The `onnxopt` command: finds the subcommand, and converts errors to a line, a hint and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click

from onnxopt import __version__
from onnxopt.cli.say import open_closed, say, say_all, say_error, spell_out, styled
from onnxopt.errors import MAKE_ROOM, OnnxOptError, UsageError, in_a_line, is_short, nearest, noted, refused
from onnxopt.runtime import let_threads_sleep

# Modules of this room, imported when called: each command pays only for what it uses.
_COMMANDS: Final = {
    "optimize": "Optimize a model and verify the result.",
    "verify": "Compare the results of two models, output by output.",
    "bench": "Measure the latency of a model, or compare two models.",
    "stats": "Count the contents of a model, or compare two models.",
    "diff": "Show the changes from one model to another.",
    "report": "Show a model, or its optimization, in an HTML page.",
    "passes": "List the passes.",
    "explain": "Print the manual page of a pass or rule.",
    "why": "Show why a rule fires at a node, or why not.",
    "find": "Find the nodes that match a pattern.",
    "partition": "Split a model into parts supported by a backend.",
    "extract": "Write the part of a model between values.",
    "bisect": "Find the rewrite that makes a result wrong.",
    "demo": "Optimize a small model supplied with onnxopt.",
    "completion": "Print the shell's completion script.",
    "reproduce": "Repeat the failure of a pass.",
}
_ENDING: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # the last is Ctrl-Break on Windows, which ends a job
_PLACE: Final = ("-o", "--out", "--output")  # as others call where a result goes
_CLEANING_UP: Final = 10.0  # seconds
_IMPORTING: Final = 5.0  # seconds; a longer import hangs
_PAUSE: Final = 0.001
_INTERRUPTED: Final = b"error: interrupted\n"
_RESERVE: Final = 1 << 21  # bytes, untouched, for the message that memory is used up
_SPENT: Final = f"error: the system refuses: it has no more memory\nhint: {MAKE_ROOM}\n".encode()


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"onnxopt.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not ctx.resilient_parsing:
            from shlex import quote

            from onnxopt.cli import equivalents

            hint = equivalents.command(name) or nearest(name, _COMMANDS, "`onnxopt --help` lists them")
            if name.endswith(".onnx"):
                hint = f"onnxopt optimize {quote(name)} OUT"
            raise UsageError(f"no command is called {name!r}", hint)
        found = super().resolve_command(ctx, args)
        if found[1] is not None and not ctx.resilient_parsing:
            _refuse_empty(found[1], found[2])
        return found

    def make_context(self, *args: Any, **given: Any) -> click.Context:
        try:
            return super().make_context(*args, **given)
        except BrokenPipeError:
            _unread()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # of which click makes exit code 1, as of a check that failed
            _unread()
        except SystemExit as e:
            if isinstance(e.__context__, BrokenPipeError):  # as does rich
                _unread()
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _refuse_empty(command: click.Command, arguments: list[str]) -> None:
    """Raise UsageError for an empty path or suffix; options for text may be empty."""
    options = {name: p for p in command.params if isinstance(p, click.Option) for name in p.opts}
    for before, word in pairwise(("", *arguments)):
        name, equals, value = word.partition("=")
        asked = before if not word else name if equals and not value else word
        option = options.get(asked)
        if word and (option is None or not equals):
            continue
        if option is None or isinstance(option.type, click.Path) or option.metavar == "SUFFIX":
            what = f"{asked} is given nothing" if option is not None else "a name is empty"
            raise UsageError(what, "is a variable of the shell unset?")


@click.group(
    cls=_Commands,
    subcommand_metavar="COMMAND [ARGS]...",
    invoke_without_command=True,  # which click, depending on its version, takes for an error that is one long line
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a check failed (the result differs, nothing was found, a budget), 2 wrong usage or "
    "unreadable input, 3 written without a rewrite that made the result wrong, or unloadable, 4 a bug in a pass.",
)
@click.version_option(__version__, prog_name="onnxopt")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Optimize ONNX models: fewer nodes, the same results, nothing lost.

    \b
    onnxopt optimize model.onnx model.opt.onnx
    onnxopt verify model.onnx model.opt.onnx
    onnxopt stats model.onnx model.opt.onnx
    """
    if ctx.invoked_subcommand is None:
        say_all(ctx.get_help() + "\n", err=True)
        sys.exit(2)


def main() -> NoReturn:
    """Run the command in the arguments, and exit."""
    code = 0
    try:
        _run()
    except SystemExit as e:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        code = e.code if isinstance(e.code, int) else 0
    except (MemoryError, SystemError):  # before anything ran, or in the middle of saying that there is none
        os.write(2, _SPENT)
        code = 2
    except KeyboardInterrupt:  # again, or while an error was told
        os.write(2, _INTERRUPTED)
        code = 130
    # Objects are not freed one by one, and threads not waited for: one of OpenBLAS that is refused memory never ends.
    os._exit(code)


def _run() -> None:
    let_threads_sleep()
    _handle_signals()
    open_closed()
    if is_short():
        _fail("the system refuses: it has no more memory", MAKE_ROOM, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            spell_out(stream)
    try:
        reserve = bytes(_RESERVE)  # of zeros, which the system gives when they are read: a bytearray writes them
        try:
            cli(standalone_mode=False, obj=time.perf_counter())
        finally:
            del reserve
        sys.stdout.flush()
        sys.stderr.flush()
    except (click.exceptions.Abort, KeyboardInterrupt) as e:  # click makes the first of the second
        where = noted(e.__cause__ or e)
        _fail(f"interrupted {where}".rstrip(), "no file is half-written", 130)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        _misused(e)
    except OnnxOptError as e:
        if e.__cause__ is not None:
            _debug()
        _fail(e.message, e.hint, e.exit_code, told=e.told)
    except BrokenPipeError:
        _unread()
    except Exception as e:
        _debug()
        _fail(*_unexpected(e))


def _handle_signals() -> None:
    """Let a stopped build clean up as well."""
    interruption = _Interruption()
    for name in _ENDING:
        number = getattr(signal, name, None)
        if number is not None and (name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN):  # as nohup has it
            signal.signal(number, interruption)


def _unexpected(e: Exception) -> tuple[str, str, int]:
    """Return message, hint and exit code of an exception that is no error of onnxopt."""
    if isinstance(e, OSError) and _is_of_stdout(e):
        return f"cannot write to stdout: {e.strerror}", "make room where it goes; no file is half-written", 2
    if what := refused(e):
        return f"the system refuses: {what}", MAKE_ROOM, 2
    if isinstance(e, FileNotFoundError) and _is_nowhere():
        return "the current folder is not there any more", "cd to one that is; to where it was, if it is new", 2
    if isinstance(e, ImportError) and not str(e.name).startswith("onnxopt"):
        message = f"a package cannot be imported: {' '.join(str(e).split())}"
        return message, "install onnxopt and what it needs anew", 2
    if _is_in_import(e):
        hint = "mend what it names, of the environment perhaps, or install onnxopt and what it needs anew"
        return f"a package cannot be imported: {in_a_line(e)}", hint, 2
    message = f"internal error: {type(e).__name__}: {in_a_line(e)}"
    return message, "please report it; ONNXOPT_DEBUG=1 shows where", 4


class _Interruption:
    """Handler of SIGINT: raises KeyboardInterrupt once, and never during cleanup or an import.

    A C++ module that initializes does not pass exceptions on (onnx's aborts, a class raises RuntimeError). During an
    import the signal is raised again afterwards. Without timers (Windows) the signal ends the process, and the next run
    cleans up.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0
        self._importing_since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now <= self._quiet_until:
            return
        if _is_importing(frame):
            self._importing_since = self._importing_since or now
            if sys.platform != "win32" and now < self._importing_since + _IMPORTING:
                signal.signal(signal.SIGALRM, self)
                signal.setitimer(signal.ITIMER_REAL, _PAUSE)
                return
            os.write(2, _INTERRUPTED)
            os._exit(130)
        self._quiet_until, self._importing_since = now + _CLEANING_UP, 0.0
        raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to an import."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _modules(error: Exception) -> list[str]:
    """Return the modules in the traceback, the innermost last; `NAME!` during the import of NAME."""
    found, trace = [], error.__traceback__
    while trace is not None:
        code, name = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__"))
        found.append(f"{name}!" if code.co_name == "<module>" else name)
        trace = trace.tb_next
    return found


def _is_of_stdout(error: OSError) -> bool:
    """Return whether the error was raised while printing, or while writing a model to stdout."""
    return error.filename is None and _modules(error)[-1] in (__name__, "click.utils", "rich.console", "shutil")


def _is_in_import(error: Exception) -> bool:
    """Return whether the error was raised during the import of a third-party module."""
    return any(m.endswith("!") and not m.startswith(("onnxopt.", "__main__")) for m in _modules(error))


def _is_nowhere() -> bool:
    """Return whether the current folder was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _unread() -> NoReturn:
    """Exit as from SIGPIPE, if no program reads the output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def _fail(message: str, hint: str, code: int, *, told: bool = False) -> None:
    with contextlib.suppress(OSError):  # no reader, or no room; the exit code tells as well
        say_error(message, hint, colour=styled(err=True))
    if not told:
        with contextlib.suppress(MemoryError):
            _print_json_error(message, hint, code)
    sys.exit(code)


def _print_json_error(message: str, hint: str, code: int) -> None:
    """Print the error as a JSON object if JSON was requested and no output was printed."""
    if _asks_for_json(sys.argv[1:]) and "-" not in sys.argv:  # which is a model on stdout
        from onnxopt.cli.files import json_text

        with contextlib.suppress(OSError):
            say_all(json_text({"error": {"message": message, "hint": hint}, "exit_code": code}))


def _asks_for_json(arguments: list[str]) -> bool:
    """Return whether the arguments or the project file select JSON."""
    words = [word for a in arguments for word in (a.split("=", 1) if a.startswith("--") else (a,))]
    said = dict(pairwise(words))
    if "--format" in said or arguments[:1] != ["optimize"]:
        return said.get("--format") == "json"
    from onnxopt.cli.command import find_settings

    named = said.get("--project-file") or os.environ.get("ONNXOPT_PROJECT_FILE", "")
    if named and not os.path.isfile(named):  # a pipe, which would be waited for again
        return False
    try:
        return find_settings(Path.cwd(), Path(named) if named else None)[1].get("format") == "json"
    except (OnnxOptError, OSError):
        return False


def _misused(e: click.ClickException) -> None:
    """Return click's message in the style of onnxopt, with the user's words escaped."""
    context = e.ctx if isinstance(e, click.UsageError) else None
    message = " ".join(e.format_message().split()).removesuffix(".")  # click lists choices in lines of their own
    message = message.replace("a valid integer range", "a whole number").replace("a valid float range", "a number")
    hint = "--help lists what there is"
    if context is not None:
        hint = f"{' '.join(context.get_usage().split())[len('Usage: ') :]}; {hint}"
    if isinstance(e, click.NoSuchOption) and context is not None:
        message = f"{context.command_path} has no option {e.option_name}"
        hint = _no_option(e.option_name, context, hint)
    _fail(message[:1].lower() + message[1:], hint, e.exit_code)


def _no_option(name: str, context: click.Context, usage: str) -> str:
    """Return the hint for an unknown option of a command."""
    if file := next((a for a in sys.argv[1:] if a.startswith(name) and os.path.lexists(a)), ""):
        return f"a file that is called as an option is: ./{file}"
    if name in _PLACE and "OUT" in " ".join(context.command.collect_usage_pieces(context)).split():
        return f"OUT follows IN, without an option: {usage}"
    known = [name for p in context.command.params for name in (*p.opts, *p.secondary_opts) if name[:1] == "-"]
    if context.parent is None:
        return nearest(name, known, "a command's options follow it")
    from onnxopt.cli import equivalents

    theirs = equivalents.option(name)
    if theirs.startswith("-") and theirs.split()[0] not in known:
        return f"onnxopt optimize has {theirs}"
    return theirs or nearest(name, known, usage)


def _debug() -> None:
    """Print the traceback on request."""
    if os.environ.get("ONNXOPT_DEBUG"):
        import traceback

        for text in traceback.format_exc().splitlines():
            say(text, err=True)
