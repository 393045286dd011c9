"""Settings of an optimization as keywords, with the names and defaults of the command's options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from onnxopt.api.telling import warn
from onnxopt.arguments import all_in, dict_in
from onnxopt.optimizer import OptimizeOptions
from onnxopt.worker import Limits

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict:
        """Keeps annotations as text. `typing.TypedDict` compiles each annotation, in a millisecond of each start."""

        def __init_subclass__(cls, total: bool) -> None:
            cls.__annotations__ = {**cls.__base__.__annotations__, **cls.__annotations__}


class Settings(TypedDict, total=False):
    """Settings for passes and changes of the model, of each function that optimizes."""

    level: int
    pipeline: str | None
    extra: Sequence[str]
    disable: Sequence[str]
    config: Mapping[str, Any] | None
    target: str | Sequence[str]
    plugins: Sequence[str | os.PathLike[str]]
    freeze_initializers: bool
    dims: Mapping[str, int] | None
    shapes: Mapping[str, Sequence[int]] | None
    make_dynamic: Mapping[str, str] | None
    target_opset: int | None
    dtype: str | None
    int32: bool
    keep_io: bool
    infer_shapes: bool
    inline_functions: bool
    strip_qdq: bool
    keep: Sequence[str]
    max_constant_bytes: int | None
    memory: int
    work: float
    allow_domains: Sequence[str]


class OfAResult(Settings, total=False):
    """Further settings for a written result."""

    max_rewrites: int | None
    provenance: bool
    external: str
    rename: Mapping[str, str] | None
    name_nodes: bool


def make_options(**settings: Unpack[OfAResult]) -> OptimizeOptions:
    """Returns the options; loads the plugins, and warns of passes for other targets.

    Raises UsageError for an invalid setting.
    """
    given: dict[str, Any] = {**settings}
    for plugin in all_in(given.pop("plugins", ()), "plugins", "files and modules"):
        from onnxopt.pipeline.registry import load_module

        load_module(os.fspath(plugin))
    config = dict_in(given.pop("config", None), "config", "VALUE")
    if (most := given.pop("max_constant_bytes", None)) is not None:
        config = {**config, "constant-folding.max-bytes": most}
    limits = Limits(given.pop("memory", 0), given.pop("work", Limits.work))
    options = OptimizeOptions(**given | {"dtype": given.get("dtype") or ""}, config=config, limits=limits)
    if options.pipeline is not None or options.extra:
        from onnxopt.optimizer.remarks import not_for_target

        warn(not_for_target(options))
    return options
