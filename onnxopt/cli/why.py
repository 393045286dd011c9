"""`onnxopt why MODEL PASS_OR_RULE`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.cli.command import ProjectCommand
from onnxopt.cli.files import refuse_swapped
from onnxopt.cli.options import make_options, pipeline_options
from onnxopt.cli.say import say, say_lines
from onnxopt.cli.values import known_rules
from onnxopt.errors import UsageError, any_of
from onnxopt.plaintext import counted

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.graph.node import Node
    from onnxopt.pipeline import Pass, PipelineReport
    from onnxopt.pipeline.journal import Journal
    from onnxopt.rewriting import Rule
    from onnxopt.rewriting.diagnose import Diagnosis

_MAX_SHOWN = 3  # operators by name; reasons with an example


@click.command(cls=ProjectCommand, epilog="Exit codes: 0 shown, 2 wrong usage or unreadable input.")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("name", metavar="PASS_OR_RULE", shell_complete=known_rules)
@click.option("--node", metavar="NAME", help="Examine this node: the name of the node, or of an output.")
@pipeline_options
def why(model: Path, name: str, node: str | None, **given: Any) -> None:
    """Show why a rule fires at a node of MODEL, or why not: the pattern as a tree, with a tick for each matching part.

    The command examines the model after optimization with these options; -O0: the unchanged model.

    \b
    onnxopt why model.onnx conv-bn-folding
    onnxopt why model.onnx fold_conv_bn --node bn1
    onnxopt why model.onnx elim-identity -O0
    """
    from onnxopt.io import blaming
    from onnxopt.optimizer import optimize_model
    from onnxopt.pipeline.journal import Journal
    from onnxopt.pipeline.registry import pass_or_rule

    refuse_swapped(model, name, "why")
    options, level = make_options(given), given["level"]
    owners = [(options.context().configured(cls()), rules) for cls, rules in pass_or_rule(name)]
    journal = Journal() if node is not None else None
    with blaming(model):
        loaded = options.load(model, stored=True)
        report = optimize_model(loaded, options, [journal] if journal is not None else ())
    for i, (owner, rules) in enumerate(owners):
        if len(owners) > 1:
            say_lines([""] * bool(i))
            say(f"of {owner.name}:")
        if not rules:
            lines = _counted(loaded, owner, report, level)
        elif node is None or journal is None:
            lines = _everywhere(loaded, owner, rules, report, level)
        else:
            lines = _at(loaded, owner, rules, journal, node)
        with blaming(model):  # rules are asked while the lines are made
            say_lines(lines)


def _counted(model: Model, owner: Pass, report: PipelineReport, level: int) -> Iterator[str]:
    """Yield the counts of a pass without rules."""
    ran = next((p for p in report.passes if p.name == owner.name), None)
    did = f"it did, in {model.name} at -O{level}:" if ran else _idle(owner, report, level)
    yield f"{owner.name} has no rules; {did}"
    for what, rule in (ran.rules if ran else {}).items():
        yield f"  {what}: {counted(rule.hits, 'time')}"
        for why, d in rule.declined.items():
            yield f"  {what} declined {counted(d.count, 'time')}: {why}, for example {d.example}"


def _idle(owner: Pass, report: PipelineReport, level: int) -> str:
    """Return the reason for a pass without work, or outside the level."""
    from onnxopt.passes.levels import option_for

    if owner.name in report.skipped:
        return f"it did not run: {report.skipped[owner.name]}"
    return f"it does not run at -O{level}, but with `onnxopt optimize {option_for(owner.info)}`"


def _everywhere(model: Model, owner: Pass, rules: list[Rule], report: PipelineReport, level: int) -> Iterator[str]:
    """Yield the number of rewrites and the reasons for declining, by rule; for a single rule with examples."""
    from onnxopt.rewriting.diagnose import refuse_unknown

    fired = Counter({rule: r.hits for p in report.passes if p.name == owner.name for rule, r in p.rules.items()})
    refuse_unknown((rule.source for rule in rules if not fired[rule.name]), model)
    ran = any(p.name == owner.name for p in report.passes)
    for rule in rules:
        did = f"fired {counted(fired[rule.name], 'time')}" if ran else _idle(owner, report, level)
        nodes = [n for g in model.scopes() for op in sorted(rule.anchors) for n in g.by_op.get(op, ())]
        yield f"{rule.name}: {did}; {_number(nodes, rule)} left"
        counts, examples = _reasons(rule, nodes, owner)
        for d in sorted(examples, key=lambda d: -counts[d.reason]):
            yield f"  {counted(counts[d.reason], 'time')}: {d.reason or 'would fire'}"
        if len(rules) == 1:
            yield from _examples(examples)


def _number(nodes: Sequence[Node], rule: Rule) -> str:
    """Return the number of a rule's anchors, with the operators if few."""
    ops = sorted(rule.anchors)
    if len(ops) <= _MAX_SHOWN:
        return f"{len(nodes):,} {any_of(ops)}"
    return f"{counted(len(nodes), 'node')} of its {len(ops)} operators"


def _reasons(rule: Rule, nodes: Iterable[Node], owner: Pass) -> tuple[Counter[str], list[Diagnosis]]:
    """Return the count of each reason, and for each reason the diagnosis with the most matching parts."""
    from onnxopt.rewriting.diagnose import diagnose

    counts: Counter[str] = Counter()
    nearest: dict[str, Diagnosis] = {}
    for node in nodes:
        d = diagnose(rule, node, owner)
        counts[d.reason] += 1
        if d.reason not in nearest or d.nearness > nearest[d.reason].nearness:
            nearest[d.reason] = d
    return counts, sorted(nearest.values(), key=lambda d: d.nearness, reverse=True)


def _examples(found: Sequence[Diagnosis]) -> Iterator[str]:
    from onnxopt.rewriting.diagnose import lines_of

    for d in found[:_MAX_SHOWN]:
        yield ""
        yield from lines_of(d)
    if len(found) > _MAX_SHOWN:
        yield ""
        yield f"and {counted(len(found) - _MAX_SHOWN, 'more reason')}: --node shows why at a node"


def _at(model: Model, owner: Pass, rules: list[Rule], journal: Journal, name: str) -> Iterator[str]:
    from onnxopt.rewriting.diagnose import diagnose, lines_of, near

    node = next((n for n in model.nodes() if name in (n.name, *(v.name for v in n.results))), None)
    if node is None:
        yield from _removed(model, journal, name)
        return
    for e in journal.entries:
        if any(v is not None and v.name in e.outputs for v in node.outputs):
            yield f"made by {e}"
    for rule in rules:
        for anchor in near(rule, node):
            yield from lines_of(diagnose(rule, anchor, owner))
    if not any(near(rule, node) for rule in rules):
        wanted = sorted({op for rule in rules for op in rule.anchors})
        yield f"{node!r}: nothing here is, or leads to, {any_of(wanted)}"


def _removed(model: Model, journal: Journal, name: str) -> Iterator[str]:
    """Yield the rewrites that removed a node or value. Raises UsageError for an unknown name."""
    gone = [e for e in journal.entries if any(_names(text, name) for text in e.removed)]
    if not gone:
        raise UsageError(f"{model.name} has no node or value called {name!r}", "`--node` takes either name")
    yield f"{name} is gone:"
    yield from (f"  {e}" for e in gone)


def _names(text: str, name: str) -> bool:
    """Return whether `text`, such as `Conv "conv1" -> y`, describes the node or value called `name`."""
    head, _, outputs = text.rpartition(" -> ")
    return f'"{name}"' in head or name in outputs.split(", ")
