"""Conversion of a float32 model to float16 or bfloat16 with a minimum of Casts."""

from __future__ import annotations

from functools import partial

from onnxopt.analysis import types
from onnxopt.analysis.narrowing import NARROW
from onnxopt.analysis.shapes.sweep import learn_shapes
from onnxopt.errors import ModelError, UsageError, any_of
from onnxopt.graph import Model
from onnxopt.pipeline import ModelPass, PassContext, PassInfo, option, register
from onnxopt.rewriting.narrow_calls import Calls, forget_unstored
from onnxopt.rewriting.narrow_plan import Plan
from onnxopt.rewriting.narrowed import Conversion
from onnxopt.startup.record import record


@register
@record(frozen=True)
class ConvertDtype(ModelPass):
    """Converts float32 values and weights to a narrower type, with Casts around operators that stay float32.

    Stays wide: operators without narrow types in the standard; sums over many elements, powers and exponentials,
    angles, coordinates, random numbers, quantizers (table with reasons in `analysis/narrowing.py`); readers of weights
    that overflow or underflow; inputs and outputs of bodies, operators of unknown domains. A call of a function becomes
    a call of a narrow copy, unless the copy would only add Casts.
    Where both types are possible, the type with the fewest Casts is chosen.
    """

    info = PassInfo("convert-dtype", opt_level=2)
    dtype: str = option("float16", "float16 or bfloat16")
    keep_io: bool = option(True, "the model's inputs and outputs stay float32")

    def run(self, model: Model, ctx: PassContext) -> None:
        if self.dtype not in NARROW:
            raise UsageError(f"there is no conversion to {self.dtype!r}", f"to {any_of([*NARROW])}")
        opset = model.opsets.get("", 0)
        if not opset:
            return  # no standard operator, as in most tree models
        if opset < (least := 13 if self.dtype == "bfloat16" else 7):
            raise ModelError(
                f"{model.name}: {self.dtype} takes opset {least}, the model has {opset}",
                f"--target-opset {least} converts it first",
            )
        forget_unstored(model.open_scopes())
        types.update(model)
        for scope in reversed([*model.open_scopes()]):  # outer ones first: behind onnxruntime's own operators
            if not scope.root.is_function and any(v is not None and not v.dtype for n in scope for v in n.outputs):
                learn_shapes(scope)
        decline = partial(ctx.decline, "narrow")
        plan = Plan(
            model.graph,
            Calls(model, self.dtype, decline),
            keep_io=self.keep_io,
            decline=decline,
            leaves_out=ctx.leaves_out if ctx.excluded else None,
        )
        narrow = plan.narrow()
        chosen = dict.fromkeys(node for node in narrow if ctx.spend("narrow", at=node))
        if chosen or plan.interface:
            Conversion(plan, chosen).apply()
