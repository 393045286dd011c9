"""`onnxopt demo`."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from onnxopt.cli.files import write_bytes
from onnxopt.cli.say import say
from onnxopt.errors import WriteError, unwritable

if TYPE_CHECKING:
    from onnx import ModelProto

_FOLDER_HINT: Final = "--out-dir DIR names another folder"
_NETWORK: Final = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "onnxopt-demo",
 doc_string: "A small image classifier, as exporters of frameworks write one. Its weights are random.">
demo (float[batch, 3, 32, 32] image) => (float[batch, 10] scores)
<
  float[1, 3, 1, 1] mean = {0.485, 0.456, 0.406}, float[1, 3, 1, 1] deviation = {0.229, 0.224, 0.225},
  float three = {3}, float six = {6}, float zero = {0}, int64 first = {0}, int64[1] axis = {0}, int64[1] rest = {-1},
  float dropped = {0.5},
  float[16, 3, 3, 3] w0, float[16] scale0, float[16] shift0, float[16] mean0, float[16] var0,
  float[16, 16, 3, 3] w1, float[16] scale1, float[16] shift1, float[16] mean1, float[16] var1,
  float[16, 16, 3, 3] w2, float[16] scale2, float[16] shift2, float[16] mean2, float[16] var2,
  float[32, 16, 3, 3] w3, float[32] scale3, float[32] shift3, float[32] mean3, float[32] var3,
  float[10, 32] w4, float[10] b4
>
{
  [centre] i0 = Sub (image, mean)
  [standardize] i1 = Div (i0, deviation)
  [stem_conv] c0 = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (i1, w0)
  [stem_bn] n0 = BatchNormalization (c0, scale0, shift0, mean0, var0)
  [stem_relu] r0 = Relu (n0)
  [block_conv1] c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r0, w1)
  [block_bn1] n1 = BatchNormalization (c1, scale1, shift1, mean1, var1)
  [block_relu1] r1 = Relu (n1)
  [block_conv2] c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r1, w2)
  [block_bn2] n2 = BatchNormalization (c2, scale2, shift2, mean2, var2)
  [block_add] s2 = Add (n2, r0)
  [block_relu2] r2 = Relu (s2)
  [head_conv] c3 = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (r2, w3)
  [head_bn] n3 = BatchNormalization (c3, scale3, shift3, mean3, var3)
  [swish_add] h0 = Add (n3, three)
  [swish_clip] h1 = Clip (h0, zero, six)
  [swish_mul] h2 = Mul (n3, h1)
  [swish_div] h3 = Div (h2, six)
  [pool] p = GlobalAveragePool (h3)
  [flatten_shape] f0 = Shape (p)
  [flatten_gather] f1 = Gather (f0, first)
  [flatten_unsqueeze] f2 = Unsqueeze (f1, axis)
  [flatten_concat] f3 = Concat <axis = 0> (f2, rest)
  [flatten] f = Reshape (p, f3)
  [dropout] d = Dropout (f, dropped)
  [classify] g = Gemm <transB = 1> (d, w4, b4)
  [output] l = Identity (g)
  [softmax] scores = Softmax <axis = -1> (l)
}
"""


@click.command(epilog="Exit codes: 0 done, 2 wrong usage, or a file that is there already.")
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path),
    default=".",
    metavar="DIR",
    help="Write into this folder, created if missing. [default: the current folder]",
)
@click.pass_context
def demo(context: click.Context, out_dir: Path) -> None:
    """Write a small model, demo.onnx, optimize the model, and show commands with their output.

    \b
    onnxopt demo
    onnxopt demo --out-dir tried
    """
    source, destination = out_dir / "demo.onnx", out_dir / "demo.opt.onnx"
    data = network().SerializeToString()
    _refuse_taken(source, destination, data)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise unwritable(out_dir, e, _FOLDER_HINT) from None
    write_bytes(source, data)
    from onnxopt.cli.optimize import optimize
    from onnxopt.cli.stats import stats

    places = (str(source), str(destination))
    _run(context, optimize, *places)
    _run(context, stats, *places, "--dim", "batch=1")
    say(f"next: onnxopt report {shlex.join(places)} -o report.html", dim=True)


def network() -> ModelProto:
    """The model, the same at each call."""
    import numpy as np
    from onnx import parser

    from onnxopt.proto.messages import array_to_tensor

    model = parser.parse_model(_NETWORK)
    rng = np.random.default_rng(0)
    declared = list(model.graph.value_info)
    del model.graph.value_info[:]
    for info in declared:
        shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        if info.name.startswith("w"):
            weights = rng.standard_normal(shape) * (math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 2 else 0.01)
        else:  # variances among them
            weights = rng.uniform(0.5, 1.5, shape)
        model.graph.initializer.append(array_to_tensor(weights.astype(np.float32), info.name))
    return model


def _refuse_taken(source: Path, destination: Path, data: bytes) -> None:
    """Raises WriteError if a file exists that no earlier demo wrote."""
    if source.is_file() and source.read_bytes() == data:
        return
    for file in (source, destination):
        if os.path.lexists(file):
            raise WriteError(f"{file} is there already, and is not the demo's", _FOLDER_HINT)


def _run(context: click.Context, command: click.Command, *words: str) -> None:
    """Run a command, below a line with the command."""
    say(f"$ onnxopt {shlex.join((str(command.name), *words))}", dim=True)
    with command.make_context(command.name, list(words), parent=context.parent) as inner:
        command.invoke(inner)
