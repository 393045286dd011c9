"""onnxopt: optimize ONNX models, prove that nothing broke, and say what was done.

import onnxopt
result = onnxopt.optimize("model.onnx")
onnxopt.optimize_file("model.onnx", "model.opt.onnx")  # verified against the original
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onnxopt.analysis.types import dtype, shape
    from onnxopt.api import (
        OptimizeOptions,
        Report,
        Result,
        load,
        optimize,
        optimize_file,
        optimize_model,
        save,
        stats,
        verify,
    )
    from onnxopt.errors import OnnxOptError
    from onnxopt.extraction import Extraction, extract, extract_file
    from onnxopt.graph import declare_domain
    from onnxopt.pipeline import (
        CapabilityPartitioner,
        CheckEach,
        DebugPass,
        DumpModels,
        Fixpoint,
        GraphInterpreter,
        GraphPass,
        Journal,
        ModelPass,
        OperatorSupport,
        PassContext,
        PassInfo,
        PrintIR,
        RewritePass,
        Sequential,
        StmtPass,
        Timing,
        VerifyEach,
        any_chain,
        chain,
        create_pattern_support,
        generate_pattern_op_partitions,
        get_pass,
        graph_pass,
        model_pass,
        option,
        parse_pipeline,
        pattern_partitions,
        register,
    )
    from onnxopt.rewriting import SubgraphMatcher, about, const, either, one_of, op, replace_pattern, rewrite, var

__version__ = "0.1.0"

# Where each name comes from; imported on first use, so that `onnxopt --help` does not pay for onnx. Passes are
# registered before anything of the framework is handed out.
_HOMES: Final = {
    "onnxopt.errors": ("OnnxOptError",),
    "onnxopt.api": (
        "OptimizeOptions",
        "Report",
        "Result",
        "load",
        "optimize",
        "optimize_file",
        "optimize_model",
        "save",
        "stats",
        "verify",
    ),
    "onnxopt.extraction": ("Extraction", "extract", "extract_file"),
    "onnxopt.analysis.types": ("dtype", "shape"),
    "onnxopt.graph": ("declare_domain",),
    "onnxopt.pipeline": (
        "CapabilityPartitioner",
        "CheckEach",
        "DebugPass",
        "DumpModels",
        "Fixpoint",
        "GraphInterpreter",
        "GraphPass",
        "Journal",
        "ModelPass",
        "OperatorSupport",
        "PassContext",
        "PassInfo",
        "PrintIR",
        "RewritePass",
        "Sequential",
        "StmtPass",
        "Timing",
        "VerifyEach",
        "any_chain",
        "chain",
        "create_pattern_support",
        "generate_pattern_op_partitions",
        "get_pass",
        "graph_pass",
        "model_pass",
        "option",
        "parse_pipeline",
        "pattern_partitions",
        "register",
    ),
    "onnxopt.rewriting": (
        "SubgraphMatcher",
        "about",
        "const",
        "either",
        "one_of",
        "op",
        "replace_pattern",
        "rewrite",
        "var",
    ),
}

__all__ = [
    "CapabilityPartitioner",
    "CheckEach",
    "DebugPass",
    "DumpModels",
    "Extraction",
    "Fixpoint",
    "GraphInterpreter",
    "GraphPass",
    "Journal",
    "ModelPass",
    "OnnxOptError",
    "OperatorSupport",
    "OptimizeOptions",
    "PassContext",
    "PassInfo",
    "PrintIR",
    "Report",
    "Result",
    "RewritePass",
    "Sequential",
    "StmtPass",
    "SubgraphMatcher",
    "Timing",
    "VerifyEach",
    "__version__",
    "about",
    "any_chain",
    "chain",
    "const",
    "create_pattern_support",
    "declare_domain",
    "dtype",
    "either",
    "extract",
    "extract_file",
    "generate_pattern_op_partitions",
    "get_pass",
    "graph_pass",
    "load",
    "model_pass",
    "one_of",
    "op",
    "optimize",
    "optimize_file",
    "optimize_model",
    "option",
    "parse_pipeline",
    "pattern_partitions",
    "register",
    "replace_pattern",
    "rewrite",
    "save",
    "shape",
    "stats",
    "var",
    "verify",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            if home == "onnxopt.pipeline":
                import_module("onnxopt.passes")
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'onnxopt' has no attribute {name!r}")
