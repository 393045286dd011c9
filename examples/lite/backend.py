"""A backend that runs FC and Relu in Python, and leaves the rest to onnxruntime.

    python backend.py model.onnx fused.onnx

runs both on made-up inputs, the second in parts, and says how far apart they are.
"""

import sys

import lite_fc  # noqa: F401 - declares the domain
import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxopt import CapabilityPartitioner, OperatorSupport, load, shape
from onnxopt.pipeline.outlining import split


class FC(OpRun):
    """The kernel."""

    op_domain = "lite"

    def _run(self, x, w, b, in_num_col_dims=1):
        rows = x.reshape(int(np.prod(x.shape[:in_num_col_dims])), -1)
        return ((rows @ w + b).reshape(*x.shape[:in_num_col_dims], w.shape[1]),)


class Backend:
    """A model in parts: those of FC and Relu run here, the others in onnxruntime."""

    def __init__(self, path):
        model = load(path)
        partitions = CapabilityPartitioner(model.graph, OperatorSupport(["lite::FC", "Relu"])).propose()
        self.parts = split(model, partitions)
        self.outputs = [v.name for v in model.graph.outputs]
        self._run = [_kernels(p.proto) if p.supported else _onnxruntime(p.proto) for p in self.parts]

    def run(self, feeds):
        known = dict(feeds)
        for part, run in zip(self.parts, self._run):
            known.update(zip(part.outputs, run({name: known[name] for name in part.inputs})))
        return [known[name] for name in self.outputs]


def _kernels(proto):
    evaluator = ReferenceEvaluator(proto, new_ops=[FC])
    return lambda feeds: evaluator.run(None, feeds)


def _onnxruntime(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def largest_difference(original, fused, seed=0):
    """Between a model in onnxruntime and what became of it here, of the range of each output."""
    random = np.random.default_rng(seed)
    inputs = [v for v in load(original).graph.inputs if not v.constant]
    sizes = {v.name: [d if isinstance(d, int) else 3 for d in shape(v)] for v in inputs}
    feeds = {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    pairs = zip(_onnxruntime(str(original))(feeds), Backend(fused).run(feeds), strict=True)
    return max(float(np.abs(a - b).max() / (np.ptp(a) or 1)) for a, b in pairs)


if __name__ == "__main__":
    for part in Backend(sys.argv[2]).parts:
        print(part.name, "backend" if part.supported else "onnxruntime", *(node.op for node in part.nodes))
    print(f"largest difference: {largest_difference(*sys.argv[1:]):.1e} of the range")
