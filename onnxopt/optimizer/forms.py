"""What a run does for a runtime: its level, the forms that its passes make and leave, the opset; and why.

Each form is a row, or several, of docs/forms.md: what it costs in place of the other way to write the same. What is
faster is made, what is slower is not, whatever the level says; what costs the same stays as the level has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Any, Final

from onnx import ModelProto

from onnxopt.pipeline.measured import FORMS, LACKS, LOADS
from onnxopt.protos import body_graphs
from onnxopt.record import record

if TYPE_CHECKING:
    from onnx import GraphProto

_SAME: Final = 0.02  # a ratio that is closer to one decides nothing
_NORMALIZATIONS: Final = ("flatten-rows.normalizations", "unmerge-batches.normalizations")
_RESHAPES: Final = 8  # that take less than what an Add with a LayerNormalization of the slower rank does
_FASTEST: Final = 3  # the level whose passes make the forms


_KNOWN: Final = {"Conv": (21, "convolution-opset")}  # the last version that all optimizations know; what others cost


@record(frozen=True)
class Form:
    """Something that rules make of a formula. `rows`: of docs/forms.md. `rules` are those that make it; `options` are
    config keys by which passes make it (`value`), or avoid it (less `value`). `operator`: the one for whose sake the
    opset is raised."""

    name: str
    rows: tuple[str, ...]
    rules: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    value: int = 0
    operator: str = ""

    def ratio(self, version: str) -> float | None:
        """The geometric mean of what was measured; None if nothing was."""
        return ratio_of(self.rows, version)


def ratio_of(rows: Sequence[str], version: str) -> float | None:
    """The geometric mean of what was measured for these rows; None if nothing was."""
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
    Form("Gelu", ("gelu",), ("gelu", "gelu_of_halves", "gelu_by_tanh", "gelu_by_tanh_of_halves")),
    Form("matrices for Add and LayerNormalization", ("add-normalization",), options=_NORMALIZATIONS, value=_RESHAPES),
)


@record
class Choice:
    """What was chosen for the target, and why."""

    what: str
    why: str


@record(frozen=True)
class Chosen:
    """What a run does for a version of the runtime: its level, rules that are left out, values of config keys, the
    operators for whose sake the opset is raised."""

    version: str
    level: int
    rules: tuple[str, ...]
    config: Mapping[str, Any]
    operators: tuple[str, ...]
    choices: tuple[Choice, ...]

    def choices_without(self, lacking: Mapping[str, str]) -> list[Choice]:
        """The choices where the runtime has no kernels for some operators in the model's opset, with the reason."""
        return [Choice(f"no {c.what}", lacking[c.what]) if c.what in lacking else c for c in self.choices]


def chosen_for(version: str, level: int) -> Chosen:
    """What is chosen at a level. Below 2 nothing is: a result is exact there, and forms differ by rounding."""
    if level < 2:
        return Chosen(version, level, (), {}, (), (Choice("nothing", f"-O{level} changes no number"),))
    rules: list[str] = []
    config: dict[str, Any] = {}
    operators: list[str] = []
    choices = []
    if level < _FASTEST:
        choices.append(Choice(f"-O{_FASTEST}", f"its passes make the forms, and it promises what -O{level} does"))
    for form in CHOICES:
        ratio = form.ratio(version)
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
    """Raises the opset of a model as far as a version of the runtime loads it, and has kernels for its operators and
    for those that the run makes. `told`: what came of it."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self.told: Choice | None = None

    def lacking(self, opset: int) -> Mapping[str, str]:
        """Operators that no rule may make in this opset, and why."""
        version = self.chosen.version
        return {
            op: f"onnxruntime {version} has no kernel for {op} of opset {opset}"
            for op, since in LACKS[version].items()
            if opset >= since
        }

    def _ends(self) -> Mapping[str, tuple[int, str]]:
        """By operator: (the last opset that does not harm it, what newer ones do)."""
        version = self.chosen.version
        ends = {}
        for op, since in LACKS[version].items():
            ends[op] = since - 1, f"in newer ones onnxruntime {version} has no kernel for {op}"
        for op, (last, row) in _KNOWN.items():
            ratio = ratio_of([row], version) or 1.0
            if ratio > 1 + _SAME:
                ends[op] = last, f"in newer ones {op} takes {ratio:.2f} times as long, {row}"
        return ends

    def newest(self, proto: ModelProto) -> int:
        """The opset that is wanted: that of the model, or a newer one."""
        from onnxopt.conversion.opset import opset_of

        current, version = opset_of(proto), self.chosen.version
        if not self.chosen.operators or not current or current >= LOADS[version]:
            return current
        if proto.functions or any(t.algorithm.node or t.initialization.node for t in proto.training_info):
            what = "functions, whose opsets are their own" if proto.functions else "training graphs"
            self.told = Choice(f"opset {current} stays", f"the model has {what}")
            return current
        operators = _operators(proto.graph) | {*self.chosen.operators}
        newest, why = LOADS[version], f"the newest that onnxruntime {version} loads"
        for op, (last, reason) in self._ends().items():
            if op in operators and current <= last < newest:
                newest, why = last, reason
        if newest > current:
            self.told = Choice(f"opset {current} → {newest}", why)
        elif current < LOADS[version]:
            self.told = Choice(f"opset {current} stays", why)
        return newest


def _operators(graph: GraphProto) -> set[str]:
    """Of the standard, those of bodies too."""
    found = {node.op_type for node in graph.node if node.domain in ("", "ai.onnx")}
    return found.union(*(_operators(body) for node in graph.node for _, body in body_graphs(node)))
