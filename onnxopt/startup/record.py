"""Records: dataclasses with shared methods, of which only `__init__` is compiled, and late.

`dataclass` compiles `__init__`, `__repr__`, `__eq__` and further methods for each class, in half a millisecond. A
command imports sixty classes and creates few objects of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from inspect import get_annotations  # which dataclasses imports
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform, overload

T = TypeVar("T")

_MAX_SHOWN: Final = 100  # characters of a field
_MAX_UNCOMPILED: Final = 20  # objects; compiling takes as long as creating them


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, frozen: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(field,))
def record(cls: Any = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
    """Make `cls` a dataclass, also for `fields`, `replace` and `asdict`. `frozen`: each field is set once."""
    return _made(cls, frozen, eq) if cls is not None else lambda decorated: _made(decorated, frozen, eq)


def plain(value: Any) -> Any:
    """Return `asdict(value)` in a third of the time: only dataclasses, lists, tuples and dicts are copied."""
    return _plain(value, {})


def _plain(value: Any, known: dict[type, tuple[str, ...] | None]) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is float:
        return value
    if kind is dict:
        return {_plain(key, known): _plain(v, known) for key, v in value.items()}
    if kind is list or kind is tuple:
        return kind([_plain(v, known) for v in value])
    if kind not in known:
        known[kind] = tuple(f.name for f in fields(value)) if is_dataclass(kind) else None
    names = known[kind]
    return value if names is None else {name: _plain(getattr(value, name), known) for name in names}


def _made(cls: type, frozen: bool, eq: bool) -> Any:
    own = vars(cls).keys()
    made: Any = _with_fields(cls)
    # The attribute is private to the dataclasses module: tests/test_record.py derives records and dataclasses from each
    # other.
    made.__dataclass_params__.frozen = frozen
    if "__init__" not in own:
        made.__init__ = _compiled_later(made, frozen)
        made.__signature__ = _Signature()
    if "__repr__" not in own:
        made.__repr__ = _repr
    if eq and "__eq__" not in own:
        made.__eq__ = _eq
        if "__hash__" not in own:
            made.__hash__ = _hash if frozen else None
    if frozen:
        if "__setattr__" not in own:
            made.__setattr__ = _set_once
        made.__delattr__ = _delete
    return made


def _with_fields(cls: type) -> Any:
    """Return `cls` as a dataclass without compiled methods, also if a base class is frozen.

    Annotations are hidden meanwhile: dataclasses searches each text for ClassVar, a third of its time.
    """
    frozen = [p for p in (vars(c).get("__dataclass_params__") for c in cls.__mro__[1:]) if p is not None and p.frozen]
    for params in frozen:
        params.frozen = False
    annotations = get_annotations(cls)
    cls.__annotations__ = {name: kind if "ClassVar" in str(kind) else object for name, kind in annotations.items()}
    try:
        made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    finally:
        cls.__annotations__ = annotations
        for params in frozen:
            params.frozen = True
    for f in fields(made):
        f.type = annotations.get(f.name, f.type)
    return made


def _compiled_later(cls: Any, frozen: bool) -> Callable[..., None]:
    made = 0
    signature: _Parameters | None = None

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        nonlocal made, signature
        made += 1
        if signature is None:
            signature = _Parameters(cls)
        passed = dict(zip(signature.places, args)) | given
        values = signature.defaults | passed
        for name, make in signature.factories:
            if name not in passed:
                values[name] = make()
        is_sound = len(passed) == len(args) + len(given) and values.keys() == signature.names
        if made > _MAX_UNCOMPILED or not is_sound:  # the compiled function raises Python's own error
            cls.__init__ = _compiled(cls, frozen)
            cls.__init__(self, *args, **given)
            return
        vars(self).update(values)
        if hasattr(cls, "__post_init__"):
            self.__post_init__()

    return __init__


class _Parameters:
    """The parameters of an `__init__` that is not compiled."""

    def __init__(self, cls: type) -> None:
        known = _in_order(cls)
        self.names = {f.name for f in known}
        self.places = [f.name for f in known if not f.kw_only]
        self.defaults = {f.name: f.default for f in known if f.default is not MISSING}
        self.factories: list[tuple[str, Any]] = [
            (f.name, f.default_factory) for f in known if f.default_factory is not MISSING
        ]


def _compiled(cls: type, frozen: bool) -> Callable[..., None]:
    """Return a compiled `__init__`, which sets the fields; of a frozen class all at once, bypassing `__setattr__`."""
    scope: dict[str, Any] = {"_unset": MISSING}
    parameters, lines, kept = ["self"], [], []
    for f in _in_order(cls):
        value = f.name
        if f.kw_only and "*" not in parameters:
            parameters.append("*")
        if f.default is not MISSING:
            scope[f"_{value}"] = f.default
            parameters.append(f"{value}=_{value}")
        elif f.default_factory is not MISSING:
            scope[f"_{value}"] = f.default_factory
            parameters.append(f"{value}=_unset")
            value = f"_{value}() if {value} is _unset else {value}"
        else:
            parameters.append(value)
        if frozen:
            kept.append(f"{f.name!r}: {value}")
        else:
            lines.append(f"self.{f.name} = {value}")
    if frozen:
        lines.append(f"self.__dict__.update({{{', '.join(kept)}}})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"  # for error messages
    return made


def _in_order(cls: type) -> list[Field[Any]]:
    """Return the fields in the order of the parameters of `__init__`."""
    return sorted(fields(cls), key=attrgetter("kw_only"))


class _Signature:
    """The signature of a class, for `inspect` and `help`."""

    def __get__(self, record: object, cls: Any) -> Any:
        from inspect import Parameter, Signature

        def parameter(f: Any) -> Parameter:
            made = f.default_factory is not MISSING
            default = f.default_factory() if made else Parameter.empty if f.default is MISSING else f.default
            kind = Parameter.KEYWORD_ONLY if f.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            return Parameter(f.name, kind, default=default, annotation=f.type)

        return Signature([parameter(f) for f in _in_order(cls)])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={_brief(getattr(self, f.name))}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _brief(value: Any) -> str:
    """Return the repr of a field, or the length of a long list: a record is shown in a line."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN or not isinstance(value, (list, tuple, dict)) else f"<{len(value)} of them>"


def _compared(self: Any) -> Any:
    """Return the compared fields."""
    kind: Any = type(self)
    getter = kind.__dict__.get("_compared")  # of the class itself, not of a base
    if getter is None:
        names = [f.name for f in fields(self) if f.compare]
        getter = kind._compared = staticmethod(attrgetter(*names) if names else lambda self: ())
    return getter(self)


def _eq(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _set_once(self: Any, name: str, value: object) -> None:
    if name in vars(self) or all(name != f.name for f in fields(self)):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
