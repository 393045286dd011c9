"""Pipelines: passes in sequence or repeated until a fixed point, and the text form of a pipeline.

  pipeline := [ pass { "," pass } ]
  pass     := NAME [ "{" OPTION "=" value { "," … } "}" ] [ "(" pipeline ")" ]
  value    := true | false | none | number | word | "quoted" | "[" value, … "]"

White space, line ends and comments from # to the end of the line are ignored. Reading and printing are inverse.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from onnxopt.analysis import types
from onnxopt.errors import UsageError, nearest
from onnxopt.graph import Model
from onnxopt.pipeline.base import Pass, PassInfo, fields_of, option
from onnxopt.pipeline.context import PassContext
from onnxopt.pipeline.decorators import LazyPass, as_passes
from onnxopt.pipeline.execute import is_current, run_pass
from onnxopt.pipeline.registry import get_pass, is_recipe, note_name, register
from onnxopt.pipeline.settings import fits, options_of, type_of


def _its_own(default: Any) -> Any:
    """Return a field that describes the composite itself, and is no option."""
    return dataclasses.field(default=default, kw_only=True, repr=False, metadata={"own": True})


@dataclass(frozen=True, eq=False, repr=False)
class Composite(Pass):
    """A pass made of passes. A `name` makes it known to contexts, reports and, if registered, pipeline text.

    `opt_level` and `required` as in PassInfo.
    """

    info = PassInfo("composite", opt_level=0)
    passes: tuple[Pass, ...] = ()
    name: str = _its_own("")
    opt_level: int = _its_own(0)
    required: tuple[str, ...] = _its_own(())

    def __post_init__(self) -> None:
        kind = type(self).info
        own = PassInfo(
            self.name or kind.name,
            self.opt_level or kind.opt_level,
            self.required or kind.required,
            *(getattr(kind, f) for f in ("after", "before", "targets", "ops")),
        )
        if own != kind:
            object.__setattr__(self, "info", own)
            note_name(own.name)
        for field in ("name", "opt_level", "required"):
            object.__setattr__(self, field, getattr(own, field))
        object.__setattr__(self, "passes", as_passes(self.passes, type(self).__name__))

    @property
    def children(self) -> tuple[Pass, ...]:
        return self.passes


@register
class Sequential(Composite):
    """Runs passes in order, if not disabled and of a level that the context reaches, or required by it."""

    info = PassInfo("sequential", opt_level=0)
    kind: ClassVar[str] = "sequential"

    def run(self, model: Model, ctx: PassContext) -> None:
        for i, p in enumerate(self.passes):
            ctx.rest.append(self.passes[i + 1 :])
            run_pass(p, model, ctx)
            ctx.rest.pop()


@register
@dataclass(frozen=True, eq=False, repr=False)
class Fixpoint(Composite):
    """Runs passes in order, round after round, until a round with all known facts changes nothing.

    A pass is skipped while the model is unchanged since its last run. Raises NoFixpointError after `max_rounds`.
    """

    info = PassInfo("fixpoint", opt_level=0)
    kind: ClassVar[str] = "fixpoint"
    max_rounds: int = option(100, "rounds after which passes that still change the model are an error")

    def run(self, model: Model, ctx: PassContext) -> None:
        assert ctx.report is not None
        outer, ctx.in_round = ctx.in_round, True
        rounds = max(self.max_rounds, 1)
        for n in range(rounds):
            if n == max(rounds - 2, 0):
                from onnxopt.pipeline.journal import Restless

                restless = Restless(ctx)
            types.refresh_allowed(model)
            types.settle(model)
            before = model.state
            for i, p in enumerate(self.passes):
                if not is_current(p, model, ctx):
                    ctx.rest.append((*self.passes[i + 1 :], self))
                    run_pass(p, model, ctx)
                    ctx.rest.pop()
            ctx.report.rounds += 1
            if model.state == before or ctx.fuel.left == 0:
                ctx.in_round, ctx.settled = outer, True
                return
        raise restless.error(model, rounds)


# -- pipelines as text --------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r'\s+|#[^\n]*|("(?:[^"\\]|\\.)*")|([\w.:/+-]+)|([]{}()[,=])')
_KINDS: Final = ("string", "word", "mark")  # of tokens, by group
_BARE_WORD: Final = r"[\w.:/+-]+"
_NO_PASSES: Final[Mapping[str, LazyPass]] = {}


def parse_pipeline(text: str, later: Mapping[str, LazyPass] = _NO_PASSES) -> Sequential:
    """Return the passes named by `text`; passes in `later` without options stay lazy.

    Raises UsageError with line and column.
    """
    try:
        return _Parser(text, later).everything()
    except RecursionError:
        raise UsageError("the pipeline is nested too deep", "write fewer passes inside each other") from None


def text(p: Pass) -> str:
    """Return the text that `parse_pipeline` reads back as `p`; options at their defaults are left out."""
    if isinstance(p, LazyPass) or is_recipe(p):
        return p.name
    cls = type(p)
    options = [
        f"{f.name.replace('_', '-')}={value_text(getattr(p, f.name))}"
        for f in _fields(cls)
        if getattr(p, f.name) != (getattr(cls.info, f.name) if f.metadata.get("own") else f.default)
    ]
    inner = f"({pipeline_text(p.children)})" if _is_composite(cls) else ""
    return cls.info.name + (f"{{{','.join(options)}}}" if options else "") + inner


def pipeline_text(passes: tuple[Pass, ...] | list[Pass]) -> str:
    """Return the text of passes in sequence."""
    return ",".join(text(p) for p in passes)


def _is_composite(cls: type[Pass]) -> bool:
    return getattr(cls, "recipe", None) is None and any(f.name == "passes" for f in fields_of(cls))


def _fields(cls: type[Pass]) -> list[dataclasses.Field[Any]]:
    """Return the fields allowed in braces: options, and a composite's own fields."""
    return [*options_of(cls), *(f for f in fields_of(cls) if f.metadata.get("own") and _is_composite(cls))]


def value_text(value: Any) -> str:
    """Return the text of an option's value."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, str):
        import json

        plain = re.fullmatch(_BARE_WORD, value) and isinstance(literal(value), str)
        return value if plain else json.dumps(value)
    return repr(value)


def literal(word: str) -> Any:
    """Return the value of an unquoted word."""
    if word in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


class _Parser:
    """Recursive descent over tokens (kind, text, offset)."""

    def __init__(self, source: str, later: Mapping[str, LazyPass]) -> None:
        self.source = source
        self.later = later
        self.tokens: list[tuple[str, str, int]] = []
        self.next = 0
        offset = 0
        while offset < len(source):
            found = _TOKEN.match(source, offset)
            if found is None:
                raise self.error(f"{source[offset]!r} has no meaning here", offset)
            if found.lastindex:
                self.tokens.append((_KINDS[found.lastindex - 1], found.group(), offset))
            offset = found.end()
        self.tokens.append(("end", "the end", len(source)))

    def error(self, message: str, offset: int, hint: str = "") -> UsageError:
        line = self.source.count("\n", 0, offset) + 1
        column = offset - (self.source.rfind("\n", 0, offset) + 1) + 1
        place = f"line {line}, column {column}" if "\n" in self.source else f"column {column}"
        return UsageError(
            f"pipeline, {place}: {message}", hint or "a pipeline is like canonicalize,fixpoint(elim-identity,dead-code)"
        )

    def unexpected(self, wanted: str) -> UsageError:
        kind, found, offset = self.tokens[self.next]
        return self.error(f"expected {wanted}, found {found if kind == 'end' else repr(found)}", offset)

    def take(self, mark: str) -> bool:
        if self.tokens[self.next][:2] == ("mark", mark):
            self.next += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise self.unexpected(repr(mark))

    def word(self, what: str) -> tuple[str, int]:
        kind, found, offset = self.tokens[self.next]
        if kind != "word":
            raise self.unexpected(what)
        self.next += 1
        return found, offset

    def everything(self) -> Sequential:
        passes = self.passes(("end", "the end"))
        if self.tokens[self.next][0] != "end":
            raise self.unexpected("',' or the end")
        return Sequential(passes)

    def passes(self, end: tuple[str, str]) -> tuple[Pass, ...]:
        if self.tokens[self.next][:2] == end:
            return ()
        found = [self.one()]
        while self.take(","):
            found.append(self.one())
        return tuple(found)

    def one(self) -> Pass:
        name, offset = self.word("the name of a pass")
        if name in self.later and self.tokens[self.next][1] not in ("{", "("):
            return self.later[name]
        try:
            cls = get_pass(name)
        except UsageError as e:
            raise self.error(e.message, offset, e.hint) from None
        options = self.options(cls) if self.take("{") else {}
        composite = _is_composite(cls)
        _, _, offset = self.tokens[self.next]
        if self.take("("):
            if not composite:
                raise self.error(f"{name} is not made of passes", offset)
            options["passes"] = self.passes(("mark", ")"))
            self.expect(")")
        elif composite:
            raise self.error(f"{name} needs passes, as in {name}(canonicalize)", offset)
        return cls(**options)

    def options(self, cls: type[Pass]) -> dict[str, Any]:
        known = {f.name.replace("_", "-"): f for f in _fields(cls)}
        options: dict[str, Any] = {}
        while not self.take("}"):
            if options:
                self.expect(",")
            name, offset = self.word("an option")
            name = name.replace("_", "-")
            if name not in known:
                hint = nearest(name, known, f"it has {', '.join(known) or 'none'}")
                raise self.error(f"{cls.info.name} has no option {name!r}", offset, hint)
            self.expect("=")
            _, _, offset = self.tokens[self.next]
            value, f = self.value(), known[name]
            if not fits(value, type_of(f.default)):
                raise self.error(f"{name} is {value!r}, not of type {type_of(f.default).__name__}", offset)
            options[f.name] = float(value) if type_of(f.default) is float else value
        return options

    def value(self) -> Any:
        kind, found, _ = self.tokens[self.next]
        if kind == "string":
            import json

            self.next += 1
            return json.loads(found)
        if not self.take("["):
            return literal(self.word("a value")[0])
        values: list[Any] = []
        while not self.take("]"):
            if values:
                self.expect(",")
            values.append(self.value())
        return tuple(values)
