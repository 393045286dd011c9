"""`onnxopt optimize IN OUT`."""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.cli import options
from onnxopt.cli.command import HeadedCommand, heading
from onnxopt.cli.files import refuse_missing_folder, refuse_models, refuse_unwritable
from onnxopt.cli.run import WATCHES, CommandInstruments, SingleRun, instrument_options
from onnxopt.cli.say import OutputSettings
from onnxopt.cli.values import NewFile, input_option, known_values, names_option, verify_dim_option
from onnxopt.errors import UsageError, WriteError

if TYPE_CHECKING:
    from onnxopt.batch.budget import Budget
    from onnxopt.verification import VerifyOptions

_JUDGED = ("rtol", "atol", "seed", "inputs", "timeout", "custom_op_libraries")  # fields of VerifyOptions
_TOLD = ("form", "junit", "quiet", "verbose", "stats")  # fields of OutputSettings
_OF_A_JOB = ("strict", "allow_unverified", "check", "backup", "plugins", "zero_weights")
_MAIN = (  # described by --help
    *("level", "in_place", "out_dir", "check", "form", "stats", "verbose", "quiet"),
    *("dims", "shapes", "end", "dtype", "int32", "target_opset", "target", "extra", "disable"),
    *("inputs", "strict", "no_verify"),
)


@click.command(
    cls=HeadedCommand,
    main=_MAIN,
    epilog="Exit codes: 0 done; 1 a check failed: the result differs from the original or --strict refuses it (nothing "
    "is written), --check would change a model, a budget of --fail-if is exceeded; 2 wrong usage or unreadable input; "
    "3 written without a rewrite that made the result wrong, or unloadable; 4 a bug in a pass. Of several models, the "
    "worst: 4, 2, 1, 3, 0.",
)
@click.argument(
    "models", metavar="IN OUT | MODELS...", nargs=-1, required=True, type=click.Path(path_type=str, readable=False)
)
@heading("Many models and builds")
@click.option(
    "--out-dir", type=click.Path(path_type=str), metavar="DIR", help="Write the results of all MODELS into this folder."
)
@click.option("--in-place", is_flag=True, help="Replace the MODELS by their results.")
@click.option("--backup", metavar="SUFFIX", default="", help="With --in-place: keep the originals as MODEL+SUFFIX.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a model would change.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of models in parallel.")
@click.option(
    "--cache-dir",
    type=click.Path(path_type=str, file_okay=False),
    metavar="DIR",
    help="Cache results of unchanged models in this folder.",
)
@click.option(
    "--executor", default="local", show_default=True, metavar="local|dask:ADDRESS", help="Where several models run."
)
@click.option("--fail-if", multiple=True, metavar="CONDITION", help="A budget: exit with 1 if 'nodes_after > 500'.")
@click.option("--junit", type=NewFile(), metavar="FILE", help="Write the outcomes as JUnit's XML.")
@options.format_option("text", "json")
@heading("Result")
@click.option("--provenance", is_flag=True, help="Write version, pipeline and the original's hash into the metadata.")
@names_option(
    "--inputs", "begin", complete=known_values, help="Of IN OUT: begin at these values instead of the model's inputs."
)
@names_option(
    "--outputs",
    "end",
    complete=known_values,
    help="Of IN OUT: end at these values, and drop all other outputs of the model.",
)
@options.external_option
@click.option("--name-nodes", is_flag=True, help="Name nodes without a name: Conv_12.")
@options.rename_option("Call an input, an output or a symbolic dim of the result otherwise.")
@options.pipeline_options
@heading("Verification")
@click.option(
    "--strict",
    is_flag=True,
    help="Write only verified results: a different result is an error, without roll-back; so is a result within "
    "rounding noise, inconclusive or not verified.",
)
@click.option(
    "--allow-unverified",
    is_flag=True,
    help="Also write unverified results in machine-readable modes (--format json, --junit, GitHub Actions), where they "
    "are an error otherwise.",
)
@click.option("--no-verify", is_flag=True, help="Do not compare the result with the original.")
@input_option("Verify with this input.")
@verify_dim_option
@options.tolerance_options
@options.custom_op_option
@options.seed_option
@options.timeout_option("verification")
@options.memory_option
@heading("Instruments and reproducers")
@click.option("--max-rewrites", type=click.IntRange(0), help="Stop after this number of rewrites.")
@click.option(
    "--report",
    "report_file",
    type=NewFile("--format json prints it"),
    metavar="FILE",
    help="Write a report of the run as JSON.",
)
@instrument_options
@click.option(
    "--reproducer",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="If a pass fails, save the failure in this folder, for `onnxopt reproduce`.",
)
@click.option("--zero-weights", is_flag=True, help="Replace weights by zeros in the reproducer.")
@click.option("--stats", is_flag=True, help="Show the changes by operator, like `onnxopt stats IN OUT`.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("-v", "--verbose", count=True, help="Show the rules that fired, and why the rest declined.")
def optimize(models: tuple[str, ...], **asked: Any) -> None:
    """Optimize the model IN, verify the result against it, and write OUT; or many MODELS into a folder.

    IN is never changed. OUT is written only if the result is equivalent to IN; an existing OUT is replaced (a glob such
    as *.onnx may match two models: use --out-dir). `-` is stdin or stdout.

    \b
    onnxopt optimize model.onnx model.opt.onnx
    onnxopt optimize model.onnx model.opt.onnx -v --report report.json
    onnxopt optimize model.onnx model.opt.onnx --input tokens=tokens.npy
    onnxopt optimize model.onnx model.fp16.onnx --dtype float16 --stats
    onnxopt optimize model.onnx features.onnx --outputs pooled
    onnxopt optimize model.onnx model.opt.onnx --pipeline "canonicalize,fixpoint(elim-identity,dead-code)"
    onnxopt optimize model.onnx model.opt.onnx --time-passes --print-ir-after=conv-bn-folding
    onnxopt optimize models/*.onnx --out-dir build/ --jobs 2 --cache-dir .cache
    onnxopt optimize models/*.onnx --check --fail-if "nodes_after > 500"
    onnxopt optimize model.onnx --in-place --backup .orig

    Options may have defaults in onnxopt.toml, or in [tool.onnxopt] of pyproject.toml: level = 1.
    """
    _refuse_contradictions(asked)
    options.refuse_ignored(asked)
    models = tuple("-" if model in ("/dev/stdin", "/dev/stdout") else model for model in models)
    besides = (asked["report_file"], asked["junit"], asked["journal"])
    refuse_unwritable(besides)
    refuse_models(besides, models)
    plain = _is_plain(models, asked)
    verify_options = None
    if not asked["no_verify"]:
        from onnxopt.verification import VerifyOptions

        given = {name: asked[name] for name in _JUDGED} | options.changes_in(asked)
        sizes = {"memory": asked["verify_memory"], "limit": asked["memory"], "dims": asked["verify_dims"]}
        verify_options = VerifyOptions(**given, **sizes)
    report, budgets = None if plain else asked["report_file"], _budgets(asked["fail_if"])
    output = OutputSettings(report=report, budgets=budgets, **{name: asked[name] for name in _TOLD})
    asked["allow_unverified"] |= not output.to_machines
    if plain:
        output.data_on_stdout = models[1] == "-"
        code = _run_single(SingleRun(asked, verify_options, output), *models)
    else:
        code = _run_many(models, asked, verify_options, output, besides)
    if code:
        sys.exit(code)


def _run_many(
    models: tuple[str, ...],
    asked: dict[str, Any],
    verify_options: VerifyOptions | None,
    output: OutputSettings,
    besides: tuple[Path | None, ...],
) -> int:
    from onnxopt.batch import Job
    from onnxopt.cli.batch import optimize_many, places

    pairs = places(models, asked["out_dir"], asked["in_place"], asked["check"])
    refuse_models(besides, chain.from_iterable(pairs))
    if len(pairs) > 1 and (many := [name for name in WATCHES if asked[name]]):
        raise UsageError(f"--{many[0].replace('_', '-')} is for one model", "--report FILE reports on all")
    given = {name: asked[name] for name in _OF_A_JOB} | {
        "options": options.make_options(asked),
        "verify_options": verify_options,
        "cache": asked["cache_dir"] or "",
        "reproducer": str(asked["reproducer"] or ""),
        "stats": asked["stats"] or output.has_summary,
    }
    watch = CommandInstruments(Path(pairs[0][0]), asked, verify_options)
    jobs = [Job(source, destination, **given) for source, destination in pairs]
    code = optimize_many(jobs, asked["jobs"], asked["executor"], output, watch.instruments)
    watch.report()
    return code


def _is_plain(models: tuple[str, ...], asked: dict[str, Any]) -> bool:
    """Return whether the arguments are IN OUT. Raises UsageError if ambiguous, or for options of other forms."""
    to_one_place = not (asked["out_dir"] is not None or asked["in_place"] or asked["check"])
    if to_one_place:
        _refuse_unclear(models, asked)
    kept = asked["cache_dir"] or asked["executor"] != "local"
    plain = to_one_place and len(models) == 2 and ("-" in models or not kept)
    if asked["begin"] or asked["end"]:
        _refuse_cut(plain, asked)
    if plain and models[1] == "-" and asked["form"] == "json":
        raise UsageError("the model and --format json both go to stdout", "--report FILE writes the report to a file")
    return plain


def _refuse_cut(plain: bool, asked: dict[str, Any]) -> None:
    """Raise UsageError if a part is wanted of several models, or with references to the original's data files."""
    if not plain:
        raise UsageError("--inputs and --outputs are for IN OUT", "onnxopt extract cuts a model, one at a time")
    if asked["external"] == "reuse":
        raise UsageError("--external reuse contradicts --inputs and --outputs", "weights are copied, or inline")


def _refuse_unclear(models: tuple[str, ...], asked: dict[str, Any]) -> None:
    """Raise UsageError for a missing OUT, and for an OUT that may be a second model."""
    if len(models) == 1:
        raise _where_to(models[0])
    if len(models) == 2:
        refuse_missing_folder(models[1], "name the file to write, or --out-dir DIR")
        if asked["jobs"] > 1 and options.is_given("jobs"):
            message = f"is {models[1]} the result of {models[0]}, or a second model?"
            raise UsageError(message, "--out-dir DIR, or no --jobs")


def _run_single(single: SingleRun, source: str, destination: str) -> int:
    from onnxopt.cli.files import streams

    if "-" not in (source, destination):
        try:
            return single.run(Path(source), Path(destination))
        except WriteError as e:
            if os.path.exists(destination) and os.path.samefile(source, destination):
                e.hint += "; --in-place replaces it"
            raise
    with streams(source, destination) as (read, made):
        return single.run(read, made, (source, destination))


def _refuse_contradictions(asked: dict[str, Any]) -> None:
    page, unverified, suffix = asked["report_file"], asked["no_verify"], asked["backup"]
    is_page = page is not None and page.suffix.lower() in (".html", ".htm")
    given = asked["inputs"] or asked["verify_dims"] or asked["rtol"] is not None or asked["atol"] is not None
    unused = asked["zero_weights"] and asked["reproducer"] is None and options.is_given("zero_weights")
    one = "leave one of them out"
    nothing_runs = f"nothing is run then: {one}"
    for contradiction, message, hint in (
        (is_page, f"--report writes JSON, no page as {page} is called", f"onnxopt report IN OUT -o {page}"),
        (unverified and given, "--no-verify contradicts --input, --verify-dim, --rtol and --atol", one),
        (unverified and asked["custom_op_libraries"], "--no-verify contradicts --custom-op-library", nothing_runs),
        (unverified and asked["strict"], "--strict contradicts --no-verify", one),
        (asked["strict"] and asked["allow_unverified"], "--strict contradicts --allow-unverified", one),
        (suffix and not asked["in_place"], "--backup is for --in-place", "without it the original stays where it is"),
        (unused, "--zero-weights is for --reproducer", "--reproducer DIR keeps what repeats a failure"),
        (os.path.basename(suffix) != suffix, f"--backup {suffix!r} is not a suffix", "for example --backup .orig"),
    ):
        if contradiction:
            raise UsageError(message, hint)


def _where_to(model: str) -> UsageError:
    """Return the error for a model without a destination."""
    if model == "-":
        return UsageError("where should the result of stdin go?", "onnxopt optimize - OUT, or - - for stdout")
    import shlex

    places = shlex.join((model, f"{model.removesuffix('.onnx')}.opt.onnx"))
    hint = f"onnxopt optimize {places}; --in-place replaces {Path(model).name}, --out-dir DIR takes many models"
    return UsageError(f"where should the result of {model} go?", hint)


def _budgets(texts: tuple[str, ...]) -> tuple[Budget, ...]:
    if not texts:
        return ()
    from onnxopt.batch.budget import parse_budget

    return tuple(parse_budget(text) for text in texts)
