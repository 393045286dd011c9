"""Names on the command line: given with commas, and completed by the shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from onnx import GraphProto

_COMMA: Final = re.compile(r"(?<!\\),")  # between names


def names_option(*words: str, help: str, complete: Any = None, metavar: str = "NAMES") -> Callable[[Any], Any]:
    """An option for names, repeated or separated by commas (`\\,` is a comma in a name).

    `complete`: known names for the shell.
    """
    return click.option(*words, callback=_names, multiple=True, shell_complete=complete, metavar=metavar, help=help)


def _names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    names = (name.replace("\\,", ",").strip() for text in value for name in _COMMA.split(text))
    return tuple(name for name in names if name)


def known_passes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completion: names of passes with this beginning, after names already given with commas."""
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes

    return _completed(all_passes(), incomplete)


def known_rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completion: names of passes and rules."""
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import RewritePass, all_passes

    passes = all_passes()
    rules = [rule.name for cls in passes.values() if issubclass(cls, RewritePass) for rule in cls.rules]
    return _completed((*passes, *rules), incomplete)


def known_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completion: names of targets."""
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_targets

    return _completed(all_targets(), incomplete)


def known_cases(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completion: cases of `verify`, and groups of cases."""
    from onnxopt.verification.inputs.cases import GROUPS, RECIPES

    return _completed((*RECIPES, *GROUPS), incomplete)


def known_values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: values of the command's MODEL, or first model, in bodies too."""
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
    # Shells put names on the command line as they are: not those that mean something there.
    return _completed((name for name in known if re.fullmatch(r"[\w./:@+=][\w./:@+=-]*", name)), incomplete)


def _made(graph: GraphProto) -> Iterator[str]:
    """The results of the nodes of a graph and of its bodies."""
    from onnxopt.proto.messages import body_graphs

    for node in graph.node:
        yield from node.output
        for _, body in body_graphs(node):
            yield from _made(body)


def _completed(known: Iterable[str], incomplete: str) -> list[str]:
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in known if name.startswith(start)]
