"""`onnxopt partition MODEL --ops Conv,Relu`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from onnxopt.cli.options import custom_op_option, limit_option, load_plugins, plugin_option
from onnxopt.cli.say import say, say_lines
from onnxopt.cli.values import NewFile
from onnxopt.errors import ModelError, UsageError, VerificationError, WriteError, few, nearest, unwritable
from onnxopt.plaintext import counted

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.graph import Model
    from onnxopt.pipeline.outlining import Outline, Part
    from onnxopt.pipeline.partition import Partition
    from onnxopt.verification import VerifyOptions
    from onnxopt.verification.job import Step


_INDEX: Final = "partition.json"
_PART: Final = re.compile(r"part_\d+\.onnx")
_MAX_NAMES = 3  # names of a part on a terminal


def _names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    found = [name.strip().removeprefix("ai.onnx::") for text in value for name in text.split(",") if name.strip()]
    if not found:
        raise click.BadParameter("it names no operator")
    return tuple(found)


@click.command(
    epilog="Exit codes: 0 done, 1 what was cut or fused computes something else (nothing is written), 2 wrong usage, "
    "unreadable input or unwritable output."
)
@click.argument("source", metavar="MODEL", type=click.Path(path_type=Path))
@click.option("--ops", callback=_names, multiple=True, required=True, metavar="NAMES", help="Operators of the backend.")
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each part as a model, and verify all parts together.",
)
@click.option(
    "--allow-single-node/--no-single-node",
    default=True,
    show_default=True,
    help="Allow parts with a single computing node.",
)
@click.option(
    "--fuse",
    "fused",
    type=NewFile(),
    metavar="OUT.onnx",
    help="Write and verify the model with each supported part as a function call.",
)
@plugin_option
@custom_op_option
@limit_option
def partition(
    source: Path,
    ops: tuple[str, ...],
    out_dir: Path | None,
    allow_single_node: bool,
    fused: Path | None,
    plugins: tuple[str, ...],
    custom_op_libraries: tuple[str, ...],
    memory: int,
) -> None:
    """Split a model into parts supported by a backend, and the rest.

    \b
    onnxopt partition model.onnx --ops Conv,Relu,Add
    onnxopt partition model.onnx --ops Conv,Relu --out-dir parts
    onnxopt partition model.onnx --ops Conv,Relu --fuse model.fused.onnx
    """
    from onnxopt.io import blaming, load, refuse_overwriting_input
    from onnxopt.pipeline.outlining import outline, split
    from onnxopt.pipeline.partition import CapabilityPartitioner, OperatorSupport
    from onnxopt.verification import VerifyOptions

    is_run = out_dir is not None or fused is not None
    if custom_op_libraries and not is_run:
        raise UsageError("--custom-op-library is for --out-dir and --fuse", "nothing is run without these")
    load_plugins(plugins)
    options = VerifyOptions(limit=memory, custom_op_libraries=custom_op_libraries)
    with blaming(source):
        model = load(source, stored=True)
        _refuse_unknown(ops, model)
        if fused is not None:
            refuse_overwriting_input(source, fused, model)
        partitioner = CapabilityPartitioner(model.graph, OperatorSupport(ops), allow_single_node=allow_single_node)
        proposed = partitioner.propose()
        _print(outline(model, proposed))
        if is_run:
            if out_dir is not None:
                try:
                    _write_parts(source, split(model, proposed), out_dir, options)
                except OSError as e:
                    missing = isinstance(e, FileNotFoundError)
                    hint = "create the folder around it first" if missing else "name a folder that can be written"
                    raise unwritable(out_dir, e, hint) from None
            if fused is not None:
                _write_fused(source, model, proposed, fused, options)


def _refuse_unknown(ops: Sequence[str], model: Model) -> None:
    """Raise UsageError for operators unknown to both the model and the standard: one list may serve all models."""
    from onnx import defs

    present = sorted({node.op for node in model.nodes()})
    for op in ops:
        domain, _, name = op.rpartition("::")
        if op not in present and not defs.has(name, domain):
            hint = nearest(op[:1].upper() + op[1:].lower(), present, f"it has {', '.join(present)}")
            raise UsageError(f"neither the model nor the standard has an operator {op!r}", hint)


def _operators(part: Outline) -> str:
    counts = Counter(node.op for node in part.nodes).most_common()
    return few([op if count == 1 else f"{op} ×{count}" for op, count in counts])


def _print(parts: Sequence[Outline]) -> None:
    """Print a table on a terminal, and plain lines elsewhere, without an import of rich."""
    covered, total = sum(len(p.nodes) for p in parts if p.supported), sum(len(p.nodes) for p in parts)
    count = sum(p.supported for p in parts)
    summary = f"{count} supported of {counted(len(parts), 'part')}, {covered} of {counted(total, 'node')}"
    if not sys.stdout.isatty():
        say_lines(_lines(parts))
        say(summary)
    else:
        _print_table(parts, summary)


def _lines(parts: Sequence[Outline]) -> Iterator[str]:
    for p in parts:
        kind, nodes = "supported" if p.supported else "rest", counted(len(p.nodes), "node")
        yield f"{p.name}  {kind}  {nodes}: {_operators(p)}; {few(p.inputs) or '-'} -> {few(p.outputs) or '-'}"


def _print_table(parts: Sequence[Outline], summary: str) -> None:
    """Print a table with whole names, each on a separate line; plain lines on a narrow terminal."""
    from rich.console import Group
    from rich.table import Column

    from onnxopt.plaintext import line
    from onnxopt.reporting.terminal import Fitting, Name, Text, figures, show, table, whole

    ops, names = Column("operators", max_width=20), Column("inputs → outputs")
    made = table(*whole("part"), *figures("nodes"), ops, names, *whole("supported", justify="center"))
    for p in parts:
        ends = [*_few(p.inputs), *_few([f"→ {name}" for name in p.outputs])]
        mark, style = ("✓", "") if p.supported else ("", "dim")
        made.add_row(p.name, str(len(p.nodes)), Text(_operators(p)), Group(*map(Name, ends)), mark, style=style)
    show(Fitting([made], least=24, otherwise=Text("\n".join(map(line, _lines(parts))))), summary)


def _few(names: Sequence[str]) -> list[str]:
    more = len(names) - _MAX_NAMES
    return [*names[:_MAX_NAMES], *([f"  and {more} more"] if more > 0 else [])]


def _refuse_places(source: Path, parts: Sequence[Part], folder: Path) -> None:
    """Raise WriteError for a folder that is a file, and for files that the parts must not replace."""
    from onnxopt.io import refuse_overwriting_input
    from onnxopt.io.staging import refuse_special

    if folder.exists() and not folder.is_dir():
        raise WriteError(f"{folder} is a file", "name a folder")
    for name in (*(f"{p.name}.onnx" for p in parts), _INDEX):
        refuse_special(folder / name)
        refuse_overwriting_input(source, folder / name)


def _write_parts(source: Path, parts: Sequence[Part], folder: Path, options: VerifyOptions) -> None:
    """Write and check the parts beside `folder`, and move them into the folder after success."""
    from onnxopt.verification.job import Step

    _refuse_places(source, parts, folder)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as t:
        steps, entries = [], []
        for part in parts:
            file = Path(t) / f"{part.name}.onnx"
            file.write_bytes(_encoded(part.proto, part.name))
            steps.append(Step(file, tuple(i.name for i in part.proto.graph.input), part.outputs))
            about = {"name": part.name, "file": file.name, "supported": part.supported}
            names = {"inputs": list(part.inputs), "outputs": list(part.outputs)}
            entries.append(about | {"operators": sorted({node.op for node in part.nodes})} | names)
        index = Path(t) / _INDEX
        index.write_text(json.dumps({"model": str(source), "parts": entries}, indent=2) + "\n")
        _check(source, steps, "the parts, run in order,", options)
        folder.mkdir(exist_ok=True)
        old = _listed(folder / _INDEX) - {s.file.name for s in steps}
        for file in [*(s.file for s in steps), index]:
            os.replace(file, folder / file.name)
        for file in (folder / name for name in old):
            if file.is_file() and not file.samefile(source):
                file.unlink()
    say(f"wrote {counted(len(parts), 'part')} and partition.json to {folder}")


def _listed(index: Path) -> set[str]:
    """Return the files of parts in this folder, by the `partition.json` of an earlier run."""
    try:
        found = {str(part["file"]) for part in json.loads(index.read_text())["parts"]}
    except (OSError, ValueError, TypeError, KeyError):  # nobody's, or somebody else's
        return set()
    return {name for name in found if _PART.fullmatch(name)}


def _encoded(proto: ModelProto, name: str) -> bytes:
    from google.protobuf.message import EncodeError

    try:
        return bytes(proto.SerializeToString())
    except (EncodeError, ValueError):
        raise ModelError(f"{name} is larger than 2 GiB", "support fewer operators, so that parts get smaller") from None


def _write_fused(
    source: Path, model: Model, proposed: Sequence[Partition], destination: Path, options: VerifyOptions
) -> None:
    from onnxopt.io import Staged
    from onnxopt.pipeline.outlining import fuse_partition
    from onnxopt.verification.job import Step

    count = 0
    for p in proposed:
        try:
            fuse_partition(p, f"part_{p.id:03d}")
            count += 1
        except UsageError as e:
            say(f"part {p.id} stays as it is: {e.message}")
    with Staged(destination) as staged:
        staged.write(model)
        inputs = tuple(i.name for i in model.proto.graph.input)
        step = Step(staged.path, inputs, tuple(v.name for v in model.graph.outputs))
        _check(source, [step], "the fused model", options)
        staged.commit()
    say(f"wrote {destination}: {counted(count, 'function call')}, {counted(len(model.graph), 'node')}")


def _check(source: Path, steps: Sequence[Step], what: str, options: VerifyOptions) -> None:
    from onnxopt.verification import DIFFERENT, UNVERIFIED, Verifier
    from onnxopt.verification.runtime import UNREGISTERED, UNREGISTERED_HINT

    with Verifier(source, options, labels=("the original", "the composition"), steps=steps) as verifier:
        verifier.prepare()
        verifier.submit(steps[-1].file)
        verdict = verifier.finish()
    if verdict.status == DIFFERENT:
        raise VerificationError(
            f"{what} differ{'s' * ('model' in what)} from the original: {verdict.message}",
            "nothing was written; please report it",
        )
    say(f"{'not ' if verdict.status == UNVERIFIED else ''}checked: {verdict.message}")
    if UNREGISTERED in verdict.message:
        say(f"  {UNREGISTERED_HINT}")
