"""Options of an optimization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onnxopt.arguments import check_whole, names_in, names_of, places_in, requested_changes, shapes_in, sizes_in
from onnxopt.errors import ModelError, UsageError, any_of
from onnxopt.graph.dims import specialise
from onnxopt.io import load
from onnxopt.passes.levels import converting, pipeline_for
from onnxopt.pipeline import Instrument, PassContext, Sequential, is_rule, parse_pipeline
from onnxopt.pipeline.base import check_level
from onnxopt.pipeline.context import MEMORY, WORK, Trace
from onnxopt.pipeline.records import Site
from onnxopt.pipeline.registry import known_as
from onnxopt.pipeline.settings import RUNTIME, targets_in, version_in
from onnxopt.worker.limits import Limits

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxopt.graph import Model
    from onnxopt.optimizer.forms import Choice, Chosen
    from onnxopt.verification import VerifyOptions

_DTYPES: Final = ("float16", "bfloat16")
_CHANGES: Final = (  # options that change a model without passes
    *("extra", "dtype", "int32", "dims", "shapes", "make_dynamic", "target_opset"),
    *("inline_functions", "infer_shapes", "rename", "name_nodes", "strip_qdq"),
)


class Converted(NamedTuple):
    """Changes made before the passes."""

    freed: Mapping[str, int]  # {new symbol: number replaced}
    told: Sequence[str]  # warnings
    int64: int  # number of int64 values, if requested as int32


@dataclass(eq=False, repr=False)
class OptimizeOptions:
    """Options of an optimization: passes, changes of the model, and limits. See `onnxopt.optimize` for the keywords.

    Not among the keywords: `excluded`, single matches that made a result wrong, and `limits`, the resources of native
    code on untrusted model data. `dims`, `shapes`, `make_dynamic` and `rename` are mappings, empty by default.

    For files only: `inline_functions`, `target_opset`, `provenance` and `external`.
    """

    level: int = 2
    pipeline: str | None = None
    extra: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    target: str | Sequence[str] = "any"
    max_rewrites: int | None = None
    freeze_initializers: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    make_dynamic: Mapping[str, str] = field(default_factory=dict)
    allow_domains: Sequence[str] = ()
    infer_shapes: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)
    name_nodes: bool = False
    strip_qdq: bool = False
    keep: Sequence[str] = ()
    inline_functions: bool = False
    target_opset: int | None = None
    provenance: bool = False
    external: str = "auto"
    dtype: str = ""
    int32: bool = False
    keep_io: bool = True
    excluded: tuple[Site, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Normalize names and sizes. Raises UsageError for invalid types and values."""
        if self.dtype not in ("", *_DTYPES):
            raise UsageError(f"there is no dtype {self.dtype!r}", f"what is float32 becomes {any_of(_DTYPES)}")
        if not isinstance(self.pipeline, str | None):
            raise UsageError("pipeline is no text", 'pipeline="dead-code,elim-identity"')
        if RUNTIME in str(self.target):  # resolved here, as the installed version may differ elsewhere
            vars(self).update(target=",".join(targets_in(self.target)))
        if self.target_opset is not None:
            check_whole("target_opset", self.target_opset)
        if self.keep and not self.strip_qdq:
            raise UsageError("--keep is for --strip-qdq", "without it all quantizers stay")
        names = {
            name: tuple(names_in(getattr(self, name), name)) for name in ("extra", "disable", "allow_domains", "keep")
        }
        vars(self).update(rename=names_of(self.rename, "rename"))
        vars(self).update(names, dims=sizes_in(self.dims, "dims"), shapes=shapes_in(self.shapes, "shapes"))
        vars(self).update(make_dynamic=places_in(self.make_dynamic, "make_dynamic"))

    @cached_property
    def chosen(self) -> Chosen | None:
        """The choices for the target; None unless a measured runtime is a target."""
        if RUNTIME not in str(self.target):
            return None
        from onnxopt.optimizer.forms import chosen_for

        return chosen_for(version_in(targets_in(self.target)), self.level if self.pipeline is None else 2)

    def choices(self, model: Model) -> list[Choice]:
        """Return the choices made for a model read by `load`, with reasons."""
        if self.chosen is None:
            return []
        from onnxopt.optimizer.forms import Choice

        lacking = model.without
        choices = (Choice(f"no {c.what}", lacking[c.what]) if c.what in lacking else c for c in self.chosen.choices)
        return [*model.raised, *choices]

    @property
    def freed(self) -> tuple[str, ...]:
        """The symbols of dims made dynamic."""
        return tuple(dict.fromkeys(self.make_dynamic.values()))

    def judging(self, options: VerifyOptions) -> VerifyOptions:
        """Return `options` for a result made with these options: requested changes are no differences."""
        given = {name: getattr(self, name) for name in ("dtype", "int32", "keep_io", "freed", "strip_qdq", "keep")}
        return replace(options, **requested_changes(**given))

    @property
    def _level(self) -> int:
        return self.level if self.chosen is None or self.pipeline is not None else self.chosen.level

    @property
    def only_copy(self) -> bool:
        """Whether the options request a mere copy. A changed model is still verified."""
        passes = self.level if self.pipeline is None else self.pipeline.strip()
        return not (passes or any(getattr(self, name) for name in _CHANGES))

    def load(self, source: str | Path, *, stored: bool = False) -> Model:
        """Return the model of a file; `stored`: large weights stay there. Raises ModelError and UsageError."""

        def read(opset: int | Callable[[ModelProto, Path], int] | None) -> Model:
            def convert(proto: ModelProto, path: Path) -> bool:
                from onnxopt.conversion.opset import convert_opset

                assert opset is not None
                before = len(proto.functions)
                changed = convert_opset(proto, opset(proto, path) if callable(opset) else opset, path, self.limits)
                return changed or len(proto.functions) < before

            return load(
                source,
                freeze_initializers=self.freeze_initializers,
                inline_functions=self.inline_functions,
                convert=None if opset is None else convert,
                stored=stored,
            )

        if self.chosen is None:
            return read(self.target_opset)
        from onnxopt.optimizer.forms import Choice, Raise

        raising = Raise(self.chosen)
        try:
            model = read(raising.newest if self.target_opset is None else self.target_opset)
        except ModelError as e:
            if self.target_opset is not None or raising.told is None:
                raise
            raising.told, raising.inlined = Choice("the opset stays", e.message), None
            model = read(None)
        model.without = raising.lacking(model.opsets.get("", 0))
        model.raised = [choice for choice in (raising.inlined, raising.told) if choice is not None]
        return model

    def load_specialised(self, source: str | Path) -> Model:
        """Return the model with given sizes of dims, and large weights in the file. Raises as `load`."""
        model = self.load(source, stored=True)
        specialise(model, self.dims, self.shapes)
        return model

    def load_converted(self, source: str | Path) -> Model:
        """Return the model as passed to the passes. Raises as `load` and `convert`."""
        model = self.load_specialised(source)
        self.convert(model)
        return model

    def convert(self, model: Model) -> Converted:
        """Apply the requested changes to a loaded model. Raises UsageError if impossible."""
        freed, told = dict[str, int](), list[str]()
        if self.make_dynamic:
            from onnxopt.conversion.dynamic import make_dynamic

            freed = make_dynamic(model, self.make_dynamic)
        if self.strip_qdq:
            from onnxopt.conversion.strip_qdq import strip_qdq

            told = list(strip_qdq(model, self.keep))
        int64 = 0
        if self.int32:
            from onnxopt.optimizer.remarks import count_int64

            int64 = count_int64(model)
            if model.functions:
                told.append("--int32: functions keep their types; --inline-functions puts them in place of their calls")
        return Converted(freed, told, int64)

    def passes(self) -> Sequential:
        """Return the pipeline. Raises UsageError for an unknown level or name, and invalid text."""
        check_level(self.level)
        chosen = pipeline_for(self._level, self._extra()) if self.pipeline is None else parse_pipeline(self.pipeline)
        is_converted = self.dtype or self.int32
        return converting(chosen, self.dtype, self.int32, self.keep_io) if is_converted else chosen

    def _extra(self) -> Sequence[str]:
        """Return the extra passes, those for preferred targets first."""
        if len(self.extra) < 2:
            return self.extra
        from onnxopt.pipeline.settings import preferred_first

        return preferred_first(self.extra, targets_in(self.target))

    def context(self, instruments: Sequence[Instrument] = (), trace: Trace | None = None) -> PassContext:
        """Return the context of the run. Raises UsageError for unknown names and keys."""
        required = self.extra if self.pipeline is None else tuple(p.name for p in parse_pipeline(self.pipeline).walk())
        if self.dtype:  # at every level
            required = (*required, "convert-dtype", "elim-identity", "dead-code")
        whole = [known_as(name) for name in self.disable if "@" not in name]
        if self.int32:
            required = (*required, "convert-int32", "elim-identity", "dead-code")
            whole.append("widen-indices")  # which is the opposite
        limits = {MEMORY: self.limits.memory, WORK: self.limits.work}
        config = {key.name: value for key, value in limits.items() if value != key.default} | dict(self.config)
        if self.chosen is not None:
            whole += self.chosen.rules
            config = {**self.chosen.config, **config}
        return PassContext(
            opt_level=self._level,
            required_pass=required,
            disabled_pass=[name for name in whole if not is_rule(name)],
            disabled_rule=[name for name in whole if is_rule(name)],
            config=config,
            target=self.target,
            instruments=instruments,
            trace=trace,
            max_rewrites=self.max_rewrites,
            excluded=[*self.sites(), *self.excluded],
            allow_domains=self.allow_domains,
        )

    def sites(self) -> list[Site]:
        """Return the single matches in `disable`. Raises UsageError for an unknown rule."""
        found = [Site.parse(text) for text in self.disable if "@" in text]
        return [replace(site, name=known_as(site.name)) for site in found]
