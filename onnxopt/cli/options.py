"""Options that several commands share: what to run, and what that may take."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from onnxopt.cli.completing import known_passes, known_rules, known_targets, names_option
from onnxopt.cli.files import named_text, refuse_missing_folder
from onnxopt.cli.headings import heading
from onnxopt.errors import UsageError
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnxopt.api.settings import Settings
    from onnxopt.optimizer import OptimizeOptions

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class _Size(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A number of bytes, `least` or more: 65536, 4M, 1.5 GiB."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{str(value)!r} is not a size; for example 500M or 2G", param, ctx)
        size = int(float(found[1]) * _UNITS[found[2].lower()])
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
    """A file to write: no folder, whether it is there or not, and not `-`, which would be a file of that name.
    `instead`: what does write to stdout."""

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


def _text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return value if value is None else named_text(value, "a pipeline")


def _config(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, found, text in (text.partition("=") for text in value):
        if not found or not key:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE")
        once(config, key, text, param)
    return config


def _is_size(text: str) -> bool:
    """A number that a dim can hold; Python refuses to read very long ones."""
    return text.strip().isdecimal() and len(text.strip()) < 19


def parse_free(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """`--make-dynamic INPUT:AXIS=NAME`, repeatable."""
    places: dict[str, str] = {}
    for text in value:
        place, found, name = text.rpartition("=")
        whose, colon, axis = place.rpartition(":")
        if not (found and name and whose and colon and _is_size(axis)):
            raise click.BadParameter(f"{text!r} is not INPUT:AXIS=NAME")
        once(places, place, name, param)
    return places


def _sizes_or_free(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, int | None]:
    """`--dim NAME=SIZE`, and `NAME=?`, which has no size."""
    free = {text.removesuffix("=?"): None for text in value if text.endswith("=?")}
    if len(free) > 1:
        raise UsageError(f"--dim gives the first axis of all inputs two names: {', '.join(free)}", "give one of them")
    sizes = parse_dims(ctx, param, tuple(text for text in value if not text.endswith("=?")))
    if both := free.keys() & sizes.keys():
        raise UsageError(f"--dim gives {both.pop()!r} a size and makes it dynamic", "give one of them")
    return sizes | free


def parse_dims(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, int]:
    """`--dim NAME=SIZE`, repeatable."""
    sizes: dict[str, int] = {}
    for text in value:
        name, found, size = text.rpartition("=")
        if not found or not name or not _is_size(size):
            raise click.BadParameter(f"{text!r} is not NAME=SIZE")
        once(sizes, name, int(size), param)
    return sizes


def parse_names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """`--rename OLD=NEW`, repeatable."""
    names: dict[str, str] = {}
    for text in value:
        old, _, new = text.partition("=")
        if not old or not new or "=" in new:
            raise click.BadParameter(f"{text!r} is not OLD=NEW")
        once(names, old, new, param)
    return names


keep_option = names_option("--keep", help="With --strip-qdq: nodes or values whose quantizers stay.")


def rename_option(help: str) -> Callable[[F], F]:
    return click.option("--rename", callback=parse_names, multiple=True, metavar="OLD=NEW", help=help)


def once(given: dict[str, V], name: str, value: V, param: click.Parameter) -> None:
    if given.setdefault(name, value) != value:
        raise UsageError(f"{param.opts[0]} gives {name!r} two values: {given[name]} and {value}", "give it once")


def parse_shapes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """`--shape INPUT:1,128`, repeatable."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in value:
        name, found, sizes = text.rpartition(":")
        if not found or not name or not all(_is_size(s) for s in sizes.split(",")):
            raise click.BadParameter(f"{text!r} is not INPUT:1,128")
        once(shapes, name, tuple(int(s) for s in sizes.split(",")), param)
    return shapes


def apply_all(options: list[Callable[[F], F]], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def dim_option(default: str, *also: str) -> Callable[[F], F]:
    """`--dim NAME=SIZE`, and what it is `also` called, given as `dims`; `default` says what happens to the others."""
    return click.option(
        "--dim",
        *also,
        "dims",
        callback=parse_dims,
        multiple=True,
        metavar="NAME=SIZE",
        help=f"Give a dynamic dim its size. [default: {default}]",
    )


memory_option = click.option(
    "--verify-memory",
    type=_Size(),
    default="2G",
    show_default=True,
    metavar="SIZE",
    help="What weights and values of both models may take: larger ones are compared in segments, never loaded whole.",
)


def timeout_option(of: str) -> Callable[[Any], Any]:
    """`of`: what may take so long."""
    return click.option(
        "--timeout",
        type=Number(0, min_open=True),
        default=600.0,
        show_default=True,
        help=f"Seconds that {of} may take.",
    )


def format_option(*forms: str) -> Callable[[Any], Any]:
    """The first is what is printed unless told."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help="What to print.",
    )


provider_option = click.option(
    "--provider", default="", metavar="NAME", help="Execution provider of onnxruntime. [default: CPU]"
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random values that inputs get."
)


def tolerance_options(function: F) -> F:
    """`--rtol` and `--atol`, which are None where not given."""
    return apply_all(
        [
            click.option(
                "--rtol",
                type=Number(0),
                help="Largest difference, relative to an output's range. [default: what rounding explains]",
            ),
            click.option("--atol", type=Number(0), help="Largest absolute difference."),
        ],
        function,
    )


limit_option = click.option(
    "--memory",
    type=_Size(),
    callback=lambda ctx, param, value: value or 0,
    metavar="SIZE",
    help="What a process that runs parts of the model, or all of it, may take. [default: half of the machine]",
)


external_option = click.option(
    "--external",
    type=click.Choice(["auto", "inline", "copy", "reuse"]),
    default="auto",
    show_default=True,
    help="Weights that lie beside the model: copy them into OUT.TOKEN.data, put them inline into OUT, or reuse them "
    "where they are, in the folder of OUT or below. auto: copy, unless nothing changed and OUT is in that folder.",
)

library_option = click.option(
    "--custom-op-library",
    "custom_op_libraries",
    multiple=True,
    type=click.Path(path_type=str),
    metavar="FILE",
    help="Load this library of custom operators into onnxruntime, as register_custom_ops_library does.",
)

plugin_option = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    type=click.Path(path_type=str),
    metavar="FILE.py|MODULE",
    help="Load passes from a Python file or module.",
)


_PASSES: Final = [  # which run
    heading("Passes"),
    click.option(
        "-O",
        "--level",
        type=click.IntRange(0, 3),
        default=2,
        show_default=True,
        help="0: copy; 1: exact; 2: may re-associate floating point; 3: structural algebra.",
    ),
    click.option("--pipeline", callback=_text, metavar="TEXT|@FILE", help="Run this pipeline instead of a level's."),
    names_option("--with", "extra", complete=known_passes, help="Add passes to the level's."),
    names_option(
        "--disable",
        complete=known_rules,
        help="Do not run these passes, or rules; RULE@VALUE: not at the node that makes this value.",
    ),
    click.option(
        "--config", callback=_config, multiple=True, metavar="KEY=VALUE", help="Set a config key, or PASS.OPTION."
    ),
    names_option(
        "--target",
        complete=known_targets,
        help="What the result is for, the preferred first: cpu, cuda, …; onnxruntime, or onnxruntime==VERSION: what it "
        "runs fastest. [default: any]",
    ),
    plugin_option,
]
_MODEL: Final = [  # what becomes of it besides
    heading("What the result is"),
    click.option(
        "--freeze-initializers",
        is_flag=True,
        help="Initializers that are also inputs are constants: nobody overrides them.",
    ),
    click.option(
        "--dim",
        "dims",
        callback=_sizes_or_free,
        multiple=True,
        metavar="NAME=SIZE|?",
        help="Give a dynamic dim its size; NAME=?: make the first axis of all inputs, a number, this dynamic dim. "
        "[default: dims stay as they are]",
    ),
    click.option(
        "--make-dynamic",
        callback=parse_free,
        multiple=True,
        metavar="INPUT:AXIS=NAME",
        help="Make a fixed dim of an input dynamic, whose places do not depend on one another.",
    ),
    click.option(
        "--shape",
        "shapes",
        callback=parse_shapes,
        multiple=True,
        metavar="INPUT:1,128",
        help="Give a dynamic input its shape.",
    ),
    click.option("--target-opset", type=click.IntRange(7), metavar="N", help="Convert the model to this opset first."),
    click.option(
        "--dtype",
        type=click.Choice(["float16", "bfloat16"]),
        help="Hold in this type what is float32, weights and values, but where an operator needs more.",
    ),
    click.option(
        "--keep-io/--no-keep-io",
        default=True,
        show_default=True,
        help="With --dtype: inputs and outputs stay float32.",
    ),
    click.option("--infer-shapes", is_flag=True, help="Declare types and shapes of all values, as far as known."),
    click.option("--inline-functions", is_flag=True, help="Put model-local functions in place of their calls."),
    click.option(
        "--strip-qdq",
        is_flag=True,
        help="Drop pairs of QuantizeLinear and DequantizeLinear, and take quantized weights as floats: numbers change.",
    ),
    keep_option,
    click.option("--keep-dynamic", is_flag=True, help="Ignore --dim and --shape, of a project's file too."),
]
_BOUNDS: Final = [  # what passes may take, and make
    heading("What passes may take, and make"),
    click.option(
        "--max-constant-bytes", type=_Size(0), help="How much one constant fold may add to the file. [default: 1M]"
    ),
    limit_option,
    click.option(
        "--work",
        type=Number(0, min_open=True),
        default=Limits.work,
        show_default=True,
        metavar="SECONDS",
        help="What folding and converting in processes of their own may take; what is left then is left alone.",
    ),
    click.option(
        "--allow-domain",
        "allow_domains",
        multiple=True,
        metavar="DOMAIN",
        help="Operators of this domain may enter the model.",
    ),
]


def pipeline_options(function: F) -> F:
    """What to run. The command gets these as `pipeline=...` and so on; `make_options` reads them."""
    return apply_all([*_PASSES, *_MODEL, *_BOUNDS], function)


def is_given(name: str) -> bool:
    """Is the option on the command line, not just in a project's file?"""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_ignored(given: dict[str, Any]) -> None:
    """Raises UsageError for options of `pipeline_options` that others leave without effect."""
    if given["pipeline"] is not None and is_given("pipeline") and is_given("level"):
        raise UsageError("--pipeline contradicts -O", "leave one of them out: a level is a pipeline")
    if not (given["keep_io"] or given["dtype"]) and is_given("keep_io"):
        raise UsageError("--no-keep-io is for --dtype", "without it nothing changes its type")


def make_options(given: dict[str, Any], **of_a_result: Any) -> OptimizeOptions:
    """The options that `pipeline_options` put into a command's arguments, and those `of_a_result`; loads the
    plugins."""
    from onnxopt.api import settings

    return settings.make_options(**settings_of(given), **of_a_result)


def made_dynamic(given: dict[str, Any]) -> dict[str, str]:
    """The name that the dim at each `INPUT:AXIS` gets; `*:0`, the first axis of all inputs, that of `--dim NAME=?`."""
    free = [("*:0", name) for name, size in given["dims"].items() if size is None]
    return {**dict(free), **given["make_dynamic"]}


def settings_of(given: dict[str, Any]) -> Settings:
    """The options that `pipeline_options` put into a command's arguments, as keywords of the Python API."""
    from onnxopt.api.settings import Settings
    from onnxopt.pipeline.text import literal

    config = {key: literal(text) for key, text in given["config"].items()}
    named = given | {"config": config, "target": given["target"] or "any", "make_dynamic": made_dynamic(given)}
    named["dims"] = {name: size for name, size in given["dims"].items() if size is not None}
    if given["keep_dynamic"]:
        named |= {"dims": {}, "shapes": {}}
    return cast("Settings", {name: named[name] for name in Settings.__annotations__})


def load_plugins(plugins: tuple[str, ...]) -> None:
    """Import what `--plugin` names."""
    if plugins:
        from onnxopt.pipeline.registry import load_module

        for plugin in plugins:
            load_module(plugin)
