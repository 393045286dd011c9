"""Signatures of operators: operands, results, attributes with defaults, and element types.

onnx registers all schemas at the first query of one, which takes longer than the passes on a small model. The table
answers for common operators. A test compares each line with the schemas of onnx.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from onnx import AttributeProto, TensorProto


class Formal(NamedTuple):
    """An operand or result. `mark`: `?` optional, `…` repeated, or empty. `allowed`: element types of tensors.

    Parameters with the same `symbol` share a type; an empty symbol shares none.
    """

    name: str
    mark: str
    symbol: str
    allowed: frozenset[int]

    @property
    def only(self) -> int:
        """The single element type allowed; 0 if several are."""
        return next(iter(self.allowed)) if len(self.allowed) == 1 else 0


@dataclass(eq=False, repr=False)
class Signature:
    """The signature of an operator in plain Python, ten times as fast to query as onnx's schema.

    `operands`, `results`: the last stands for all further ones. `inputs`, `outputs`: (minimum, maximum) count.
    `attributes`: types by name; the names in `required` must be set.
    """

    name: str
    operands: tuple[Formal, ...]
    results: tuple[Formal, ...]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, int]
    required: frozenset[str]
    defaults: Mapping[str, Any]
    deprecated: bool = False

    def takes(self, count: int) -> bool:
        """Whether a call may have `count` inputs. Optional trailing inputs below the minimum may be missing (Loop)."""
        least, most = self.inputs
        if least <= count <= most:
            return True
        missing = self.operands[count:least]
        return count <= most and len(missing) == least - count and all(o.mark == "?" for o in missing)

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """The indices of operands that must be present."""
        return tuple(i for i, p in enumerate(self.operands) if not p.mark)

    @cached_property
    def optional(self) -> frozenset[int]:
        """The indices of results that may be absent."""
        return frozenset(i for i, p in enumerate(self.results) if p.mark == "?")

    def lacks(self, made: Sequence[object]) -> str:
        """Return which required result is absent (false) in `made`; empty if none is."""
        if len(made) < self.outputs[0]:
            return f"gives {len(made)} results, and has to give {self.outputs[0]}"
        absent = next((i for i, result in enumerate(made) if not result and i not in self.optional), None)
        return "" if absent is None else f"lacks its result {absent}"

    def __str__(self) -> str:
        kind = AttributeProto.AttributeType.Name
        named = [f"{name}: {kind(t)}" for name, t in self.attributes.items()]
        operands = ", ".join(o.name + o.mark for o in self.operands)
        return f"{self.name}({operands})" + (f" {{{', '.join(named)}}}" if named else "")


# Each entry: operators, opsets, operands, `>`, results, attributes, types of the symbols.
#
#   opsets      13,19     in force from opset 13 on; from opset 19 on with more types in a group
#               13:18     in force from opset 13 up to opset 17
#   operand     name:T    of type T; `name?:T` optional, `name…:T` repeated
#   result      T         of type T; `T?` optional, `T…` repeated
#   attribute   name=1    with a default
#               name:int  without; `name!:int` required
#   types       T=real    the types of a group; `real@1`: of the group in opset 1; `a,b`: of both
#
# An operator has several entries if its parameters differ between opsets. Opsets without an entry are left to onnx.

_TABLE: Final = """
Abs 6,13 X:T > T T=number
Add,Div,Mul,Sub 7,13:14 A:T B:T > T T=wide
Add,Div,Mul,Sub 14 A:T B:T > T T=number
And,Or,Xor 7 A:T B:T > T1 T=bool T1=bool
ArgMax 12,13 data:T > int64 axis=0 keepdims=1 select_last_index=0 T=number
AveragePool 10:19 X:T > T auto_pad=NOTSET ceil_mode=0 count_include_pad=0 kernel_shape!:ints pads:ints strides:ints
    T=real
AveragePool 22 X:T > T auto_pad=NOTSET ceil_mode=0 count_include_pad=0 dilations:ints kernel_shape!:ints pads:ints
    strides:ints T=real
BatchNormalization 9:14 X:T scale:T B:T mean:T var:T > T T? T? T? T? epsilon=1e-05 momentum=0.9 T=real
BatchNormalization 15 X:T scale:T1 B:T1 input_mean:T2 input_var:T2 > T T2? T2? epsilon=1e-05 momentum=0.9
    training_mode=0 T=real T1=real T2=real
Cast 9,13:19 input:T1 > T2 to!:int T1=castable T2=castable
Cast 19,21,23:24 input:T1 > T2 saturate=1 to!:int T1=castable T2=castable
Cast 24,25,28 input:T1 > T2 round_mode=up saturate=1 to!:int T1=castable T2=castable
CastLike 19,21,23:24 input:T1 target_type:T2 > T2 saturate=1 T1=castable T2=castable
Ceil,Floor,Reciprocal,Sigmoid,Sqrt 6,13 X:T > T T=real
Clip 11:12 input:T min?:T max?:T > T T=real
Clip 12,13 input:T min?:T max?:T > T T=number
Concat 11,13 inputs…:T > T axis!:int T=any
Constant 12,13,19,21,23,24,25 > T sparse_value:sparse_tensor value:tensor value_float:float value_floats:floats
    value_int:int value_ints:ints value_string:string value_strings:strings T=any
ConstantOfShape 9,20,21,23,24,25 input:T1 > T2 value:tensor T1=int64 T2=filled
Conv 11,22 X:T W:T B?:T > T auto_pad=NOTSET dilations:ints group=1 kernel_shape:ints pads:ints strides:ints T=real
ConvTranspose 11,22 X:T W:T B?:T > T auto_pad=NOTSET dilations:ints group=1 kernel_shape:ints output_padding:ints
    output_shape:ints pads:ints strides:ints T=real
Cos,Sin 7,22 input:T > T T=real
CumSum 14 x:T axis:T2 > T exclusive=0 reverse=0 T=wide T2=index
DepthToSpace 11,13 input:T > T blocksize!:int mode=DCR T=any
DequantizeLinear 13:19 x:T x_scale:float x_zero_point?:T > float axis=1 T=int32,quantized
DequantizeLinear 19:21 x:T1 x_scale:T2 x_zero_point?:T1 > T2 axis=1 T1=int32,quantized T2=bfloat16,float,float16
DequantizeLinear 21:23 x:T1 x_scale:T2 x_zero_point?:T1 > T2 axis=1 block_size=0 T1=int32,quantized
    T2=bfloat16,float,float16
DynamicQuantizeLinear 11 x:T1 > T2 float T2 T1=float T2=uint8
Einsum 12:28 Inputs…:T > T equation!:string T=number@1
Equal 11,13:19 A:T B:T > T1 T=filled T1=bool
Erf 13 input:T > T T=real
Exp,Log,Tanh 6,13 input:T > T T=real
Expand 8,13 input:T shape:int64 > T T=any
Flatten 9,13,21,23,24,25 input:T > T axis=1 T=any
GRU 14:22 X:T W:T R:T B?:T sequence_lens?:T1 initial_h?:T > T? T? activation_alpha:floats activation_beta:floats
    activations:strings clip:float direction=forward hidden_size:int layout=0 linear_before_reset=0 T=real@1 T1=int32
Gather,GatherElements 11,13 data:T indices:Tind > T axis=0 T=any Tind=index
GatherND 12,13 data:T indices:int64 > T batch_dims=0 T=any
Gelu 20 X:T > T approximate=none T=real
Gemm 11,13 A:T B:T C?:T > T alpha=1.0 beta=1.0 transA=0 transB=0 T=wide
GlobalAveragePool,Softplus 1,22 X:T > T T=real
Greater,Less 9,13 A:T B:T > T1 T=number T1=bool
GreaterOrEqual,LessOrEqual 12,16 A:T B:T > T1 T=number T1=bool
HardSigmoid 6,22 X:T > T alpha=0.2 beta=0.5 T=real
HardSwish 14:22 X:T > T T=real@1
Identity 1,13:14 input:T > T T=any
Identity 14,16,19,21,23,24,25 input:V > V V=any
InstanceNormalization 6,22 input:T scale:T B:T > T epsilon=1e-05 T=real
IsNaN 9,13,20 X:T1 > T2 T1=floating T2=bool
LSTM 7:14 X:T W:T R:T B?:T sequence_lens?:T1 initial_h?:T initial_c?:T P?:T > T? T? T? activation_alpha:floats
    activation_beta:floats activations:strings clip:float direction=forward hidden_size:int input_forget=0
    T=real T1=int32
LSTM 14:22 X:T W:T R:T B?:T sequence_lens?:T1 initial_h?:T initial_c?:T P?:T > T? T? T? activation_alpha:floats
    activation_beta:floats activations:strings clip:float direction=forward hidden_size:int input_forget=0 layout=0
    T=real@1 T1=int32
LayerNormalization 17 X:T Scale:T B?:T > T U? U? axis=-1 epsilon=1e-05 stash_type=1 T=real U=bfloat16,float
LeakyRelu 6,16 X:T > T alpha=0.01 T=real
LogSoftmax,Softmax 11:13 input:T > T axis=1 T=real
LogSoftmax,Softmax 13 input:T > T axis=-1 T=real
MatMul 9,13 A:T B:T > T T=wide
MatMulInteger 10 A:T1 B:T2 a_zero_point?:T1 b_zero_point?:T2 > T3 T1=int8,uint8 T2=int8,uint8 T3=int32
Max,Min 12,13 data_0…:T > T T=number
MaxPool 10,12,22 X:T > T I? auto_pad=NOTSET ceil_mode=0 dilations:ints kernel_shape!:ints pads:ints storage_order=0
    strides:ints T=pooled I=int64
Mod 10,13,28 A:T B:T > T fmod=0 T=number
Neg 6,13 X:T > T T=signed
Not 1 X:T > T T=bool
PRelu 9,16 X:T slope:T > T T=wide
Pad 11:13 data:T pads:int64 constant_value?:T > T mode=constant T=number
Pad 13:18 data:T pads:int64 constant_value?:T > T mode=constant T=any
Pad 18:19,21,23,24,25 data:T pads:int64 constant_value?:T axes?:Tind > T mode=constant T=any Tind=index
Pow 7:12 X:T Y:T > T T=real
Pow 12,13:15 X:T Y:T1 > T T=power T1=number@1
Pow 15 X:T Y:T1 > T T=power T1=number
QuantizeLinear 13:19 x:T1 y_scale:float y_zero_point?:T2 > T2 axis=1 T1=float,int32 T2=quantized
QuantizeLinear 19:21 x:T1 y_scale:T1 y_zero_point?:T2 > T2 axis=1 saturate=1
    T1=bfloat16,float,float16,int32 T2=quantized
QuantizeLinear 21:23 x:T1 y_scale:T1 y_zero_point?:T2 > T2 axis=1 block_size=0 output_dtype=0 saturate=1
    T1=bfloat16,float,float16,int32 T2=quantized
Range 11:27 start:T limit:T delta:T > T T=double,float,int16,int32,int64
ReduceL2,ReduceMean,ReduceProd,ReduceSumSquare 11,13:18 data:T > T axes:ints keepdims=1 T=wide
ReduceL2,ReduceMean,ReduceProd,ReduceSumSquare 18 data:T axes?:int64 > T keepdims=1 noop_with_empty_axes=0 T=wide
ReduceMax,ReduceMin 12,13:18 data:T > T axes:ints keepdims=1 T=ordered
ReduceMax,ReduceMin 18:20 data:T axes?:int64 > T keepdims=1 noop_with_empty_axes=0 T=ordered
ReduceSum 11:13 data:T > T axes:ints keepdims=1 T=wide
ReduceSum 13 data:T axes?:int64 > T keepdims=1 noop_with_empty_axes=0 T=wide
Relu 6,13:14 X:T > T T=real
Relu 14 X:T > T T=signed
Reshape 5,13:14 data:T shape:int64 > T T=any
Reshape 14,19,21,23,24,25 data:T shape:int64 > T allowzero=0 T=any
Resize 13:18 X:T1 roi?:T2 scales?:float sizes?:int64 > T1 coordinate_transformation_mode=half_pixel cubic_coeff_a=-0.75
    exclude_outside=0 extrapolation_value=0.0 mode=nearest nearest_mode=round_prefer_floor T1=any T2=real@1
Resize 18 X:T1 roi?:T2 scales?:float sizes?:int64 > T1 antialias=0 axes:ints
    coordinate_transformation_mode=half_pixel cubic_coeff_a=-0.75 exclude_outside=0 extrapolation_value=0.0
    keep_aspect_ratio_policy=stretch mode=nearest nearest_mode=round_prefer_floor T1=any T2=real@1
ScatterElements 16 data:T indices:Tind updates:T > T axis=0 reduction=none T=any Tind=index
ScatterND 16,18 data:T indices:int64 updates:T > T reduction=none T=any
Shape 1,13:15 data:T > T1 T=any T1=int64
Shape 15,19,21,23,24,25 data:T > T1 end:int start=0 T=any T1=int64
Sign 9,13 input:T > T T=number
Slice 10,13 data:T starts:Tind ends:Tind axes?:Tind steps?:Tind > T T=any Tind=index
Split 11:13 input:T > T… axis=0 split:ints T=any
Split 13:18 input:T split?:int64 > T… axis=0 T=any
Split 18 input:T split?:int64 > T… axis=0 num_outputs:int T=any
Squeeze 11:13 data:T > T axes:ints T=any
Squeeze 13,21,23,24,25 data:T axes?:int64 > T T=any
Sum 8,13 data_0…:T > T T=real
Tile 6,13 input:T repeats:T1 > T T=any T1=int64
TopK 11:24 X:T K:int64 > T I axis=-1 largest=1 sorted=1 T=number@1 I=int64
Transpose 1,13,21,23,24,25 data:T > T perm:ints T=any
Trilu 14 input:T k?:int64 > T upper=1 T=any
Unsqueeze 11:13 data:T > T axes!:ints T=any
Unsqueeze 13,21,23,24,25 data:T axes:int64 > T T=any
Where 9,16 condition:B X:T Y:T > T B=bool T=any
"""

NEWEST: Final = 28  # the newest opset in the comparison with onnx, known to each supported version of onnx

# Element types of a group: from an opset on, with those of all earlier lines.
_GROUPS: Final = """
real 1 float16 float double
real 13 bfloat16
floating 1 real
floating 20 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz
wide 1 real int32 int64 uint32 uint64
number 1 wide int8 int16 uint8 uint16
signed 1 real int8 int16 int32 int64
power 1 real int32 int64
ordered 1 wide int8 uint8
pooled 1 float16 float double
pooled 12 int8 uint8
pooled 22 bfloat16
index 1 int32 int64
filled 1 number bool
filled 19 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz
filled 21 int4 uint4
filled 23 float4e2m1
filled 24 float8e8m0
filled 25 int2 uint2
quantized 1 int8 uint8
quantized 19 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz
quantized 21 int16 uint16 int4 uint4
castable 1 filled string
castable 28 float6e2m3 float6e3m2
any 1 filled string complex64 complex128
"""


_MARKS: Final = "?…"
_CODES: Final = {name.lower(): code for name, code in TensorProto.DataType.items()}
_LONGEST: Final = 2**31 - 1  # the maximum count of repeated parameters, as in onnx


@cache
def tabled(op: str, opset: int) -> Signature | None:
    """Return the signature of an operator of the default domain, if the table has one for the opset."""
    for opsets, text in _entries().get(op, ()):
        spans = opsets.split(",")
        for span, following in zip(spans, [*spans[1:], str(NEWEST + 1)]):
            since, _, until = span.partition(":")
            if int(since) <= opset < int(until or following.partition(":")[0]):
                return _read(op, text, int(since))
    return None


@cache
def _entries() -> dict[str, list[tuple[str, str]]]:
    """Return the entries by operator, as (opsets, text behind the opsets)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in _TABLE.replace("\n    ", " ").strip().splitlines():
        ops, opsets, text = entry.split(" ", 2)
        for op in ops.split(","):
            found.setdefault(op, []).append((opsets, text))
    return found


def _read(op: str, text: str, since: int) -> Signature:
    """Return the signature of an entry, with the types of the opset `since`."""
    given, _, behind = text.partition("> ")
    types: dict[str, str] = {}
    attributes: dict[str, int] = {}
    defaults: dict[str, Any] = {}
    required: set[str] = set()
    made: list[str] = []
    for word in behind.split():
        name, equals, said = word.partition("=")
        if equals and name[0].isupper():
            types[name] = said
        elif equals:
            attributes[name], defaults[name] = _default(said)
        elif ":" in word:
            name, _, kind = word.partition(":")
            attributes[name.rstrip("!")] = AttributeProto.AttributeType.Value(kind.upper())
            required.update([name[:-1]] if name[-1] == "!" else ())
        else:
            made.append(word)

    def formal(name: str, symbol: str) -> Formal:
        shared, mark = symbol.rstrip(_MARKS), (name or symbol)[-1]
        allowed = _allowed(types.get(shared, shared), since)
        return Formal(name.rstrip(_MARKS), mark if mark in _MARKS else "", shared if shared in types else "", allowed)

    operands = tuple(formal(*word.split(":")) for word in given.split())
    results = tuple(formal("", word) for word in made)
    inputs, outputs = _count(operands), _count(results)
    return Signature(op, operands, results, inputs, outputs, attributes, frozenset(required), defaults)


def _default(text: str) -> tuple[int, int | float | str]:
    """Return (attribute type, value); onnx holds floats in 32 bits."""
    if text.lstrip("-").isdigit():
        return AttributeProto.INT, int(text)
    if text[0].isalpha():
        return AttributeProto.STRING, text
    return AttributeProto.FLOAT, struct.unpack("f", struct.pack("f", float(text)))[0]


def _count(parameters: tuple[Formal, ...]) -> tuple[int, int]:
    """Return the (minimum, maximum) count of operands or results."""
    least = max((i for i, p in enumerate(parameters, 1) if p.mark != "?"), default=0)
    return least, _LONGEST if parameters and parameters[-1].mark == "…" else len(parameters)


@cache
def _allowed(kinds: str, since: int) -> frozenset[int]:
    """Return the element types of groups and single types, in definitions of the opset `since`."""
    found: set[int] = set()
    for kind in kinds.split(","):
        name, _, fixed = kind.partition("@")
        for first, types in _groups().get(name) or [(1, _codes([name]))]:
            if first <= int(fixed or since):
                found |= types
    return frozenset(found)


@cache
def _groups() -> dict[str, list[tuple[int, set[int]]]]:
    """Return the lines of each group, as (opset, element types); a group in a line stands for its own lines."""
    found: dict[str, list[tuple[int, set[int]]]] = {}
    for line in _GROUPS.strip().splitlines():
        name, first, *members = line.split()
        inner = [part for member in members for part in found.get(member, ())]
        single = _codes(member for member in members if member not in found)
        found[name] = [*found.get(name, ()), *inner, (int(first), single)]
    return found


def _codes(names: Iterable[str]) -> set[int]:
    """Return the element types of these names, as far as the installed onnx has them."""
    return {_CODES[name] for name in names if name in _CODES}
