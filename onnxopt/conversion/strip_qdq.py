"""Removal of pairs of QuantizeLinear and DequantizeLinear; quantized weights become floats."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from onnxopt.analysis import types
from onnxopt.analysis.folding import dequantize
from onnxopt.errors import UsageError, few, nearest
from onnxopt.graph import Model, Value
from onnxopt.graph.node import Node
from onnxopt.plaintext import counted

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def strip_qdq(model: Model, keep: Collection[str]) -> list[str]:
    """Replace DequantizeLinear(QuantizeLinear(x)) by x, and the DequantizeLinear of a constant by floats.

    `keep`: names of quantizers that stay, or of their first operands and results. Returns warnings about changed
    numbers. Raises UsageError for a name without a quantizer.
    """
    types.update(model)
    _check_names(model, keep)
    pairs = weights = 0
    left: dict[str, list[str]] = {}
    for node in list(_nodes(model, _DEQUANTIZE)):
        source = _quantizer(node)
        if _is_kept(node, keep) or _is_kept(source, keep):
            continue
        if source is not None and not (why := _why_not(source, node)):
            _replace(node, source.operand(0))
            pairs += 1
        elif source is None and not (why := _fold(node)):
            weights += 1
        else:
            left.setdefault(why, []).append(f"`{node.outputs[0].name}`" if node.outputs[0] is not None else repr(node))
    return _warnings(pairs, weights, left)


def _warnings(pairs: int, weights: int, left: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the warnings. `left`: names of quantizers that stay, by reason."""
    told = [f"{few(names)} stay{'s' if len(names) == 1 else ''} quantized: {why}" for why, names in left.items()]
    if not pairs + weights:
        return [f"--strip-qdq: there is nothing to strip{f': {told[0]}' if told else ''}"]
    gone = [f"{counted(pairs, 'pair')} of {_QUANTIZE} and {_DEQUANTIZE} less"] if pairs else []
    gone += [f"{counted(weights, 'weight')} in floats"] if weights else []
    changes = " changes numbers" if pairs else ""
    against = "; the result is compared with the original without them" if pairs else ""
    return [f"--strip-qdq{changes}: {', '.join(gone)}{against}", *told]


def _check_names(model: Model, keep: Collection[str]) -> None:
    if not keep:
        return
    known = {name: None for op in (_QUANTIZE, _DEQUANTIZE) for node in _nodes(model, op) for name in _names(node)}
    for name in keep:
        if name not in known:
            hint = nearest(name, known, f"there are {few([*known])}" if known else "the model has none")
            raise UsageError(f"{model.name}: no quantizer reads or makes {name!r}, or is called so", hint)


def _nodes(model: Model, op_type: str) -> Iterator[Node]:
    for scope in model.open_scopes():
        for op in (op_type, f"com.microsoft::{op_type}"):
            yield from scope.by_op.get(op, ())


def _names(node: Node) -> list[str]:
    """Return the names of a quantizer for users."""
    ends = (node.input(0), *node.outputs)
    return [*filter(None, [node.name]), *(v.name for v in ends if v is not None)]


def _is_kept(node: Node | None, keep: Collection[str]) -> bool:
    return bool(keep) and node is not None and not set(keep).isdisjoint(_names(node))


def _quantizer(node: Node) -> Node | None:
    """Return the QuantizeLinear whose result a DequantizeLinear reads."""
    source = node.input(0)
    made_by = source.producer if source is not None else None
    return made_by if made_by is not None and made_by.proto.op_type == _QUANTIZE else None


def _why_not(quantizer: Node, node: Node) -> str:
    """Return why the pair is more than rounding; empty for a pair that only rounds."""
    x, out = quantizer.input(0), node.outputs[0]
    if x is None or out is None or not types.dtype(x) or types.dtype(x) != types.dtype(out):
        return "its type is another than that of what is quantized"
    for i in (1, 2):
        if not _are_equal(quantizer.input(i), node.input(i)):
            return "it is scaled otherwise than it was quantized"
    of_both = ("axis", 1), ("block_size", 0)
    if any(quantizer.attr(name, default) != node.attr(name, default) for name, default in of_both):
        return "it is scaled otherwise than it was quantized"
    return ""


def _are_equal(a: Value | None, b: Value | None) -> bool:
    if a is b:
        return True
    if a is None or b is None:  # the default, zero
        other = a or b
        return other is not None and other.constant and not other.array.astype(np.float32).any()
    return a.constant and b.constant and a.array.dtype == b.array.dtype and np.array_equal(a.array, b.array)


def _replace(node: Node, by: Value) -> None:
    """Replace the result of a DequantizeLinear by `by`, and drop nodes and weights without readers."""
    reads = list(node.inputs)
    node.output.replace_all_uses_with(by)
    if node.graph is not None and not node.is_used:
        node.graph.remove(node)
    _drop(reads)


def _drop(values: Collection[Value | None]) -> None:
    """Drop quantizers and their parameters without readers."""
    for v in values:
        if v is None or v.is_used:
            continue
        if v.producer is None and not v.is_input and v.graph.initializers.get(v.name) is v:
            v.graph.remove_initializer(v)
        elif v.producer is not None and v.producer.graph is not None and v.producer.proto.op_type == _QUANTIZE:
            reads = list(v.producer.inputs)
            v.producer.graph.remove(v.producer)
            _drop(reads)


def _fold(node: Node) -> str:
    """Replace the DequantizeLinear of a constant by floats. Returns the reason if impossible, else empty."""
    if any(v is not None and not v.constant for v in node.inputs):
        return "integers come from elsewhere"
    array = dequantize(node, [None if v is None else v.array for v in node.inputs])
    if array is None or node.graph is None:
        return "runtimes may differ in how it is scaled"
    name = node.outputs[0].name if node.outputs[0] is not None else "weight"
    _replace(node, node.graph.constant(array, name, node))
    return ""
