"""Form and traits of each operator of the default domain, one line an operator. The tests check them by running.

Form: what an element of the first result is computed of.

    unary       the element of the only operand at its place
    bounded     the element of the first operand at its place; the others are one number each
    broadcast   the elements of all operands at its place, after broadcasting
    same        it is the element of the first operand at its place
    order       it is the element of the first operand at its place in row-major order; other dims
    permute     it is an element of the first operand; axes are in another order
    pick        it is an element of the first operand; which one is said by attributes and the other operands
    join        it is an element of an operand; which one depends on its place
    update      it is an element of the first operand, or of another that writes over it, or both combined
    axis        the elements of the first operand along the axis (or axes) that an attribute or an operand names
    reduce      the same; the axes go, or have one element
    pool        a window of the first operand that moves over the axes behind batch and channels
    window      the same, and weights: contracts channels
    contract    products of elements, summed over an axis of two operands
    normalize   the elements of the first operand that share statistics, scale and shift
    recurrent   all steps of the first operand before it, and states
    fill        numbers that only sizes, attributes and other operands say
    places      where elements of the first operand are, or how many
    draw        a random number
    code        one code word for each element: quantizers and their inverse
    body        what a graph in an attribute computes
    other       anything else

Traits, of the first operand x and the first result f(x):

    like         f(x) has the shape of x (all `unary` and `same` have)
    arithmetic   two numbers make one of their type
    comparison   a truth value about the order of two numbers
    variadic     any number of operands, which broadcast from opset 8 on (all other `broadcast` ones from 7 on)
    unidirectional  the first operand has the shape of the result, and the others broadcast to that
    commutative  the order of two operands does not matter
    exact        every runtime makes the same bits
    linear       f(c x) = c f(x) for every number c
    positive     f(c x) = c f(x) for every c > 0, and no power of x overflows on the way (all `linear` have it, too)
    nonnegative  f(x) is never below zero, or NaN
    small        f(x) is 0 where x is, and about as small, or smaller, where x is small
    telling      f(x) tells 0 from a small x, or x from a slightly different one
    ranged       no element of f(x) is much larger than the largest of what is read
"""

from __future__ import annotations

from typing import Final

_TABLE: Final = """
Abs                 unary      exact positive nonnegative small ranged
Acos                unary
Acosh               unary
Asin                unary      small
Asinh               unary      small
Atan                unary      small
Atanh               unary      small
BitwiseNot          unary      exact
Cast                unary      exact
Ceil                unary      exact telling
Celu                unary      small
Cos                 unary
Cosh                unary
Elu                 unary      small
Erf                 unary      small
Exp                 unary      nonnegative
Floor               unary      exact telling
Gelu                unary      small
HardSigmoid         unary      nonnegative
HardSwish           unary      small
IsInf               unary
IsNaN               unary
LeakyRelu           unary      positive small ranged
Log                 unary      telling
Mish                unary      small
Neg                 unary      exact linear small ranged
Not                 unary      exact
Reciprocal          unary      telling
Relu                unary      positive nonnegative small ranged
Round               unary      exact telling
Selu                unary      small
Shrink              unary      small
Sigmoid             unary      nonnegative
Sign                unary      exact telling
Sin                 unary      small
Sinh                unary      small
Softplus            unary      nonnegative
Softsign            unary      small
Sqrt                unary      small
Swish               unary      small
Tan                 unary      small
Tanh                unary      small
ThresholdedRelu     unary

Clip                bounded    like

Add                 broadcast  arithmetic exact commutative ranged
And                 broadcast  commutative
BitShift            broadcast
BitwiseAnd          broadcast  commutative
BitwiseOr           broadcast  commutative
BitwiseXor          broadcast  commutative
Div                 broadcast  arithmetic exact
Equal               broadcast  commutative comparison
Greater             broadcast  comparison
GreaterOrEqual      broadcast  comparison
Less                broadcast  comparison
LessOrEqual         broadcast  comparison
Max                 broadcast  variadic commutative small ranged
Mean                broadcast  variadic commutative
Min                 broadcast  variadic commutative small ranged
Mod                 broadcast  arithmetic exact
Mul                 broadcast  arithmetic exact commutative
Or                  broadcast  commutative
PRelu               broadcast  unidirectional small
Pow                 broadcast  arithmetic
Sub                 broadcast  arithmetic exact ranged
Sum                 broadcast  variadic commutative ranged
Where               broadcast  small ranged
Xor                 broadcast  commutative

Identity            same       linear small ranged
Flatten             order      linear small ranged
Reshape             order      linear small ranged
Squeeze             order      linear small ranged
Unsqueeze           order      linear small ranged
Transpose           permute    linear small ranged
Compress            pick       linear small ranged
DepthToSpace        pick       linear small ranged
Expand              pick       linear small ranged
Gather              pick       linear small ranged
GatherElements      pick       linear small ranged
GatherND            pick       linear small ranged
ReverseSequence     pick       linear small ranged like
Slice               pick       linear small ranged
SpaceToDepth        pick       linear small ranged
Split               pick       linear small ranged
Tile                pick       linear small ranged
CenterCropPad       other
Concat              join       small ranged
Pad                 other      small ranged
ScatterElements     update     small like
ScatterND           update     small like
TensorScatter       update     small like
Trilu               other      linear small ranged like

CumSum              axis       linear small like
CumProd             axis       like
Hardmax             axis       telling like
LogSoftmax          axis       like
LpNormalization     axis       telling like
Softmax             axis       nonnegative like
TopK                axis       telling

ArgMax              places     telling
ArgMin              places     telling
NonMaxSuppression   other      telling
NonZero             places     telling
Shape               places
Size                places
Unique              other      telling

ReduceL1            reduce     positive nonnegative small
ReduceL2            reduce     nonnegative small
ReduceLogSum        reduce     telling
ReduceLogSumExp     reduce
ReduceMax           reduce     positive small ranged
ReduceMean          reduce     linear small ranged
ReduceMin           reduce     positive small ranged
ReduceProd          reduce     small
ReduceSum           reduce     linear small
ReduceSumSquare     reduce     nonnegative small

AveragePool         pool       linear small ranged
GlobalAveragePool   pool       linear small ranged
GlobalLpPool        pool       nonnegative small
GlobalMaxPool       pool       positive small ranged
LpPool              pool       nonnegative small
MaxPool             pool       positive small ranged
MaxUnpool           other
Resize              other      small
Upsample            other      small

Conv                window
ConvInteger         window
ConvTranspose       window
DeformConv          window
QLinearConv         window
Attention           contract
Einsum              contract
Gemm                contract
MatMul              contract
MatMulInteger       contract
QLinearMatMul       contract

BatchNormalization  normalize  like
GroupNormalization  normalize  like
InstanceNormalization normalize like
LRN                 normalize  like
LayerNormalization  normalize  like
MeanVarianceNormalization normalize like
RMSNormalization    normalize  like
Dropout             other      small like

GRU                 recurrent
LSTM                recurrent
RNN                 recurrent

Constant            fill
ConstantOfShape     fill
EyeLike             fill
OneHot              fill
Range               fill

Bernoulli           draw
Multinomial         draw
RandomNormal        draw
RandomNormalLike    draw
RandomUniform       draw
RandomUniformLike   draw

DequantizeLinear    code       like
DynamicQuantizeLinear code     like
QuantizeLinear      code       like

If                  body
Loop                body
Scan                body
SequenceMap         body
"""

FORMS: Final[dict[str, str]] = {}
TRAITS: Final[dict[str, frozenset[str]]] = {}
for _line in filter(None, _TABLE.splitlines()):
    _op, _form, *_traits = _line.split()
    FORMS[_op] = _form
    TRAITS[_op] = frozenset((*_traits, "positive") if "linear" in _traits else _traits)
