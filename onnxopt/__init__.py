"""onnxopt: optimize ONNX models, prove that nothing broke, and say what was done.

import onnxopt
result = onnxopt.optimize("model.onnx")  # or a ModelProto; verified against the original: result.model, result.report
onnxopt.optimize("model.onnx", "model.opt.onnx")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from onnxopt.startup import listing

if TYPE_CHECKING:
    from onnxopt.analysis.types import dtype, shape
    from onnxopt.api import (
        Finding,
        Found,
        OptimizeOptions,
        Page,
        Report,
        Result,
        Verification,
        VerifyOptions,
        bisect,
        diff,
        find,
        load,
        optimize,
        optimize_file,
        optimize_model,
        report,
        save,
        stats,
        verify,
    )
    from onnxopt.conversion.extraction import Extraction, extract, extract_file
    from onnxopt.errors import (
        DomainError,
        EmissionError,
        InstrumentError,
        InvariantError,
        MistypedError,
        ModelError,
        NoFixpointError,
        OnnxOptError,
        PassError,
        PreconditionError,
        UsageError,
        VerificationError,
        WriteError,
    )
    from onnxopt.graph import Graph, Model, Node, Value, declare_domain, read_model, write_model
    from onnxopt.pipeline import (
        CapabilityPartitioner,
        CheckEach,
        ConfigKey,
        DebugPass,
        DumpModels,
        Fixpoint,
        GraphInterpreter,
        GraphPass,
        Instrument,
        Journal,
        ModelPass,
        OperatorSupport,
        Partition,
        Pass,
        PassContext,
        PassInfo,
        PassManager,
        PassReport,
        PipelineReport,
        PrintIR,
        RewritePass,
        RuleReport,
        Sequential,
        StmtPass,
        Timing,
        VerifyEach,
        all_passes,
        all_targets,
        any_chain,
        chain,
        config_keys,
        create_pattern_support,
        declare_config,
        fuse_partition,
        generate_pattern_op_partitions,
        get_pass,
        graph_pass,
        load_module,
        model_pass,
        option,
        parse_pipeline,
        pattern_partitions,
        register,
    )
    from onnxopt.pipeline.outlining import Part, split
    from onnxopt.rewriting import (
        Match,
        Replaced,
        SubgraphMatch,
        SubgraphMatcher,
        about,
        const,
        either,
        one_of,
        op,
        replace_pattern,
        rewrite,
        var,
    )
    from onnxopt.verification.runtime import declare_reference

__version__ = "0.1.0"

# Where each name comes from; imported on first use, so that `onnxopt --help` does not pay for onnx. Passes are
# registered before anything of the framework is handed out.
_HOMES: Final = {
    "onnxopt.analysis.types": "dtype shape",
    "onnxopt.api": (
        "Finding Found OptimizeOptions Page Report Result Verification VerifyOptions bisect diff find load optimize "
        "optimize_file optimize_model report save stats verify"
    ),
    "onnxopt.errors": (
        "DomainError EmissionError InstrumentError InvariantError MistypedError ModelError NoFixpointError "
        "OnnxOptError PassError PreconditionError UsageError VerificationError WriteError"
    ),
    "onnxopt.conversion.extraction": "Extraction extract extract_file",
    "onnxopt.graph": "Graph Model Node Value declare_domain read_model write_model",
    "onnxopt.pipeline": (
        "CapabilityPartitioner CheckEach ConfigKey DebugPass DumpModels Fixpoint GraphInterpreter GraphPass "
        "Instrument Journal ModelPass OperatorSupport Partition Pass PassContext PassInfo PassManager PassReport "
        "PipelineReport PrintIR RewritePass RuleReport Sequential StmtPass Timing VerifyEach all_passes all_targets "
        "any_chain chain config_keys create_pattern_support declare_config fuse_partition "
        "generate_pattern_op_partitions get_pass graph_pass load_module model_pass option parse_pipeline "
        "pattern_partitions register"
    ),
    "onnxopt.pipeline.outlining": "Part split",
    "onnxopt.verification.runtime": "declare_reference",
    "onnxopt.rewriting": (
        "Match Replaced SubgraphMatch SubgraphMatcher about const either one_of op replace_pattern rewrite var"
    ),
}

__all__ = [
    "CapabilityPartitioner",
    "CheckEach",
    "ConfigKey",
    "DebugPass",
    "DomainError",
    "DumpModels",
    "EmissionError",
    "Extraction",
    "Finding",
    "Fixpoint",
    "Found",
    "Graph",
    "GraphInterpreter",
    "GraphPass",
    "Instrument",
    "InstrumentError",
    "InvariantError",
    "Journal",
    "Match",
    "MistypedError",
    "Model",
    "ModelError",
    "ModelPass",
    "NoFixpointError",
    "Node",
    "OnnxOptError",
    "OperatorSupport",
    "OptimizeOptions",
    "Page",
    "Part",
    "Partition",
    "Pass",
    "PassContext",
    "PassError",
    "PassInfo",
    "PassManager",
    "PassReport",
    "PipelineReport",
    "PreconditionError",
    "PrintIR",
    "Replaced",
    "Report",
    "Result",
    "RewritePass",
    "RuleReport",
    "Sequential",
    "StmtPass",
    "SubgraphMatch",
    "SubgraphMatcher",
    "Timing",
    "UsageError",
    "Value",
    "Verification",
    "VerificationError",
    "VerifyEach",
    "VerifyOptions",
    "WriteError",
    "__version__",
    "about",
    "all_passes",
    "all_targets",
    "any_chain",
    "bisect",
    "chain",
    "config_keys",
    "const",
    "create_pattern_support",
    "declare_config",
    "declare_domain",
    "declare_reference",
    "diff",
    "dtype",
    "either",
    "extract",
    "extract_file",
    "find",
    "fuse_partition",
    "generate_pattern_op_partitions",
    "get_pass",
    "graph_pass",
    "load",
    "load_module",
    "model_pass",
    "one_of",
    "op",
    "optimize",
    "optimize_file",
    "optimize_model",
    "option",
    "parse_pipeline",
    "pattern_partitions",
    "read_model",
    "register",
    "replace_pattern",
    "report",
    "rewrite",
    "save",
    "shape",
    "split",
    "stats",
    "var",
    "verify",
    "write_model",
]


__dir__ = listing(__name__)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            if home.startswith("onnxopt.pipeline"):
                import_module("onnxopt.passes")
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'onnxopt' has no attribute {name!r}")
