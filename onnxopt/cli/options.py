"""Options that several commands share: what to run, and what to watch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onnxopt.cli.say import say
from onnxopt.errors import UsageError
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnxopt.api import OptimizeOptions
    from onnxopt.pipeline import Instrument

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class _Bytes(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    name = "bytes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower().removesuffix("b").removesuffix("i")
        number, unit = (text[:-1], text[-1]) if text[-1:] in ("k", "m", "g", "t") else (text, "")
        try:
            return int(float(number) * _UNITS[unit])
        except ValueError:
            self.fail(f"{value!r} is not a number of bytes, like 65536 or 4M", param, ctx)


def names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Names given one by one or with commas between them."""
    return tuple(name.strip() for text in value for name in text.split(",") if name.strip())


def known_passes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: names of passes that begin like this, after those that are there with commas."""
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import all_passes

    return _completed(all_passes(), incomplete)


def known_rules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: names of passes, and of their rules."""
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import RewritePass, all_passes

    passes = all_passes()
    rules = [rule.name for cls in passes.values() if issubclass(cls, RewritePass) for rule in cls.rules]
    return _completed((*passes, *rules), incomplete)


def known_values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: values of the main graph of the command's MODEL."""
    # An option without its value, yet to be written, keeps click from giving the arguments their names.
    model = Path(ctx.params.get("model") or next(iter(ctx.args), ""))
    if not model.is_file():
        return []
    from onnxopt.errors import ModelError
    from onnxopt.io.load import read_proto

    try:
        graph = read_proto(model).graph
    except ModelError:
        return []  # the command itself will say so
    stored = {tensor.name for tensor in graph.initializer}
    free = [i.name for i in graph.input if i.name not in stored]
    known = (*free, *(name for node in graph.node for name in node.output))
    # Shells put names on the command line as they are: not those that mean something there.
    return _completed((name for name in known if re.fullmatch(r"[\w./:@+=][\w./:@+=-]*", name)), incomplete)


def _completed(known: Iterable[str], incomplete: str) -> list[str]:
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in known if name.startswith(start)]


def _text(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except OSError as e:
        raise UsageError(f"{value[1:]}: {e.strerror or e}", "name a file that holds a pipeline") from None


def _config(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in value]
    for key, found, _ in pairs:
        if not found or not key:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE")
    return {key: text for key, _, text in pairs}


def _is_size(text: str) -> bool:
    """A number that a dim can hold; Python refuses to read very long ones."""
    return text.strip().isdecimal() and len(text.strip()) < 19


def parse_dims(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, int]:
    """`--dim NAME=SIZE`, repeatable."""
    sizes = {}
    for text in value:
        name, found, size = text.rpartition("=")
        if not found or not name or not _is_size(size):
            raise click.BadParameter(f"{text!r} is not NAME=SIZE")
        sizes[name] = int(size)
    return sizes


def parse_shapes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """`--shape INPUT:1,128`, repeatable."""
    shapes = {}
    for text in value:
        name, found, sizes = text.rpartition(":")
        if not found or not name or not all(_is_size(s) for s in sizes.split(",")):
            raise click.BadParameter(f"{text!r} is not INPUT:1,128")
        shapes[name] = tuple(int(s) for s in sizes.split(","))
    return shapes


def _apply(options: list[Callable[[F], F]], function: F) -> F:
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


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int:
    if value is None:
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is not a size; for example 500M or 2G")
    return int(float(found[1]) * _UNITS[found[2].lower()])


memory_option = click.option(
    "--verify-memory",
    "memory",
    callback=_bytes,
    default="2G",
    show_default=True,
    metavar="SIZE",
    help="What weights and values of both models may take: larger ones are compared in segments, never loaded whole.",
)


limit_option = click.option(
    "--memory",
    "limit",
    callback=_bytes,
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

plugin_option = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    type=click.Path(path_type=str),
    metavar="FILE.py|MODULE",
    help="Load passes from a Python file or module.",
)


def pipeline_options(function: F) -> F:
    """What to run. The command gets these as `pipeline=...` and so on; `make_options` reads them."""
    return _apply(
        [
            click.option(
                "-O",
                "--level",
                type=click.IntRange(0, 3),
                default=2,
                show_default=True,
                help="0: copy; 1: exact; 2: may re-associate floating point; 3: structural algebra.",
            ),
            click.option(
                "--pipeline", callback=_text, metavar="TEXT|@FILE", help="Run this pipeline instead of a level's."
            ),
            click.option(
                "--with",
                "extra",
                callback=names,
                multiple=True,
                shell_complete=known_passes,
                metavar="NAMES",
                help="Add passes to the level's.",
            ),
            click.option(
                "--disable",
                callback=names,
                multiple=True,
                shell_complete=known_rules,
                metavar="NAMES",
                help="Do not run these passes, or rules; RULE@VALUE: not at the node that makes this value.",
            ),
            click.option(
                "--config",
                callback=_config,
                multiple=True,
                metavar="KEY=VALUE",
                help="Set a config key, or PASS.OPTION.",
            ),
            click.option("--target", default="any", show_default=True, help="What the result is for: cpu, cuda, …"),
            plugin_option,
            click.option(
                "--max-constant-bytes",
                type=_Bytes(),
                help="How much one constant fold may add to the file. [default: 1M]",
            ),
            click.option(
                "--freeze-initializers",
                is_flag=True,
                help="Initializers that are also inputs are constants: nobody overrides them.",
            ),
            dim_option("dims stay dynamic"),
            click.option(
                "--shape",
                "shapes",
                callback=parse_shapes,
                multiple=True,
                metavar="INPUT:1,128",
                help="Give a dynamic input its shape.",
            ),
            click.option(
                "--target-opset", type=click.IntRange(7), metavar="N", help="Convert the model to this opset first."
            ),
            click.option("--inline-functions", is_flag=True, help="Put model-local functions in place of their calls."),
            click.option("--keep-dynamic", is_flag=True, help="Ignore --dim and --shape, of a project's file too."),
            limit_option,
            click.option(
                "--work",
                type=click.FloatRange(0, min_open=True),
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
        ],
        function,
    )


def make_options(
    given: dict[str, Any], max_rewrites: int | None = None, provenance: bool = False, external: str = "auto"
) -> OptimizeOptions:
    """The options that `pipeline_options` put into a command's arguments; loads the plugins."""
    from onnxopt.api import OptimizeOptions
    from onnxopt.pipeline.text import literal

    load_plugins(given["plugins"])
    config = {key: literal(text) for key, text in given["config"].items()}
    if given["max_constant_bytes"] is not None:
        config["constant-folding.max-bytes"] = given["max_constant_bytes"]
    return OptimizeOptions(
        level=given["level"],
        pipeline=given["pipeline"],
        extra=given["extra"],
        disable=given["disable"],
        config=config,
        target=given["target"],
        max_rewrites=max_rewrites,
        freeze_initializers=given["freeze_initializers"],
        dims={} if given["keep_dynamic"] else given["dims"],
        shapes={} if given["keep_dynamic"] else given["shapes"],
        allow_domains=given["allow_domains"],
        inline_functions=given["inline_functions"],
        target_opset=given["target_opset"],
        provenance=provenance,
        limits=Limits(given["limit"], given["work"]),
        external=external,
    )


def load_plugins(plugins: tuple[str, ...]) -> None:
    """Import what `--plugin` names."""
    if plugins:
        from onnxopt.pipeline.registry import load_module

        for plugin in plugins:
            load_module(plugin)


def instrument_options(function: F) -> F:
    """What to watch; `Watch` makes instruments of it."""
    return _apply(
        [
            click.option("--time-passes", is_flag=True, help="Show where the time went, as a tree of passes."),
            click.option(
                "--print-ir-after",
                callback=names,
                multiple=True,
                metavar="PASS|all|changed",
                help="Print the model as text after these passes.",
            ),
            click.option(
                "--print-ir-before", callback=names, multiple=True, metavar="PASS|all", help="And before these."
            ),
            click.option(
                "--dump-dir",
                type=click.Path(path_type=Path, file_okay=False),
                help="Write the model after each pass that changed it into this folder, numbered.",
            ),
            click.option("--check-each", is_flag=True, help="Check the graph's invariants after each pass."),
            click.option("--verify-each", is_flag=True, help="Compare with the original after each pass."),
            click.option(
                "--journal",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Write which rule made which node, as JSON.",
            ),
        ],
        function,
    )


class Watch:
    """The instruments that the command line asks for; `report` shows what they found."""

    def __init__(self, source: Path, given: dict[str, Any]) -> None:
        self.instruments: list[Instrument] = []
        self._timing: Any = None
        self._journal: Any = None
        self._file: Path | None = given["journal"]
        if not any(given[k] for k in _WATCHES):
            return
        from onnxopt.pipeline import CheckEach, DumpModels, Journal, PrintIR, Timing, VerifyEach
        from onnxopt.pipeline.registry import get_pass

        for name in (*given["print_ir_after"], *given["print_ir_before"]):
            if name not in ("all", "changed"):
                get_pass(name)
        if given["print_ir_after"] or given["print_ir_before"]:
            self.instruments.append(PrintIR(given["print_ir_after"], given["print_ir_before"]))
        if given["dump_dir"]:
            self.instruments.append(DumpModels(given["dump_dir"]))
        if given["check_each"]:
            self.instruments.append(CheckEach())
        if given["verify_each"]:
            self.instruments.append(VerifyEach(source))
        if given["journal"]:
            self._journal = Journal()
            self.instruments.append(self._journal)
        if given["time_passes"]:
            self._timing = Timing()
            self.instruments.append(self._timing)

    def report(self) -> None:
        """Print the times to stderr and write the journal."""
        if self._timing is not None:
            for line in self._timing.lines():
                say(line, err=True)
        if self._journal is not None and self._file is not None:
            import json

            write_text(self._file, json.dumps(self._journal.to_list(), indent=2) + "\n")


class Recorder:
    """What `--report` says beside the report itself: when each pass ran, and which rule made which node."""

    def __init__(self) -> None:
        from onnxopt.pipeline.instruments import Journal, Timeline

        self._timeline, self._journal = Timeline(), Journal()
        self.instruments: list[Instrument] = [self._timeline, self._journal]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"timeline": self._timeline.to_list(), "journal": self._journal.to_list()}


_WATCHES = ("time_passes", "print_ir_after", "print_ir_before", "dump_dir", "check_each", "verify_each", "journal")


def json_text(data: Any) -> str:
    """JSON that every reader takes: infinity and NaN are null."""
    import json

    text = json.dumps(_finite(data), indent=2, allow_nan=False)
    return text.replace("##", "#\\u0023") + "\n"  # only strings have it, and builds read commands that begin so


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_text(path: Path, text: str) -> None:
    """Write a report. Raises WriteError."""
    write_bytes(path, text.encode())


@contextmanager
def blaming_files(*files: Path) -> Iterator[None]:
    """`io.blaming` for commands that need nothing of it as long as all goes well."""
    try:
        yield
    except Exception:
        from onnxopt.io import blaming

        with ExitStack() as stack:
            for file in files:
                stack.enter_context(blaming(file))
            raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file besides the result. Raises WriteError."""
    from onnxopt.errors import WriteError

    try:
        path.write_bytes(data)
    except OSError as e:
        raise WriteError(f"cannot write {path}: {e.strerror or e}", "the model itself was written") from None
