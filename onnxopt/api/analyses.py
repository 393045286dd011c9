"""`onnxopt.bisect`, `stats`, `find` and `verify`: these commands as functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from onnxopt import bisection
from onnxopt.analysis.types import infer
from onnxopt.api.arguments import input_files, model_file, name_of, refuse
from onnxopt.api.settings import SETTINGS, make_options
from onnxopt.arguments import kind
from onnxopt.graph.dims import specialise
from onnxopt.graph.text import node_text
from onnxopt.io import blaming, load
from onnxopt.plaintext import an
from onnxopt.rewriting import SubgraphMatcher
from onnxopt.rewriting.diagnose import refuse_unknown
from onnxopt.verification import VerifyOptions, verifier
from onnxopt.verification.records import Comparison

if TYPE_CHECKING:
    from onnxopt.analysis.stats import ModelStats
    from onnxopt.api.arguments import AnyModel
    from onnxopt.bisection import Finding
    from onnxopt.graph import Model
    from onnxopt.rewriting import SubgraphMatch
    from onnxopt.verification import Verification


def bisect(
    model: AnyModel,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    verify_dims: Mapping[str, int] | None = None,
    custom_op_libraries: Sequence[str | os.PathLike[str]] = (),
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> Finding:
    """Find the rewrite with which the optimized model differs from the original, and the smallest model with the fault.

    `settings`: settings of `optimize` for passes and changes of the model. `progress` is called with each step of the
    search. Raises UsageError if the result does not differ, the error of a failing pass, and TypeError for an unknown
    keyword.
    """
    refuse("bisect", settings, SETTINGS)
    options = make_options(**settings)
    with model_file(model) as source, blaming(source):
        judging = VerifyOptions(
            rtol,
            atol,
            seed,
            limit=options.limits.memory,
            dims=dict(verify_dims or {}),
            custom_op_libraries=custom_op_libraries,
        )
        return bisection.bisect(source, options, options.judging(judging), progress)


def stats(
    model: AnyModel,
    *,
    work: bool = False,
    top: int = 0,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ModelStats:
    """Operators, nodes, initializers, parameters and bytes of a model file or a ModelProto.

    `work`: also MACs, FLOPs and memory of a run, with the `top` nodes by work, for dynamic inputs of sizes `dims` (by
    symbol) and `shapes` (by input). Raises ModelError for an unreadable model, UsageError for unknown names.
    """
    from onnxopt.analysis.stats import model_stats, model_work
    from onnxopt.conversion.extraction import settle_shapes

    with model_file(model) as source, blaming(source):
        measured = load(source, stored=True)
        counted = replace(model_stats(measured), path=name_of(source))
        if not work:
            return counted

        def loaded() -> Model:
            again = load(source, inline_functions=True, stored=True)
            specialise(again, dims or {}, shapes or {})
            return again

        if measured.functions or dims or shapes:
            measured = loaded()
        settle_shapes(measured, loaded)
        return replace(counted, work=model_work(measured, top))


_MAX_INFERRED_NODES: Final = (
    20_000  # nodes of a model, of which nothing is inferred to show shapes: that takes longer than to find
)


@dataclass
class FoundNode:
    """A node of a match."""

    op: str
    name: str
    outputs: list[str]


@dataclass
class Found:
    """A match. `scope`: the graph. `results`: the values of the pattern's results. `nodes` and `values`: matched nodes
    and values by names of the pattern. `text`: the nodes in ONNX text, in order."""

    scope: str
    results: list[str]
    nodes: dict[str, FoundNode] = field(default_factory=dict)
    values: dict[str, str | None] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `onnxopt find --format json`."""
        return {name: value for name, value in asdict(self).items() if name != "text"}

    def __str__(self) -> str:
        return "\n".join([f"{self.scope}: {', '.join(self.results)}", *(f"  {line}" for line in self.text)])


def find(
    model: AnyModel,
    pattern: str,
    *,
    match_outputs: bool = False,
    overlapping: bool = False,
    match_placeholder: bool = False,
    ignore_literals: bool = False,
    tolerance: float = 0.0,
    exact: bool = False,
    single_use: bool = False,
) -> list[Found]:
    """Find the nodes of a model that match `pattern`, an expression or the body of a function in ONNX text.

    Raises UsageError for an invalid pattern, and for an unknown operator.
    """
    matcher = SubgraphMatcher(
        pattern,
        match_outputs=match_outputs,
        match_placeholder=match_placeholder,
        overlapping=overlapping,
        ignore_literals=ignore_literals,
        tolerance=tolerance,
        exact=exact,
        shared=not single_use,
    )
    with model_file(model) as source, blaming(source):
        loaded = load(source, stored=True)
        found = matcher.match(loaded)
        if not found:
            refuse_unknown(matcher.example.results, loaded)
        elif loaded.node_count() <= _MAX_INFERRED_NODES:
            infer(loaded)  # for the shapes that are shown
        return [_found(m) for m in found]


def _found(m: SubgraphMatch) -> Found:
    nodes = dict.fromkeys(reversed([n for n, _ in m.bindings.covered]))
    return Found(
        m.anchor.graph.path if m.anchor.graph is not None else "",
        [v.name for v in m.results],
        {
            name: FoundNode(n.op, n.name, [v.name if v is not None else "" for v in n.outputs])
            for name, n in m.nodes.items()
        },
        {name: v.name if v is not None else None for name, v in m.values.items()},
        [node_text(node) for node in nodes],
    )


def verify(original: AnyModel, result: AnyModel, options: VerifyOptions | None = None, **settings: Any) -> Verification:
    """Compare two model files or ModelProtos: same inputs, onnxruntime with graph optimizations off, every output.

    The fields of VerifyOptions are keywords, such as `rtol=1e-3`; values of `inputs` are arrays or .npy files. The
    default inputs are the optimizer's own. With cases, datasets, a provider or dims, the comparison is that of
    `onnxopt verify`, and the result a `Comparison`. `.ok` is true if both compute the same.

    Raises ModelError for an invalid model, UsageError for models with different inputs or outputs, TypeError for an
    unknown keyword.
    """
    refuse("verify", settings, [f.name for f in fields(VerifyOptions)])
    if not isinstance(options, VerifyOptions | None):
        raise TypeError(f"verify() takes VerifyOptions as its third argument, not {an(kind(options))}")
    with ExitStack() as stack:
        a, b = (stack.enter_context(model_file(model)) for model in (original, result))
        options = replace(options or VerifyOptions(), **settings)
        given = stack.enter_context(input_files(options.inputs, "inputs"))
        found = verifier.verify(a, b, replace(options, inputs=given))
        if isinstance(found, Comparison):
            found.a, found.b = name_of(a), name_of(b)
        return found
