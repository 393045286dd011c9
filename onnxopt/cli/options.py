"""Options shared by several commands: passes, changes of the model, limits."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from onnxopt.arguments import requested_changes
from onnxopt.cli.command import Decorator, heading
from onnxopt.cli.files import named_text
from onnxopt.cli.values import (
    Number,
    Size,
    known_passes,
    known_rules,
    known_targets,
    names_option,
    parse_config,
    parse_dims,
    parse_dims_or_free,
    parse_free,
    parse_names,
    parse_shapes,
)
from onnxopt.errors import UsageError
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnxopt.optimizer import OptimizeOptions


def _text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return value if value is None else named_text(value, "a pipeline")


keep_option = names_option("--keep", help="With --strip-qdq: keep the quantizers of these nodes or values.")


def rename_option(help: str) -> Decorator:
    return click.option("--rename", callback=parse_names, multiple=True, metavar="OLD=NEW", help=help)


def together(*options: Decorator) -> Decorator:
    """Return a decorator that applies all these, so that help lists the options in this order."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


def dim_option(help: str, *also: str) -> Decorator:
    """Return `--dim NAME=SIZE` with this help, also under other names; the parameter is `dims`."""
    return click.option("--dim", *also, "dims", callback=parse_dims, multiple=True, metavar="NAME=SIZE", help=help)


def shape_option(help: str) -> Decorator:
    """Return `--shape INPUT:1,128` with this help; the parameter is `shapes`."""
    return click.option("--shape", "shapes", callback=parse_shapes, multiple=True, metavar="INPUT:1,128", help=help)


memory_option = click.option(
    "--verify-memory",
    type=Size(),
    default="2G",
    show_default=True,
    metavar="SIZE",
    help="Memory for weights and values of both models: larger models are compared in segments, never loaded whole.",
)


def timeout_option(of: str) -> Decorator:
    """Return `--timeout`. `of`: the limited work, for the help."""
    return click.option(
        "--timeout",
        type=Number(0, min_open=True),
        default=600.0,
        show_default=True,
        help=f"Time limit of {of}, in seconds.",
    )


def format_option(*forms: str) -> Decorator:
    """Return `--format`; the first choice is the default."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default=forms[0], show_default=True, help="Format of the output."
    )


provider_option = click.option(
    "--provider", default="", metavar="NAME", help="Execution provider of onnxruntime. [default: CPU]"
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random values of inputs."
)


tolerance_options = together(
    click.option(
        "--rtol",
        type=Number(0),
        help="Largest difference, relative to an output's range. [default: explained by rounding]",
    ),
    click.option("--atol", type=Number(0), help="Largest absolute difference."),
)


limit_option = click.option(
    "--memory",
    type=Size(),
    callback=lambda ctx, param, value: value or 0,
    metavar="SIZE",
    help="Memory of a process that runs the model or parts of the model. [default: half of the machine]",
)


external_option = click.option(
    "--external",
    type=click.Choice(["auto", "inline", "copy", "reuse"]),
    default="auto",
    show_default=True,
    help="Weights beside the model: copy into OUT.TOKEN.data, move inline into OUT, or reuse the files "
    "where they are, in the folder of OUT or below. auto: copy, unless nothing changed and OUT is in that folder.",
)


def _files_option(flag: str, name: str, metavar: str, help: str) -> Decorator:
    return click.option(flag, name, multiple=True, type=click.Path(path_type=str), metavar=metavar, help=help)


custom_op_option = _files_option(
    "--custom-op-library",
    "custom_op_libraries",
    "FILE",
    "Load this library of custom operators into onnxruntime, as register_custom_ops_library does.",
)
plugin_option = _files_option("--plugin", "plugins", "FILE.py|MODULE", "Load passes from a Python file or module.")


_PASSES: Final = together(
    heading("Passes"),
    click.option(
        "-O",
        "--level",
        type=click.IntRange(0, 3),
        default=2,
        show_default=True,
        help="0: copy; 1: exact; 2: may re-associate floating point; 3: structural algebra.",
    ),
    click.option("--pipeline", callback=_text, metavar="TEXT|@FILE", help="Run this pipeline instead of the level's."),
    names_option("--with", "extra", complete=known_passes, help="Add passes to the level's."),
    names_option(
        "--disable",
        complete=known_rules,
        help="Disable these passes or rules; RULE@VALUE: only at the node that produces this value.",
    ),
    click.option(
        "--config", callback=parse_config, multiple=True, metavar="KEY=VALUE", help="Set a config key, or PASS.OPTION."
    ),
    names_option(
        "--target",
        complete=known_targets,
        help="Targets of the result, the preferred first: cpu, cuda, …; onnxruntime, or onnxruntime==VERSION: the "
        "fastest forms for this runtime. [default: any]",
    ),
    plugin_option,
)
_MODEL: Final = together(  # changes of the model
    heading("Result"),
    click.option(
        "--freeze-initializers",
        is_flag=True,
        help="Treat initializers that are also inputs as constants: no caller overrides them.",
    ),
    click.option(
        "--dim",
        "dims",
        callback=parse_dims_or_free,
        multiple=True,
        metavar="NAME=SIZE|?",
        help="Set the size of a dynamic dim; NAME=?: make the fixed first axis of all inputs this dynamic dim. "
        "[default: dims do not change]",
    ),
    click.option(
        "--make-dynamic",
        callback=parse_free,
        multiple=True,
        metavar="INPUT:AXIS=NAME",
        help="Make a fixed dim of an input dynamic; the samples along the dim must be independent.",
    ),
    shape_option("Give a dynamic input its shape."),
    click.option("--target-opset", type=click.IntRange(7), metavar="N", help="Convert the model to this opset first."),
    click.option(
        "--dtype",
        type=click.Choice(["float16", "bfloat16"]),
        help="Convert float32 weights and values to this type, except where an operator needs float32.",
    ),
    click.option(
        "--int32",
        is_flag=True,
        help="Hold integers in int32 that are int64, where all their numbers are proved to fit.",
    ),
    click.option(
        "--keep-io/--no-keep-io",
        default=True,
        show_default=True,
        help="With --dtype, --int32: inputs and outputs keep their types.",
    ),
    click.option("--infer-shapes", is_flag=True, help="Declare types and shapes of all values, as far as known."),
    click.option("--inline-functions", is_flag=True, help="Inline model-local functions."),
    click.option(
        "--strip-qdq",
        is_flag=True,
        help="Drop pairs of QuantizeLinear and DequantizeLinear, and take quantized weights as floats: numbers change.",
    ),
    keep_option,
    click.option("--keep-dynamic", is_flag=True, help="Ignore --dim and --shape, of a project's file too."),
)
_BOUNDS: Final = together(  # limits of passes
    heading("Limits of passes"),
    click.option(
        "--max-constant-bytes", type=Size(0), help="Largest growth of the file by a single constant fold. [default: 1M]"
    ),
    limit_option,
    click.option(
        "--work",
        type=Number(0, min_open=True),
        default=Limits.work,
        show_default=True,
        metavar="SECONDS",
        help="Total time of folding and conversion in separate processes; folds beyond the limit are skipped.",
    ),
    click.option(
        "--allow-domain",
        "allow_domains",
        multiple=True,
        metavar="DOMAIN",
        help="Allow operators of this domain in the result.",
    ),
)
# Options for passes and changes, given to the command as keywords; `make_options` reads them.
pipeline_options = together(_PASSES, _MODEL, _BOUNDS)


def is_given(name: str) -> bool:
    """Return whether the option is on the command line, not just in a project's file."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_ignored(given: dict[str, Any]) -> None:
    """Raise UsageError for options of `pipeline_options` without effect beside other options."""
    if given["pipeline"] is not None and is_given("pipeline") and is_given("level"):
        raise UsageError("--pipeline contradicts -O", "leave one of them out: a level is a pipeline")
    if not (given["keep_io"] or given["dtype"] or given["int32"]) and is_given("keep_io"):
        raise UsageError("--no-keep-io is for --dtype and --int32", "without these nothing changes its type")


def make_options(given: dict[str, Any]) -> OptimizeOptions:
    """Return OptimizeOptions from the keywords of `settings_of`; loads the plugins."""
    from onnxopt.api import settings

    return settings.make_options(**settings_of(given))


def _made_dynamic(given: dict[str, Any]) -> dict[str, str]:
    """Return the symbol for each `INPUT:AXIS`; `*:0`, the first axis of all inputs, for `--dim NAME=?`."""
    free = [("*:0", name) for name, size in given["dims"].items() if size is None]
    return {**dict(free), **given["make_dynamic"]}


def changes_in(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `VerifyOptions` for the requested changes."""
    named = {name: given[name] for name in ("dtype", "int32", "keep_io", "strip_qdq", "keep")}
    return requested_changes(**named, freed=_made_dynamic(given).values())


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `pipeline_options`, and those about a result, as keywords of the Python API."""
    from onnxopt.api.settings import OF_A_RESULT
    from onnxopt.pipeline.sequence import literal

    config = {key: literal(text) for key, text in given["config"].items()}
    named = given | {"config": config, "target": given["target"] or "any", "make_dynamic": _made_dynamic(given)}
    named["dims"] = {name: size for name, size in given["dims"].items() if size is not None}
    if given["keep_dynamic"]:
        named |= {"dims": {}, "shapes": {}}
    return {name: named[name] for name in OF_A_RESULT if name in named}


def load_plugins(plugins: tuple[str, ...]) -> None:
    """Import the files and modules of `--plugin`."""
    if plugins:
        from onnxopt.pipeline.registry import load_module

        for plugin in plugins:
            load_module(plugin)
