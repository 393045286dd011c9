"""A real network with random weights, from the graphs that the onnx package ships.

    python models/network.py densenet121 OUT.onnx

Those files hold the graph as it was exported, but every weight as a fill (ConstantOfShape), so that their output does
not depend on the input and a comparison proves little. Here each fill becomes seeded random data of the same shape.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def network(name: str) -> onnx.ModelProto:
    """`light_NAME.onnx` of the installed onnx package, with random weights."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = model.graph
    rng = np.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    fills = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    for node in fills:
        shape = tuple(int(d) for d in shapes[node.input[0]])
        graph.initializer.append(numpy_helper.from_array(weight(shape, rng), node.output[0]))
        graph.node.remove(node)
    read = {i for n in graph.node for i in n.input}
    for tensor in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(tensor)
    weights = {t.name for t in graph.initializer} | set(shapes)
    for info in [i for i in graph.input if i.name in weights]:
        graph.input.remove(info)
    model.ir_version = 8  # weights need not be listed as inputs
    return model


def weight(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Kernels scaled by the fan-in; per-channel parameters, variances among them, around one."""
    if len(shape) > 1:
        data = rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
    else:
        data = rng.uniform(0.5, 1.5, shape)
    return data.astype(np.float32)


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    args.add_argument("name", choices=sorted(f.stem.removeprefix("light_") for f in LIGHT.glob("light_*.onnx")))
    args.add_argument("out", type=Path)
    given = args.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(network(given.name), given.out)
