"""`onnxopt why MODEL PASS_OR_RULE`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxopt.cli.completing import known_rules
from onnxopt.cli.options import load_plugins, plugin_option
from onnxopt.cli.say import say
from onnxopt.errors import UsageError, nearest

if TYPE_CHECKING:
    from onnxopt.graph import Model
    from onnxopt.graph.node import Node
    from onnxopt.pipeline import Journal, Pass
    from onnxopt.rewriting import Rule

_SHOWN = 3  # reasons with an example


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("name", metavar="PASS_OR_RULE", shell_complete=known_rules)
@click.option("--node", metavar="NAME", help="Look at this node: its name, or the name of a value it produces.")
@click.option(
    "-O",
    "--level",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="Look at the model as this level leaves it; 0: as it is.",
)
@plugin_option
def why(model: Path, name: str, node: str | None, level: int, plugins: tuple[str, ...]) -> None:
    """Show why a rule fires at a node of MODEL, or why not: its pattern as a tree, with a tick for what fits.

    \b
    onnxopt why model.onnx conv-bn-folding
    onnxopt why model.onnx fold_conv_bn --node bn1
    onnxopt why model.onnx elim-identity -O0
    """
    from onnxopt.io import blaming, load
    from onnxopt.passes.levels import pipeline_for
    from onnxopt.pipeline import Journal, PassContext, execute

    load_plugins(plugins)
    owner, rules = _find(name)
    journal = Journal()
    with blaming(model):
        loaded = load(model)
        report = execute(pipeline_for(level), loaded, PassContext(opt_level=level, instruments=[journal]))
    if not rules:
        found = [f"{owner.name} has no rules; it did, in {model} at -O{level}:"]
        record = next((p for p in report.passes if p.name == owner.name), None)
        for what, rule in (record.rules if record else {}).items():
            found.append(f"  {what}: {rule.hits:,} times")
            found += [
                f"  {what} declined {n:,} times: {why}, for example {at}" for why, (n, at) in rule.declined.items()
            ]
        lines: Iterator[str] = iter(found)
    elif node is None:
        lines = _everywhere(loaded, owner, rules, journal)
    else:
        lines = _at(loaded, owner, rules, journal, node)
    with blaming(model):  # rules are asked while the lines are made
        for line in lines:
            say(line)


def _find(name: str) -> tuple[Pass, list[Rule]]:
    """The pass and rules that `name` means. Raises UsageError with the nearest names."""
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline import RewritePass, all_passes

    rules: dict[str, tuple[Any, Rule]] = {}
    passes = all_passes()
    for cls in passes.values():
        for rule in cls.rules if issubclass(cls, RewritePass) else ():
            rules[rule.name] = cls, rule
    wanted = name.replace("_", "-")
    if wanted in passes:
        cls = passes[wanted]
        return cls(), list(cls.rules) if issubclass(cls, RewritePass) else []
    if name in rules:
        return rules[name][0](), [rules[name][1]]
    hint = nearest(name, (*passes, *rules), "`onnxopt passes` and `onnxopt explain PASS` list them")
    raise UsageError(f"no pass or rule is called {name!r}", hint)


def _everywhere(model: Model, owner: Pass, rules: list[Rule], journal: Journal) -> Iterator[str]:
    """Each rule: how often it fired, why it does not where it could. Of one rule, an example of each reason."""
    from onnxopt.rewriting.diagnose import diagnose, lines_of

    for rule in rules:
        fired = len(journal.of(rule.name))
        nodes = [n for g in model.scopes() for op in sorted(rule.anchors) for n in g.by_op.get(op, ())]
        yield f"{rule.name}: fired {fired:,} times; {len(nodes):,} {' or '.join(sorted(rule.anchors))} left"
        found = [diagnose(rule, n, owner) for n in nodes]
        # Those that came farthest are what somebody asks about.
        found.sort(key=lambda d: (not d.matched, -sum(line.ok is True for line in d.lines)))
        for reason, count in Counter(d.reason or "fires" for d in found).most_common():
            yield f"  {count:,} times: {reason}"
        if len(rules) == 1:
            one_each = {d.reason: d for d in reversed(found)}
            for d in [d for d in found if one_each[d.reason] is d][:_SHOWN]:
                yield ""
                yield from lines_of(d)


def _at(model: Model, owner: Pass, rules: list[Rule], journal: Journal, name: str) -> Iterator[str]:
    from onnxopt.rewriting.diagnose import diagnose, lines_of, near

    node = _node(model, name)
    if node is None:
        gone = [e for e in journal.entries if any(_names(text, name) for text in e.removed)]
        if not gone:
            raise UsageError(f"{model.name} has no node or value called {name!r}", "`--node` takes either name")
        yield f"{name} is gone:"
        yield from (f"  {e}" for e in gone)
        return
    for e in journal.entries:
        if any(v is not None and v.name in e.outputs for v in node.outputs):
            yield f"made by {e}"
    for rule in rules:
        for anchor in near(rule, node):
            yield from lines_of(diagnose(rule, anchor, owner))
    if not any(near(rule, node) for rule in rules):
        wanted = sorted({op for rule in rules for op in rule.anchors})
        yield f"{node!r}: nothing here is, or leads to, {' or '.join(wanted)}"


def _names(text: str, name: str) -> bool:
    """Is `text`, as in `Conv "conv1" -> y`, about the node or value called `name`?"""
    head, _, outputs = text.rpartition(" -> ")
    return f'"{name}"' in head or name in outputs.split(", ")


def _node(model: Model, name: str) -> Node | None:
    for node in model.nodes():
        if node.name == name or any(v is not None and v.name == name for v in node.outputs):
            return node
    return None
