"""Values of options: types, parsers, and the shell's completion of names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from onnxopt.cli.command import Decorator
from onnxopt.cli.files import refuse_missing_folder
from onnxopt.errors import UsageError, nearest_file

if TYPE_CHECKING:
    from typing import TypeVar

    from onnx import GraphProto

    from onnxopt.pipeline import Pass

    V = TypeVar("V")


_UNITS: Final = {unit + ending: 1 << 10 * i for i, unit in enumerate(("", *"kmgt")) for ending in ("", "b", "ib")}


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A number of bytes, `least` or more: 65536, 4M, 1.5 GiB."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().lower()  # without a regular expression, which each start would compile
        number = text.rstrip("kmgtib").rstrip()
        unit = text[len(number) :].lstrip()
        if unit not in _UNITS or len(parts := number.split(".")) > 2 or not all(part.isdecimal() for part in parts):
            self.fail(f"{str(value)!r} is not a size; for example 500M or 2G", param, ctx)
        size = int(float(number) * _UNITS[unit])
        if size < self._least:
            self.fail(f"{str(value)!r} is not enough", param, ctx)
        return size


class Number(click.FloatRange):
    """A finite number in a range: NaN is out of none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class NewFile(click.Path):
    """A file to write, not a folder or `-`, which would be a file. `instead`: the option that writes to stdout."""

    def __init__(self, instead: str = "") -> None:
        super().__init__(path_type=Path)
        self._instead = instead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        hint = "name the file to write"
        if value == "-":
            raise UsageError("`-` would be a file of that name, and not stdout", self._instead or hint)
        if os.path.isdir(value):
            raise UsageError(f"{value} is a directory", hint)
        refuse_missing_folder(str(value), hint)
        return super().convert(value, param, ctx)


def _by_name(form: str, pattern: str, read: Callable[[str], V]) -> Callable[..., dict[str, V]]:
    """Return the callback of a repeatable option for values by name.

    `form`: the expected text. `pattern`: of a text, with groups for name and value. `read`: the value in its group. A
    name has a single value: UsageError for a second one.
    """

    def parse(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, V]:
        given: dict[str, V] = {}
        for text in value:
            parts = re.fullmatch(pattern, text, re.DOTALL)
            if parts is None:
                raise click.BadParameter(f"{text!r} is not {form}")
            name, found = parts[1], read(parts[2])
            if given.setdefault(name, found) != found:
                what = f"{param.opts[0]} gives {name!r} two values: {given[name]} and {found}"
                raise UsageError(what, "give it once")
        return given

    return parse


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


_SIZE: Final = r"\s*\d{1,18}\s*"  # within the range of a dim
_TEXT: Final = "([^=]+)=(.*)"
parse_config = _by_name("KEY=VALUE", _TEXT, str)
parse_dims = _by_name("NAME=SIZE", f"(.+)=({_SIZE})", int)
parse_shapes = _by_name("INPUT:1,128", f"(.+):({_SIZE}(?:,{_SIZE})*)", _shape)
parse_free = _by_name("INPUT:AXIS=NAME", f"(.+:{_SIZE})=([^=]+)", str)
parse_names = _by_name("OLD=NEW", "([^=]+)=([^=]+)", str)
_parse_files = _by_name("NAME=FILE.npy", _TEXT, str)


def parse_dims_or_free(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, int | None]:
    """Parse `--dim NAME=SIZE`, and `NAME=?` without a size."""
    free = {text.removesuffix("=?"): None for text in value if text.endswith("=?")}
    if len(free) > 1:
        raise UsageError(f"--dim gives the first axis of all inputs two names: {', '.join(free)}", "give one of them")
    sizes = parse_dims(ctx, param, tuple(text for text in value if not text.endswith("=?")))
    if both := free.keys() & sizes.keys():
        raise UsageError(f"--dim gives {both.pop()!r} a size and makes it dynamic", "give one of them")
    return sizes | free


# -- names, with completion -------------------------------------------------------------------------------------------

_COMMA: Final = r"(?<!\\),"  # between names


def names_option(*words: str, help: str, complete: Any = None, metavar: str = "NAMES") -> Decorator:
    """Return an option for names, repeated or separated by commas (`\\,` is a comma in a name).

    `complete`: known names for the shell.
    """
    return click.option(*words, callback=_names, multiple=True, shell_complete=complete, metavar=metavar, help=help)


def _names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    names = (name.replace("\\,", ",").strip() for text in value for name in re.split(_COMMA, text))
    return tuple(name for name in names if name)


def _completing(known: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Return the completion of `known` names with some beginning, after names already given with commas."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return _completed(known(), incomplete)

    return complete


def _passes() -> Mapping[str, type[Pass]]:
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes

    return all_passes()


def _rules() -> Iterable[str]:
    return (*_passes(), *(rule.name for cls in _passes().values() for rule in cls.rules))


def _targets() -> Iterable[str]:
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_targets

    return all_targets()


def _cases() -> Iterable[str]:
    from onnxopt.verification.inputs.cases import GROUPS, RECIPES

    return (*RECIPES, *GROUPS)


known_passes, known_rules, known_targets, known_cases = map(_completing, (_passes, _rules, _targets, _cases))


def known_values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return completions: values of the command's MODEL, or first model, in bodies too."""
    # An option without its value, yet to be written, keeps click from giving the arguments their names.
    model = Path(ctx.params.get("model") or next(iter(ctx.params.get("models") or ctx.args), ""))
    if not model.is_file():
        return []
    from onnxopt.errors import ModelError
    from onnxopt.io.load import read_proto

    try:
        graph = read_proto(model, weights=False).graph
    except ModelError:
        return []  # the command itself will say so
    stored = {tensor.name for tensor in graph.initializer}
    free = [i.name for i in graph.input if i.name not in stored]
    known = (*free, *_made(graph))
    # Shells insert names unquoted: names with special characters are left out.
    return _completed((name for name in known if re.fullmatch(r"[\w./:@+=][\w./:@+=-]*", name)), incomplete)


def _made(graph: GraphProto) -> Iterator[str]:
    """Yield the results of the nodes of a graph and of its bodies."""
    from onnxopt.proto.messages import body_graphs

    for node in graph.node:
        yield from node.output
        for _, body in body_graphs(node):
            yield from _made(body)


def _completed(known: Iterable[str], incomplete: str) -> list[str]:
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in known if name.startswith(start)]


# -- inputs and sizes -------------------------------------------------------------------------------------------------


def _feeds(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    feeds = _parse_files(ctx, param, value)
    for name, file in feeds.items():
        if not Path(file).is_file():
            raise UsageError(f"--input {name}={file}: no such file", nearest_file(file))
    return feeds


def input_option(purpose: str) -> Decorator:
    """Return `--input NAME=FILE.npy`; the parameter is `inputs`: files by name."""
    return click.option("--input", "inputs", callback=_feeds, multiple=True, metavar="NAME=FILE.npy", help=purpose)


verify_dim_option = click.option(
    "--verify-dim",
    "verify_dims",
    callback=parse_dims,
    multiple=True,
    metavar="NAME=SIZE",
    help="Verify with this size of a dynamic dim; the dim stays dynamic. [default: found by trying]",
)
