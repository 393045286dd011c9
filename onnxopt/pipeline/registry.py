"""Registry of passes by name: onnxopt's own, and those of installed plugins."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from onnxopt.errors import OnnxOptError, UsageError, is_no_fault, line_of, nearest, nearest_file, told
from onnxopt.pipeline.base import Pass, PassInfo, check_fields
from onnxopt.rewriting import Rule
from onnxopt.startup import import_the_rest

P = TypeVar("P", bound=Pass)

GROUP = "onnxopt.passes"  # entry point group of plugins
_PLUGIN: Final = "a plugin is a Python file, or a module on the path, that registers passes"
_LOOSE: Final = "a RewritePass with @register that has it among its `rules` does"

# Passes merged into others: their names remain valid, for the other pass.
_MERGED: Final = {"batch-products": "unmerge-batches"}

_PASSES: dict[str, type[Pass]] = {}
_LATER: dict[str, str] = {}  # modules of passes imported on demand
_ORIGINS: dict[str, str] = {}  # distribution and version, for passes from plugins
_LOADED: list[str] = []  # entry points, once loaded
_MODULES: list[str] = []  # files and modules named by users
_NAMED: set[str] = set()  # names of composites so far


@overload
def register(p: type[P]) -> type[P]: ...
@overload
def register(p: P) -> P: ...
def register(p: type[P] | P) -> type[P] | P:
    """Register a pass by name: decorates a class, `model_pass` or `graph_pass`; also takes a named composite.

    Raises ValueError if the name is taken, TypeError for options without @dataclass. Warns of operators and attributes
    in rules' patterns unknown to the standard.
    """
    from onnxopt.pipeline.settings import refuse_declared

    if not isinstance(p, type | Pass):
        raise TypeError(
            f"{getattr(p, '__name__', p)} is no pass yet: @register stands above @model_pass and @graph_pass"
        )
    cls = p if isinstance(p, type) else type(p)
    if not isinstance(p, type) and p.children:
        if p.info == cls.info:
            raise ValueError(f"a {cls.info.name} is registered by a name of its own: give it name=…")
        cls = _recipe(p)
    if not hasattr(cls, "info"):
        raise TypeError(f"pass {cls.__name__} does not say what it is: info = PassInfo({cls.__name__.lower()!r})")
    check_fields(cls)
    refuse_declared(cls)
    rules = _rules_of(cls)
    _check_name(cls)
    _PASSES[cls.info.name] = cls
    if origin(cls) != "onnxopt":  # for onnxopt's own passes a test checks this
        _warn_of_rules(cls.info.name, rules)
    return p


def _rules_of(cls: type[Pass]) -> tuple[Rule, ...]:
    """Return the rules of a pass. Raises TypeError unless they are a tuple of rules."""
    rules: object = cls.rules
    if isinstance(rules, tuple) and all(isinstance(rule, Rule) for rule in rules):
        return rules
    raise TypeError(
        f"pass {cls.info.name}: rules = {_written(rules)} is no tuple of what @rewrite makes: rules = (my_rule,)"
    )


def _check_name(cls: type[Pass]) -> None:
    """Raise ValueError if a pass has a name that pipelines cannot write, or the name of another pass."""
    name = cls.info.name
    if not all(part.isascii() and part.isalnum() and part == part.lower() for part in name.split("-")):
        known_by = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "my-pass"
        raise ValueError(
            f"a pass cannot be named {name!r} in pipelines and options: small letters and dashes: {known_by}"
        )
    known = _PASSES.get(name)
    home = known.__module__ if known is not None else _LATER.get(name, cls.__module__)
    if known not in (None, cls) or home != cls.__module__:
        raise ValueError(f"a pass named {name!r} exists already: {home}")


def _warn_of_rules(name: str, rules: Sequence[Rule]) -> None:
    """Emit a UserWarning for names in patterns that no model has, and for two rules of one name."""
    from onnxopt.rewriting.diagnose import warn_of_unknown

    for i, rule in enumerate(rules):
        warn_of_unknown(rule)
        if any(other is not rule and other.name == rule.name for other in rules[:i]):
            text = f"pass {name}: two rules are called {rule.name}, so --disable, reports and why take them for one"
            code = rule.apply.__code__
            hint = "a function that makes rules sets the __name__ of each"
            warnings.warn_explicit(f"{text}; {hint}", UserWarning, code.co_filename, code.co_firstlineno)


def _written(rules: object) -> str:
    """Return the rules of a class as they may be written in source."""
    if isinstance(rules, tuple):
        return f"({', '.join(map(_written, rules))}{',' * (len(rules) == 1)})"
    return str(getattr(rules, "name", "") or getattr(rules, "__name__", "") or repr(rules))


def _recipe(p: P) -> type[P]:
    """Return a class that always makes `p`, as text, `explain` and `onnxopt passes` need a class."""
    names = ", ".join(child.name for child in p.children)
    made = {
        "info": p.info,
        "recipe": p,
        "__new__": lambda cls: p,
        "__doc__": f"Runs {names}.",
        "__module__": "__main__",
    }
    return type(type(p).__name__, (type(p),), made)


def is_recipe(p: Pass) -> bool:
    """Whether `p` is the composite registered under its name."""
    return bool(p.children) and getattr(_PASSES.get(p.name), "recipe", None) == p


def note_name(name: str) -> None:
    """Allow a context to refer to this name."""
    _NAMED.add(name)


def current_name(name: str) -> str:
    """Return the name as in the registry: with dashes, and for a merged pass the other pass's name."""
    name = name.strip().replace("_", "-")
    return name if name in _PASSES or name in _LATER else _MERGED.get(name, name)


def check_names(names: Iterable[str], what: str) -> None:
    """Raise UsageError for a name of no pass: registered, defined as a class, or given to a composite."""
    for name in names:
        if name not in _PASSES and name not in _LATER and name not in _NAMED:
            load_plugins()
            known = {*_PASSES, *_LATER, *_NAMED, *(cls.info.name for cls in defined_passes())}
            if name not in known:
                hint = nearest(
                    name, known, "`onnxopt passes` lists them; one of your own is defined before it is named"
                )
                raise UsageError(f"{what}: no pass is called {name!r}", hint)


def check_rules(names: Iterable[str], what: str) -> None:
    """Raise UsageError for a name of no rule."""
    for name in names:
        if not is_rule(name):
            load_plugins()
            known = {rule.name for cls in _defined(Pass) for rule in cls.rules}
            if name not in known:
                hint = nearest(name, known, "`onnxopt explain PASS` lists its rules")
                raise UsageError(f"{what}: no rule is called {name!r}", hint)


def defined_passes() -> Iterator[type[Pass]]:
    """Yield every pass class with an info, registered or not."""
    return (cls for cls in _defined(Pass) if hasattr(cls, "info"))


def _defined(cls: type[P]) -> Iterator[type[P]]:
    for below in cls.__subclasses__():
        yield below
        yield from _defined(below)


def register_later(name: str, module: str) -> None:
    """Register a pass to be imported on demand."""
    _LATER[name] = module


def _import_later(names: Iterable[str]) -> None:
    for name in names:
        if name not in _PASSES and name in _LATER:
            module = import_module(_LATER[name])
            for found in vars(module).values():  # an already imported module does not register again
                if isinstance(found, type) and issubclass(found, Pass) and found.__module__ == module.__name__:
                    register(found)


def is_registered(name: str) -> bool:
    """Whether a pass of this name is registered."""
    return name in _PASSES or name in _LATER


def get_pass(name: str) -> type[Pass]:
    """Return the pass `name`, loading plugins if onnxopt has none. Raises UsageError with the nearest names."""
    name = current_name(name)
    _import_later([name])
    if name not in _PASSES:
        load_plugins()
    if name not in _PASSES:
        forgotten = next((c for c in defined_passes() if c.info.name == name), None)
        hint = nearest(name, {**_PASSES, **_LATER}, "`onnxopt passes` lists them")
        if forgotten is not None:
            hint = f"{forgotten.__name__} is not registered: put @register above it"
        raise UsageError(f"no pass is called {name!r}", hint)
    return _PASSES[name]


def disabled_requirement(info: PassInfo, disabled: Collection[str]) -> str:
    """Return the first disabled pass among direct and indirect requirements; empty if none."""
    seen, waiting = {info.name}, list(info.required)
    while waiting:
        name = waiting.pop(0)
        if name in disabled:
            return name
        if name not in seen:
            seen.add(name)
            waiting += get_pass(name).info.required
    return ""


def all_passes(*, plugins: bool = True) -> dict[str, type[Pass]]:
    """Return every registered pass by name, onnxopt's first, plugins last (without `plugins`: only if loaded)."""
    _import_later(_LATER)
    if plugins:
        load_plugins()
    return {name: _PASSES[name] for name in _LATER} | _PASSES


def is_rule(name: str) -> bool:
    """Whether a loaded pass has a rule of this name."""
    _import_later(_LATER)
    return any(rule.name == name for cls in _PASSES.values() for rule in cls.rules)


def pass_or_rule(name: str) -> list[tuple[type[Pass], list[Rule]]]:
    """Return [(pass, all its rules)] for a pass name, or [(pass, [rule]), …] for a rule name: each pass that has it.

    Raises UsageError with the nearest names.
    """
    passes = all_passes()
    dashed, plain = current_name(name), name.replace("-", "_")
    if dashed in passes:
        return [(passes[dashed], list(passes[dashed].rules))]
    rules = [(cls, rule) for cls in passes.values() for rule in cls.rules]
    if found := [(cls, [rule]) for cls, rule in rules if rule.name == plain]:
        return found
    known = dict.fromkeys((*passes, *(rule.name for _, rule in rules)))
    hint = nearest(name, known, "`onnxopt passes` and `onnxopt explain PASS` list them")
    raise UsageError(f"no pass or rule is called {name!r}", hint)


def known_as(name: str) -> str:
    """Return the registered name for the name of a pass or rule. Raises UsageError with the nearest names."""
    if is_rule(name):
        return name
    try:
        return get_pass(name).info.name
    except UsageError:
        return pass_or_rule(name.strip())[0][1][0].name  # a rule, written with dashes


def origin(cls: type[Pass]) -> str:
    """Return the origin of a pass: `onnxopt`, a plugin's distribution and version, or the registering module."""
    if cls.info.name in _ORIGINS:
        return _ORIGINS[cls.info.name]
    package = cls.__module__.partition(".")[0]
    return package if package == "onnxopt" else cls.__module__


def _execute(name: str, file: str) -> None:
    """Import `file` as the module `name`; a failed import leaves nothing behind, and can be retried."""
    from onnxopt.pipeline import settings
    from onnxopt.verification.runtime import DECLARED

    tables: tuple[dict[Any, Any], ...] = (_PASSES, settings.DECLARED, DECLARED)
    before = [set(table) for table in tables]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        for table, known in zip(tables, before):
            for made in table.keys() - known:
                del table[made]
        raise


def load_module(source: str) -> None:
    """Import a Python file (`passes.py`) or module (`package.passes`) that registers passes.

    Raises UsageError if the import fails, or if rules belong to no pass.
    """
    from onnxopt.verification.runtime import DECLARED, name_plugin

    before, referred = set(_PASSES), set(DECLARED)
    _check_source(source)
    import_the_rest()
    try:
        if source.endswith(".py"):
            file, name = os.path.realpath(source), f"onnxopt_plugin_{Path(source).stem}"
            while name in sys.modules:
                if sys.modules[name].__file__ == file:
                    return
                name += "_"  # taken by a file of another folder
            _execute(name, file)
            loose = [v.name for v in vars(sys.modules[name]).values() if isinstance(v, Rule)]
        else:
            import_module(source)
            loose = []
    except BaseException as e:
        if is_no_fault(e):
            raise
        hint = "correct it there; ONNXOPT_DEBUG=1 shows the traceback" if line_of(e) else _PLUGIN
        hint = (isinstance(e, OnnxOptError) and e.hint) or hint
        raise UsageError(f"{source} cannot be imported: {told(e)}", hint) from e
    if loose and before == set(_PASSES):
        raise UsageError(f"{source} registers no pass, so that nothing runs its rule {loose[0]}", _LOOSE)
    _MODULES.append(os.path.abspath(source) if source.endswith(".py") else source)
    made = [name for name in _PASSES if name not in before]
    _ORIGINS.update(dict.fromkeys(made, source))
    name_plugin(DECLARED.keys() - referred, source)
    _warn_of_order(made)


def _check_source(source: str) -> None:
    """Raise UsageError unless `source` is a Python file, or may be the name of a module."""
    if source.endswith(".py") == os.path.isfile(source):
        return
    if not source.endswith(".py"):
        raise UsageError(f"{source} is not a Python file: its name does not end in .py", _PLUGIN)
    if os.path.exists(source):
        raise UsageError(f"{source} is {'a directory' if os.path.isdir(source) else 'no plain file'}", _PLUGIN)
    raise UsageError(f"{source}: no such file", nearest_file(source, _PLUGIN))


def _warn_of_order(names: Iterable[str]) -> None:
    """Emit a UserWarning for unknown names in `after` and `before`, which would have no effect."""
    known = {*_PASSES, *_LATER, *_NAMED, *_MERGED}
    for cls in map(_PASSES.__getitem__, names):
        for field in ("after", "before"):
            for other in getattr(cls.info, field):
                if other not in known:
                    hint = nearest(other, known, "`onnxopt passes` lists them")
                    text = f"pass {cls.info.name}: {field} names {other!r}, which no pass is called; {hint}"
                    code = sys.modules[cls.__module__].__file__ or cls.__module__
                    warnings.warn_explicit(text, UserWarning, code, 1)


def registered_by(sources: Collection[str]) -> list[str]:
    """Return the passes registered by `load_module` from these sources."""
    return [name for name, origin in _ORIGINS.items() if origin in sources]


def loaded_modules() -> list[str]:
    """Return the sources imported by `load_module` so far."""
    return list(dict.fromkeys(_MODULES))


def load_plugins() -> None:
    """Import, once, the entry points `onnxopt.passes`: passes, or modules with registered passes.

    Raises UsageError with all plugins that failed, after loading the others.
    """
    if _LOADED:
        return
    from importlib.metadata import entry_points

    from onnxopt.verification.runtime import DECLARED, name_plugin

    _LOADED.append(GROUP)
    failed: dict[str, BaseException] = {}
    for point in entry_points(group=GROUP):
        import_the_rest()
        before, referred = set(_PASSES), set(DECLARED)
        label = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            found = point.load()
            if isinstance(found, type) and issubclass(found, Pass):
                register(found)
        except BaseException as e:
            if is_no_fault(e):
                raise
            failed[f"the plugin {point.name} ({label}) cannot be loaded: {told(e)}"] = e
        _ORIGINS.update({name: label for name in _PASSES if name not in before})
        name_plugin(DECLARED.keys() - referred, label)
    if failed:
        raise UsageError("; ".join(failed), "update or uninstall it") from next(iter(failed.values()))
