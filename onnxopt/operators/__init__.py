"""Form and traits of ONNX operators, one line for each operator, and the sets derived from the table.

Rules query a set instead of listing operators, and so cover operators added to the table later.
"""

from __future__ import annotations

from typing import Final

# The operators of the default domain. Tests check the table by execution.
#
# Form: what an element of the first result is computed from.
#
#   unary       the element of the only operand at the same place
#   bounded     the element of the first operand at the same place; each further operand is a single number
#   broadcast   the elements of all operands at the same place, after broadcasting
#   same        equal to the element of the first operand at the same place
#   order       equal to the element of the first operand at the same place in row-major order; other dims
#   permute     equal to an element of the first operand; axes are permuted
#   pick        equal to an element of the first operand, chosen by attributes and the other operands
#   join        equal to an element of an operand, chosen by place
#   update      an element of the first operand, or of another operand that overwrites it, or both combined
#   axis        the elements of the first operand along axes named by an attribute or operand
#   reduce      as axis; the axes are dropped, or have size 1
#   pool        a window of the first operand moving over the axes behind batch and channels
#   whole       all elements of the first operand behind batch and channels
#   window      as pool, with weights: contracts channels
#   contract    products of elements, summed over an axis of two operands
#   normalize   the elements of the first operand with the same statistics, scale and shift
#   recurrent   all earlier steps of the first operand, and states
#   fill        numbers determined by sizes, attributes and other operands
#   places      indices, or the number, of elements of the first operand
#   draw        a random number
#   code        an encoded element: quantizers and their inverse
#   body        the results of a graph attribute
#   other       any other computation
#
# Traits, of the first operand x and the first result f(x):
#
#   like         f(x) has the shape of x (implied by `unary` and `same`)
#   arithmetic   maps two numbers to a number of their type
#   comparison   a truth value about the order of two numbers
#   variadic     any number of operands, broadcast from opset 8 on (other `broadcast` operators: from 7 on)
#   unidirectional  the first operand has the shape of the result; the others broadcast to it
#   commutative  the order of two operands does not matter
#   harmless     kernels of onnxruntime return or raise for any contents of the operands
#   exact        every runtime computes the same bits
#   linear       f(c x) = c f(x) for every number c
#   positive     f(c x) = c f(x) for every c > 0, without overflow from powers of x (implied by `linear`)
#   nonnegative  f(x) is never negative, or NaN
#   fraction     f(x) is in [0, 1], or NaN (implies `nonnegative`)
#   small        f(x) is 0 where x is 0, and not much larger than x where x is small
#   telling      f(x) distinguishes 0 from a small x, or x from a slightly different x
#   ranged       no element of f(x) is much larger than the largest element read
#   results      the number of results is not 1
#   cuts         each result is x at some indices along an axis, given by attributes and operands

_FORMS: Final = """
Abs                 unary      harmless exact positive nonnegative small ranged
Acos                unary      harmless
Acosh               unary      harmless
Asin                unary      harmless small
Asinh               unary      harmless small
Atan                unary      harmless small
Atanh               unary      harmless small
BitwiseNot          unary      exact
Cast                unary      harmless exact
Ceil                unary      harmless exact telling
Celu                unary      small
Cos                 unary      harmless
Cosh                unary      harmless
Elu                 unary      harmless small
Erf                 unary      harmless small
Exp                 unary      harmless nonnegative
Floor               unary      harmless exact telling
Gelu                unary      harmless small
HardSigmoid         unary      harmless fraction
HardSwish           unary      small
IsInf               unary      harmless
IsNaN               unary      harmless
LeakyRelu           unary      harmless positive small ranged
Log                 unary      harmless telling
Mish                unary      small
Neg                 unary      harmless exact linear small ranged
Not                 unary      harmless exact
Reciprocal          unary      harmless telling
Relu                unary      harmless positive nonnegative small ranged
Round               unary      harmless exact telling
Selu                unary      small
Shrink              unary      small
Sigmoid             unary      harmless fraction
Sign                unary      harmless exact telling
Sin                 unary      harmless small
Sinh                unary      harmless small
Softplus            unary      harmless nonnegative
Softsign            unary      harmless small
Sqrt                unary      harmless small
Swish               unary      small
Tan                 unary      harmless small
Tanh                unary      harmless small
ThresholdedRelu     unary

Clip                bounded    harmless like

Add                 broadcast  harmless arithmetic exact commutative ranged
And                 broadcast  harmless commutative
BitShift            broadcast
BitwiseAnd          broadcast  commutative
BitwiseOr           broadcast  commutative
BitwiseXor          broadcast  commutative
Div                 broadcast  harmless arithmetic exact
Equal               broadcast  harmless commutative comparison
Greater             broadcast  harmless comparison
GreaterOrEqual      broadcast  harmless comparison
Less                broadcast  harmless comparison
LessOrEqual         broadcast  harmless comparison
Max                 broadcast  harmless variadic commutative small ranged
Mean                broadcast  harmless variadic commutative
Min                 broadcast  harmless variadic commutative small ranged
Mod                 broadcast  arithmetic exact
Mul                 broadcast  harmless arithmetic exact commutative
Or                  broadcast  harmless commutative
PRelu               broadcast  harmless unidirectional small
Pow                 broadcast  harmless arithmetic
Sub                 broadcast  harmless arithmetic exact ranged
Sum                 broadcast  harmless variadic commutative ranged
Where               broadcast  harmless small ranged
Xor                 broadcast  harmless commutative

Identity            same       harmless linear small ranged
Flatten             order      linear small ranged
Reshape             order      harmless linear small ranged
Squeeze             order      harmless linear small ranged
Unsqueeze           order      harmless linear small ranged
Transpose           permute    harmless linear small ranged
Compress            pick       linear small ranged
DepthToSpace        pick       linear small ranged
Expand              pick       harmless linear small ranged
Gather              pick       harmless linear small ranged cuts
GatherElements      pick       linear small ranged
GatherND            pick       linear small ranged
ReverseSequence     pick       linear small ranged like
Slice               pick       harmless linear small ranged cuts
SpaceToDepth        pick       linear small ranged
Split               pick       linear small ranged cuts results
Tile                pick       harmless linear small ranged
CenterCropPad       other
Concat              join       harmless small ranged
Pad                 other      small ranged
ScatterElements     update     small like
ScatterND           update     small like
TensorScatter       update     small like
Trilu               other      harmless linear small ranged like

CumSum              axis       linear small like
CumProd             axis       like
Hardmax             axis       telling like
LogSoftmax          axis       harmless like
LpNormalization     axis       telling like
Softmax             axis       harmless fraction like
TopK                axis       telling results

ArgMax              places     telling
ArgMin              places     telling
NonMaxSuppression   other      telling
NonZero             places     telling
Shape               places     harmless
Size                places
Unique              other      telling results

ReduceL1            reduce     harmless positive nonnegative small
ReduceL2            reduce     harmless nonnegative small
ReduceLogSum        reduce     telling
ReduceLogSumExp     reduce
ReduceMax           reduce     harmless positive small ranged
ReduceMean          reduce     harmless linear small ranged
ReduceMin           reduce     harmless positive small ranged
ReduceProd          reduce     small
ReduceSum           reduce     harmless linear small
ReduceSumSquare     reduce     harmless nonnegative small

AveragePool         pool       linear small ranged
GlobalAveragePool   whole      linear small ranged
GlobalLpPool        whole      nonnegative small
GlobalMaxPool       whole      positive small ranged
LpPool              pool       nonnegative small
MaxPool             pool       positive small ranged results
MaxUnpool           other
Resize              other      harmless small
Upsample            other      small

Conv                window
ConvInteger         window
ConvTranspose       window
DeformConv          window
QLinearConv         window
Attention           contract results
Einsum              contract
Gemm                contract   harmless
MatMul              contract   harmless
MatMulInteger       contract
QLinearMatMul       contract

BatchNormalization  normalize  harmless like results
GroupNormalization  normalize  like
InstanceNormalization normalize like
LRN                 normalize  like
LayerNormalization  normalize  harmless like results
MeanVarianceNormalization normalize like
RMSNormalization    normalize  like
Dropout             other      small like results

GRU                 recurrent results
LSTM                recurrent results
RNN                 recurrent results

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
DynamicQuantizeLinear code     like results
QuantizeLinear      code       like

If                  body results
Loop                body results
Scan                body results
SequenceMap         body results
"""

FORMS: Final[dict[str, str]] = {}
_SETS: Final[dict[str, set[str]]] = {}  # the operators of each form and with each trait
_IMPLIED: Final = {"linear": "positive", "fraction": "nonnegative"}
for _line in filter(None, _FORMS.splitlines()):
    _op, _form, *_traits = _line.split()
    FORMS[_op] = _form
    for _word in (_form, *_traits):
        _SETS.setdefault(_word, set()).add(_op)
        if _word in _IMPLIED:
            _SETS.setdefault(_IMPLIED[_word], set()).add(_op)


def of_form(*forms: str) -> frozenset[str]:
    """Return the operators of these forms."""
    return frozenset().union(*(_SETS[form] for form in forms))


def with_trait(trait: str) -> frozenset[str]:
    """Return the operators with a trait."""
    return frozenset(_SETS[trait])


ARITHMETIC: Final = with_trait("arithmetic")
UNARY: Final = of_form("unary")
IN_PLACE: Final = of_form("unary", "same")
BROADCASTING: Final = of_form("broadcast")
MULTIDIRECTIONAL: Final = BROADCASTING - with_trait("unidirectional")
SAME_ORDER: Final = tuple(sorted(of_form("order")))  # sorted: the choices in a pattern have an order
PICKS: Final = of_form("same", "order", "pick", "permute")
REDUCTIONS: Final = tuple(sorted(of_form("reduce")))
POOLS: Final = of_form("pool")
GLOBAL_POOLS: Final = of_form("whole")
PLACES: Final = of_form("places")
CONTROL_FLOW: Final = of_form("body")
RANDOM: Final = of_form("draw")
RECURRENT: Final = tuple(sorted(of_form("recurrent")))
COMMUTATIVE: Final = with_trait("commutative")
CONTRACTIONS: Final = of_form("contract")
CUTTING: Final = tuple(sorted(with_trait("cuts")))
COMPARISONS: Final = tuple(sorted(with_trait("comparison")))
VARIADIC: Final = with_trait("variadic")
EXACT: Final = with_trait("exact")
HARMLESS: Final = with_trait("harmless")
LIKE_FIRST: Final = UNARY | of_form("same") | with_trait("like")
LINEAR: Final = with_trait("linear")
HOMOGENEOUS: Final = with_trait("positive")
NONNEGATIVE: Final = with_trait("nonnegative")
FRACTIONS: Final = tuple(sorted(with_trait("fraction")))
NEAR_ZERO: Final = with_trait("small")
TELLS_ZERO: Final = with_trait("telling")
IN_RANGE: Final = with_trait("ranged")


def broadcasts(op: str, opset: int) -> bool:
    """Whether operands of `op` broadcast without an attribute that says how."""
    return op in BROADCASTING and opset >= (8 if op in VARIADIC else 7)
