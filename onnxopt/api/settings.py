"""The settings of an optimization as keywords: those of the command's options, with the same names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from onnxopt.api.telling import warn
from onnxopt.errors import UsageError, any_of
from onnxopt.optimizer import OptimizeOptions
from onnxopt.pipeline.settings import names_in
from onnxopt.worker.limits import Limits

_DTYPES: Final = ("float16", "bfloat16")


class Settings(TypedDict, total=False):
    """What `make_options` takes, for functions that hand it on."""

    level: int
    pipeline: str | None
    extra: Sequence[str]
    disable: Sequence[str]
    config: Mapping[str, Any] | None
    target: str | Sequence[str]
    plugins: Sequence[str]
    freeze_initializers: bool
    dims: Mapping[str, int] | None
    shapes: Mapping[str, Sequence[int]] | None
    target_opset: int | None
    dtype: str | None
    keep_io: bool
    inline_functions: bool
    max_constant_bytes: int | None
    memory: int
    work: float
    allow_domains: Sequence[str]


def make_options(
    *,
    level: int = 2,
    pipeline: str | None = None,
    extra: Sequence[str] = (),
    disable: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    target: str | Sequence[str] = "any",
    plugins: Sequence[str] = (),
    freeze_initializers: bool = False,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target_opset: int | None = None,
    dtype: str | None = None,
    keep_io: bool = True,
    inline_functions: bool = False,
    max_constant_bytes: int | None = None,
    memory: int = 0,
    work: float = Limits.work,
    allow_domains: Sequence[str] = (),
    max_rewrites: int | None = None,
    provenance: bool = False,
    external: str = "auto",
) -> OptimizeOptions:
    """Returns the options; loads the plugins, and warns of passes that are not for the target. Raises UsageError for
    what is no setting."""
    if dtype not in (None, "", *_DTYPES):
        raise UsageError(f"there is no dtype {dtype!r}", f"what is float32 becomes {any_of(_DTYPES)}")
    for plugin in names_in(plugins, "plugins"):
        from onnxopt.pipeline.registry import load_module

        load_module(plugin)
    limit = {} if max_constant_bytes is None else {"constant-folding.max-bytes": max_constant_bytes}
    options = OptimizeOptions(
        level=level,
        pipeline=pipeline,
        extra=tuple(names_in(extra, "extra")),
        disable=tuple(names_in(disable, "disable")),
        config={**(config or {}), **limit},
        target=target,
        max_rewrites=max_rewrites,
        freeze_initializers=freeze_initializers,
        dims=dims or {},
        shapes=shapes or {},
        allow_domains=allow_domains,
        inline_functions=inline_functions,
        target_opset=target_opset,
        provenance=provenance,
        external=external,
        dtype=dtype or "",
        keep_io=keep_io,
        limits=Limits(memory, work),
    )
    if pipeline is not None or extra:
        from onnxopt.optimizer.remarks import not_for_target

        warn(not_for_target(options))
    return options
