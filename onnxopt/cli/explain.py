"""`onnxopt explain PASS_OR_RULE`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from onnxopt.cli.options import load_plugins, plugin_option
from onnxopt.cli.say import say
from onnxopt.cli.values import known_rules

if TYPE_CHECKING:
    from onnxopt.pipeline import Pass
    from onnxopt.rewriting import Rule


@click.command(epilog="Exit codes: 0 done, 2 wrong usage or a name that nothing has.")
@click.argument("name", metavar="PASS_OR_RULE", shell_complete=known_rules)
@plugin_option
def explain(name: str, plugins: tuple[str, ...]) -> None:
    """Print the manual page of a pass, with options and rules (equations and patterns), or of a single rule.

    \b
    onnxopt explain conv-bn-folding
    onnxopt explain fold_conv_bn
    onnxopt explain my-pass --plugin my_passes.py
    """
    import onnxopt.passes  # noqa: F401 - registers them
    from onnxopt.pipeline.registry import pass_or_rule

    load_plugins(plugins)
    pages = [
        [*(page(cls) if cls.info.name == name.replace("_", "-") else page_of_rule(cls, rules[0]))]
        for cls, rules in pass_or_rule(name)
    ]
    for line in (line for i, lines in enumerate(pages) for line in ([""] * bool(i) + lines)):
        say(line)


def page(cls: type[Pass]) -> Iterator[str]:
    """Yield the lines of the manual page of a pass."""
    from onnxopt.pipeline import origin
    from onnxopt.pipeline.sequence import value_text
    from onnxopt.pipeline.settings import options_of

    info = cls.info
    yield f"{info.name}: {cls.kind} pass, {_when(cls)}, of {origin(cls)}"
    facts = {
        "requires": info.required,
        "after": info.after,
        "before": info.before,
        "only for target": () if "any" in info.targets else info.targets,
        "only with": info.ops,
        "changes numbers": (f"an output by up to {info.tolerance:g} of its range",) if info.tolerance else (),
    }
    for label, given in facts.items():
        if given:
            yield f"{label}: {', '.join(given)}"
    yield ""
    yield from _indented(inspect.cleandoc(cls.__doc__ or ""))
    options = options_of(cls)
    if options:
        yield ""
        yield "Options"
        for f in options:
            yield f"  {f.name.replace('_', '-')}={value_text(f.default)}"
            if f.metadata.get("help"):
                yield f"      {f.metadata['help']}"
    if cls.kind == "rewrite":
        from onnxopt.rewriting import text

        yield ""
        yield "Rules"
        for rule in cls.rules:
            yield f"  {rule.name}"
            yield f"      {rule.equation}"
            yield f"      {text(rule.source)}"


def page_of_rule(cls: type[Pass], rule: Rule) -> Iterator[str]:
    """Yield the manual page of a rule."""
    from onnxopt.rewriting import text

    yield f"{rule.name}: rule of the pass {cls.info.name}, {_when(cls)}"
    yield ""
    yield from _indented(inspect.cleandoc(rule.apply.__doc__ or ""))
    yield ""
    yield f"  {text(rule.source)}"
    yield ""
    yield f"onnxopt why MODEL {rule.name}: where it fires, and why not elsewhere"
    yield f"onnxopt optimize … --disable {rule.name}: without it"


def _when(cls: type[Pass]) -> str:
    from onnxopt.passes.levels import option_for

    option = option_for(cls.info)
    return f"from {option} on" if option.startswith("-O") else f"by {option}"


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in text.splitlines())
