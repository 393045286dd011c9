"""Choices for a target runtime: level, forms of operators, opset, with reasons.

A form is measured by rows of docs/forms.md: its time relative to the alternative. Faster forms are made and slower
forms avoided at any level; forms of equal time follow the level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto

from onnxopt.operators.operands import CONTRIB_DOMAIN
from onnxopt.pipeline.measured import FORMS, LACKS, LOADS
from onnxopt.proto.functions import inlined as inline_functions
from onnxopt.proto.messages import DEFAULT_DOMAINS, all_nodes

_SAME: Final = 0.02  # a ratio closer to 1 decides nothing
_NORMALIZATIONS: Final = ("flatten-rows.normalizations", "unmerge-batches.normalizations")
_RESHAPES: Final = 8  # Reshapes that take less time than Add and LayerNormalization of the slower rank
_SCORES: Final = 64  # MiB in one Attention; blocks with fewer take as long
_FASTEST: Final = 3  # the level whose passes make the forms


# (last opset known to all of onnxruntime's optimizations, row with the cost of later ones).
_KNOWN: Final = {"Conv": (21, "convolution-opset")}


@dataclass(frozen=True)
class Form:
    """An alternative form of a formula."""

    name: str
    rows: tuple[str, ...]  # of docs/forms.md
    rules: tuple[str, ...] = ()  # rules that make the form
    options: tuple[str, ...] = ()  # config keys that make passes prefer (`value`) or avoid (-`value`) the form
    value: int = 0
    operator: str = ""  # operator for which the opset is raised


def ratio_of(rows: Sequence[str], version: str) -> float | None:
    """Return the geometric mean of the measured ratios of rows; None if not measured."""
    found = [log(size[0]) for row in rows for size in FORMS[version].get(row, {}).values()]
    return exp(sum(found) / len(found)) if found else None


CHOICES: Final = (
    Form(
        "Attention",
        ("attention", "attention-mask", "attention-guard", "attention-past", "attention-past-or-five"),
        ("attention",),
        operator="Attention",
    ),
    Form("Attention of rows", ("attention-rows",), ("attention_of_rows",)),
    Form(
        "RotaryEmbedding",
        ("rotary-embedding",),
        ("rotary_embedding", "rotary_of_halves", "rotary_of_pairs", "rotary_of_numbers"),
        operator="RotaryEmbedding",
    ),
    Form("RMSNormalization", ("rms-normalization", "add-rms-normalization"), ("rms_normalization",)),
    Form("LayerNormalization", ("layer-normalization",), ("layer_normalization",)),
    Form("GroupNormalization", ("group-normalization",), ("group_normalization",)),
    Form("Gelu", ("gelu",), ("gelu",)),
    Form("matrices for Add and LayerNormalization", ("add-normalization",), options=_NORMALIZATIONS, value=_RESHAPES),
    Form("a scale of 1 for Attention", ("attention-scale",), options=("scale-propagation.attention",), value=1),
    Form("blocks of queries for Attention", ("attention-blocks",), options=("attention-heads.scores",), value=_SCORES),
)


@dataclass
class Choice:
    """A choice for the target, with the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class Chosen:
    """All choices for a version of the runtime."""

    version: str
    level: int
    rules: tuple[str, ...]  # left out
    config: Mapping[str, Any]  # values of config keys
    operators: tuple[str, ...]  # for which the opset is raised
    choices: tuple[Choice, ...]


def chosen_for(version: str, level: int) -> Chosen:
    """Return the choices at a level. None below 2: results are exact there, and forms differ by rounding."""
    if level < 2:
        return Chosen(version, level, (), {}, (), (Choice("nothing", f"-O{level} changes no number"),))
    rules: list[str] = []
    config: dict[str, Any] = {}
    operators: list[str] = []
    choices = []
    if level < _FASTEST:
        choices.append(Choice(f"-O{_FASTEST}", f"its passes make the forms, and it promises what -O{level} does"))
    for form in CHOICES:
        ratio = ratio_of(form.rows, version)
        rows = f"{ratio:.2f} times as long, {', '.join(form.rows)}" if ratio is not None else "it was not measured"
        if ratio is None or ratio > 1 + _SAME:
            rules += form.rules
            config |= dict.fromkeys(form.options, -form.value)
            choices.append(Choice(f"no {form.name}", rows))
        elif ratio < 1 - _SAME:
            operators += [form.operator] if form.operator else []
            config |= dict.fromkeys(form.options, form.value)
            choices.append(Choice(form.name, rows))
    return Chosen(version, max(level, _FASTEST), tuple(rules), config, tuple(operators), tuple(choices))


class Raise:
    """Raises a model's opset as far as the runtime loads it, with kernels for the model's and the forms' operators."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self.told: Choice | None = None  # outcome, None before
        self.inlined: Choice | None = None  # reason to inline functions, None if none were

    def lacking(self, opset: int) -> Mapping[str, str]:
        """Return {operator no rule may make in this opset: reason}."""
        version = self.chosen.version
        return {
            op: f"onnxruntime {version} has no kernel for {op} of opset {opset}"
            for op, since in LACKS[version].items()
            if opset >= since
        }

    def _ends(self) -> Mapping[str, tuple[int, str]]:
        """Return {operator: (last harmless opset, harm of later opsets)}."""
        version = self.chosen.version
        ends = {}
        for op, since in LACKS[version].items():
            ends[op] = since - 1, f"in newer ones onnxruntime {version} has no kernel for {op}"
        for op, (last, row) in _KNOWN.items():
            ratio = ratio_of([row], version) or 1.0
            if ratio > 1 + _SAME:
                ends[op] = last, f"in newer ones {op} takes {ratio:.2f} times as long, {row}"
        return ends

    def newest(self, proto: ModelProto, path: Path) -> int:
        """Return the wanted opset, the model's or a newer opset, and set `told`.

        Functions are inlined for a newer opset, unless the runtime may have kernels of its own for them.
        """
        from onnxopt.conversion.opset import further_graphs, opset_of

        current, version = opset_of(proto), self.chosen.version
        if not self.chosen.operators or not current or current >= LOADS[version]:
            return current
        if proto.functions and all(f.domain != CONTRIB_DOMAIN for f in proto.functions):
            self.inlined = Choice(
                "functions inlined", "onnxruntime does so too, and opsets of functions are not raised"
            )
            inline_functions(proto, path)
        if what := further_graphs(proto):
            self.told = Choice(f"opset {current} stays", f"the model has {what}")
            return current
        standard = {node.op_type for node in all_nodes(proto.graph.node) if node.domain in DEFAULT_DOMAINS}
        operators = standard | {*self.chosen.operators}
        newest, why = LOADS[version], f"the newest that onnxruntime {version} loads"
        for op, (last, reason) in self._ends().items():
            if op in operators and current <= last < newest:
                newest, why = last, reason
        if newest > current:
            self.told = Choice(f"opset {current} → {newest}", why)
        elif current < LOADS[version]:
            self.told = Choice(f"opset {current} stays", why)
        return newest
